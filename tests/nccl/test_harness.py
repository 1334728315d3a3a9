"""Real groups of two gloo ranks on this machine: measured, checked, ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle_forensics.nccl.harness import Task, backend_here, launch, torchrun_line
from eagle_forensics.nccl.ranking import LaunchFailed

SMALL = Task(sizes=(4096, 65536, 1048576), ranks=2, backend="gloo", chain=7, samples=9, chain_samples=2, rounds=3, warmup=2, timeout_s=30)


def workers(mark):
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"eagle_forensics.nccl.worker" in line and mark in line:
                found.append(int(process.name))
    return found


def test_two_ranks_measure_single_all_reduces_and_a_chain():
    found = launch(SMALL, {"NCCL_PROTO": "LL"})
    assert (found.backend, found.ranks, found.device, found.per_chain) == ("gloo", 2, "cpu", 7)
    assert set(found.wrong.values()) == {0} and {len(v) for v in found.alone.values()} == {9} and {len(v) for v in found.chain.values()} == {6}
    assert min(v for values in found.alone.values() for v in values) > 0
    assert found.summary(1048576)["p50"] > found.summary(4096)["min"] and found.samples(4096) == found.chain[4096]
    assert found.record()["env"] == {"NCCL_PROTO": "LL"} and found.log is None


def test_a_rank_that_fails_is_named_and_nothing_stays():
    with pytest.raises(LaunchFailed, match=r"rank \d ended with .*Error"):
        launch(Task(sizes=(4096,), backend="gloo", dtype="float32", timeout_s=20), {"GLOO_SOCKET_IFNAME": "no-such-device"})
    assert not workers(b"4096")


def test_ranks_end_with_a_parent_that_is_killed(tmp_path):
    size = 4 * 97003
    code = (f"from eagle_forensics.nccl.harness import *\nlaunch(Task(sizes=({size},), backend='gloo', samples=10**7, rounds=1, dtype='float32', timeout_s=600))")
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    mark = str(size).encode()
    deadline = time.monotonic() + 60
    while len(workers(mark)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers(mark)) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while workers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers(mark)


def test_gloo_is_the_default_without_gpus():
    assert backend_here(10**6) == "gloo"


def test_the_line_for_several_hosts():
    line = torchrun_line(Task((14336, 43008), ranks=16, chain=123), {"NCCL_PROTO": "allreduce:LL,Simple"}, nodes=2)
    assert line.startswith("NCCL_PROTO=allreduce:LL,Simple torchrun --nnodes 2") and "--nproc-per-node 8" in line
    assert "--sizes 14336,43008" in line and "--backend nccl" in line and "--chain 123" in line
