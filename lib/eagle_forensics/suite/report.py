"""The post-mortem: one HTML file for a reader who was not there, made from the run folder alone.

The same run gives the same bytes: every time stamp comes from the manifest.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup

from eagle_forensics import faults, show
from eagle_forensics.finding import Finding, Status
from eagle_forensics.suite.page import render
from eagle_forensics.suite.redact import redact
from eagle_forensics.suite.runfolder import Manifest, RunFolder, RunFolderError


def post_mortem(folder: RunFolder) -> str:
    """The page of a run folder. Raises RunFolderError if the run has no `findings.json` yet, or one that cannot be read."""
    merged = folder.merged()
    if merged is None:
        raise RunFolderError(f"{folder.path} has no findings.json: the run is not finished. Run the same case again to resume it.")
    found = [Finding.model_validate(item) for item in merged["findings"]]
    by_id = {f.id: f for f in found}
    return render(
        "post_mortem.html.j2", merged=merged, manifest=folder.manifest, diagnosis=merged["diagnosis"], findings=found,
        cards={f.id: Markup(show.finding_html(f)) for f in found}, known_faults=faults.catalogue(),
        rivals=[f for f in found if f.competitor and f.status in (Status.FAIL, Status.INCONCLUSIVE)], skipped=[f for f in found if f.status is Status.SKIPPED],
        titles={name: title(name) for name in folder.manifest.notebooks},
        ordered=lambda ids: [by_id[i] for i in ids if i in by_id], notebooks=[(name, *_notebook(folder.path / "notebooks" / f"{name}.ipynb", name)) for name in folder.manifest.notebooks],
        rerun=rerun_command(folder.manifest), parameters=parameter_rows(folder.manifest), megabytes=_megabytes, when=when)


def title(notebook: str) -> str:
    """`03 Layer matching` of `03_layer_matching`."""
    words = notebook[3:].replace("_", " ").replace("nccl", "NCCL")
    return f"{notebook[:2]} {words[:1].upper()}{words[1:]}"


def when(stamp: str | None) -> str:
    """`2026-11-29 11:07 UTC` of an ISO time stamp."""
    match = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", stamp or "")
    return f"{match[1]} {match[2]} UTC" if match else "–"


def rerun_command(manifest: Manifest) -> str:
    """The command line that repeats a run."""
    parts = ["eagle-forensics", "run", str(manifest.case.get("file") or "CASE.yaml")]
    if len(manifest.notebooks) < 5:
        parts += ["--only", ",".join(str(int(name[:2])) for name in manifest.notebooks)]
    given = {key: row["value"] for rows in manifest.parameters.values() for key, row in rows.items() if row["source"] == "given"}
    for key, value in {**manifest.overrides, **given}.items():
        parts += ["--set", f"{key}={value}"]
    return shlex.join(parts)


def parameter_rows(manifest: Manifest) -> list[tuple[str, str, Any, str]]:
    """(notebook, name, value, source) of every parameter."""
    return [(notebook, name, row["value"], row["source"]) for notebook, rows in manifest.parameters.items() for name, row in rows.items()]


def _notebook(path: Path, name: str) -> tuple[str, Markup | None]:
    from eagle_forensics.suite.cells import cells_html

    anchor = f"nb{name[:2]}"
    if not path.is_file():
        return anchor, None
    return anchor, Markup(redact(cells_html(path, anchor)))


def _megabytes(count: int | None) -> str:
    if count is None:
        return "–"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


