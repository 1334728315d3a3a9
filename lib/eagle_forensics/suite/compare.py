"""Compares runs: what differs in verdicts, findings, figures, parameters and inputs; regressions first.

A status that became worse is a regression. A figure is one only where larger is known to be better and the 95 % intervals
do not overlap; every other difference is called `changed`, not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_forensics.suite.files import write_text
from eagle_forensics.suite.runfolder import Manifest, RunFolder, RunFolderError, open_folder

if TYPE_CHECKING:
    import pandas as pd

RANK = {"pass": 0, "PASS": 0, "skipped": 1, "inconclusive": 1, "absent": 1, "INCONCLUSIVE": 1, "error": 2, "ERROR": 2, "fail": 3, "FAIL": 3}
"""How bad a status is; `skipped` and `inconclusive` are both less than a pass."""
LARGER_IS_BETTER = ("accuracy", "tokens per verify", "tokens/s", "tokens per second", "accept length")
"""Units, by their beginning, of figures that one wants large."""
ORDER = ("regression", "improvement", "changed", "equal")
ABSENT = "absent"


@dataclass(frozen=True)
class Row:
    """One thing that runs have in common, with its value in each."""

    kind: str
    """verdict, finding, figure, parameter, input or suite."""
    name: str
    values: tuple[Any, ...]
    """In the order of the runs; `absent` where a run has none."""
    change: str
    """regression, improvement, changed or equal: the worst change of any run against the baseline."""
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    runs: tuple[str, ...]
    """Run ids."""
    cases: tuple[str, ...]
    verdicts: tuple[str, ...]
    folders: tuple[Path, ...]
    baseline: int
    rows: tuple[Row, ...]
    hidden: int
    """Equal rows that are not shown."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Case names, with the run id where two runs are of the same case."""
        return tuple(case if self.cases.count(case) == 1 else f"{case} {run[:16]}" for case, run in zip(self.cases, self.runs, strict=True))

    def frame(self) -> pd.DataFrame:
        """One row a compared thing; a column a run."""
        import pandas as pd

        return pd.DataFrame([{"change": r.change, "kind": r.kind, "name": r.name, **dict(zip(self.runs, r.values, strict=True)), "note": r.note}
                             for r in self.rows], columns=["change", "kind", "name", *self.runs, "note"])

    def html(self, beside: Path | None = None) -> str:
        """A self-contained page; `beside`: the folder it is written to, for links to the post-mortems."""
        from eagle_forensics.suite.page import render

        return render("compare.html.j2", comparison=self, links=[_relative(f / "post_mortem.html", beside) for f in self.folders])


def compare_runs(run_dirs: Sequence[Path], *, baseline: int = 0, all_rows: bool = False) -> Comparison:
    """Compare two run folders or more against the one at index `baseline`; only differences unless `all_rows`.

    Raises RunFolderError for fewer than two runs, an unfinished run or a folder that is no run.
    """
    if len(run_dirs) < 2:
        raise RunFolderError("a comparison needs two runs or more; list them with `eagle-forensics index`.")
    if not 0 <= baseline < len(run_dirs):
        raise RunFolderError(f"baseline {baseline} is not among the {len(run_dirs)} runs (0 to {len(run_dirs) - 1}).")
    folders = [Path(d).resolve() for d in run_dirs]
    opened = [open_folder(f) for f in folders]
    manifests, merged = [run.manifest for run in opened], [_merged(run) for run in opened]
    rows = sorted(_rows(manifests, merged, baseline), key=lambda r: ORDER.index(r.change))
    shown = rows if all_rows else [r for r in rows if r.change != "equal"]
    return Comparison(tuple(m.run_id for m in manifests), tuple(m.case["name"] for m in manifests), tuple(m["verdict"] for m in merged),
                      tuple(folders), baseline, tuple(shown), len(rows) - len(shown))


def write_comparison(run_dirs: Sequence[Path], target: Path, *, baseline: int = 0, all_rows: bool = False) -> Path:
    """Write the comparison as one HTML file; returns its path."""
    target = Path(target).resolve()
    write_text(target, compare_runs(run_dirs, baseline=baseline, all_rows=all_rows).html(target.parent))
    return target


def _merged(run: RunFolder) -> dict[str, Any]:
    merged = run.merged()
    if merged is None:
        raise RunFolderError(f"{run.path} has no findings.json: the run is not finished. Run the same case again to resume it.")
    return merged


def _rows(manifests: Sequence[Manifest], merged: Sequence[Mapping[str, Any]], base: int) -> list[Row]:
    rows = [_status_row("verdict", "run", [m["verdict"] for m in merged], base)]
    rows += [_status_row("verdict", name, values, base)
             for name, values in _aligned([{n: row["verdict"] for n, row in m["notebooks"].items()} for m in merged])]
    found = [{f["id"]: f for f in m["findings"]} for m in merged]
    for name, items in _aligned(found):
        rows.append(_status_row("finding", name, [i if i == ABSENT else i["status"] for i in items], base))
        if any(i != ABSENT and i["observed"] is not None for i in items):
            rows.append(_figure_row(name, items, base))
    flat = [{f"{n}.{k}": row["value"] for n, rows_ in m.parameters.items() for k, row in rows_.items()} | {f"case.{k}": v for k, v in m.overrides.items()}
            for m in manifests]
    rows += [_plain_row("parameter", name, values, base) for name, values in _aligned(flat)]
    rows += [_plain_row("input", name, values, base)
             for name, values in _aligned([{i["key"]: (i["digest"] or "not read")[:12] for i in m.inputs} for m in manifests])]
    suite = [{"version": m.suite.get("version"), "source": str(m.suite.get("source_sha256", ABSENT))[:12], **{f"{k}": v for k, v in m.versions.items()}}
             for m in manifests]
    return rows + [_plain_row("suite", name, values, base) for name, values in _aligned(suite)]


def _aligned(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    names = dict.fromkeys(name for run in runs for name in run)
    return [(name, [run.get(name, ABSENT) for run in runs]) for name in names]


def _status_row(kind: str, name: str, values: Sequence[str], base: int) -> Row:
    steps = [RANK[v] - RANK[values[base]] for v in values]
    judged = [ABSENT not in (v, values[base]) for v in values]
    better = any(step < 0 and known for step, known in zip(steps, judged, strict=True))  # what was not looked at has not improved
    change = "regression" if max(steps) > 0 else "improvement" if better else "changed" if len(set(values)) > 1 else "equal"
    return Row(kind, name, tuple(values), change)


def _plain_row(kind: str, name: str, values: Sequence[Any], base: int) -> Row:
    return Row(kind, name, tuple(values), "equal" if all(v == values[base] for v in values) else "changed")


def _figure_row(name: str, items: Sequence[Any], base: int) -> Row:
    values = tuple(ABSENT if i == ABSENT else i["observed"] for i in items)
    unit = next((i["unit"] for i in items if i != ABSENT and i["unit"]), None)
    judged = [_figure_change(items[base], item, unit) for item in items]
    change = min(judged, key=ORDER.index)
    intervals = [f"{i['interval'][0]:.4g} to {i['interval'][1]:.4g}" if i != ABSENT and i["interval"] else "–" for i in items]
    note = "; ".join(x for x in (unit or "", "95 % intervals " + ", ".join(intervals) if set(intervals) != {"–"} else "") if x)
    return Row("figure", name, values, change, note)


def _figure_change(base: Any, item: Any, unit: str | None) -> str:
    if ABSENT in (base, item):
        return "equal" if base == item else "changed"
    if base["observed"] == item["observed"]:
        return "equal"
    apart = base["interval"] and item["interval"] and (item["interval"][1] < base["interval"][0] or base["interval"][1] < item["interval"][0])
    numbers = all(isinstance(i["observed"], int | float) and not isinstance(i["observed"], bool) for i in (base, item))
    if apart and numbers and unit and unit.lower().startswith(LARGER_IS_BETTER):
        return "improvement" if item["observed"] > base["observed"] else "regression"
    return "changed"


def compare_text(run_dirs: Sequence[Path], *, out: Path | None = None, all_rows: bool = False, baseline: int = 0) -> str:
    """The comparison as a table for a terminal; with `out` also as an HTML file."""
    from rich.table import Table

    from eagle_forensics.suite.page import value_text
    from eagle_forensics.suite.terminal import STYLE, printed, visible

    comparison = compare_runs(run_dirs, baseline=baseline, all_rows=all_rows)
    table = Table(title="Comparison" + ("" if all_rows else ", differences only"), title_justify="left")
    for column in ("change", "what", *(("* " if i == baseline else "") + visible(label) for i, label in enumerate(comparison.labels))):
        table.add_column(column, overflow="fold")
    for row in comparison.rows:
        table.add_row(row.change, f"{row.kind} {visible(row.name)}", *(visible(value_text(v), 80) for v in row.values), style=STYLE.get(row.change, ""))
    lines: list[Any] = [table, f"* baseline; {comparison.hidden} equal rows not shown (--all shows them)"]
    if out:
        lines.append(f"wrote {write_comparison(run_dirs, out, baseline=baseline, all_rows=all_rows)}")
    return printed(*lines)


def _relative(target: Path, folder: Path | None) -> str:
    """A relative link, percent-encoded; empty where the page is not written beside the run."""
    import os
    from urllib.parse import quote

    return quote(os.path.relpath(target, folder)) if folder and target.is_file() else ""
