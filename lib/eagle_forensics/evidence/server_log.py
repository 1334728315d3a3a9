"""The server's log: what the engine itself says about layers, arguments and loading. Streamed; a 200 MB log costs a few MB of memory.

A line is a claim of the engine, quoted with its place. How it is judged is notebook 01.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.evidence.blocks import blocks, line_at
from eagle_forensics.evidence.configs import read_object
from eagle_forensics.evidence.environment import is_secret
from eagle_forensics.evidence.launch import LOG_MARKS, read_effective, read_launch
from eagle_forensics.evidence.records import EvidenceError, LaunchLine

MAX_REPLY = 4_000_000
"""A saved reply of /server_info is smaller."""
KEPT = 20
"""Lines kept of each kind; the rest is counted."""
SHOWN = 400
"""Characters of a line that are kept."""

MARKS: tuple[tuple[str, bytes], ...] = (
    ("arguments", b"is adjusted to"), ("arguments", b"is reset to"), ("arguments", b"Overlap scheduler is disabled"), ("arguments", b"Spec v1 is used"),
    ("arguments", b"speculative_adaptive disabled"), ("arguments", b"max_position_embeddings"), ("runner", b"Using V2 Model Runner"),
    ("runner", b"Runner V2 does not yet support"), ("runner", b"runner v2 does not yet support"), ("layers", b"auxiliary layers from"),
    ("quantization", b"Cannot find the config file for"), ("quantization", b"Draft model quantization ("), ("loading", b"skipping unexpected weight"),
    ("loading", b"KeyError: '"), ("loading", b"Detected EAGLE model"), ("loading", b"only supports 1 layer"), ("fusion", b"AllReduce Fusion"),
    *(("all-reduce", name + b" is disabled") for name in (b"Custom allreduce", b"CustomAllreduce", b"CustomAllReduceV2")),
    ("timeout", b"Watchdog caught collective operation timeout"), ("graphs", b"setting cudagraph_mode="), ("graphs", b"Truncating max_cudagraph_capture_size"),
    ("scales", b"KV cache scaling factor 1.0"),
)  # fmt: skip
"""Kind of a line and the words that mark it: the engines' own sentences, and of PyTorch's watchdog. `Custom allreduce` is what SGLang 0.5.9 and vLLM print; SGLang 0.5.23
names its class there (distributed/device_communicators/custom_all_reduce_utils.py)."""

_LAYERS = re.compile(r"auxiliary layers from [\w ]+: [\(\[]([\d,\s]+)[\)\]]")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class LogLine:
    """One line of the log that says something."""

    kind: str
    """`arguments`, `layers`, `runner`, `quantization`, `loading`, `fusion`, `all-reduce`, `timeout`, `graphs`, `scales`."""
    text: str
    byte: int
    """Where the line begins in the file."""

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Boundaries that vLLM says it captures (its ids are boundaries); None for any other line."""
        match = _LAYERS.search(self.text)
        return tuple(int(part) for part in match[1].split(",") if part.strip()) if match else None


@dataclass(frozen=True)
class ServerLog:
    """What a server's log says."""

    path: Path
    bytes: int
    arguments: LaunchLine | None
    """The last `server_args=ServerArgs(...)` or `non-default args` line, as the engine printed it."""
    lines: tuple[LogLine, ...]
    counts: dict[str, int]
    """Lines of each kind, kept or not."""


def read_server_log(path: Path | str) -> ServerLog:
    """The engine's own statements in a log, or in the saved JSON reply of /server_info. EvidenceError for a file that cannot be read."""
    path = Path(path)
    kept: list[LogLine] = []
    counts: dict[str, int] = {}
    starts = False
    try:
        size = path.stat().st_size
        for offset, block in blocks(path):
            starts = starts or any(mark in block for mark in LOG_MARKS)
            for kind, begin, line in _marked(block):
                counts[kind] = counts.get(kind, 0) + 1
                if counts[kind] <= KEPT:
                    kept.append(LogLine(kind, line, offset + begin))
        with path.open("rb") as file:
            reply = size <= MAX_REPLY and file.read(64).lstrip().startswith(b"{")
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.log` in the case.") from None
    if not size:
        raise EvidenceError(f"{path}: an empty log; expected the server's output. Did the server write elsewhere? Correct `serving.log` in the case.")
    arguments = read_effective(read_object(path), str(path)) if reply and not starts else read_launch(path) if starts else None
    return ServerLog(path, size, arguments, tuple(kept), counts)


def _marked(block: bytes) -> Iterator[tuple[str, int, str]]:
    """Kind, offset and text of each marked line, in the order of the file."""
    found: dict[int, tuple[str, int]] = {}
    for kind, mark in MARKS:
        at = block.find(mark)
        while at >= 0:
            begin, end = line_at(block, at)
            found.setdefault(begin, (kind, end))
            at = block.find(mark, end)
    for begin in sorted(found):
        kind, end = found[begin]
        line = block[begin:end]
        if any(mark in line for mark in LOG_MARKS):
            continue
        yield kind, begin, _clean(line[: 4 * SHOWN])


def _clean(line: bytes) -> str:
    text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()[:SHOWN]
    return re.sub(r"(\w+)([=:]\s*)(\S+)", lambda m: f"{m[1]}{m[2]}<redacted>" if is_secret(m[1], setting=True) else m[0], text)
