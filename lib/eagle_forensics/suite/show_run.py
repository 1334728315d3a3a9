"""A finished run on a terminal: verdict, headline, story, findings, where to read on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_forensics.suite.bundle import opened
from eagle_forensics.suite.runfolder import RunFolder, RunFolderError
from eagle_forensics.suite.terminal import STYLE, printed, visible


def show_run(run_dir: Path) -> str:
    """Text of a run, also of a bundle. Raises RunFolderError for what is no run or one that is not finished."""
    with opened(Path(run_dir)) as folder:
        packed = not Path(run_dir).is_dir()
        return _text(folder, f"post-mortem: {folder.path.name}/post_mortem.html in {run_dir}" if packed else f"post-mortem: {folder.path / 'post_mortem.html'}")


def _text(folder: RunFolder, read_on: str) -> str:
    from rich.table import Table
    from rich.text import Text

    merged = folder.merged()
    if merged is None:
        raise RunFolderError(f"{folder.path} is {folder.manifest.status} and has no findings.json yet. Run the same case again to resume it.")
    diagnosis, verdict = merged["diagnosis"], merged["verdict"]
    out: list[Any] = [Text(f"{verdict}  {visible(merged['case'])}", style=f"bold {STYLE.get(verdict, '')}"), visible(diagnosis["headline"]), ""]
    for paragraph in diagnosis["story"]:
        ids = f"  [{', '.join(paragraph['findings'])}]" if paragraph["findings"] else ""
        out += [visible(paragraph["text"] + ids), ""]
    out += [_chain(diagnosis["chain"]), ""]
    table = Table("status", "finding", "answer", title="Findings", title_justify="left")
    table.columns[2].overflow = "fold"
    for item in merged["findings"]:
        table.add_row(Text(item["status"], style=STYLE.get(item["status"], "")), visible(item["id"]), Text(visible(item["statement"], 400)))
    out.append(table)
    if diagnosis["next_steps"]:
        out += ["", "Next:", *(f"  {i}. {visible(step)}" for i, step in enumerate(diagnosis["next_steps"], 1))]
    for one in diagnosis["deciders"]:
        out += ["", f"To decide between {visible(one['suspicion'])} and {visible(one['rival'])}: {visible(one['observation'])}.",
                "  " + (f"restart the server {visible(one['restart'])}, then: " if one["restart"] else "") + visible(one["command"])]
    return printed(*out, "", read_on)


def _chain(links: Sequence[Mapping[str, Any]]) -> Any:
    """The links from training data to served token, a row each."""
    from rich.table import Table

    table = Table("link", "", "why", title="The chain, from training data to served token", title_justify="left")
    table.columns[2].overflow = "fold"
    for link in links:
        table.add_row(visible(link["name"]), visible(link["state"]), visible(link["because"]))
    return table
