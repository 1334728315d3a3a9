"""What carried the all-reduces of a trace, what they cost, and what was waiting for the slowest rank.

A kernel's duration holds the wait for the slowest rank, so the cost of a call is its least over the ranks and the rest is skew.
With one rank the 10th percentile stands for the cost, and the rest is skew or cost, unknown. The name of a kernel does not
carry the protocol (from 2.19 on NCCL builds `..._RING_LL` kernels for Simple and NVLS as well), so none is read off it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics.evidence.nccl.records import Call, Trace

ONE_RANK = 10
"""Percentile that stands for the cost where one rank is seen."""


@dataclass(frozen=True)
class Carried:
    """The calls of one operation that one way carried, at one size."""

    path: str
    """`nccl`, `custom`, `gloo`, ...: see `Call.path`."""
    bytes: int | None
    """None where the trace has no metadata (pynccl, CUDA graphs)."""
    calls: int
    ranks: int
    cost_us: float | None
    skew_us: float | None
    """Median over calls of slowest minus fastest rank; None with one rank."""


def carried(traces: Sequence[Trace], op: str = "allreduce") -> tuple[Carried, ...]:
    """The all-reduces of all traces by way and size, most calls first."""
    groups: dict[tuple[str, int | None], list[tuple[int, Call]]] = defaultdict(list)
    for index, trace in enumerate(traces):
        for call in trace.of(op):
            groups[call.path, call.bytes].append((call.rank if call.rank is not None else trace.rank if trace.rank is not None else index, call))
    found = [_carried(path, size, calls) for (path, size), calls in groups.items()]
    return tuple(sorted(found, key=lambda c: -c.calls))


def ways(traces: Sequence[Trace]) -> dict[str, int]:
    """How many all-reduces each way carried."""
    counts: Counter[str] = Counter()
    for c in carried(traces):
        counts[c.path] += c.calls
    return dict(counts)


def _carried(path: str, size: int | None, calls: Sequence[tuple[int, Call]]) -> Carried:
    ranks = {rank for rank, _ in calls}
    number = sum(c.count for _, c in calls)
    timed = [(rank, c) for rank, c in calls if c.time_us is not None]
    by_seq: dict[int, list[float]] = defaultdict(list)
    for _, c in timed:
        if c.seq is not None:
            by_seq[c.seq].append(float(c.time_us or 0))
    complete = [v for v in by_seq.values() if len(v) == len(ranks)] if len(ranks) > 1 else []
    if complete:
        return Carried(path, size, number, len(ranks), float(np.median([min(v) for v in complete])), float(np.median([max(v) - min(v) for v in complete])))
    times = [c.time_us for _, c in timed]
    return Carried(path, size, number, len(ranks), float(np.percentile(times, ONE_RANK)) if times else None, None)
