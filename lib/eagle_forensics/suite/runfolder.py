"""The run folder: created with its manifest first, locked while a runner works in it, resumable after a kill.

A run is `started` until its runner says `finished` or `interrupted`. A finished run of the runner is immutable; a folder
opened by a notebook (origin `notebook`) is a workbench that takes further notebooks.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from eagle_forensics import __version__
from eagle_forensics.diagnosis.records import Diagnosis
from eagle_forensics.finding import NotebookFindings, Record, Verdict
from eagle_forensics.suite.files import read_json, write_json, write_text
from eagle_forensics.suite.redact import redact_tree

SCHEMA = 1
RUNS_ENV = "EAGLE_FORENSICS_RUNS"
NOTEBOOKS = ("01_config_inspection", "02_drafter_accuracy", "03_layer_matching", "04_accept_length", "05_nccl_tuning")
"""The five notebooks, in order."""


class RunFolderError(ValueError):
    """A run folder that cannot be used as asked; the message says why and what to do."""


class Manifest(Record):
    """Content of `manifest.json`: what a run was made of, written before anything else."""

    schema_version: int = SCHEMA
    run_id: str
    status: Literal["started", "finished", "interrupted"] = "started"
    origin: Literal["run", "notebook"]
    """`run`: the suite's runner; `notebook`: opened from a notebook in JupyterLab or by plain papermill."""
    started_at: str
    finished_at: str | None = None
    resumed_at: tuple[str, ...] = ()
    case: dict[str, Any]
    """Name, file and its SHA-256."""
    notebooks: tuple[str, ...]
    """Notebooks whose findings this run needs for a verdict."""
    fingerprint: str
    """SHA-256 over case, overrides, parameters, inputs, notebooks and the suite's source: equal for a repeated run."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Per notebook: name -> {value, source: default | given}."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of the case that were set on the command line."""
    argv: tuple[str, ...] = ()
    suite: dict[str, Any] = Field(default_factory=dict)
    """Version, SHA-256 of its source, git revision and dirty flag, SHA-256 of each notebook."""
    inputs: tuple[dict[str, Any], ...] = ()
    """Per file or folder the case names: key, path, bytes, digest and how it was taken."""
    versions: dict[str, str] = Field(default_factory=dict)
    host: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    """The allow-listed part of the environment, secrets blanked."""


class _FindingRow(BaseModel):
    id: str
    status: str
    statement: str


class _Merged(BaseModel):
    """The part of `findings.json` that readers rely on; a newer release may write more."""

    verdict: Verdict
    case: str
    notebooks: dict[str, dict[str, Any]]
    findings: list[_FindingRow]
    diagnosis: Diagnosis


class RunFolder:
    """One run on disk. `lock()` is held by the runner that works in it; the kernel's lock ends with the process."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self._lock: Any = None

    def findings_file(self, notebook: str) -> Path:
        return self.path / "findings" / f"{notebook[:2]}.json"

    def read_findings(self, notebook: str) -> NotebookFindings | None:
        """What a notebook wrote; None if the file is absent, unreadable or another notebook's."""
        raw = read_json(self.findings_file(notebook))
        try:
            found = NotebookFindings.model_validate(raw)
        except ValidationError:
            return None
        return found if found.notebook == notebook else None

    def complete(self, notebook: str) -> bool:
        """Whether the notebook reached its last cell."""
        found = self.read_findings(notebook)
        return found is not None and found.complete

    def records(self) -> dict[str, Any]:
        """Every record under evidence/, by its name without the notebook's number; a later notebook wins."""
        out: dict[str, Any] = {}
        for file in sorted((self.path / "evidence").glob("[0-9][0-9]_*.json")):
            value = read_json(file)
            if value is not None:
                out[file.stem[3:]] = value
        return out

    def merged(self) -> dict[str, Any] | None:
        """Content of `findings.json`; None if there is none. Raises RunFolderError if it is half a file, another program's, or of a build that wrote another form."""
        file = self.path / "findings.json"
        if not file.exists():
            return None
        raw = read_json(file)
        try:
            found = _Merged.model_validate(raw, extra="ignore")
        except ValidationError as error:
            first = error.errors()[0]
            raise RunFolderError(f"{file}: damaged, or written by another build of this suite or by none ({'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}). "
                                 "Run the case again for a fresh run folder.") from None
        return raw | {"diagnosis": found.diagnosis.model_dump(mode="json")}

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest and write it."""
        self.manifest = Manifest.model_validate({**self.manifest.model_dump(), **redact_tree(changes)})
        write_json(self.path / "manifest.json", self.manifest)

    def lock(self) -> bool:
        """Take the folder for this process; False if another holds it or the file system cannot lock."""
        handle = (self.path / ".lock").open("a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            return False
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None


def utc() -> str:
    """Now, as `2026-11-29T11:07:35Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def runs_root() -> Path:
    """Where run folders go: $EAGLE_FORENSICS_RUNS, else `runs/` of the checkout, else `runs/` of the working folder."""
    if os.environ.get(RUNS_ENV):
        return Path(os.environ[RUNS_ENV]).expanduser().resolve()
    checkout = checkout_root()
    return (checkout or Path.cwd()) / "runs"


def checkout_root() -> Path | None:
    """The checkout this package runs from; None when it is installed elsewhere."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "lib").is_dir() else None


def notebook_number(name: str) -> str:
    """`03` of `03_layer_matching`. Raises RunFolderError for a name of another form."""
    if not re.fullmatch(r"\d\d_[A-Za-z0-9_]+", name):
        raise RunFolderError(f"{name!r} is no notebook of the suite; expected a name like {NOTEBOOKS[2]!r}.")
    return name[:2]


def create(runs: Path, case_name: str, fingerprint: str, **fields: Any) -> RunFolder:
    """A fresh, locked folder `<UTC>-<case>-<hash6>` under `runs`, with its manifest."""
    started = utc()
    stem = f"{re.sub('[-:]', '', started)}-{case_name}-{fingerprint[:6]}"
    runs.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        path = runs / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return create_at(path, started=started, fingerprint=fingerprint, **fields)
    raise RunFolderError(f"{runs / stem}: a thousand runs of this case in one second; is a loop starting them?")


def create_at(path: Path, *, fingerprint: str, started: str | None = None, **fields: Any) -> RunFolder:
    """A run in a given, still empty folder. `fields` are the other fields of Manifest."""
    path.mkdir(parents=True, exist_ok=True)
    if any(item.name != ".lock" for item in path.iterdir()):
        raise RunFolderError(f"{path} is neither a run folder nor empty. Name a run folder (it has a manifest.json), a new folder, "
                             "or leave run_dir empty for a fresh one.")
    manifest = Manifest(run_id=path.name, started_at=started or utc(), fingerprint=fingerprint, **redact_tree(fields))
    folder = RunFolder(path, manifest)
    folder.lock()
    write_json(path / "manifest.json", manifest)
    for name in ("findings", "evidence", "notebooks", "logs"):
        (path / name).mkdir()
    given = {n: {k: v["value"] for k, v in ps.items() if v["source"] == "given"} for n, ps in manifest.parameters.items()}
    rerun = {"case": manifest.case.get("file"), "overrides": manifest.overrides,
             "parameters": {k: v for values in given.values() for k, v in values.items()},
             "only": [int(n[:2]) for n in manifest.notebooks]}
    write_text(path / "params.yaml", "# What this run was given; `eagle-forensics run CASE --set key=value` repeats it.\n"
               + yaml.safe_dump(rerun, sort_keys=False, allow_unicode=True))
    return folder


def open_folder(path: Path) -> RunFolder:
    """An existing run folder. Raises RunFolderError if it has no manifest, a damaged one, or one of another release."""
    file = path / "manifest.json"
    if not file.is_file():
        raise RunFolderError(f"{path}: no run folder: {'it has no manifest.json' if path.is_dir() else 'there is no such folder'}. "
                             "List runs with `eagle-forensics index DIR`.")
    raw = read_json(file)
    if not isinstance(raw, dict):
        raise RunFolderError(f"{file}: damaged: its {file.stat().st_size} bytes are no JSON object; expected the manifest that a run writes first. "
                             "What the run found may still lie in findings/; run the case again for a whole run.")
    schema = raw.get("schema_version", SCHEMA)
    if schema != SCHEMA:
        suite = raw.get("suite")
        writer = suite.get("version") if isinstance(suite, dict) else None
        raise RunFolderError(f"{file}: written by another release ({f'version {writer}, ' if writer else ''}schema {schema!r:.40}); this one, version "
                             f"{__version__}, reads schema {SCHEMA}. Open it with that release, or run the case again.")
    try:
        return RunFolder(path, Manifest.model_validate(raw))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunFolderError(f"{file}: damaged, or not written by this suite (`{'.'.join(map(str, first['loc']))}`: {first['msg']}); expected the manifest "
                             "of a run. Run the case again for a fresh run folder.") from None


def all_runs(runs: Path) -> list[RunFolder]:
    """The readable run folders under `runs`, oldest first."""
    found = []
    for path in sorted(runs.iterdir()) if runs.is_dir() else []:
        try:
            found.append(open_folder(path))
        except RunFolderError:
            continue
    return found


def resume(runs: Path, fingerprint: str) -> RunFolder | None:
    """The newest unfinished run with this fingerprint that no living runner holds, locked; None if there is none."""
    for folder in reversed(all_runs(runs)):
        same = folder.manifest.fingerprint == fingerprint and folder.manifest.origin == "run"
        if same and folder.manifest.status != "finished" and folder.lock():
            current = open_folder(folder.path).manifest
            if current.status != "finished":
                folder.manifest = current
                folder.update(status="started", resumed_at=(*current.resumed_at, utc()))
                return folder
            folder.unlock()
    return None


def require_writable(folder: RunFolder, wanted: Sequence[str] = ()) -> None:
    """Raise RunFolderError for a finished run of the runner."""
    if folder.manifest.origin == "run" and folder.manifest.status == "finished":
        raise RunFolderError(f"{folder.path} is a finished run and stays as it is. Leave run_dir empty for a fresh run"
                             + (f" of {', '.join(wanted)}." if wanted else "."))
