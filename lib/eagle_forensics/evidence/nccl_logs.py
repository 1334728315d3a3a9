"""Readers of what NCCL and its tools print: nccl-tests tables, NCCL_DEBUG logs, `nvidia-smi topo -m`.

Files are streamed line by line; bytes that are not UTF-8 are replaced. A line that is not understood is counted, never guessed at.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.evidence.records import EvidenceError

_TAG = re.compile(r"^(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?\s*)+")
_LINE = re.compile(r"NCCL (?P<level>INFO|WARN|TRACE) (?P<text>.*)$")
_N = r"(\d{1,18})"
"""A count of a log; what is longer is no count."""
_RANK = re.compile(rf"rank {_N} nRanks {_N}\b", re.ASCII)
_ENV = re.compile(r"^(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_PATTERN = re.compile(rf"^Pattern {_N}, crossNic \d+, nChannels {_N}, bw (\d{{1,18}}(?:\.\d+)?)/([\d.]+), type (\w+)/(\w+)", re.ASCII)
_NO_PATH = re.compile(rf"Could not find a path for pattern {_N}\b", re.ASCII)
_PICK = re.compile(rf"^(?:(\w+): )?{_N} Bytes -> Algo (\w+) proto (\w+)", re.ASCII)
_VIA = re.compile(r"^Channel \d+(?:/\d+)? : \S+ -> \S+ .*?via (\S+)")
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
FALLBACK_BANDWIDTH = 0.1
"""GB/s that NCCL's graph search writes when it finds no path (search.cc)."""


@dataclass(frozen=True)
class Timing:
    """One row of an nccl-tests table; None where the table says N/A."""

    bytes: int
    time_us: float | None
    """Out of place."""
    in_place_us: float | None
    wrong: int | None
    """Wrong values in both halves; None where the table gives no count (2.12 and older, or not checked)."""


@dataclass(frozen=True)
class NcclTests:
    """One nccl-tests run."""

    path: Path
    test: str | None
    """`all_reduce_perf`; None in old layouts, which do not say."""
    version: str | None
    ranks: int
    rows: tuple[Timing, ...]
    failed: bool
    """The footer counts values out of bounds."""

    def at(self, size: int) -> Timing | None:
        """The row of exactly that size."""
        return next((r for r in self.rows if r.bytes == size), None)


@dataclass(frozen=True)
class Pattern:
    """One result of NCCL's graph search: 4 ring, 1 balanced tree, 3 tree, 5 NVLS."""

    pattern: int
    channels: int
    bandwidth: float
    """GB/s within the node."""
    link: str
    """`PIX`, `PHB`, `SYS`, `NVL`, ..."""

    @property
    def is_fallback(self) -> bool:
        return self.bandwidth <= FALLBACK_BANDWIDTH


@dataclass(frozen=True)
class Pick:
    """What NCCL chose for one message."""

    collective: str | None
    bytes: int
    algorithm: str
    protocol: str


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

    def pick(self, size: int) -> Pick | None:
        """The choice for an all-reduce of that size, else of the nearest size within a factor of two."""
        near = [p for p in self.picks if p.collective in (None, "AllReduce") and size / 2 <= p.bytes <= size * 2]
        return min(near, key=lambda p: abs(p.bytes - size), default=None)


def _stream(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); name an existing file in the case, under `nccl:`") from None


def read_nccl_tests(path: str | Path) -> NcclTests:
    """The table of an nccl-tests run (2.10 to 2.19 layouts, mpirun tags). Columns are taken from its header line, by position.

    Raises EvidenceError for a file without a table.
    """
    path = Path(path)
    columns: list[str] = []
    rows: list[Timing] = []
    test = version = None
    ranks, failed = 0, False
    for raw in _stream(path):
        line = _TAG.sub("", raw).strip()
        if line.startswith("#"):
            if re.match(r"#\s+size\s+count\s+type", line):
                columns = line.lstrip("# ").split()
            elif re.match(r"#\s+Rank\s+\d+", line):
                ranks += 1
            elif found := re.match(r"# nccl-tests version (\S+)", line):
                version = found[1]
            elif found := re.match(r"# Collective test starting: (\S+)", line):
                test = found[1]
            elif found := re.match(r"# Out of bounds values\s*: \d+ (OK|FAILED)", line):
                failed = found[1] == "FAILED"
        elif columns and re.match(rf"{_N}\s+\d+\s+\w+", line, re.ASCII):
            row = _timing(line.split(), columns)
            if row:
                rows.append(row)
    if not rows:
        raise EvidenceError(f"{path}: no nccl-tests table found; expected a header `#  size  count  type ...` with rows under it "
                            "(the text that all_reduce_perf prints)")
    return NcclTests(path, test, version, ranks, tuple(rows), failed)


def _timing(fields: list[str], columns: list[str]) -> Timing | None:
    starts = [i for i, name in enumerate(columns) if name in ("time", "cputime")]
    if len(starts) != 2 or len(fields) < len(columns):
        return None
    wrong = []
    if "#wrong" in columns:
        offset = columns.index("#wrong") - starts[0]
        wrong = [_float(fields[at]) for start in starts if (at := start + offset) < len(fields)]
    counted = [int(w) for w in wrong if w is not None and math.isfinite(w)]
    return Timing(int(fields[0]), _float(fields[starts[0]]), _float(fields[starts[1]]), sum(counted) if counted else None)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_nccl_log(path: str | Path) -> NcclLog:
    """An NCCL_DEBUG log of any release from 2.19 on; numeric and worded choices. Raises EvidenceError if no line of it is NCCL's."""
    path = Path(path)
    version, ranks, lines = None, None, 0
    environment: dict[str, str] = {}
    patterns: dict[Pattern, None] = {}
    picks: dict[Pick, None] = {}
    lost: dict[int, None] = {}
    transports: Counter[str] = Counter()
    for raw in _stream(path):
        if found := _VERSION.search(raw):
            version = found[1]
            lines += 1
        line = _LINE.search(raw)
        if not line:
            continue
        lines += 1
        text = line["text"].strip()
        if found := _PATTERN.match(text):
            patterns[Pattern(int(found[1]), int(found[2]), float(found[3]), found[5])] = None
        elif found := _NO_PATH.search(text):
            lost[int(found[1])] = None
        elif found := _PICK.match(text):
            picks[Pick(found[1], int(found[2]), _word(found[3], ALGORITHMS), _word(found[4], PROTOCOLS))] = None
        elif found := _VIA.match(text):
            transports[found[1]] += 1
        elif found := _ENV.match(text):
            environment[found[1]] = found[2]
        elif found := _RANK.search(text):
            ranks = int(found[2])
    if not lines:
        raise EvidenceError(f"{path}: no line of NCCL in it; expected the output of a process started with NCCL_DEBUG=INFO")
    return NcclLog(path, version, environment, tuple(patterns), tuple(lost), dict(transports), tuple(picks), ranks, lines)


def _word(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < len(names) else text.upper()


def read_topology(path: str | Path) -> Mapping[str, int]:
    """Links between the GPUs of an `nvidia-smi topo -m` matrix: `{"NODE": 12, "SYS": 16}`, each pair once.

    Raises EvidenceError for a file without the matrix.
    """
    path = Path(path)
    gpus: list[str] = []
    links: Counter[str] = Counter()
    for raw in _stream(path):
        cells = re.sub(r"\x1b\[[0-9;]*m", "", raw).split()
        if not gpus and cells and all(c.startswith("GPU") for c in cells[:1]):
            gpus = [c for c in cells if re.fullmatch(r"GPU\d+", c)]
        elif gpus and cells and cells[0] in gpus:
            row = gpus.index(cells[0])
            links.update(cells[1 + row + 1: 1 + len(gpus)])
    if not gpus:
        raise EvidenceError(f"{path}: no GPU matrix found; expected the output of `nvidia-smi topo -m`")
    return dict(links)
