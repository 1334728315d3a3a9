"""SGLang's own decode lines in a server log: how long a round takes, what it yields, and whether it replays a CUDA graph.

    Decode batch, #running-req: 1, #token: 420, token usage: 0.01, accept len: 1.80, accept rate: 0.30, cuda graph: True,
    gen throughput (token/s): 54.80, #queue-req: 0

Up to 0.5.3 a dot follows `Decode batch`. `accept len` counts the bonus token in every release; `accept rate` changed its meaning in
0.5.11 and is not used here. A line covers the forwards since the line before (40 by default), so the first after an idle time is too
slow. Source: scheduler_metrics_mixin.py of 0.5.9, scheduler_components/metrics_reporter.py:930-1030 of 0.5.23.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.records import EvidenceError

_LINE = re.compile(rb"Decode batch(?: \[\d{1,12}\])?[.,] #running-req: (\d{1,9}),([^\n]*)")
_ACCEPT = re.compile(rb"accept len: (\d{1,6}\.\d{1,9})\b")
_GRAPH = re.compile(rb"(cuda|cpu) graph: (True|False)")
_SPEED = re.compile(rb"gen throughput \(token/s\): (\d{1,12}\.\d{1,9})\b")
MOST = 200_000
"""Lines whose figures are kept: two months of a server that logs twice a minute."""


@dataclass(frozen=True)
class DecodeLines:
    """The decode lines of one number of running requests."""

    running: int
    lines: int
    replayed: int
    """Lines that say a CUDA graph was replayed."""
    eager: int
    accept_length: float | None
    """Median over the lines, bonus token counted; None without speculation."""
    tokens_per_second: float
    """Median over the lines, all running requests together."""

    @property
    def round_ms(self) -> float:
        """Time of a round: running x accept length / throughput (accept length 1 without speculation)."""
        return 1e3 * self.running * (self.accept_length or 1.0) / self.tokens_per_second


@dataclass(frozen=True)
class DecodeLog:
    """All decode lines of a GPU server's log."""

    path: Path
    batches: tuple[DecodeLines, ...]
    """By number of running requests, most lines first."""
    notes: tuple[str, ...] = ()


def read_decode_log(path: str | Path) -> DecodeLog:
    """The decode lines of a log; none is an empty record. EvidenceError for a file that cannot be read."""
    path = Path(path)
    accept: dict[int, list[float]] = {}
    speed: dict[int, list[float]] = {}
    graphs: Counter[tuple[int, bytes]] = Counter()
    damaged = kept = 0
    try:
        for _, block in blocks(path):
            for running, rest in _LINE.findall(block):
                throughput, graph, length = _SPEED.search(rest), _GRAPH.search(rest), _ACCEPT.search(rest)
                if not throughput or not graph:
                    damaged += 1
                    continue
                if graph[1] == b"cpu" or not int(running) or not float(throughput[1]):
                    continue
                number = int(running)
                graphs[number, graph[2]] += 1
                if kept < MOST:
                    kept += 1
                    speed.setdefault(number, []).append(float(throughput[1]))
                    accept.setdefault(number, []).extend([float(length[1])] if length else [])
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}). Correct `serving.log` in the case.") from None
    batches = [DecodeLines(n, graphs[n, b"True"] + graphs[n, b"False"], graphs[n, b"True"], graphs[n, b"False"],
                           median(accept[n]) if accept[n] else None, median(values)) for n, values in speed.items()]
    notes = [f"{damaged} decode lines are cut and left out."] if damaged else []
    notes += [f"Figures of the first {MOST} lines only; all are counted."] if kept == MOST else []
    return DecodeLog(path, tuple(sorted(batches, key=lambda b: -b.lines)), tuple(notes))
