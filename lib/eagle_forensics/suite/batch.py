"""`eagle-forensics run`: one case or many, one run folder each, the verdicts in a table, the worst one as exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle_forensics.case import known_keys
from eagle_forensics.finding import Status, Verdict
from eagle_forensics.suite.progress import to_stream
from eagle_forensics.suite.runner import RunInterrupted, RunResult, run_case
from eagle_forensics.suite.terminal import STYLE, visible

BAD_INPUT, INTERRUPTED = 2, 130
_WORST = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS)


def run_cases(cases: Sequence[Path], *, only: Sequence[int] | None = None, settings: Mapping[str, Any] | None = None, out: Path | None = None,
              resume: bool = True) -> int:
    """Run every case; a case that cannot be used is reported and the others go on. Returns the exit code.

    `settings`: dotted case keys (`drafter.path`) and notebook parameters (`steps`), as `--set` gives them.
    """
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    keys = set(known_keys())
    overrides = {k: v for k, v in (settings or {}).items() if k in keys or "." in k}
    parameters = {k: v for k, v in (settings or {}).items() if k not in overrides}
    results: list[RunResult] = []
    unusable = 0
    for case in cases:
        if len(cases) > 1:
            console.print(f"{case}", style="bold", markup=False)
        try:
            result = run_case(case, only=only, overrides=overrides, parameters=parameters, out=out, progress=to_stream(), resume=resume)
        except RunInterrupted as stop:
            errors.print(f"\neagle-forensics: {visible(str(stop))}", markup=False, soft_wrap=True)
            return INTERRUPTED
        except (ValueError, OSError) as error:
            unusable += 1
            errors.print(f"eagle-forensics: {visible(str(error))}", style="red", markup=False, soft_wrap=True)
            continue
        results.append(result)
        console.print(_table(result))
        for item in result.findings:
            if item.status is Status.ERROR:
                errors.print(f"  error  {visible(item.id)}: {visible(item.statement, 600)}", style=STYLE["error"], markup=False, soft_wrap=True)
        console.print(f"{result.verdict}  {visible(result.merged['diagnosis']['headline'])}", style=f"bold {STYLE[result.verdict]}", markup=False)
        console.print(f"post-mortem: {result.post_mortem}", markup=False, soft_wrap=True)
    worst = next((v for v in _WORST if any(r.verdict is v for r in results)), None)
    if worst is Verdict.FAIL or not unusable:
        return worst.exit_code if worst else BAD_INPUT
    return BAD_INPUT if not results else Verdict.ERROR.exit_code


def _table(result: RunResult) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("notebook", "verdict", *(s.value for s in Status), "seconds"):
        table.add_column(column, justify="left" if column in ("notebook", "verdict") else "right")
    for row in result.table():
        table.add_row(row["notebook"], str(row["verdict"]), *(str(row[s.value] or "–") for s in Status), f"{row['seconds'] or 0:.0f}", style=STYLE[row["verdict"]])
    return table
