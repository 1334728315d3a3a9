"""What the interconnect left behind: logs, nccl-tests output, traces, topology, configuration."""
