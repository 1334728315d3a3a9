"""SGLang's decode lines in a server's log: how fast a round is at each number of running requests, and whether it replays a CUDA graph.

`Decode batch. #running-req: ...` (up to 0.5.3) and `Decode batch[ [iter]], #running-req: ..., [accept len: ...,] cuda graph: ..., gen
throughput (token/s): ...` (later; scheduler_metrics_mixin.py). A line is the window of --decode-log-interval decode steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.records import EvidenceError

LINE = re.compile(rb"Decode batch[^\n]*?#running-req: (\d{1,6})[^\n]*?(?:accept len: (\d+\.\d+)[^\n]*?)?cuda graph: (True|False), "
                  rb"gen throughput \(token/s\): (\d+\.\d+)")
MARK, ON_CPU = b"Decode batch", b"cpu graph: "


@dataclass(frozen=True)
class DecodeLines:
    """The decode lines of one number of running requests."""

    running: int
    lines: int
    graph: int
    """Lines with `cuda graph: True`."""
    eager: int
    accept_length: float | None
    """Median, bonus token included; None without speculation."""
    tokens_per_second: float
    """Median, all requests together."""

    @property
    def round_ms(self) -> float:
        """Time of one decode round: tokens a round over tokens/s."""
        return 1e3 * self.running * (self.accept_length or 1.0) / self.tokens_per_second


@dataclass(frozen=True)
class DecodeLog:
    """Decode lines of a log, by number of running requests, ascending."""

    path: Path
    batches: tuple[DecodeLines, ...]
    notes: tuple[str, ...] = ()


def read_decode_log(path: Path | str) -> DecodeLog:
    """The decode lines of a log; lines without throughput (idle) and of a CPU server are left out, cut ones counted.

    EvidenceError where it cannot be read.
    """
    path = Path(path)
    found: dict[int, list[tuple[float | None, bool, float]]] = {}
    cut = 0
    try:
        for _, block in blocks(path):
            cut += block.count(MARK) - block.count(ON_CPU)
            for running, length, graph, speed in LINE.findall(block):
                cut -= 1
                if int(running) and float(speed):
                    found.setdefault(int(running), []).append((float(length) if length else None, graph == b"True", float(speed)))
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.log` in the case.") from None
    notes = (f"{cut} decode lines are cut or of another form and were left out.",) if cut > 0 else ()
    return DecodeLog(path, tuple(_lines(running, rows) for running, rows in sorted(found.items())), notes)


def _lines(running: int, rows: list[tuple[float | None, bool, float]]) -> DecodeLines:
    lengths = [length for length, _, _ in rows if length is not None]
    graph = sum(g for _, g, _ in rows)
    return DecodeLines(running, len(rows), graph, len(rows) - graph, median(lengths) if lengths else None, median(s for _, _, s in rows))
