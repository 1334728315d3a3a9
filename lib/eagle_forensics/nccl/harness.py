"""Measure all-reduces at decode sizes on this host: a fresh process group for each launch, its environment and nothing else's.

NCCL reads its variables once per process and some at the communicator's start, so a configuration is a launch. What the engine
sets by itself (SGLang: NCCL_CUMEM_ENABLE=0 and more) belongs into `env`: without it another system is measured. Ranks end with
this process, however it ends. Several hosts: `torchrun_line`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle_forensics.evidence.nccl.records import NcclLog
from eagle_forensics.nccl.ranking import LaunchFailed

LOG_SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING"
PERCENTILES = (5, 20, 50, 95, 99)
OVERHEAD_S = 60
"""Seconds for the start of the ranks, beside the collectives' own limit."""


@dataclass(frozen=True)
class Task:
    """What one launch measures."""

    sizes: tuple[int, ...]
    """Bytes."""
    dtype: str = "bfloat16"
    ranks: int = 2
    backend: str = "auto"
    """`auto`: nccl where this host has a GPU a rank, else gloo on CPU."""
    chain: int = 0
    """All-reduces of a verify forward; 0: single ones only."""
    samples: int = 20
    chain_samples: int = 1
    rounds: int = 5
    warmup: int = 20
    timeout_s: float = 60


@dataclass(frozen=True)
class Measured:
    """What one launch gave. Microseconds, slowest rank each."""

    env: Mapping[str, str]
    backend: str
    ranks: int
    device: str
    torch: str
    nccl: str | None
    wrong: Mapping[int, int]
    alone: Mapping[int, tuple[float, ...]]
    chain: Mapping[int, tuple[float, ...]]
    """Per all-reduce inside a chain; empty without one."""
    per_chain: int
    seconds: float
    log: NcclLog | None = field(default=None, compare=False)

    def samples(self, size: int) -> tuple[float, ...]:
        """The chain's where there is one: that is what a verify pays."""
        return self.chain.get(size) or self.alone[size]

    def summary(self, size: int) -> dict[str, float]:
        """`statistics` of `samples`."""
        return statistics(self.samples(size))

    def record(self) -> dict[str, Any]:
        """Everything but the log, for the run's evidence."""
        return {"env": dict(self.env), "backend": self.backend, "ranks": self.ranks, "device": self.device, "torch": self.torch, "nccl": self.nccl,
                "wrong": {str(k): v for k, v in self.wrong.items()}, "alone_us": {str(k): list(v) for k, v in self.alone.items()},
                "chain_us": {str(k): list(v) for k, v in self.chain.items()}, "per_chain": self.per_chain, "seconds": self.seconds}


def statistics(samples_us: Sequence[float]) -> dict[str, float]:
    """n, least, percentiles and median absolute deviation, us."""
    values = np.asarray(samples_us)
    middle = float(np.median(values))
    return {"n": len(values), "min": float(values.min()), **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES},
            "mad": float(np.median(np.abs(values - middle)))}


def backend_here(ranks: int) -> str:
    """`nccl` where this host has a GPU a rank, else `gloo`. Looks for device files; torch is not imported."""
    return "nccl" if sum(1 for _ in Path("/dev").glob("nvidia[0-9]*")) >= ranks else "gloo"


def launch(task: Task, env: Mapping[str, str] | None = None) -> Measured:
    """Run one fresh group of ranks with `env` on top of this environment, minus its NCCL settings. About 3 s on CPU.

    Raises LaunchFailed with the ranks' last words if one fails, hangs past its limit or computes a wrong sum.
    """
    env, backend = dict(env or {}), task.backend if task.backend != "auto" else backend_here(task.ranks)
    with tempfile.TemporaryDirectory(prefix="ef-nccl-") as folder, contextlib.ExitStack() as stack:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
        base = {"OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else
                {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": LOG_SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log"})}
        command = [sys.executable, "-m", "eagle_forensics.nccl.worker", "--follow-parent", "--store", f"{folder}/store", "--out", f"{folder}/result.json",
                   *_options(task, backend)]
        ranks = []
        for rank in range(task.ranks):
            words = stack.enter_context(Path(f"{folder}/rank{rank}.log").open("wb"))
            ranks.append(stack.enter_context(_ended(subprocess.Popen(
                command, env={**base, **inherited, **env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(task.ranks)},
                stdin=subprocess.PIPE, stdout=words, stderr=words, start_new_session=True))))
        _wait(ranks, Path(folder), OVERHEAD_S + task.timeout_s)
        return _read(Path(folder), env)


def torchrun_line(task: Task, env: Mapping[str, str], nodes: int = 1, host: str = "FIRST_HOST") -> str:
    """The shell line that measures the same on `nodes` hosts, to be run on each of them; result in all_reduce.json on the first."""
    several = f"--nnodes {nodes} --node-rank $NODE_RANK --rdzv-backend c10d --rdzv-endpoint {host}:29500 " if nodes > 1 else ""
    settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in env.items())
    return (f"{settings + ' ' if settings else ''}torchrun {several}--nproc-per-node {task.ranks // nodes} -m eagle_forensics.nccl.worker "
            f"{shlex.join(_options(task, 'nccl'))} --out all_reduce.json")


def _options(task: Task, backend: str) -> list[str]:
    return ["--backend", backend, "--sizes", ",".join(map(str, task.sizes)), "--dtype", task.dtype, "--chain", str(task.chain), "--samples", str(task.samples),
            "--chain-samples", str(task.chain_samples), "--rounds", str(task.rounds), "--warmup", str(task.warmup), "--timeout", str(task.timeout_s)]


@contextlib.contextmanager
def _ended(process: subprocess.Popen) -> Any:
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdin:
            process.stdin.close()
        process.wait()


def _wait(ranks: Sequence[subprocess.Popen], folder: Path, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(r.poll() is None for r in ranks):
        failed = [i for i, r in enumerate(ranks) if r.poll() not in (None, 0)]
        if failed:
            raise LaunchFailed(f"rank {failed[0]} ended with {ranks[failed[0]].returncode}: {_last_words(folder, failed[0])}")
        if time.monotonic() > deadline:
            raise LaunchFailed(f"not finished after {limit_s:.0f} s: {_last_words(folder, 0) or 'no output'}; a first all-reduce that hangs points at "
                               "peer-to-peer redirected by ACS or an IOMMU, NCCL_P2P_DISABLE=1 tells")
        time.sleep(0.02)
    failed = [i for i, r in enumerate(ranks) if r.returncode]
    if failed:
        raise LaunchFailed(f"rank {failed[0]} ended with {ranks[failed[0]].returncode}: {_last_words(folder, failed[0])}")


def _last_words(folder: Path, rank: int) -> str:
    lines = [x.strip() for x in (folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace").split("\n") if x.strip()]
    return next((x for x in reversed(lines) if "Error" in x), lines[-1] if lines else "")[:300]


def _read(folder: Path, env: Mapping[str, str]) -> Measured:
    from eagle_forensics.evidence.nccl.logs import read_nccl_log

    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    wrong = {int(k): v for k, v in found["wrong"].items()}
    if any(wrong.values()):
        raise LaunchFailed(f"wrong sums: {', '.join(f'{v} values at {k} bytes' for k, v in wrong.items() if v)}; its times do not count")
    alone, chain = ({int(k): tuple(v) for k, v in found[key].items()} for key in ("alone", "chain"))
    logs = sorted(folder.glob("nccl.*.log"), key=lambda p: -p.stat().st_size)
    return Measured(env, found["backend"], found["ranks"], found["device"], found["torch"], found["nccl"], wrong, alone, chain, found["per_chain"],
                    found["seconds"], read_nccl_log(logs[0]) if logs else None)

