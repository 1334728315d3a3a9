"""What an engine's log prints about speculation while it decodes: one record a line, in the log's own figures.

Sources: SGLang scheduler_metrics_mixin.py ("Decode batch ... accept len", all versions; "accept rate" since 0.5.4), vLLM
v1/spec_decode/metrics.py ("SpecDecoding metrics", both orders of its fields). Each line is a window, not the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.records import EvidenceError

SGLANG = re.compile(rb"Decode batch.*?accept len: ([\d.]+)(?:, accept rate: ([\d.]+))?.*?gen throughput \(token/s\): ([\d.]+)")
VLLM = {
    "accept_length": re.compile(rb"Mean acceptance length: ([\d.]+)"), "rate": re.compile(rb"raft acceptance rate: ([\d.]+)%"),
    "accepted": re.compile(rb"Accepted: (\d+) tokens"), "drafted": re.compile(rb"Drafted: (\d+) tokens"),
    "survival": re.compile(rb"Per-position acceptance rate: ([\d., ]+?)(?:, [A-Z]|$)"),
}  # fmt: skip
KEPT = 100_000
"""Lines; at one every ten seconds eleven days."""


@dataclass(frozen=True)
class Window:
    """One printed line."""

    engine: str
    accept_length: float
    rate: float | None = None
    """As printed, as a share; what it divides depends on engine and version (`engines.metrics`)."""
    tokens_per_second: float | None = None
    accepted: int | None = None
    drafted: int | None = None
    survival: tuple[float, ...] | None = None


def read_acceptance_log(path: Path | str) -> tuple[Window, ...]:
    """The windows of a server's log, in order; empty for a log without speculation. EvidenceError where it cannot be read."""
    path, found = Path(path), []
    try:
        for window in _windows(path):
            found.append(window)
            if len(found) == KEPT:
                break
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.log` in the case.") from None
    return tuple(found)


def _windows(path: Path) -> Iterator[Window]:
    for _, block in blocks(path):
        for line in block.splitlines():
            if (match := SGLANG.search(line)) and all(_real(g) for g in match.groups() if g):
                yield Window("sglang", float(match[1]), float(match[2]) if match[2] else None, float(match[3]))
            elif b"SpecDecoding metrics:" in line:
                at = {name: m[1] for name, pattern in VLLM.items() if (m := pattern.search(line))}
                if _real(at.get("accept_length", b"")):
                    yield Window("vllm", float(at["accept_length"]), float(at["rate"]) / 100 if _real(at.get("rate", b"")) else None,
                                 accepted=int(at["accepted"]) if "accepted" in at else None, drafted=int(at["drafted"]) if "drafted" in at else None,
                                 survival=tuple(float(p) for p in at.get("survival", b"").split(b",") if _real(p.strip())) or None)


def _real(text: bytes) -> bool:
    return re.fullmatch(rb"\d+(\.\d+)?", text) is not None
