"""What an engine's log prints while it decodes: one record a line, in the log's own figures, and the rounds they add up to.

    Decode batch, #running-req: 1, #token: 420, token usage: 0.01, accept len: 1.80, accept rate: 0.30, cuda graph: True,
    gen throughput (token/s): 54.80, #queue-req: 0

A line is a window: it covers the forwards since the line before (40 by default), so the first after an idle time is too slow.
`accept len` counts the bonus token in every release; what `accept rate` divides depends on the release (`engines.metrics`). SGLang up
to 0.5.3 prints a dot after `Decode batch`, 0.5.4 a number; `accept rate` exists since 0.5.3.post2. A line counts only if it is whole.
Sources: SGLang scheduler.py, scheduler_metrics_mixin.py and metrics_reporter.py of 0.4.6 to 0.5.23; vLLM v1/spec_decode/metrics.py
("SpecDecoding metrics", both orders of its fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.records import EvidenceError

_REAL = rb"(\d{1,12}(?:\.\d{1,9})?)"
_OTHER = rb"(?:(?!accept |[cnm]\w+ graph|gen )[^,:\[\n]++: [^,:\s\[]++, )*+"
"""Fields that are not used, as `name: value, `; the start of another line is none."""
_HEAD = rb"Decode batch(?: \[\d{1,12}\])?[.,] #running-req: "
_SGLANG = re.compile(_HEAD + rb"(\d{1,9}), " + _OTHER + rb"(?:accept len: " + _REAL + rb", (?:accept rate: " + _REAL + rb", )?)?" + _OTHER
                     + rb"(?:([cnm]\w+) graph: (True|False), )?gen throughput \(token/s\): " + _REAL + rb",(?: #queue-req: (\d{1,9})\b)?")
_BEGINS = re.compile(_HEAD)
_VLLM = re.compile(rb"SpecDecoding metrics: ([^\n]*)")
_FIELDS = {
    "accept_length": re.compile(rb"Mean acceptance length: " + _REAL + rb"(?:,|\s*$)"), "rate": re.compile(rb"raft acceptance rate: " + _REAL + rb"%"),
    "accepted": re.compile(rb"Accepted: (\d{1,15}) tokens"), "drafted": re.compile(rb"Drafted: (\d{1,15}) tokens"),
    "survival": re.compile(rb"Per-position acceptance rate: ((?:[01]\.\d{1,9}(?:, )?)+)"),
}  # fmt: skip
MOST = 100_000
"""Lines that are read: at one every ten seconds eleven days."""


class Window(NamedTuple):
    """One printed line."""

    engine: str
    accept_length: float | None
    """Bonus token counted; None without speculation."""
    rate: float | None = None
    """As printed, as a share."""
    tokens_per_second: float | None = None
    """All running requests together."""
    accepted: int | None = None
    drafted: int | None = None
    survival: tuple[float, ...] | None = None
    running: int | None = None
    """Requests in the batch; SGLang only."""
    graph: str | None = None
    """Kind of graph that the line speaks of: `cuda`, `cpu`, `npu`."""
    replayed: bool | None = None
    """Whether the last forward replayed one."""
    queued: int | None = None
    """Requests that wait for a place in the batch; SGLang only."""


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
    """All decode lines of a server's log, in order."""

    path: Path
    windows: tuple[Window, ...]
    notes: tuple[str, ...] = ()

    @property
    def speculative(self) -> tuple[Window, ...]:
        """The windows that print an accept length."""
        return tuple(w for w in self.windows if w.accept_length is not None)

    @property
    def batches(self) -> tuple[DecodeLines, ...]:
        """Rounds on CUDA by number of running requests, most lines first; lines at rest, of a CPU server or of vLLM are none."""
        found: dict[int, list[Window]] = {}
        for w in self.windows:
            if w.running and w.tokens_per_second and w.graph == "cuda":
                found.setdefault(w.running, []).append(w)
        return tuple(sorted((_lines(n, lines) for n, lines in found.items()), key=lambda b: -b.lines))


def read_decode_log(path: str | Path) -> DecodeLog:
    """The decode lines of a log; none is an empty record. EvidenceError for a file that cannot be read."""
    path = Path(path)
    windows: list[Window] = []
    damaged = 0
    try:
        for _, block in blocks(path):
            whole = list(_windows(block))
            damaged += len(_BEGINS.findall(block)) + len(_VLLM.findall(block)) - len(whole)
            windows += whole
            if len(windows) >= MOST:
                break
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}). Correct `serving.log` in the case.") from None
    notes = [f"{damaged} decode lines are cut, or two in one, and left out."] if damaged else []
    notes += [f"Only the first {MOST} decode lines are read."] if len(windows) >= MOST else []
    return DecodeLog(path, tuple(windows[:MOST]), tuple(notes))


def _windows(block: bytes) -> Iterator[Window]:
    for running, length, rate, graph, replayed, speed, queued in _SGLANG.findall(block):
        yield Window("sglang", float(length) if length else None, float(rate) if rate else None, float(speed), running=int(running),
                     graph=graph.decode() or None, replayed=replayed == b"True" if replayed else None, queued=int(queued) if queued else None)
    for text in _VLLM.findall(block):
        at = {name: m[1] for name, pattern in _FIELDS.items() if (m := pattern.search(text))}
        if "accept_length" in at:
            yield Window("vllm", float(at["accept_length"]), float(at["rate"]) / 100 if "rate" in at else None, accepted=int(at["accepted"]) if "accepted" in at else None,
                         drafted=int(at["drafted"]) if "drafted" in at else None, survival=tuple(map(float, filter(None, at.get("survival", b"").split(b", ")))) or None)


def _lines(running: int, windows: list[Window]) -> DecodeLines:
    lengths = [w.accept_length for w in windows if w.accept_length is not None]
    replayed = sum(bool(w.replayed) for w in windows)
    return DecodeLines(running, len(windows), replayed, len(windows) - replayed, median(lengths) if lengths else None,
                       median(w.tokens_per_second for w in windows if w.tokens_per_second))
