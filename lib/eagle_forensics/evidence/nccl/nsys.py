"""Nsight Systems: the kernel summary that `nsys stats -r cuda_gpu_kern_sum -f csv` prints, and the sqlite that `nsys export` writes.

Tracing inflates small collectives (0.1 ms to 4 ms in a published case): shares of time are evidence, absolute times are not.
"""

from __future__ import annotations

import csv
import io
import math
import sqlite3
from array import array
from pathlib import Path

from eagle_forensics.evidence import kernels
from eagle_forensics.evidence.nccl.records import Call, Trace
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.shares import share

MAX_CSV = 50_000_000
MAX_KERNELS = 20_000_000
"""Kernels read from one database: 16 bytes of memory each."""
INFLATED = "Taken with Nsight Systems, which makes small collectives longer: use it for shares of time, not for absolute times."
OPAQUE = "No kernel belongs to a CUDA graph: traced without `--cuda-graph-trace=node`, a decode step is one opaque graph and its collectives are missing."


def read_nsys_csv(path: Path) -> Trace:
    """Collectives of a kernel summary: a call a kernel name, with its number and median. EvidenceError for another CSV."""
    try:
        if path.stat().st_size > MAX_CSV:
            raise EvidenceError(f"{path}: {path.stat().st_size} bytes; expected a kernel summary, under {MAX_CSV} bytes")
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); correct `nccl.traces` in the case") from None
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith("Time (%)") and "Name" in line), None)
    if begin is None:
        raise EvidenceError(f"{path}: no header `Time (%),Total Time (ns),...,Name`; expected `nsys stats -r cuda_gpu_kern_sum -f csv`")
    calls, bad = [], 0
    for row in csv.DictReader(io.StringIO("\n".join(lines[begin:]), newline="")):
        carried = kernels.carrier(row.get("Name") or "")
        if not carried:
            continue
        count, median = _number(row.get("Instances")), _number(row.get("Med (ns)") or row.get("Avg (ns)"))
        if count is None or median is None:
            bad += 1
            continue
        calls.append(Call(carried[1], carried[0], median / 1e3, count=int(count)))
    notes = [INFLATED] + ([f"{bad} rows of communication kernels are cut and left out."] if bad else []) + ([] if calls else ["No communication kernel in it."])
    return Trace(path, "nsys-csv", tuple(calls), notes=tuple(notes))


def read_nsys_sqlite(path: Path) -> Trace:
    """Collectives of an exported database, read-only. EvidenceError for a database without kernels."""
    try:
        base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            return _from_database(path, base)
        finally:
            base.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise EvidenceError(f"{path}: not a readable Nsight database ({error}); expected the sqlite of `nsys export --type sqlite` of a trace with CUDA kernels") from None


def _from_database(path: Path, base: sqlite3.Connection) -> Trace:
    columns = {row[1] for row in base.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    missing = {"start", "end", "deviceId", "shortName"} - columns
    if missing:
        raise EvidenceError(f"{path}: its table CUPTI_ACTIVITY_KIND_KERNEL lacks {', '.join(sorted(missing))}; expected the sqlite of `nsys export --type sqlite`")
    names = {number: kernels.carrier(str(text)) for number, text in base.execute("SELECT id, value FROM StringIds")}
    name = "COALESCE(demangledName, shortName)" if "demangledName" in columns else "shortName"
    graph = "graphNodeId IS NOT NULL" if "graphNodeId" in columns else "0"
    calls: list[Call] = []
    spans: dict[int, tuple[array, array]] = {}
    in_graph = count = 0
    for start, end, device, kernel, replayed in base.execute(f"SELECT start, end, deviceId, {name}, {graph} FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT ?", (MAX_KERNELS,)):
        if not isinstance(start, int) or not isinstance(end, int) or end < start:
            continue
        carried = names.get(kernel)
        count, in_graph = count + 1, in_graph + bool(replayed)
        spans.setdefault(device, (array("d"), array("d")))[0 if carried else 1].extend((start / 1e3, end / 1e3))
        if carried:
            calls.append(Call(carried[1], carried[0], (end - start) / 1e3, start_us=start / 1e3))
    if not count:
        raise EvidenceError(f"{path}: no kernel in it; expected a trace of the served process (nsys profile --trace=cuda --cuda-graph-trace=node)")
    notes = [INFLATED] + ([] if in_graph else [OPAQUE]) + ([] if calls else ["No communication kernel in it."])
    notes += [f"More than {MAX_KERNELS} kernels; those after are not read."] if count == MAX_KERNELS else []
    notes += [f"Kernels of {len(spans)} devices; shares of time are those of the busiest."] if len(spans) > 1 else []
    busiest = max(spans.values(), key=lambda pair: len(pair[0]) + len(pair[1]))
    return Trace(path, "nsys-sqlite", tuple(calls), share=share(*busiest), notes=tuple(notes))


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
