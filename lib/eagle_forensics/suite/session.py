"""The handle a notebook works with: its case, its findings, its records, its place in a run folder.

    run = open_run("03_layer_matching", case=case, run_dir=run_dir)

The same code works headless in a run folder that the runner prepared and in JupyterLab, where a fresh folder is made.
The findings file is written from the first moment on, `complete: false`, and becomes complete only in `finish()`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_forensics import show
from eagle_forensics.case import Case, known_keys, load_case
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, NotebookFindings, Status, verdict
from eagle_forensics.suite import files, provenance, runfolder
from eagle_forensics.suite.parameters import check_injected
from eagle_forensics.suite.redact import redact_tree
from eagle_forensics.suite.runfolder import RunFolder, RunFolderError

if TYPE_CHECKING:
    import pandas as pd

RUN_ENV = "EAGLE_FORENSICS_RUN"
"""Set by the runner in its kernels: the run folder."""
OVERRIDES_ENV = "EAGLE_FORENSICS_OVERRIDES"
"""Set by the runner in its kernels: overrides of the case as JSON, unredacted."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def open_run(notebook: str, *, case: str = "", run_dir: str = "") -> Session:
    """Open a notebook's session.

    `case`: path of a case file; empty for the run's own case or, without a run, the built-in demo's broken case.
    `run_dir`: an existing run folder (or a new path); empty for a fresh one under runs/.
    Raises CaseError for a case that cannot be used, RunFolderError for a folder that cannot, and ParameterError for parameters
    of plain papermill that the notebook does not declare.
    """
    runfolder.notebook_number(notebook)
    if RUN_ENV not in os.environ:
        check_injected(_history(), notebook)
    existing = runfolder.open_folder(Path(run_dir).expanduser().resolve()) if run_dir and _is_run(run_dir) else None
    if existing:
        runfolder.require_writable(existing, (notebook,))
    loaded = load_case(_case_file(case, existing), _overrides(existing))
    if existing is None:
        mark = provenance.fingerprint(loaded.model_dump(mode="json"), notebook, provenance.source_sha256())
        about: dict[str, Any] = {
            "origin": "notebook", "case": case_entry(loaded), "notebooks": (notebook,), "inputs": tuple(provenance.inputs(loaded)),
            "suite": provenance.suite({}), "versions": provenance.versions(), "host": provenance.host(),
        }
        if run_dir:
            existing = runfolder.create_at(Path(run_dir).expanduser().resolve(), fingerprint=mark, **about)
        else:
            existing = runfolder.create(runfolder.runs_root(), loaded.name, mark, **about)
        existing.unlock()
    elif case and existing.manifest.case.get("name") != loaded.name:
        raise RunFolderError(f"{existing.path} holds a run of the case {existing.manifest.case.get('name')!r}, not of {loaded.name!r}. "
                             "Leave run_dir empty for a fresh run.")
    if existing.manifest.origin == "notebook":
        existing.update(status="started", notebooks=tuple(sorted({*existing.manifest.notebooks, notebook})))
    return Session(notebook, loaded, existing)


def _history() -> list[str]:
    """The cells that this kernel has run; none outside IPython."""
    from IPython import get_ipython

    shell = get_ipython()
    return list(shell.user_ns.get("In", [])) if shell else []


def case_entry(case: Case) -> dict[str, Any]:
    """What a manifest says of its case: name, file and digest of the file."""
    readable = case.file is not None and case.file.is_file()
    return {"name": case.name, "file": str(case.file) if case.file else None,
            "sha256": files.sha256(case.file) if readable and case.file else None}


class Session:
    """One notebook's work in one run folder."""

    def __init__(self, notebook: str, case: Case, folder: RunFolder):
        self.notebook, self.case = notebook, case
        self._folder = folder
        self._findings: dict[str, Finding] = {}
        self._write(complete=False)
        _display_html(f"<style>{_notebook_css()}</style>"
                      f'<p class="ef-opened">Case <strong>{show.safe(case.name)}</strong>, run <code>{show.safe(folder.path.name)}</code></p>',
                      f"case {case.name}, run {folder.path.name}")

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was added so far."""
        return tuple(self._findings.values())

    def add(self, *findings: Finding) -> None:
        """Keep findings and display them as cards.

        Running a cell again in JupyterLab replaces its findings. Headless, the same id twice raises ValueError: a second
        finding must not hide the first.
        """
        mine = [f if f.notebook == self.notebook else f.model_copy(update={"notebook": self.notebook}) for f in findings]
        for item in mine:
            if item.id in self._findings and os.environ.get(RUN_ENV):
                raise ValueError(f"finding {item.id!r} was added twice; ids are unique in a notebook")
            self._findings[item.id] = item
        self._write(complete=False)
        show.findings(mine)

    def skip(self, id: str, question: str, missing: str, would_decide: str) -> None:
        """Add a `skipped` finding.

        `missing` names the absent evidence, best with its case key (`training.dump: the hidden states it was trained on`);
        `would_decide` completes "It would have decided ...".
        """
        self.add(Finding(
            id=id, question=question, status=Status.SKIPPED, notebook=self.notebook,
            statement=f"Not examined for want of {missing.rstrip('.')}. It would have decided {would_decide.rstrip('.')}.",
            next_step=self._how_to_supply(missing)))

    def _how_to_supply(self, missing: str) -> str:
        file = self.case.file.name if self.case.file else "the case file"
        keys = [k for k in known_keys() if re.search(rf"(?<![\w.]){re.escape(k)}(?![\w.]*\w)", missing)]
        absent = dict(self.case.missing_evidence())
        parts = []
        for key in (k for k in keys if not any(other.startswith(k + ".") for other in keys)):
            gone = [str(path) for at, path in absent.items() if at == key or at.startswith((key + ".", key + "["))]
            parts.append(f"`{key}` names {', '.join(gone)}, which does not exist: correct it" if gone else f"set `{key}`")
        do = "; ".join(parts) if parts else f"obtain {missing.rstrip('.')} and name it"
        return f"{do[0].upper()}{do[1:]} in {file}, then run again."

    @contextmanager
    def guard(self, id: str, question: str) -> Iterator[None]:
        """Bad evidence inside becomes an `error` finding of one line, and the notebook goes on.

        Catches EvidenceError, OSError and ValueError; anything else is a fault of the suite and stops the notebook.
        """
        try:
            yield
        except (EvidenceError, OSError, ValueError) as error:
            self.add(Finding(
                id=id if id not in self._findings else f"{id}.error", question=question, status=Status.ERROR,
                statement=_one_line(error), notebook=self.notebook,
                next_step="Correct the evidence named here, then run again; the other checks are not affected."))

    def record(self, name: str, mapping: Mapping[str, Any]) -> str:
        """Write `evidence/NN_name.json` (NaN becomes null) and return that path for use in Evidence."""
        return self._evidence(name, "json", lambda path: files.write_json(path, redact_tree(files.plain(mapping, name))))

    def read(self, name: str) -> dict[str, Any] | None:
        """The record of that name which a notebook of this run wrote; None if none did."""
        return self._folder.records().get(_checked(name))

    def save_table(self, name: str, frame: pd.DataFrame) -> str:
        """Write `evidence/NN_name.csv` and return that path for use in Evidence."""
        return self._evidence(name, "csv", lambda path: files.write_text(path, frame.to_csv(index=False)))

    def finish(self) -> None:
        """Declare the notebook complete: from now on its findings count."""
        self._write(complete=True)
        result = verdict(self.findings)
        tally = ", ".join(f"{n} {status}" for status in Status if (n := sum(f.status is status for f in self.findings)))
        _display_html(f'<p class="ef-verdict">{show.safe(self.notebook)}: <strong>{result}</strong> ({show.safe(tally or "no findings")})</p>',
                      f"{self.notebook}: {result} ({tally or 'no findings'})")
        if self._folder.manifest.origin == "notebook":
            from eagle_forensics.suite.merge import merge

            merge(self._folder, self.case)
            if all(map(self._folder.complete, self._folder.manifest.notebooks)):
                self._folder.update(status="finished", finished_at=runfolder.utc())

    def _write(self, complete: bool) -> None:
        content = NotebookFindings(notebook=self.notebook, complete=complete, findings=self.findings)
        files.write_json(self._folder.findings_file(self.notebook), redact_tree(files.plain(content)))

    def _evidence(self, name: str, suffix: str, write: Any) -> str:
        relative = f"evidence/{self.notebook[:2]}_{_checked(name)}.{suffix}"
        write(self.run_dir / relative)
        return relative


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"record name {name!r}: use lower-case letters, digits, `_` and `-`")
    return name


def _is_run(run_dir: str) -> bool:
    return (Path(run_dir).expanduser() / "manifest.json").exists()


def _case_file(case: str, existing: RunFolder | None) -> Path:
    if case:
        return Path(case).expanduser().resolve()
    if existing and existing.manifest.case.get("file"):
        return Path(existing.manifest.case["file"])
    from eagle_forensics import demo

    return demo.case_file("broken")


def _overrides(existing: RunFolder | None) -> dict[str, Any]:
    if existing is None:
        return {}
    if os.environ.get(RUN_ENV) == str(existing.path):
        return json.loads(os.environ.get(OVERRIDES_ENV, "{}"))
    return existing.manifest.overrides


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}"
    return text if len(text) <= 600 else text[:599] + "…"


def _notebook_css() -> str:
    from eagle_forensics.suite.page import asset

    return asset("notebook.css")


def _display_html(markup: str, text: str) -> None:
    from IPython.display import display

    display({"text/html": markup, "text/plain": text}, raw=True)
