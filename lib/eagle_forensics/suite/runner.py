"""Runs a case: prepares or resumes the run folder, executes the notebooks, merges their findings, writes the post-mortem."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_forensics.case import Case, load_case
from eagle_forensics.finding import Finding, Status, Verdict
from eagle_forensics.suite import parameters as notebook_parameters
from eagle_forensics.suite import provenance, runfolder
from eagle_forensics.suite.execute import CELL_TIMEOUT_ENV, CELL_TIMEOUT_S, NotebookOutcome, execute
from eagle_forensics.suite.files import write_text
from eagle_forensics.suite.markdown import markdown
from eagle_forensics.suite.merge import merge
from eagle_forensics.suite.progress import Progress, Step, silent
from eagle_forensics.suite.redact import kept_env, redact_argv, redact_tree
from eagle_forensics.suite.report import post_mortem, rerun_command
from eagle_forensics.suite.runfolder import NOTEBOOKS, RunFolder, RunFolderError
from eagle_forensics.suite.schedule import Kernels, in_order
from eagle_forensics.suite.session import OVERRIDES_ENV, RUN_ENV, case_entry

NOTEBOOKS_ENV = "EAGLE_FORENSICS_NOTEBOOKS"


class RunInterrupted(KeyboardInterrupt):
    """The run was stopped by Ctrl-C or SIGTERM; `run_dir` resumes when the same command is given again."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        super().__init__(f"Interrupted. The kernel is stopped and finished notebooks are kept in {run_dir}. "
                         "Give the same command again to resume.")


@dataclass(frozen=True)
class RunResult:
    """What came out of a run."""

    run_dir: Path
    verdict: Verdict
    findings: tuple[Finding, ...]
    outcomes: tuple[NotebookOutcome, ...]
    seconds: float
    merged: Mapping[str, Any]
    """Content of findings.json."""

    @property
    def post_mortem(self) -> Path:
        return self.run_dir / "post_mortem.html"

    def table(self) -> list[dict[str, Any]]:
        """One row a notebook: notebook, verdict, a count a status, seconds, reason."""
        return [{"notebook": name, "verdict": Verdict(row["verdict"]), **{s.value: row["counts"][s.value] for s in Status},
                 "seconds": row["seconds"], "reason": row["reason"]} for name, row in self.merged["notebooks"].items()]


def notebook_folder() -> Path:
    """Where the five notebooks are: $EAGLE_FORENSICS_NOTEBOOKS, else `notebooks/` of the checkout."""
    if os.environ.get(NOTEBOOKS_ENV):
        return Path(os.environ[NOTEBOOKS_ENV]).expanduser().resolve()
    root = runfolder.checkout_root()
    if root is None:
        raise RunFolderError(f"The notebooks are not beside this package. Run from a checkout, or set {NOTEBOOKS_ENV} to their folder.")
    return root / "notebooks"


def select(only: Sequence[int] | None) -> dict[str, Path]:
    """The notebooks to run, by name. Raises RunFolderError for a number that is none or a notebook that is absent."""
    known = {int(name[:2]): name for name in NOTEBOOKS}
    wrong = [n for n in only or () if n not in known]
    if wrong:
        raise RunFolderError(f"no notebook {', '.join(map(str, wrong))}; there are {', '.join(f'{n} ({known[n][3:]})' for n in known)}.")
    folder = notebook_folder()
    chosen = {known[n]: folder / f"{known[n]}.ipynb" for n in sorted(set(only or known))}
    absent = [str(path) for path in chosen.values() if not path.is_file()]
    if absent:
        raise RunFolderError(f"{', '.join(absent)}: no such notebook. Restore it, or set {NOTEBOOKS_ENV} to the folder that has it.")
    return chosen


def run_case(case_file: Path, *, only: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None,
             parameters: Mapping[str, Any] | None = None, out: Path | None = None, progress: Progress | None = None,
             resume: bool = True, cell_timeout: int | None = None, jobs: int = 1, kernels: Kernels | None = None) -> RunResult:
    """Run the notebooks (all, or those numbered in `only`) on a case and write its run folder under `out` (default runs/).

    A killed or interrupted run of the same case, parameters and suite is resumed: its finished notebooks are kept.
    One failing notebook never stops the others; with `jobs` above 1 those that do not read from each other run at once, and
    `kernels` are those of the whole batch. `cell_timeout` in seconds: else $EAGLE_FORENSICS_CELL_TIMEOUT, else half
    an hour. Raises CaseError, ParameterError and RunFolderError before anything is
    run, RunInterrupted on Ctrl-C or SIGTERM.
    """
    began = time.monotonic()
    report = progress or silent
    limit = cell_timeout or _limit(os.environ.get(CELL_TIMEOUT_ENV))
    case = load_case(case_file, dict(overrides or {}))
    chosen = select(only)
    declared = {name: notebook_parameters.read_parameters(path) for name, path in chosen.items()}
    given = notebook_parameters.assign(parameters or {}, declared)
    folder = _folder(case, chosen, declared, given, dict(overrides or {}), out or runfolder.runs_root(), resume)
    if folder.manifest.resumed_at:
        report(Step(0, len(chosen), "", note=f"resuming {folder.path}"))
    env = {RUN_ENV: str(folder.path), OVERRIDES_ENV: json.dumps(dict(overrides or {}))}
    kernels, names = kernels or Kernels(), list(chosen)

    def work(name: str) -> NotebookOutcome:
        reporter = _Reporter(report, names.index(name) + 1, len(names), name)
        return _one(folder, case, chosen[name], given[name], declared[name], env, limit, reporter, kernels)

    try:
        with _sigterm_interrupts():
            outcomes = in_order(names, work, jobs, kernels)
            merged = finish(folder, case, outcomes)
    except KeyboardInterrupt:
        folder.update(status="interrupted", finished_at=runfolder.utc())
        raise RunInterrupted(folder.path) from None
    finally:
        folder.unlock()
    return RunResult(folder.path, Verdict(merged["verdict"]), tuple(Finding.model_validate(f) for f in merged["findings"]),
                     tuple(outcomes.values()), time.monotonic() - began, merged)


def finish(folder: RunFolder, case: Case, outcomes: Mapping[str, NotebookOutcome]) -> dict[str, Any]:
    """Merge, write the post-mortem, and only then declare the run finished, so that a kill in between resumes."""
    merged = merge(folder, case, outcomes)
    ended = {"status": "finished", "finished_at": runfolder.utc()}
    final = folder.manifest.model_copy(update=ended)
    write_text(folder.path / "post_mortem.html", post_mortem(RunFolder(folder.path, final)))
    write_text(folder.path / "post_mortem.md", markdown(merged, rerun_command(final)))
    folder.update(**ended)
    return merged


def _limit(text: str | None) -> int:
    if not text:
        return CELL_TIMEOUT_S
    if not text.isdecimal() or int(text) < 1:
        raise RunFolderError(f"{CELL_TIMEOUT_ENV} is {text!r}; expected a number of seconds.")
    return int(text)


class _Reporter:
    """Progress of one notebook."""

    def __init__(self, report: Progress, position: int, total: int, name: str):
        self.report, self.at, self.began = report, (position, total, name), time.monotonic()

    def cell(self, cell: int, cells: int) -> None:
        self.report(Step(*self.at, seconds=time.monotonic() - self.began, cell=cell, cells=cells))

    def ended(self, outcome: NotebookOutcome) -> None:
        self.report(Step(*self.at, seconds=outcome.seconds, outcome=outcome))


def _one(folder: RunFolder, case: Case, path: Path, given: Mapping[str, Any], declared: Mapping[str, notebook_parameters.Parameter],
         env: Mapping[str, str], cell_timeout: int, reporter: _Reporter, kernels: Kernels) -> NotebookOutcome:
    if folder.manifest.resumed_at and folder.complete(path.stem):
        outcome = NotebookOutcome(path.stem, True, "finished", "", 0.0, resumed=True)
    else:
        own = {k: v for k, v in (("case", str(case.file)), ("run_dir", str(folder.path))) if k in declared}
        outcome = execute(path, folder, {**given, **own}, env=env, cell_timeout=cell_timeout, on_cell=reporter.cell, kernels=kernels)
    reporter.ended(outcome)
    return outcome


def _folder(case: Case, chosen: Mapping[str, Path], declared: Mapping[str, Mapping[str, notebook_parameters.Parameter]],
            given: Mapping[str, Mapping[str, Any]], overrides: dict[str, Any], runs: Path, resume: bool) -> RunFolder:
    """The run folder to work in: an unfinished one of the same fingerprint, else a fresh one."""
    inputs, suite = provenance.inputs(case), provenance.suite(dict(chosen))
    mark = provenance.fingerprint(case.model_dump(mode="json"), overrides, given, inputs, list(chosen), suite["notebooks"],
                                  suite["source_sha256"])
    runs = runs.expanduser().resolve()
    found = runfolder.resume(runs, mark) if resume else None
    if found:
        return found
    recorded = {name: {k: {"value": given[name].get(k, p.default), "source": "given" if k in given[name] else "default"}
                       for k, p in ps.items() if k not in notebook_parameters.RESERVED} for name, ps in declared.items()}
    return runfolder.create(
        runs, case.name, mark, origin="run", case=case_entry(case), notebooks=tuple(chosen), parameters=recorded, overrides=overrides,
        argv=(Path(sys.argv[0]).name, *redact_argv(redact_tree(sys.argv[1:]))), suite=suite, inputs=tuple(inputs), versions=provenance.versions(),
        host=provenance.host(), env=kept_env(os.environ))


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM (a cancelled job) ends a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
