"""PyTorch profiler traces (Kineto): the collectives in them and where one GPU's time went. Streamed, gzip seen through.

Events are cut out of the text where an object begins with `"ph"`, as Kineto writes it, and only collectives are parsed: a trace of
many GB needs the memory of its communication calls and 16 bytes a kernel.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from eagle_forensics.evidence import kernels
from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.nccl.records import Call, Trace
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.shares import share

MAX_EVENT = 32_000_000
"""Bytes without the begin of an event: a trace in another order of keys is parsed at once up to this size. The longest real
events hold a call stack of a few hundred KB."""

NESTED = 16
"""Times that the word may stand inside one event."""

_MARK = b'"ph"'
_KERNEL = re.compile(rb'\s*:\s*"X"\s*,\s*"cat"\s*:\s*"kernel"\s*,\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"pid"\s*:\s*(\d+)\s*,\s*"tid"\s*:\s*[^,{]*,'
                     rb'\s*"ts"\s*:\s*(\d+(?:\.\d+)?)\s*,\s*"dur"\s*:\s*(\d+(?:\.\d+)?)\s*[,}]')
"""A kernel as Kineto writes it, after `"ph"`; one that computes needs no more than this."""
_DECODE = json.JSONDecoder()


@dataclass
class _Seen:
    calls: list[Call] = field(default_factory=list)
    communication: dict[Any, array] = field(default_factory=dict)
    """Device to start, end, start, end, ... in us."""
    compute: dict[Any, array] = field(default_factory=dict)
    bare: int = 0
    """Communication kernels without c10d's metadata."""
    named: int = 0
    """Kernels whose names look like a protocol."""
    damaged: int = 0
    replaced: int = 0


def read_kineto(path: str | Path) -> Trace:
    """The collectives of one rank's trace. EvidenceError for a file that is no trace of PyTorch's profiler."""
    path = Path(path)
    seen = _Seen()
    head: bytes | None = None
    rest = b""
    try:
        for _, block in blocks(path):
            data = rest + block
            last = _begin(data, len(data))
            if last < 0 and len(data) > MAX_EVENT:
                raise EvidenceError(f"{path}: no trace event within {MAX_EVENT} bytes; expected the JSON that torch.profiler exports")
            if last >= 0:
                head = data[: data.find(_MARK)] if head is None else head
                _kernels(seen, data, last)
                _annotations(seen, data, last)
            rest = data[data.rfind(b"{", 0, last):] if last >= 0 else data
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); correct `nccl.traces` in the case") from None
    if head is None:
        return _whole(path, rest, seen)
    _kernels(seen, rest, len(rest))
    _annotations(seen, rest, len(rest))
    return _trace(path, seen, _distributed(head) or _distributed(rest), complete=bool(re.search(rb"\}\s*\]", rest)))


def _kernels(seen: _Seen, data: bytes, end: int) -> None:
    """Events of kernels up to `end`, each once: one that computes is read by its form, one that communicates is parsed."""
    at, before = data.find(b'"kernel"', 0, end), -1
    while at >= 0:
        begin = _begin(data, at)
        found = _KERNEL.match(data, begin + len(_MARK)) if begin > before else None
        if found and _carrier(found[1]) is None:
            seen.compute.setdefault(int(found[2]), array("d")).extend((float(found[3]), float(found[3]) + float(found[4])))
        elif begin > before:
            _parsed(seen, data, begin, at)
        before = max(begin, before)
        at = data.find(b'"kernel"', at + 1, end)


def _annotations(seen: _Seen, data: bytes, end: int) -> None:
    """Events of gloo, which runs no kernel."""
    at = data.find(b'"gloo:', 0, end)
    while at >= 0:
        if (begin := _begin(data, at)) >= 0:
            _parsed(seen, data, begin, at)
        at = data.find(b'"gloo:', at + 1, end)


def _begin(data: bytes, at: int) -> int:
    """Where the event around a place begins: at a `"ph"` that follows a brace; -1 if the data do not hold it."""
    for _ in range(NESTED):
        at = data.rfind(_MARK, 0, at)
        if at < 0 or data[max(0, at - 64): at].rstrip().endswith(b"{"):
            return at
    return -1


def _parsed(seen: _Seen, data: bytes, begin: int, at: int) -> None:
    end = at
    for _ in range(NESTED):  # the next event's mark ends this one, unless it stands inside
        end = data.find(_MARK, end + 1)
        raw = b"{" + data[begin: end if end >= 0 else len(data)]
        try:
            event, _ = _DECODE.raw_decode(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            if end < 0:
                break
            continue
        seen.replaced += not raw.isascii() and "\ufffd" in raw.decode("utf-8", "replace")
        _event(seen, event)
        return
    seen.damaged += 1


@lru_cache(maxsize=4096)
def _carrier(name: bytes) -> tuple[str, str] | None:
    return kernels.carrier(name.decode("utf-8", "replace"))


def _whole(path: Path, text: bytes, seen: _Seen) -> Trace:
    """A trace whose events do not begin with `ph`."""
    try:
        report = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        report = None
    events = report.get("traceEvents") if isinstance(report, dict) else None
    if not isinstance(events, list):
        raise EvidenceError(f"{path}: no trace event found; expected the JSON that torch.profiler exports. Was it cut? Export it again.")
    for event in events:
        if isinstance(event, dict):
            _event(seen, event)
    return _trace(path, seen, report.get("distributedInfo"), complete=True)


def _event(seen: _Seen, event: Mapping[str, Any]) -> None:
    name, start, time = event.get("name"), kernels.number(event.get("ts")), kernels.number(event.get("dur"))
    if event.get("ph") != "X" or not isinstance(name, str) or start is None or time is None:
        return
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    if event.get("cat") == "kernel":
        carried = kernels.carrier(name)
        device = _int(event.get("pid"))  # Kineto's process of a kernel is its GPU
        (seen.communication if carried else seen.compute).setdefault(device, array("d")).extend((start, start + time))
        if carried:
            seen.calls.append(_call(seen, carried, start, time, args))
            seen.named += kernels.names_protocol(name)
    elif name.startswith("gloo:") and (carried := kernels.carrier(name)):
        seen.calls.append(Call(carried[1], "gloo", float(time), _gloo_bytes(args), start_us=float(start), dtype=_first(args.get("Input type"))))


def _call(seen: _Seen, carried: tuple[str, str], start: float, time: float, args: Mapping[str, Any]) -> Call:
    path, operation = carried
    dtype = args.get("dtype") if isinstance(args.get("dtype"), str) else None
    width = kernels.element_bytes(dtype)
    elements = [n for n in (args.get("In msg nelems"), args.get("Out msg nelems")) if isinstance(n, int)]
    size = max(elements) * width if elements and width else None
    seen.bare += size is None
    named = args.get("Collective name")
    return Call(kernels.operation(named) or operation if isinstance(named, str) else operation, path, float(time), size, _int(args.get("Rank")), _int(args.get("Seq")),
                float(start), dtype, _int(args.get("Group size")))


def _gloo_bytes(args: Mapping[str, Any]) -> int | None:
    dims, width = args.get("Input Dims"), kernels.element_bytes(_first(args.get("Input type")))
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list) or width is None or not all(isinstance(n, int) for n in dims[0]):
        return None
    size = width
    for n in dims[0]:
        size *= n
    return size


def _trace(path: Path, seen: _Seen, info: Any, *, complete: bool) -> Trace:
    info = info if isinstance(info, dict) else {}
    rank = _int(info.get("rank"))
    device = max({*seen.communication, *seen.compute}, key=lambda d: len(seen.communication.get(d, ())) + len(seen.compute.get(d, ())), default=None)
    spans = seen.communication.get(device, array("d")), seen.compute.get(device, array("d"))
    calls = tuple(c if c.rank is not None or rank is None else Call(**{**c.__dict__, "rank": rank}) for c in seen.calls)
    devices = len({*seen.communication, *seen.compute})
    notes = list(_notes(seen, calls, devices, complete))
    return Trace(path, "kineto", calls, rank, _int(info.get("world_size")), _text(info.get("backend")), _text(info.get("nccl_version")), share(*spans), tuple(notes))


def _notes(seen: _Seen, calls: tuple[Call, ...], devices: int, complete: bool) -> Iterator[str]:
    carriers = Counter(c.path for c in calls)
    if not calls:
        yield "No collective in it: the ranks exchanged nothing while it was taken, or the kernels have unknown names."
    if seen.bare:
        yield (f"{seen.bare} of {len(calls)} communication kernels carry no metadata (size, type, sequence): replayed from a CUDA graph or launched by pynccl. "
               "Their sizes are not known.")
    if seen.named:
        yield f"{seen.named} kernels are named after a protocol (`..._RING_LL`): since NCCL 2.19 the name does not tell which protocol ran; the log does."
    if len(carriers) > 1:
        yield "Collectives are carried by " + ", ".join(f"{path} ({n})" for path, n in carriers.most_common()) + "."
    if devices > 1:
        yield f"Kernels of {devices} devices in one trace; shares of time are those of the busiest."
    if seen.damaged or not complete:
        yield f"The trace is cut or damaged: {seen.damaged} events cannot be parsed" + ("." if complete else ", and its end is missing.")
    if seen.replaced:
        yield f"{seen.replaced} events hold bytes that are not UTF-8; they are shown as replacement characters."


def _distributed(raw: bytes) -> Any:
    at = re.search(rb'"distributedInfo"\s*:\s*', raw)
    try:
        return _DECODE.raw_decode(raw[at.end():].decode("utf-8", "replace"))[0] if at else None
    except (ValueError, RecursionError):
        return None


def _first(value: Any) -> str | None:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
