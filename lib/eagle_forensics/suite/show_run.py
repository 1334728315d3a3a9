"""A finished run on a terminal: verdict, headline, story, findings, where to read on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle_forensics.suite.runfolder import RunFolderError, open_folder
from eagle_forensics.suite.terminal import STYLE, printed, visible


def show_run(run_dir: Path) -> str:
    """Text of a run. Raises RunFolderError for a folder that is no run or one that is not finished."""
    from rich.table import Table
    from rich.text import Text

    folder = open_folder(Path(run_dir).resolve())
    merged = folder.merged()
    if merged is None:
        raise RunFolderError(f"{folder.path} is {folder.manifest.status} and has no findings.json yet. Run the same case again to resume it.")
    diagnosis: dict[str, Any] = merged["diagnosis"] or {}
    verdict = merged["verdict"]
    out: list[Any] = [Text(f"{verdict}  {visible(merged['case'])}", style=f"bold {STYLE.get(verdict, '')}"), visible(diagnosis.get("headline", "")), ""]
    story = diagnosis.get("story") or ()
    for paragraph in [story] if isinstance(story, str) else story:
        out += [visible(paragraph), ""]
    table = Table("status", "finding", "answer", title="Findings", title_justify="left")
    table.columns[2].overflow = "fold"
    for item in merged["findings"]:
        table.add_row(Text(item["status"], style=STYLE.get(item["status"], "")), visible(item["id"]), Text(visible(item["statement"], 400)))
    out.append(table)
    steps = diagnosis.get("next_steps") or ()
    if steps:
        out += ["", "Next:", *(f"  {i}. {visible(step)}" for i, step in enumerate(steps, 1))]
    return printed(*out, "", f"post-mortem: {folder.path / 'post_mortem.html'}")
