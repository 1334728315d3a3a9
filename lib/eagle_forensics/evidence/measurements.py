"""The measurements table: `read_measurements` reads the case's CSV, one row a measured run, or the JSON lines of bench_speculative.py.

Columns (all but `label` optional) are those of COLUMNS. A row with an impossible figure is left out and named in
`frame.attrs["problems"]`: a figure that cannot be must not enter a verdict, and must not vanish either.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_forensics.evidence import bench_speculative
from eagle_forensics.evidence.records import EvidenceError

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 50_000_000
MAX_ROWS = 2000
"""Runs that are compared pairwise and drawn; a table with more holds requests or rounds."""
FASTEST = 1e9
"""tokens/s that no server reaches: three orders of magnitude above a whole node."""


def _text(cell: str) -> str:
    return cell


def _count(cell: str) -> int:
    value = _real(cell)
    if value != int(value) or value > 2**53:  # beyond it a float holds no exact count
        raise ValueError("a whole number of at most 2**53" if value > 2**53 else "a whole number")
    return int(value)


def _real(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number")
    if value < 0:
        raise ValueError("a number of at least 0")
    return value


def _share(cell: str) -> float:
    value = _real(cell)
    if value > 1:
        raise ValueError("a share from 0 to 1")
    return value


def _flag(cell: str) -> bool:
    known = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
    if cell.lower() not in known:
        raise ValueError("0 or 1")
    return known[cell.lower()]


def _survival(cell: str) -> tuple[float, ...]:
    shares = tuple(_share(part.strip()) for part in cell.split(";") if part.strip())
    if not shares:
        raise ValueError("shares such as 0.6;0.4;0.2")
    if any(later > earlier for earlier, later in itertools.pairwise(shares)):
        raise ValueError("survival, which never rises (conditional rates do not belong here)")
    return shares


COLUMNS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "label": (_text, "str"),
    "engine": (_text, "str"),
    "engine_version": (_text, "str"),
    "speculative": (_flag, "boolean"),
    "steps": (_count, "Int64"),
    "topk": (_count, "Int64"),
    "draft_tokens": (_count, "Int64"),
    "temperature": (_real, "float64"),
    "concurrency": (_count, "Int64"),
    "context_length": (_count, "Int64"),
    "dataset": (_text, "str"),
    "prompts_hash": (_text, "str"),
    "rounds": (_count, "Int64"),
    "accept_length": (_real, "float64"),
    "accept_rate": (_share, "float64"),
    "accepted_per_position": (_survival, "object"),
    "tokens_per_second": (_real, "float64"),
    "distinct_output_tokens": (_count, "Int64"),
    "cuda_graph": (_flag, "boolean"),
    "env_hash": (_text, "str"),
    "drafter": (_text, "str"),
    "prefix_cache": (_flag, "boolean"),
    "dp_attention": (_flag, "boolean"),
    "grammar": (_flag, "boolean"),
    "images": (_flag, "boolean"),
    "outputs_hash": (_text, "str"),
    "cache_hit_rate": (_share, "float64"),
}
"""Column to its reader and its pandas type. accept_length counts the bonus token; accepted_per_position is survival, `a;b;c`; outputs_hash is of the answers' token
ids in order; cache_hit_rate is the share of prompt tokens that came out of the prefix cache."""


def read_measurements(path: Path | str) -> pd.DataFrame:
    """The table with typed columns, empty cells missing; `attrs["problems"]`: a sentence for each row left out.

    EvidenceError for a file that is empty, not UTF-8, without rows, without `label`, or with an unknown column.
    """
    import pandas as pd

    path = Path(path)
    rows = _rows(path)
    header = [name.strip() for name in rows[0][1]]
    _check_header(path, header)
    if len(rows) == 1:
        raise EvidenceError(f"{path}: a header without rows; expected one row a measured run. Add the runs, or delete `measurements` from the case.")
    if len(rows) - 1 > MAX_ROWS:
        raise EvidenceError(f"{path}: {len(rows) - 1} rows; expected one row a measured run, at most {MAX_ROWS}. Is this a row a request? Summarise it by run.")
    kept: list[dict[str, Any]] = []
    problems: list[str] = []
    for line, cells in rows[1:]:
        try:
            kept.append(_row(header, cells))
        except ValueError as error:
            name = dict(zip(header, cells, strict=False)).get("label", "").strip()
            problems.append(f"line {line}{f' ({name:.60})' if name else ''}: {error}. The row is left out of every figure.")
    if not kept:
        raise EvidenceError(f"{path}: none of its {len(rows) - 1} row(s) can be used. First: {problems[0]} Correct the rows.")
    frame = pd.DataFrame({name: pd.Series([row[name] for row in kept], dtype=COLUMNS[name][1]) for name in header})
    frame.attrs["problems"] = problems
    frame.attrs["source"] = str(path)
    return frame


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Non-empty rows with their line numbers; the first is the header."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{path}: {path.stat().st_size} bytes; expected one row a run, under {MAX_BYTES} bytes. Is this a raw trace? Summarise it.")
        text = path.read_bytes().decode("utf-8-sig")
        if bench_speculative.recognised(text):
            return bench_speculative.rows(text)
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `measurements` in the case.") from None
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: not UTF-8 at byte {error.start}; expected a CSV in UTF-8. Save it again as UTF-8.") from None
    except csv.Error as error:
        raise EvidenceError(f"{path}: line {reader.line_num} is not valid CSV ({error}); expected comma-separated cells. Correct that line.") from None
    if not rows:
        raise EvidenceError(f"{path}: empty; expected a CSV whose header names at least `label`. Add the runs, or delete `measurements` from the case.")
    return rows


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise EvidenceError(f"{path}: the header {header[0]!r:.80} is not separated by commas; expected a comma-separated file. Export it with commas.")
    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.5)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise EvidenceError(f"{path}: unknown column `{name:.80}`; expected some of {', '.join(COLUMNS)}.{hint} Rename or remove it.")
        if header.count(name) > 1:
            raise EvidenceError(f"{path}: the column `{name}` stands twice; expected each once. Remove one.")
    if "label" not in header:
        raise EvidenceError(f"{path}: no column `label`; expected a name for every run. Add it.")


def _row(header: list[str], cells: list[str]) -> dict[str, Any]:
    """One typed row; ValueError says in words what cannot be."""
    if len(cells) > len(header) and any(cell.strip() for cell in cells[len(header) :]):
        raise ValueError(f"{len(cells)} cells under a header of {len(header)}; put text with commas in quotes")
    row: dict[str, Any] = dict.fromkeys(header)
    for name, cell in zip(header, cells, strict=False):
        cell = cell.strip()
        if cell:
            try:
                row[name] = COLUMNS[name][0](cell)
            except ValueError as error:
                raise ValueError(f"{name} is {cell!r:.60}; expected {error}") from None
    if not row["label"]:
        raise ValueError("no label; expected a name for the run")
    _check_figures(row)
    return row


def _check_figures(row: Mapping[str, Any]) -> None:
    """Figures that no engine can produce with the row's own settings."""
    length, survival = row.get("accept_length"), row.get("accepted_per_position")
    if length is not None and length < 1:
        raise ValueError(f"accept_length is {length:g}; expected at least 1, since every round yields the bonus token")
    speed = row.get("tokens_per_second")
    if speed is not None and (speed > FASTEST or 0 < speed < 1 / FASTEST):
        raise ValueError(f"tokens_per_second is {speed:g}; expected a speed that a server can have")
    limit = most_tokens(row)
    if limit is not None and length is not None and length > limit[0]:
        raise ValueError(f"accept_length is {length:g} but {limit[1]} allows at most {limit[0]} tokens a round, bonus token included")
    if limit is not None and survival and len(survival) > limit[0] - 1:
        raise ValueError(f"accepted_per_position has {len(survival)} positions but {limit[1]} allows at most {limit[0] - 1} draft tokens in a chain")


def most_tokens(row: Mapping[str, Any]) -> tuple[int, str] | None:
    """Most tokens a round can yield with a row's settings, bonus token included, and the setting that says so.

    SGLang counts the verified root among its draft tokens and overwrites them by steps + 1 when topk is 1; other engines
    do not count it. Without an engine the wider bound holds.
    """
    steps, tokens = row.get("steps"), row.get("draft_tokens")
    bounds = []
    if steps is not None:
        bounds.append((steps + 1, f"steps {steps}"))
    if tokens is not None and (steps is None or (row.get("topk") or 0) > 1):
        root = 0 if str(row.get("engine") or "").lower() == "sglang" else 1
        bounds.append((tokens + root, f"draft_tokens {tokens}"))
    return min(bounds) if bounds else None
