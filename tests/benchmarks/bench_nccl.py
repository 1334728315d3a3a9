"""Readers of interconnect evidence: MB of text a second on one core, also as a share of merely iterating the file's lines, and the audit's start.

Texts are made from the fixtures: a log of 8 ranks (choices, channels, calls, foreign lines) and a profiler trace with call stacks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eagle_forensics.evidence.decode_log import read_decode_log
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.traces import read_trace
from tests.benchmarks import memory

FIXTURES = Path(__file__).resolve().parents[1] / "nccl" / "fixtures"
BYTES = 64_000_000


def figures() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        log, trace, table, server = (Path(folder) / name for name in ("n.log", "t.json", "t.txt", "s.log"))
        _log(log)
        _trace(trace)
        _table(table, log)
        _server(server)
        memory.forget_peak()
        before = memory.resident_bytes()
        speed = {"nccl.parse_mb_per_s": _speed(read_nccl_log, log), "nccl.trace_mb_per_s": _speed(read_trace, trace), "nccl.tests_mb_per_s": _speed(read_nccl_tests, table),
                 "nccl.decode_log_mb_per_s": _speed(read_decode_log, server)}
        grown = (memory.peak_bytes() - before) / 2**20
        lines = _speed(_iterate, log)
        return {**speed, "nccl.parse_vs_lines": speed["nccl.parse_mb_per_s"] / lines, "nccl.trace_vs_lines": speed["nccl.trace_mb_per_s"] / _speed(_iterate, trace),
                "nccl.parse_grown_mib": grown, "nccl.audit_s": _audit()}


def _speed(read: Callable[[Path], object], file: Path) -> float:
    """Best of three, MB for each second of processor time."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        read(file)
        best = min(best, time.process_time() - began)
    return file.stat().st_size / 1e6 / best


def _iterate(file: Path) -> int:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return sum(1 for _ in lines)


def _audit() -> float:
    """Least of seven wall seconds of an interpreter that imports the audit and runs it."""
    code = ("from eagle_forensics.nccl.live import examine, gather; from eagle_forensics.nccl.audit import Host; "
            "assert examine(gather({'NCCL_PROTOS': 'LL', 'NCCL_BUFFSIZE': '4M'}), Host(nccl='2.27.5'))")
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def _log(file: Path) -> None:
    head = (FIXTURES / "nccl_debug_2.27_fallback.log").read_text()
    with file.open("w") as out:
        size, i = out.write(head), 0
        while size < BYTES:
            rank, kind = i % 8, i % 4
            message = (f"AllReduce: {14336 * (1 + i % 64)} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{i % 4}}}",
                       f"Channel {i % 32:02d}/0 : {rank}[{rank}] -> {(rank + 1) % 8}[{(rank + 1) % 8}] via P2P/CUMEM",
                       f"AllReduce: opCount {i:x} sendbuff 0x7f{i * 97:010x} recvbuff 0x7f{i * 97:010x} acc (nil) count 21504 datatype 9 op 0 root 0 comm 0x55d0 [nranks=8]")
            size += out.write(f"pcie8:{41000 + rank}:{41033 + rank} [{rank}] NCCL INFO {message[kind]}\n" if kind < 3 else
                              f"[2026-05-05 17:03:{i % 60:02d}] INFO Decode batch, #running-req: 1, #token: {i}, gen throughput (token/s): 54.80\n")
            i += 1


def _trace(file: Path) -> None:
    """Two collectives among 14 kernels, each with its launch, its two flow arrows and a call stack, as torch.profiler writes them."""
    events = json.loads((FIXTURES / "kineto_nccl_rank0.json").read_text())["traceEvents"]
    collective, kernel = events[0], events[1]
    kernel = kernel | {"args": kernel["args"] | {"grid": [188, 1, 1], "block": [256, 1, 1], "shared memory": 0, "registers per thread": 128, "est. achieved occupancy %": 25}}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "args": {"External id": 1, "cbid": 211, "correlation": 500}}
    arrow = {"ph": "s", "id": 500, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"}
    stack = {"ph": "X", "cat": "python_function", "name": "sglang/srt/model_executor/model_runner.py(1701): forward", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0,
             "args": {"Python parent id": 12, "Python id": 13, "Ev Idx": 99}}
    text = ",\n".join(json.dumps(e, indent=2) for e in [collective, *[kernel] * 6, collective, *[kernel] * 6] for e in (launch, arrow, e, arrow, stack))
    with file.open("w") as out:
        out.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}, "traceEvents": [\n' + text)
        for _ in range(BYTES // len(text)):
            out.write(",\n" + text)
        out.write("\n]}\n")


def _table(file: Path, log: Path) -> None:
    """A table with the log of its ranks between its lines, as NCCL_DEBUG=INFO leaves it."""
    head, rows = (FIXTURES / "nccltests_v2.18_ll.txt").read_text().split("       14336", 1)
    with file.open("w") as out, log.open() as lines:
        out.write(head)
        shutil.copyfileobj(lines, out)
        out.write("       14336" + rows)



def _server(file: Path) -> None:
    """A server's log: three answers, two prefills and a decode line in turn."""
    answer = '[2026-05-05 06:16:47] INFO:     127.0.0.1:30111 - "POST /generate HTTP/1.1" 200 OK\n'
    prefill = "[2026-05-05 06:16:47 TP0] Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.01, #running-req: 1, #queue-req: 0, cuda graph: False\n"
    decode = ("[2026-05-05 06:16:47 TP0] Decode batch, #running-req: 1, #token: 420, token usage: 0.01, accept len: 1.80, accept rate: 0.30, cuda graph: True, "
              "gen throughput (token/s): 54.80, #queue-req: 0\n")
    block = answer * 3 + prefill * 2 + decode
    file.write_text(block * (BYTES // len(block)))


if __name__ == "__main__":
    print(figures())
