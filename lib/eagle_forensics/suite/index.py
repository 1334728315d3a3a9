"""`runs/index.html`: one row a run, newest first; static, sortable, filterable."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from eagle_forensics.suite.files import write_text
from eagle_forensics.suite.page import render
from eagle_forensics.suite.report import when
from eagle_forensics.suite.runfolder import NOTEBOOKS, RunFolder, RunFolderError, all_runs

FIGURES = {"Accuracy": "drafter.served-wiring", "Accept length": "drafter.prediction"}
"""Column of the index -> finding whose observed value it shows."""


def write_index(folder: Path) -> Path:
    """Write `index.html` over the runs of a folder; returns its path. Raises RunFolderError if it is no folder."""
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such folder. Name the folder that holds the runs.")
    rows = [_row(run) for run in reversed(all_runs(folder))]
    write_text(folder / "index.html", render("index.html.j2", rows=rows, notebooks=NOTEBOOKS, figures=list(FIGURES)))
    return folder / "index.html"


def _row(run: RunFolder) -> dict[str, Any]:
    manifest = run.manifest
    try:
        merged = run.merged() or {}
    except RunFolderError:
        merged = {}  # a damaged run must not hide the others; its row has no verdict
    observed = {f["id"]: f.get("observed") for f in merged.get("findings", [])}
    done = manifest.status == "finished"
    page = f"{quote(run.path.name)}/post_mortem.html" if (run.path / "post_mortem.html").is_file() else ""
    drafter = next((i["path"] for i in manifest.inputs if i["key"].startswith("drafter.")), "")
    git = manifest.suite.get("git") or {}
    return {"run": run.path.name, "page": page, "when": when(manifest.started_at), "case": manifest.case.get("name"),
            "verdict": merged.get("verdict") if done else None, "status": manifest.status, "drafter": Path(drafter).name,
            "headline": merged["diagnosis"]["headline"] if merged else "",
            "notebooks": [(merged.get("notebooks", {}).get(name) or {}).get("verdict") if done else None for name in NOTEBOOKS],
            "figures": [observed.get(id) for id in FIGURES.values()],
            "commit": (git.get("commit") or "")[:8] + ("+" if git.get("dirty") else "")}
