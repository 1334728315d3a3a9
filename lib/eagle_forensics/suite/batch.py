"""`eagle-forensics run`: one run or many, one run folder each, the verdicts in a table, the worst one as exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle_forensics.finding import Status, Verdict
from eagle_forensics.suite.cluster import on_cluster
from eagle_forensics.suite.matrix import Planned, plan
from eagle_forensics.suite.progress import silent, to_stream
from eagle_forensics.suite.runner import RunInterrupted, RunResult, run_case
from eagle_forensics.suite.schedule import Kernels
from eagle_forensics.suite.terminal import STYLE, visible

BAD_INPUT, INTERRUPTED = 2, 130
_WORST = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS)
Ended = tuple[Planned, RunResult | BaseException]


def run_cases(cases: Sequence[Path], *, only: Sequence[int] | None = None, settings: Mapping[str, Any] | None = None, out: Path | None = None,
              resume: bool = True, matrix: Path | None = None, jobs: int = 1, cluster: str | None = None, fail_on: Sequence[Verdict] | None = None) -> int:
    """Run every case at every point of the matrix; what cannot be used is reported and the others go on. Returns the exit code.

    `settings`: dotted case keys (`drafter.path`) and notebook parameters (`steps`), as `--set` gives them. `jobs`: runs at
    once on this machine, or notebooks at once where there is one run. `cluster`: address of a Dask scheduler that runs them
    instead. `fail_on`: verdicts that make the exit code other than 0; None: all but PASS.
    """
    planned = plan(cases, settings or {}, matrix)
    many = len(planned) > 1
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    results: dict[int, RunResult] = {}
    unusable = 0
    common = {"only": only, "out": out, "resume": resume}
    runs = on_cluster(cluster, planned, partial(_run, **common)) if cluster else _here(planned, jobs, common, errors)
    try:
        for run, ended in runs:
            if many:
                console.print(run.label, style="bold", markup=False, soft_wrap=True)
            if isinstance(ended, RunInterrupted):
                raise ended
            if isinstance(ended, (ValueError, OSError)):
                unusable += 1
                errors.print(f"eagle-forensics: {visible(str(ended))}", style="red", markup=False, soft_wrap=True)
            elif isinstance(ended, BaseException):
                unusable += 1
                errors.print(f"eagle-forensics: {run.label}: {type(ended).__name__}: {visible(str(ended))}", style="red", markup=False, soft_wrap=True)
            else:
                results[id(run)] = ended
                _say(ended, console, errors)
    except KeyboardInterrupt as stop:
        said = str(stop) or "Interrupted. Give the same command again to resume."
        errors.print(f"\neagle-forensics: {visible(said)}", markup=False, soft_wrap=True)
        return INTERRUPTED
    if many:
        console.print(_summary(planned, results))
    return _exit_code([r.verdict for r in results.values()], unusable, fail_on)


def _run(run: Planned, **more: Any) -> RunResult:
    return run_case(run.case, overrides=run.overrides, parameters=run.parameters, **more)


def _here(planned: Sequence[Planned], jobs: int, common: Mapping[str, Any], errors: Console) -> Iterator[Ended]:
    """On this machine: one after another, or `jobs` at once."""
    if jobs < 2 or len(planned) < 2:
        for run in planned:
            yield run, _caught(run, progress=to_stream(), jobs=jobs, **common)
        return
    kernels = Kernels()
    with ThreadPoolExecutor(jobs) as pool:
        todo = {pool.submit(_caught, run, progress=silent, kernels=kernels, **common): run for run in planned}
        try:
            for done, future in enumerate(as_completed(todo), 1):
                errors.print(f"[{done}/{len(planned)}]", markup=False)
                yield todo[future], future.result()
        except BaseException:
            for future in todo:
                future.cancel()
            kernels.stop()
            raise


def _caught(run: Planned, **more: Any) -> RunResult | BaseException:
    """The result, or what ended it: one run that cannot be made must not end the others."""
    try:
        return _run(run, **more)
    except (RunInterrupted, ValueError, OSError) as error:
        return error


def _say(result: RunResult, console: Console, errors: Console) -> None:
    console.print(_table(result))
    for item in result.findings:
        if item.status is Status.ERROR:
            errors.print(f"  error  {visible(item.id)}: {visible(item.statement, 600)}", style=STYLE["error"], markup=False, soft_wrap=True)
    console.print(f"{result.verdict}  {visible(result.merged['diagnosis']['headline'])}", style=f"bold {STYLE[result.verdict]}", markup=False)
    console.print(f"post-mortem: {result.post_mortem}", markup=False, soft_wrap=True)


def _table(result: RunResult) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("notebook", "verdict", *(s.value for s in Status), "seconds"):
        table.add_column(column, justify="left" if column in ("notebook", "verdict") else "right")
    for row in result.table():
        table.add_row(row["notebook"], str(row["verdict"]), *(str(row[s.value] or "–") for s in Status), f"{row['seconds'] or 0:.0f}", style=STYLE[row["verdict"]])
    return table


def _summary(planned: Sequence[Planned], results: Mapping[int, RunResult]) -> Table:
    """One row a run, in the order in which they were planned."""
    table = Table(title="All runs", title_justify="left", box=None, pad_edge=False)
    for column in ("verdict", "run", "folder"):
        table.add_column(column, overflow="fold")
    for run in planned:
        result = results.get(id(run))
        table.add_row(str(result.verdict) if result else "unusable", visible(run.label), result.run_dir.name if result else "–",
                      style=STYLE[result.verdict] if result else "red")
    return table


def _exit_code(verdicts: Sequence[Verdict], unusable: int, fail_on: Sequence[Verdict] | None) -> int:
    worst = next((v for v in _WORST if v in verdicts and (fail_on is None or v in fail_on)), None)
    if worst is Verdict.FAIL:
        return worst.exit_code
    if unusable:
        return Verdict.ERROR.exit_code if verdicts else BAD_INPUT
    return worst.exit_code if worst else 0
