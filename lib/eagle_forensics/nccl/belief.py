"""What did NCCL choose at decode size, what does its cost model say it should, and what was measured?

One row a message size. A failed graph search is told by its chain: no path found, so bandwidth 0.1 GB/s and one channel, so
the bandwidth term swamps every latency, so Simple, which of all protocols moves the most bytes a second, wins at 14 KB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics.evidence.nccl.records import NcclLog, NcclTests, Pattern, Pick
from eagle_forensics.nccl.tuning import (
    Choice,
    Cost,
    Graph,
    System,
    UnsupportedRelease,
    choose,
    costs,
)

RING, NVLS, TREES = 4, 5, (1, 2, 3)
"""Numbers of NCCL's graph patterns (graph.h)."""


@dataclass(frozen=True)
class Row:
    """One message size."""

    bytes: int
    tokens: int | None
    logged: Pick | None
    """Choice in the log at exactly this size; None without one, or where communicators choose differently."""
    model: Choice | None
    measured: Mapping[str, float]
    """Label of a measurement to its time, us."""

    @property
    def agrees(self) -> bool | None:
        """Whether log and model name the same way; None where one is missing."""
        if self.logged is None or self.model is None:
            return None
        return (self.logged.algorithm, self.logged.protocol) == (self.model.algorithm, self.model.protocol)


@dataclass(frozen=True)
class Belief:
    """NCCL's view of this machine."""

    system: System | None
    release: str | None
    rows: tuple[Row, ...]
    table: Mapping[tuple[str, str], Cost]
    """Latency and bandwidth of every enabled way; empty without a model."""
    unknown: str | None
    """Why there is no model."""
    fallback: bool
    """The graph search failed: the model's choice holds, its times mean nothing."""
    deviations: tuple[str, ...]
    """Where the log's own TUNING table differs from the model: then the model is not this NCCL's."""


def believe(log: NcclLog | None, sizes: Mapping[int, int | None], *, capability: str | None = None, release: str | None = None,
            tests: Sequence[NcclTests] = (), env: Mapping[str, str] | None = None, ranks: int | None = None) -> Belief:
    """Model, log and measurement side by side. `sizes`: bytes to verify tokens (None: other); `capability`: `12.0`; `ranks`: that exchange
    hidden states, where known: the graphs of another group say nothing of theirs."""
    release = (log.version if log else None) or release
    settings = {**(env or {}), **(log.environment if log else {})}
    system, unknown = _system(log, capability)
    if system is not None and ranks is not None and system.ranks != ranks:
        system, unknown = None, f"the log's largest communicator has {system.ranks} ranks, tensor parallelism {ranks}"
    fallback = bool(log and (log.lost_patterns or any(p.is_fallback for p in log.patterns)))
    table: Mapping[tuple[str, str], Cost] = {}
    if system is not None and release is None:
        system, unknown = None, "the log does not say which NCCL wrote it"
    if system is not None and release is not None:
        try:
            table = costs(system, release, settings)
        except (UnsupportedRelease, ValueError) as error:
            system, unknown = None, str(error)
    rows = []
    for size, tokens in sorted(sizes.items()):
        at = [p for p in (log.picks_at(size) if log else ()) if p.bytes == size]
        logged = at[0] if len({(p.algorithm, p.protocol) for p in at}) == 1 else None
        model = choose(system, release, size, settings) if system is not None and release is not None and table else None
        rows.append(Row(size, tokens, logged, model, {t.path.name: at.time_us for t in tests if not t.failed and (at := t.at(size)) and at.time_us}))
    return Belief(system, release, tuple(rows), table, unknown, fallback, _deviations(log, table) if log else ())


def chain(belief: Belief, log: NcclLog) -> list[str]:
    """The steps from a failed graph search to its choice at decode size, as the log shows them; empty for a healthy search."""
    if not belief.fallback:
        return []
    failed = [p for p in log.patterns if p.is_fallback]
    steps = ["NCCL's graph search found no path" + (f" for pattern {', '.join(map(str, log.lost_patterns))}" if log.lost_patterns else "")
             + ": the machine's links are not in its table (on dual-socket AMD hosts the processor link counts 16 GB/s, below the least speed tried, 18)"]
    if failed:
        steps.append(f"it falls back to the simple order: {failed[0].bandwidth:g} GB/s, {failed[0].link}, {failed[0].channels} channel(s)")
    shared = sum(n for kind, n in log.transports.items() if kind.startswith("SHM"))
    if shared:
        steps.append(f"{shared} of {sum(log.transports.values())} connections go through shared memory instead of peer-to-peer")
    first = next((r for r in belief.rows if r.model), None)
    if first and first.model:
        low = first.model.others.get(("RING", "LL"))
        steps.append(f"at {first.bytes:,} bytes the model counts {first.model.time_us:,.0f} us for {first.model.algorithm}/{first.model.protocol}"
                     + (f" and {low:,.0f} us for RING/LL" if low else "") + ": at 0.1 GB/s the bytes decide and the latency no longer counts")
    picks = sorted({f"{r.logged.algorithm}/{r.logged.protocol}" for r in belief.rows if r.logged})
    if picks:
        steps.append(f"so the log shows {', '.join(picks)} at decode sizes")
    return steps


def _system(log: NcclLog | None, capability: str | None) -> tuple[System | None, str | None]:
    if log is None:
        return None, "no NCCL log: the model needs the graphs that NCCL found"
    by: dict[int, Pattern] = {}
    for p in log.patterns:
        if p.channels and by.setdefault(p.pattern, p) != p and p.pattern in (RING, *TREES):
            return None, f"the log shows several graphs of pattern {p.pattern}: of communicators or ranks that differ"
    tree = next((by[n] for n in TREES if n in by), None)
    if RING not in by or tree is None:
        return None, "the log shows no ring and tree graph (NCCL_DEBUG_SUBSYS without GRAPH)"
    if not log.ranks or log.ranks < 2:
        return None, "the log does not say how many ranks there are"
    if capability is None:
        return None, "the GPU's compute capability is not known (serving.hardware.compute_capability)"
    major, _, minor = capability.partition(".")
    if not (major.isdigit() and (minor or "0").isdigit()):
        return None, f"compute capability {capability!r} is not of the form 12.0"
    nodes = log.nodes or 1
    if log.ranks % nodes:
        return None, f"{log.ranks} ranks on {nodes} nodes: not the same number on each"
    least = min(by[RING].channels, tree.channels)
    graphs = [_graph(p, least) for p in (by[RING], tree)]
    return System(log.ranks, int(major) * 10 + int(minor or 0), graphs[0], graphs[1], _graph(by[NVLS], by[NVLS].channels) if NVLS in by else None, nodes), None


def _graph(p: Pattern, channels: int) -> Graph:
    return Graph(channels, p.bandwidth, p.link, p.between, p.link_between, p.pattern)


def _deviations(log: NcclLog, table: Mapping[tuple[str, str], Cost]) -> tuple[str, ...]:
    found = []
    for b in log.beliefs:
        mine = table.get((b.algorithm, b.protocol))
        if b.collective != "AllReduce" or mine is None or (b.latency_us == 0 and b.bandwidth == 0):
            continue
        if not (np.isclose(b.latency_us, mine.latency_us, atol=0.11) and np.isclose(b.bandwidth, mine.bandwidth, atol=0.11, rtol=0.01)):
            found.append(f"{b.algorithm}/{b.protocol}: log {b.latency_us:g} us and {b.bandwidth:g} GB/s, model {mine.latency_us:.1f} us and {mine.bandwidth:.1f} GB/s")
    return tuple(found)
