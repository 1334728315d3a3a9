"""The demo's four cases as folders that stand for themselves: `broken`, `fixed`, `vllm-shift`, `incident`.

A case folder is its text files (`data/cases/`) joined with the shared target, weights, dump and bank by hard links. `fixed`
has no text of its own: it is `broken` with edits applied, and the edits come from whoever calls.
"""

from __future__ import annotations

import csv
import filecmp
import io
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from eagle_forensics.demo.stage import DATA, Progress, Stage, root, stage
from eagle_forensics.demo.target import DemoError
from eagle_forensics.evidence.cache import write_bytes
from eagle_forensics.finding import Edit

VARIANTS = ("broken", "fixed", "vllm-shift", "incident")
PAPERS_ONLY = ("incident",)
"""Variants without tensors: nothing needs to be prepared for them."""


def prepare(progress: Progress | None = None, offline: bool = False) -> None:
    """Make all that the demo needs: target (93 MB download once), dump, bank, states, case folders. DemoError if it cannot.

    With a warm cache it takes seconds and never touches the network.
    """
    stage(progress, offline)
    for name in VARIANTS:
        if name != "fixed":
            build(name)


def case_file(name: str, progress: Progress | None = None) -> Path:
    """The case file of a variant, prepared on the first call. DemoError for `fixed` before `build("fixed", edits)`."""
    _known(name)
    file = root() / "cases" / name / "case.yaml"
    if file.is_file():
        return file
    if name == "fixed":
        raise DemoError("the fixed case is made from the edits that a run on the broken one prints: run `eagle-forensics demo`, "
                        "or demo.build('fixed', edits).")
    return build(name, progress=progress)


def build(name: str, edits: Sequence[Edit] | None = None, progress: Progress | None = None) -> Path:
    """Make a variant's folder anew and return its case file. `edits` belong to `fixed`: changes of the broken case's files."""
    _known(name)
    if (name == "fixed") != (edits is not None):
        raise DemoError(f"case {name!r} is built {'from edits of the broken one' if name == 'fixed' else 'as it is, without edits'}.")
    folder = root() / "cases" / name
    shared = None if name in PAPERS_ONLY else stage(progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
        made = Path(work) / name
        shutil.copytree(DATA / "cases" / ("broken" if name == "fixed" else name), made)
        if edits is not None:
            _rename(made, edits)
            apply_edits(made, edits)
        if shared is not None:
            _join(made, shared)
            _measured(made)
        _swap(made, folder)
    return folder / "case.yaml"


def apply_edits(case_dir: str | Path, edits: Sequence[Edit]) -> None:
    """Apply edits to the JSON and YAML files of a case folder. ValueError for an edit that leaves it or fits no file.

    Every edit is checked against its file before the first one is written.
    """
    case_dir = Path(case_dir).resolve()
    changed: dict[Path, Any] = {}
    for edit in edits:
        file = (case_dir / edit.file).resolve()
        if not file.is_relative_to(case_dir):
            raise ValueError(f"edit of {edit.file!r} refused: it lies outside the case folder {case_dir}.")
        if file.suffix not in (".json", ".yaml", ".yml") or not file.is_file():
            raise ValueError(f"edit of {edit.file!r} refused: expected a JSON or YAML file of the case folder {case_dir}.")
        if file not in changed:
            text = file.read_text(encoding="utf-8")
            changed[file] = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        _set(changed[file], edit)
    for file, content in changed.items():
        text = json.dumps(content, indent=2) + "\n" if file.suffix == ".json" else yaml.safe_dump(content, sort_keys=False)
        write_bytes(file, text.encode())


def _set(content: Any, edit: Edit) -> None:
    *parents, last = edit.key.split(".")
    here = content
    for part in parents:
        if isinstance(here, dict) and here.get(part) is None and edit.value is not None:
            here[part] = {}
        here = here.get(part) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            raise ValueError(f"edit of {edit.file!r} refused: its `{part}` is no mapping, so `{edit.key}` cannot be set.")
    if not isinstance(here, dict):
        raise ValueError(f"edit of {edit.file!r} refused: the file holds {type(here).__name__}, not a mapping.")
    if edit.value is None:
        here.pop(last, None)
    else:
        here[last] = edit.value


def _rename(made: Path, edits: Sequence[Edit]) -> None:
    """Name and README of the fixed case: what was changed, as it was asked for."""
    file = made / "case.yaml"
    file.write_text(file.read_text().replace("name: smollm2-broken", "name: smollm2-fixed"))
    lines = [f"- `{e.file}`: `{e.key}` = `{json.dumps(e.value)}`" + (f" ({e.applies_to})" if e.applies_to else "") for e in edits]
    (made / "README.md").write_text("# smollm2-fixed: the broken case after the edits that its own run printed\n\n" + "\n".join(lines) + "\n")


def _join(made: Path, shared: Stage) -> None:
    """Hard links to (else copies of) what the cases share; the case's own files win."""
    for place in ("target", "drafter", "dump", "bank"):
        source: Path = getattr(shared, place)
        for file in source.iterdir():
            link = made / place / file.name
            link.parent.mkdir(exist_ok=True)
            if link.exists():
                continue
            try:
                os.link(file, link)
            except OSError:  # another file system
                shutil.copy2(file, link)


def _measured(made: Path) -> None:
    """runs.csv: what was measured on the case's engine with the ids that stand in its drafter's config, and without a drafter."""
    serving = yaml.safe_load((made / "case.yaml").read_text())["serving"]
    config = json.loads((made / "drafter" / "config.json").read_text())
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or []
    with (DATA / "measured.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["engine"], r["engine_version"]) == (serving["engine"], serving["version"])]
    kept = [r for r in rows if r["speculative"] == "0" or r["ids"] == ";".join(map(str, ids))]
    text = io.StringIO()
    writer = csv.DictWriter(text, [c for c in rows[0] if c != "ids"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    (made / "runs.csv").write_text(text.getvalue())


def _swap(made: Path, folder: Path) -> None:
    """Put a made folder in place; an equal one stays as it is, so that a run reading it is not disturbed."""
    if folder.exists() and _equal(made, folder):
        return
    old = made.with_name("old")
    if folder.exists():
        folder.rename(old)
    made.rename(folder)


def _equal(one: Path, other: Path) -> bool:
    files = [{p.relative_to(f) for p in f.rglob("*") if p.is_file()} for f in (one, other)]
    return files[0] == files[1] and all(filecmp.cmp(one / f, other / f, shallow=(one / f).stat().st_size > 1 << 20) for f in files[0])


def _known(name: str) -> None:
    if name not in VARIANTS:
        raise DemoError(f"no demo case {name!r}; known: {', '.join(VARIANTS)}.")
