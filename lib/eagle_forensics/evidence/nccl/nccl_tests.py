"""Runs of nccl-tests: the table it prints, in every layout since 2.10, and the JSON it writes with `-J`.

Recognised by content. Columns are taken from the table's header, by position. A row that is cut or impossible is left out and
named in `notes`. Of the environment that the JSON records only NCCL's own variables are kept.
Layouts: nccl-tests 2.10 to 2.19.6, src/common.cu, util.cu.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.environment import redacted
from eagle_forensics.evidence.nccl.records import NcclTests, Timing
from eagle_forensics.evidence.records import EvidenceError

MAX_JSON = 64_000_000
"""A JSON report of a thousand sizes with every iteration has a few MB."""
BUS_FACTOR = {"all_reduce_perf": lambda n: 2 * (n - 1) / n, "all_gather_perf": lambda n: (n - 1) / n, "reduce_scatter_perf": lambda n: (n - 1) / n,
              "broadcast_perf": lambda n: 1.0, "reduce_perf": lambda n: 1.0}
"""busbw = algbw x this (nccl-tests doc/PERFORMANCE.md)."""
TOLERANCE = 0.02
"""Relative mismatch of busbw beyond its rounding that is said."""

_TAG = re.compile(r"^(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?\s*)+")
_ROW = re.compile(r"\d+\s+\d+\s+[a-z]\w*\s", re.ASCII)
_GLUED = re.compile(r"\S+:\d+:\d+ \[-?\d+\] .*NCCL (?:INFO|WARN|TRACE) ")
"""Where a line of NCCL's log begins inside another one; a number that its host name swallowed is lost."""
_HEADER = re.compile(r"#\s+size\s+count\s+type")
_OURS = re.compile(rb"^(?:\[\d[^\n>\]]*\](?:<std(?:out|err)>)?:?)*[ \t]*(?:#|\d+[ \t]+\d+[ \t]+[a-z])[^\n]*", re.MULTILINE)
"""Lines that may belong to nccl-tests; logs of NCCL between them are skipped."""


def read_nccl_tests(path: str | Path) -> NcclTests:
    """One run, text or JSON; one that stopped before its first row has none. EvidenceError for a file without a table."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096).lstrip()
        if head.startswith(b"{"):
            return _from_json(path)
        return _from_text(path)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); name an existing file in the case, under `nccl.tests`") from None


def _from_text(path: Path) -> NcclTests:
    columns: list[str] = []
    rows: list[Timing] = []
    facts: dict[str, Any] = {}
    ranks: set[str] = set()
    cut: list[str] = []
    footer = odd = False
    for line in _lines(path):
        odd = odd or "\ufffd" in line
        if line.startswith("#"):
            if _HEADER.match(line):
                columns = line.lstrip("# ").split()
            elif found := re.match(r"#\s+Rank\s+(\d+)", line):
                ranks.add(found[1])
            elif found := re.match(r"# Out of bounds values\s*: \d+ (OK|FAILED)", line):
                footer, facts["failed"] = True, found[1] == "FAILED"
            else:
                _fact(facts, line)
        elif columns and _ROW.match(line):
            taken = list(_halves(line.split(), columns))
            rows += taken
            if not taken:
                cut.append(line[:80])
    stopped = not rows and not cut and not footer and bool(columns and ranks and "iterations" in facts)
    if not rows and not stopped:
        raise EvidenceError(f"{path}: no nccl-tests table found; expected a header `#  size  count  type ...` with rows under it "
                            "(the text that all_reduce_perf prints, or the JSON of its -J)")
    notes = [f"{len(cut)} rows are cut or impossible and left out. The first: {cut[0]!r}."] if cut else []
    if stopped:
        notes.append("The run printed the head of its table and no row: its first collective did not end, or the run was ended by hand.")
    elif not footer:
        notes.append("The footer is missing (`# Out of bounds values`): the run did not end, or the file is cut. Whether results were right is not known.")
    if odd:
        notes.append("Some bytes are not UTF-8; lines that hold them are read as far as they are text.")
    return _run(path, rows, len(ranks), facts, notes)


def _lines(path: Path) -> Iterator[str]:
    for _, block in blocks(path):
        for raw in _OURS.findall(block):
            line = _TAG.sub("", raw.decode("utf-8", "replace")).strip()
            yield _GLUED.split(line)[0]


def _fact(facts: dict[str, Any], line: str) -> None:
    if found := re.match(r"# nccl-tests version (\S+)(?: nccl-headers=\d+ nccl-library=(\d+))?", line):
        facts["version"], facts["nccl"] = found[1], _release(found[2])
    elif found := re.match(r"# Collective test starting: (\S+)", line):
        facts["test"] = found[1]
    elif re.match(r"# nThread ", line):
        iterations, graph = re.search(r"(?<!warmup )iters: (\d{1,9})", line), re.search(r"graph: (\d+)", line)
        facts["iterations"] = int(iterations[1]) if iterations else None
        facts["graph"] = graph[1] != "0" if graph else None


def _halves(fields: list[str], columns: list[str]) -> Iterator[Timing]:
    """Out-of-place and in-place half of a row; a replay test has the second only. Nothing for a row that does not fill its columns."""
    starts = [i for i, name in enumerate(columns) if name in ("time", "cputime")]
    if not starts or len(fields[0]) > 18:
        return
    width = (starts[1] - starts[0]) if len(starts) > 1 else len(columns) - starts[0]
    in_place_only = len(starts) == 2 and starts[0] + width <= len(fields) < starts[0] + 2 * width
    if in_place_only and len(fields) != len(columns) - width:
        return
    if not in_place_only and len(fields) < starts[-1] + width:
        return
    names = columns[starts[0]: starts[0] + width]
    for half, start in enumerate(starts[:1] if in_place_only else starts):
        cells = dict(zip(names, fields[start: start + width], strict=True))
        if any(_real(v) is None and v != "N/A" for v in cells.values()):
            return
        yield _timing(int(fields[0]), bool(half) or in_place_only, fields[2], fields[columns.index("redop")] if "redop" in columns else None, {k: _real(v) for k, v in cells.items()})


def _timing(size: int, in_place: bool, dtype: str, op: str | None, cells: Mapping[str, float | None]) -> Timing:
    spread = tuple(cells.get(k) for k in ("i_min", "i_max", "i_p99"))
    return Timing(size, in_place, cells.get("time", cells.get("cputime")), cells.get("algbw"), cells.get("busbw"), _whole(cells.get("#wrong")), dtype,
                  None if op in (None, "none") else op, spread_us=spread if None not in spread else None)  # type: ignore[arg-type]


def _from_json(path: Path) -> NcclTests:
    if path.stat().st_size > MAX_JSON:
        raise EvidenceError(f"{path}: {path.stat().st_size} bytes; expected the JSON of nccl-tests -J, under {MAX_JSON} bytes")
    try:
        report = json.loads(path.read_bytes().decode("utf-8", "replace"), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: not valid JSON ({str(error)[:100]}); expected the file of nccl-tests -J. Was it cut? Run it again.") from None
    results = report.get("results") if isinstance(report, dict) else None
    if not isinstance(results, list):
        raise EvidenceError(f"{path}: no `results`; expected the JSON of nccl-tests -J")
    rows: list[Timing] = []
    bad = 0
    for result in results:
        taken = list(_json_rows(result)) if isinstance(result, dict) else []
        rows += taken
        bad += not taken
    if not rows:
        raise EvidenceError(f"{path}: none of its {len(results)} results has a size and a time; expected the JSON of nccl-tests -J")
    config = report.get("config") if isinstance(report.get("config"), dict) else {}
    bounds = report.get("out_of_bounds") if isinstance(report.get("out_of_bounds"), dict) else {}
    arguments = report.get("args") if isinstance(report.get("args"), list) else []
    devices = [d for d in config.get("devices") or () if isinstance(d, dict)] if isinstance(config.get("devices"), list) else []
    ranks = max(len({_whole(d.get("rank")) for d in devices}), (_whole(config.get("nthreads")) or 0) * (_whole(config.get("ngpus")) or 0))
    facts = {"nccl": _release(str(report.get("nccl_version"))), "test": Path(str(arguments[0])).name if arguments else None, "failed": bounds.get("okay") == "false",
             "iterations": _whole(config.get("iterations")), "graph": bool(_whole(config.get("graph"))) if "graph" in config else None,
             "environment": _environment(report.get("env"))}
    notes = [f"{bad} results have no size or no time and are left out."] if bad else []
    notes += [f"nccl-tests reports: {str(e)[:200]}" for e in report.get("errors") or ()] if isinstance(report.get("errors"), list) else []
    if "okay" not in bounds:
        notes.append("`out_of_bounds` is missing: whether results were right is not known.")
    return _run(path, rows, ranks, facts, notes)


def _json_rows(result: Mapping[str, Any]) -> Iterator[Timing]:
    size, dtype, op = _whole(result.get("size")), result.get("type"), result.get("redop")
    if size is None or size < 0:
        return
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        half = result.get(key)
        if not isinstance(half, dict):
            continue
        time = _real(half.get("time", half.get("cpu_time")))
        each = result.get(f"{key}_per_iter")
        samples = each.get("times_us") if isinstance(each, dict) else None
        numbers = tuple(x for x in map(_real, samples) if x is not None) if isinstance(samples, list) else ()
        spread = tuple(_real(each.get(k)) for k in ("min_us", "max_us", "p99_us")) if isinstance(each, dict) else ()
        yield Timing(size, in_place, time, _real(half.get("alg_bw")), _real(half.get("bus_bw")), _whole(half.get("nwrong")), str(dtype) if dtype else None,
                     None if op in (None, "none") else str(op), numbers, spread if len(spread) == 3 and None not in spread else None)  # type: ignore[arg-type]


def _environment(entries: Any) -> dict[str, str] | None:
    if not isinstance(entries, list):
        return None
    pairs = (e.partition("=") for e in entries if isinstance(e, str))
    return {name: redacted(name, value) for name, _, value in pairs if name.startswith("NCCL_")}


def _run(path: Path, rows: list[Timing], ranks: int, facts: Mapping[str, Any], notes: list[str]) -> NcclTests:
    wrong = sum(r.wrong or 0 for r in rows)
    if wrong:
        notes.append(f"{wrong} wrong values in {sum(bool(r.wrong) for r in rows)} rows: the times are those of a configuration that corrupts data.")
    test = facts.get("test")
    off = [r for r in rows if ranks and _mismatch(r, test, ranks)]
    if off:
        notes.append(f"In {len(off)} rows busbw is not algbw x the factor of {test} for {ranks} ranks (first: {off[0].bytes} bytes): is the list of ranks whole?")
    return NcclTests(path, test, facts.get("version"), facts.get("nccl"), ranks, tuple(rows), bool(facts.get("failed")) or wrong > 0, facts.get("iterations"),
                     facts.get("graph"), facts.get("environment"), tuple(notes))


def _mismatch(row: Timing, test: str | None, ranks: int) -> bool:
    """busbw against time, size and ranks, beyond the rounding of two printed digits."""
    if test not in BUS_FACTOR or not row.time_us or row.busbw is None:
        return False
    expected = row.bytes / row.time_us / 1e3 * BUS_FACTOR[test](ranks)
    return abs(row.busbw - expected) > TOLERANCE * expected + 0.005 * (1 + expected / row.time_us)


def _release(code: str | None) -> str | None:
    """22809 as 2.28.9 (NCCL_VERSION of nccl.h)."""
    if not code or not re.fullmatch(r"\d{4,6}", code):
        return None
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number >= 10000 else f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def _real(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _real(value)
    return int(number) if number is not None else None
