"""The records of interconnect evidence: what nccl-tests measured, what NCCL logged, what a profiler saw, how GPUs are linked.

Readers hand these over; a record says what a file holds. A field is None where the file does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
"""NCCL's algorithms in the order of its numbers (nccl_tuner.h)."""
PROTOCOLS = ("LL", "LL128", "SIMPLE")
FALLBACK_BANDWIDTH = 0.1
"""GB/s that NCCL's graph search writes when it finds no path (search.cc)."""


@dataclass(frozen=True)
class Timing:
    """One measured half of a row of nccl-tests: one size, in place or out of place."""

    bytes: int
    in_place: bool
    time_us: float | None
    """None where the table says N/A."""
    algbw: float | None = None
    """GB/s as printed; two digits, useless at decode sizes."""
    busbw: float | None = None
    """GB/s as printed."""
    wrong: int | None = None
    """Wrong values; None where the table gives no count (2.12 and older, or not checked)."""
    dtype: str | None = None
    op: str | None = None
    """`sum`, ...; None for a collective without reduction."""
    samples_us: tuple[float, ...] = ()
    """Every iteration, slowest process each; JSON with per-iteration timing only."""
    spread_us: tuple[float, float, float] | None = None
    """Fastest, slowest and 99th percentile of the iterations, where the table has them."""


@dataclass(frozen=True)
class NcclTests:
    """One nccl-tests run."""

    path: Path
    test: str | None
    """`all_reduce_perf`; None in old layouts, which do not say."""
    version: str | None
    """Of nccl-tests."""
    nccl: str | None
    """Of the NCCL library it ran with: `2.28.9`."""
    ranks: int
    """0 where no rank is listed."""
    rows: tuple[Timing, ...]
    failed: bool
    """The footer counts values out of bounds, or a row counts wrong ones."""
    iterations: int | None = None
    graph: bool | None = None
    """Replayed from a CUDA graph (`-G`)."""
    environment: Mapping[str, str] | None = None
    """NCCL's own variables among those that the JSON records; nothing else of it is kept. None for a text table, which records none."""
    notes: tuple[str, ...] = ()
    """What was odd or left out, one sentence each."""

    @property
    def stopped(self) -> bool:
        """The run printed its ranks and the head of its table, and never a row."""
        return not self.rows

    def at(self, size: int, *, in_place: bool = False) -> Timing | None:
        """The row of exactly that size."""
        return next((r for r in self.rows if r.bytes == size and r.in_place == in_place), None)


@dataclass(frozen=True)
class Pattern:
    """One result of NCCL's graph search: 4 ring, 1 balanced tree, 3 tree, 5 NVLS."""

    pattern: int
    channels: int
    bandwidth: float
    """GB/s a channel within the node."""
    between: float
    """GB/s a channel between nodes."""
    link: str
    """Longest hop within the node: `PIX`, `PHB`, `SYS`, `NVL`, ..."""
    link_between: str

    @property
    def is_fallback(self) -> bool:
        """The search found no path. A pattern that the machine does not have (CollNet, NVLS) is printed with 0 channels and 0 GB/s: no failure."""
        return self.channels > 0 and 0 < self.bandwidth <= FALLBACK_BANDWIDTH


@dataclass(frozen=True)
class Pick:
    """What NCCL chose for messages of one size."""

    rank: int | None
    collective: str | None
    """`AllReduce`; None up to 2.22, whose lines do not say."""
    bytes: int
    algorithm: str
    """One of ALGORITHMS."""
    protocol: str
    """One of PROTOCOLS."""
    channels: int | None = None
    """Channels used; logged since 2.24."""
    time_us: float | None = None
    """NCCL's own estimate; logged up to 2.23."""
    count: int = 1
    """Lines that say so."""


@dataclass(frozen=True)
class Belief:
    """NCCL's own figures for one algorithm and protocol, out of its TUNING table."""

    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float
    """GB/s, algorithm bandwidth; 0.0 is disabled or below 0.05."""


@dataclass(frozen=True)
class NcclLog:
    """What one NCCL_DEBUG log says, over all the ranks in it."""

    path: Path
    version: str | None
    environment: Mapping[str, str]
    """Variables that the log proves live."""
    patterns: tuple[Pattern, ...]
    lost_patterns: tuple[int, ...]
    """Patterns for which no path was found."""
    transports: Mapping[str, int]
    """`P2P/CUMEM`, `SHM/direct/direct`: how many channel lines."""
    picks: tuple[Pick, ...]
    ranks: int | None
    lines: int
    """Lines of NCCL."""
    nodes: int | None = None
    channels: int | None = None
    """Channels for collectives (`4 coll channels`)."""
    beliefs: tuple[Belief, ...] = ()
    graph_file: bool = False
    """A graph was loaded from NCCL_GRAPH_FILE."""
    plugin_picks: int = 0
    """Lines in which a tuner plugin says that it applied a configuration."""
    refused: tuple[str, ...] = ()
    """`no algorithm/protocol available`, invalid values and the like: NCCL's own complaints."""
    seen_ranks: tuple[int, ...] = ()
    """Ranks that wrote into this log."""
    notes: tuple[str, ...] = ()
    """What was odd: damaged lines, lines in an unknown form, several releases or communicators in one file."""

    @property
    def subsystems(self) -> frozenset[str]:
        """NCCL_DEBUG_SUBSYS as the log shows it; empty where it does not."""
        return frozenset(p.strip().upper() for p in self.environment.get("NCCL_DEBUG_SUBSYS", "").split(",") if p.strip())

    def picks_at(self, size: int) -> tuple[Pick, ...]:
        """The choices for an all-reduce of that size, else of the nearest size within a factor of two, most lines first; several where communicators differ."""
        near = [p for p in self.picks if p.collective in (None, "AllReduce") and size / 2 <= p.bytes <= size * 2]
        nearest = min((p.bytes for p in near), key=lambda n: (abs(n - size), n), default=None)
        return tuple(sorted((p for p in near if p.bytes == nearest), key=lambda p: -p.count))


@dataclass(frozen=True)
class Call:
    """One collective as a tool saw it on one rank."""

    op: str
    """`allreduce`, `allgather`, `reducescatter`, `broadcast`, `reduce`, `sendrecv`, ...: lower case, no separators."""
    path: str
    """What carried it: `nccl`, `nccl-symmetric`, `custom`, `one-shot`, `flashinfer`, `multimem`, `quick`, `mscclpp`, `gloo`."""
    time_us: float | None
    """Duration, waiting for the slowest rank included."""
    bytes: int | None = None
    """Size of the message; None under pynccl and CUDA graphs, which leave no metadata."""
    rank: int | None = None
    seq: int | None = None
    """Number of the collective in its group: the same on all ranks."""
    start_us: float | None = None
    dtype: str | None = None
    group: int | None = None
    """Ranks in its process group."""
    count: int = 1
    """Calls that this record sums up; time_us is then their median."""
    algorithm: str | None = None
    """As the tool names it (`Ring`): Inspector only. A kernel's name does not carry it."""
    protocol: str | None = None


@dataclass(frozen=True)
class Share:
    """Where one GPU's time went between its first and its last kernel of a trace, in us."""

    span_us: float
    communication_us: float
    """Some communication kernel ran."""
    compute_us: float
    """Some other kernel ran."""
    overlap_us: float
    """Both ran."""
    kernels: int

    @property
    def idle_us(self) -> float:
        return self.span_us - self.communication_us - self.compute_us + self.overlap_us


@dataclass(frozen=True)
class Trace:
    """What one trace of a profiler says about collectives."""

    path: Path
    format: str
    """`kineto`, `flight-recorder`, `inspector`, `nsys-csv`, `nsys-sqlite`."""
    calls: tuple[Call, ...]
    rank: int | None = None
    ranks: int | None = None
    backend: str | None = None
    """`nccl`, `gloo`."""
    nccl: str | None = None
    share: Share | None = None
    """None where the file has no times of kernels."""
    notes: tuple[str, ...] = ()

    def of(self, op: str = "allreduce") -> tuple[Call, ...]:
        """The calls of one collective."""
        return tuple(c for c in self.calls if c.op == op)


@dataclass(frozen=True)
class Topology:
    """How the GPUs of a host are linked, out of `nvidia-smi topo -m`."""

    path: Path
    gpus: tuple[str, ...]
    links: Mapping[tuple[int, int], str]
    """(row, column) with row < column to `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""
    nics: tuple[str, ...] = ()
    numa: tuple[str | None, ...] = ()
    """NUMA affinity of each GPU."""
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Kind of link to number of pairs, each pair once."""
        found: dict[str, int] = {}
        for kind in self.links.values():
            found[kind] = found.get(kind, 0) + 1
        return found

    @property
    def link(self) -> str | None:
        """`nvlink` where it joins all pairs, `pcie` where it joins none; None for a host that has both, or one GPU."""
        joined = {kind.startswith("NV") for kind in self.links.values()}
        return None if len(joined) != 1 else "nvlink" if True in joined else "pcie"
