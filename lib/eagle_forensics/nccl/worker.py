"""One rank of a measurement: all-reduces of given sizes, timed alone and as the chain of one verify forward.

    torchrun --nproc-per-node 8 -m eagle_forensics.nccl.worker --sizes 14336,43008 --chain 123 --out run.json
    torchrun --nnodes 2 --node-rank 0 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nproc-per-node 8 -m ...

Rank, world size and rendezvous come from the environment (torchrun) or from --store (started by `harness`). The sum of
integers is checked before anything is timed. Alone: a barrier before each sample, slowest rank each. Chain: `--chain`
all-reduces one after the other, on CUDA replayed from one graph, time over their number: this is what a verify pays.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCHEMA = 1


def main(argv: list[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    if options.follow_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    backend = options.backend if options.backend != "auto" else "nccl" if torch.cuda.is_available() else "gloo"
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % max(torch.cuda.device_count(), 1))
        torch.cuda.set_device(device)
    store = {"init_method": f"file://{options.store}"} if options.store else {}
    began = time.time()
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=timedelta(seconds=options.timeout), **store)
    try:
        result = measure(options, device)
        if rank == 0:
            result |= {"schema": SCHEMA, "backend": backend, "ranks": world, "dtype": options.dtype, "torch": torch.__version__,
                       "nccl": ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else None,
                       "device": torch.cuda.get_device_name(device) if backend == "nccl" else "cpu", "seconds": time.time() - began}
            unfinished = Path(f"{options.out}.part")
            unfinished.write_text(json.dumps(result))
            unfinished.replace(options.out)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Wrong values and samples by size, us: `{"wrong": {size: n}, "alone": {size: [us]}, "chain": {size: [us]}}`."""
    import torch
    import torch.distributed as dist

    dtype = getattr(torch, options.dtype)
    buffers = {size: torch.zeros(size // dtype.itemsize, dtype=dtype, device=device) for size in options.sizes}
    wrong = {}
    for size, data in buffers.items():
        wrong[size] = _wrong(data)
        for _ in range(options.warmup):
            dist.all_reduce(data)
        _wait(device)
    alone: dict[int, list[float]] = {size: [] for size in buffers}
    chains: dict[int, list[float]] = {size: [] for size in buffers} if options.chain else {}
    replays = {size: _chain(data, options.chain, device) for size, data in buffers.items()} if options.chain else {}
    for _ in range(options.rounds):
        for size, data in buffers.items():
            for _ in range(-(-options.samples // options.rounds)):
                alone[size].append(_timed(lambda data=data: dist.all_reduce(data), device))
            for _ in range(options.chain_samples if options.chain else 0):
                chains[size].append(_timed(replays[size], device) / options.chain)
    return {"wrong": wrong, "alone": _slowest(alone, device), "chain": _slowest(chains, device), "per_chain": options.chain}


def _wrong(data: torch.Tensor) -> int:
    """How many elements of a sum of small whole numbers, exact in any dtype, come out wrong."""
    import torch
    import torch.distributed as dist

    pattern = torch.arange(data.numel(), device=data.device) % 4
    data.copy_(pattern + dist.get_rank() % 4)
    dist.all_reduce(data)
    shift = sum(r % 4 for r in range(dist.get_world_size()))
    wrong = (data != (pattern * dist.get_world_size() + shift).to(data.dtype)).sum()
    data.zero_()
    total = wrong.to(torch.float32).reshape(1)
    dist.all_reduce(total)
    return int(total.item())


def _chain(data: torch.Tensor, length: int, device: torch.device) -> Any:
    import torch
    import torch.distributed as dist

    def run() -> None:
        for _ in range(length):
            dist.all_reduce(data)

    if device.type != "cuda":
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    return graph.replay


def _timed(action: Any, device: torch.device) -> float:
    import torch
    import torch.distributed as dist

    dist.barrier()
    if device.type != "cuda":
        began = time.perf_counter_ns()
        action()
        return (time.perf_counter_ns() - began) / 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    action()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e3


def _slowest(samples: dict[int, list[float]], device: torch.device) -> dict[int, list[float]]:
    import torch
    import torch.distributed as dist

    for size, values in samples.items():
        table = torch.tensor(values, dtype=torch.float32, device=device)
        if len(values):
            dist.all_reduce(table, dist.ReduceOp.MAX)
        samples[size] = [round(v, 3) for v in table.tolist()]
    return samples


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _end_with_parent() -> None:
    """The parent holds the other end of stdin: when it dies, however it dies, this process ends too."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eagle_forensics.nccl.worker", description="All-reduces at decode sizes; one rank of a group.")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], required=True, help="bytes of the messages, comma separated")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--chain", type=int, default=0, help="all-reduces of one forward; 0: time single ones alone")
    parser.add_argument("--samples", type=int, default=20, help="samples a size, alone")
    parser.add_argument("--chain-samples", type=int, default=1, help="samples a size and round, chain")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over the sizes")
    parser.add_argument("--warmup", type=int, default=20, help="untimed all-reduces a size: NCCL connects lazily")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a collective may take")
    parser.add_argument("--store", help="file of the rendezvous, instead of torchrun's")
    parser.add_argument("--out", required=True, help="JSON to write, by rank 0")
    parser.add_argument("--follow-parent", action="store_true", help="end when stdin closes")
    return parser


if __name__ == "__main__":
    main()
