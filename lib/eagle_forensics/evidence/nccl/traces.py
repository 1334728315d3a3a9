"""Traces of collectives, whatever tool wrote them: recognised by content, one record for all.

PyTorch profiler (kineto.py), Nsight Systems (nsys.py); here NCCL's Inspector and PyTorch's flight recorder.
A pickled flight recorder is refused: opening a pickle can run code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from eagle_forensics.evidence import kernels
from eagle_forensics.evidence.blocks import blocks, open_bytes
from eagle_forensics.evidence.nccl.kineto import read_kineto
from eagle_forensics.evidence.nccl.nsys import read_nsys_csv, read_nsys_sqlite
from eagle_forensics.evidence.nccl.records import ALGORITHMS, PROTOCOLS, Call, Trace
from eagle_forensics.evidence.records import EvidenceError

MAX_RECORDER = 256_000_000
"""Bytes of a flight recorder: its ring buffer of 20,000 entries has about 10 MB."""
EXPECTED = ("expected a torch.profiler export, a flight recorder as JSON, the output of NCCL Inspector, `nsys stats -r cuda_gpu_kern_sum -f csv` "
            "or the sqlite of `nsys export`")
_PROMETHEUS = re.compile(rb'^nccl_(?:collective_exec_time_microseconds)\{([^}\n]*)\} ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*$', re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def read_trace(path: str | Path) -> Trace:
    """The collectives of a trace in any known form. EvidenceError for a file of another kind, saying which are known."""
    path = Path(path)
    try:
        with open_bytes(path) as file:
            head = file.read(65536)
    except (OSError, EOFError) as error:
        raise EvidenceError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); correct `nccl.traces` in the case") from None
    if head.startswith(b"SQLite format 3\0"):
        return read_nsys_sqlite(path)
    if head[:1] == b"\x80" or head[:2] in (b"PK", b"(d"):
        raise EvidenceError(f"{path}: a pickle or an archive of one; it is not opened, since a pickle can run code. Save the flight recorder as JSON: "
                            "torch._C._distributed_c10d._dump_fr_trace_json()")
    if b'"coll_perf"' in head or b'"p2p_perf"' in head or _PROMETHEUS.search(head):
        return _inspector(path)
    if b'"entries"' in head and (b'"collective_seq_id"' in head or b'"pg_config"' in head):
        return _flight_recorder(path)
    if b"Time (%)" in head and b"Total Time (ns)" in head:
        return read_nsys_csv(path)
    if head.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in head or b'"ph"' in head or b'"schemaVersion"' in head):
        return read_kineto(path)
    raise EvidenceError(f"{path}: no trace of a known kind; {EXPECTED}")


def _flight_recorder(path: Path) -> Trace:
    try:
        with open_bytes(path) as file:
            raw = file.read(MAX_RECORDER + 1)
        if len(raw) > MAX_RECORDER:
            raise EvidenceError(f"{path}: over {MAX_RECORDER} bytes; expected a flight recorder's ring buffer")
        report = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError, OSError, EOFError) as error:
        if isinstance(error, EvidenceError):
            raise
        raise EvidenceError(f"{path}: not valid JSON ({str(error)[:100]}); expected a flight recorder as JSON. Was it cut? Dump it again.") from None
    entries = report.get("entries") if isinstance(report, dict) else None
    if not isinstance(entries, list):
        raise EvidenceError(f"{path}: no list of `entries`; expected a flight recorder as JSON")
    calls = [call for entry in entries if isinstance(entry, dict) and (call := _recorded(entry))]
    backends = sorted({c.path for c in calls})
    untimed = sum(c.time_us is None for c in calls)
    notes = [f"{len(entries) - len(calls)} entries are no collective."] if len(entries) > len(calls) else []
    notes += [f"{untimed} of {len(calls)} calls have no duration: PyTorch records it for CUDA only, with TORCH_NCCL_ENABLE_TIMING=1."] if untimed else []
    open_calls = [e for e in entries if isinstance(e, dict) and e.get("state") in ("scheduled", "started") and e.get("retired") is False]
    notes += [f"{len(open_calls)} calls were not finished when it was written; the first is {open_calls[0].get('profiling_name')!r}, "
              f"sequence {open_calls[0].get('collective_seq_id')}."] if open_calls else []
    return Trace(path, "flight-recorder", tuple(calls), ranks=_group(report), backend=backends[0] if len(backends) == 1 else None,
                 nccl=report.get("comm_lib_version") or None, notes=tuple(notes))


def _recorded(entry: dict[str, Any]) -> Call | None:
    backend, _, name = str(entry.get("profiling_name", "")).partition(":")
    op = kernels.operation(name)
    if op is None:
        return None
    size = max((s for s in (_size(entry, "input"), _size(entry, "output")) if s is not None), default=None)
    time, created, dtypes = kernels.number(entry.get("duration_ms")), kernels.number(entry.get("time_created_ns")), entry.get("input_dtypes")
    return Call(op, backend or "nccl", None if time is None else time * 1e3, size, seq=_whole(entry.get("collective_seq_id")),
                start_us=None if created is None else created / 1e3, dtype=str(dtypes[0]) if isinstance(dtypes, list) and dtypes else None)


def _size(entry: dict[str, Any], side: str) -> int | None:
    sizes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, list) or not isinstance(dtypes, list) or len(sizes) != len(dtypes):
        return None
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=True):
        width = kernels.element_bytes(str(dtype))
        if width is None or not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
            return None
        for n in shape:
            width *= n
        total += width
    return total


def _group(report: dict[str, Any]) -> int | None:
    groups = report.get("pg_config")
    counts = [len(re.findall(r"\d+", str(g.get("ranks")))) for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    return max(counts, default=None) or None


def _inspector(path: Path) -> Trace:
    calls: list[Call] = []
    damaged = ranks = 0
    ranges = False
    try:
        for _, block in blocks(path):
            for labels, value in _PROMETHEUS.findall(block):
                ranges = True
                calls.append(_sample(dict(_LABEL.findall(labels.decode("utf-8", "replace"))), value))
            if ranges:
                continue
            for line in block.splitlines():
                found = _performed(line) if b'_perf"' in line else None
                if found:
                    calls.append(found)
                    ranks = max(ranks, found.group or 0)
                elif line.strip():
                    damaged += 1
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); correct `nccl.traces` in the case") from None
    notes = [f"{damaged} lines are cut or hold no collective; they are not used."] if damaged else []
    if ranges:
        notes.append("Prometheus form: sizes are ranges and times are averages over an interval; they tell the algorithm and protocol, not the time of a size.")
    seen = sorted({c.rank for c in calls if c.rank is not None})
    return Trace(path, "inspector", tuple(calls), rank=seen[0] if len(seen) == 1 else None, ranks=ranks or None, backend="nccl", notes=tuple(notes))


def _performed(line: bytes) -> Call | None:
    try:
        record = json.loads(line.decode("utf-8", "replace"))
        kind = "coll" if "coll_perf" in record else "p2p"
        header, done = record["header"], record[f"{kind}_perf"]
        op = kernels.operation(done[kind])
        time, size = kernels.number(done[f"{kind}_exec_time_us"]), done[f"{kind}_msg_size_bytes"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if op is None or time is None or not isinstance(size, int) or not isinstance(header, dict):
        return None
    return Call(op, "nccl", time, size, _whole(header.get("rank")), _whole(done.get(f"{kind}_sn")), group=_whole(header.get("n_ranks")))


def _sample(labels: dict[str, str], value: bytes) -> Call:
    algorithm, _, protocol = labels.get("algo_proto", "").upper().rpartition("_")
    known = algorithm in ALGORITHMS and protocol in PROTOCOLS
    ranks = labels.get("nranks", "")
    return Call(kernels.operation(labels.get("collective", "")) or "unknown", "nccl", kernels.number(float(value)), group=int(ranks) if re.fullmatch(r"\d{1,9}", ranks) else None,
                algorithm=algorithm if known else None, protocol=protocol if known else None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
