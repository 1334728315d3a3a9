"""`eagle-forensics init`: a case file from what lies in the given places."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from eagle_forensics.address import url_of
from eagle_forensics.case import CaseError, load_case
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.dumps import find_dump
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.targets import read_target

HINTS = {
    "serving": ("what serves the drafter decides what its layer ids mean",
                ("engine: sglang", 'version: "VERSION AS THE ENGINE PRINTS IT"', 'launch: "LAUNCH ARGUMENTS"')),
    "training": ("what the trainer's config says",
                 ('trainer: {name: NAME, version: "VERSION"}', "layer_ids: [IDS AS THE TRAINER WROTE THEM]", "metrics: {NAME_OF_METRIC: VALUE}")),
}
"""Keys that only the user can fill in, by their place in the case file: why, and the lines."""


def write_case(folder: Path, *, drafter: Path | None = None, target: Path | None = None, dump: Path | None = None, server: str | None = None) -> str:
    """Write `folder/case.yaml` and return what was found, in words.

    Each place is opened once, so that a wrong path is named now and not in the middle of a run. Raises CaseError if a
    case file is already there, EvidenceError for a place that holds something else.
    """
    path = folder / "case.yaml"
    if path.exists() or path.is_symlink():
        raise CaseError(f"{path} exists; nothing was written. Edit it, or give another folder.")
    found: list[str] = []
    case: dict[str, Any] = {"schema": 1, "name": _name(folder)}
    if target:
        model = _opened("target", read_target, target)
        case["target"] = {"path": _relative(target, folder)}
        weights = "with weights" if model.tensors else "without weights: notebook 03 then needs reference.path"
        found.append(f"target   {model.model_type}, {model.layers} layers, hidden {model.hidden}, {weights}")
    if drafter:
        draft = _opened("drafter", read_draft, drafter)
        case["drafter"] = {"path": _relative(drafter, folder)}
        ids = next((x for x in (draft.ids.nested, draft.ids.top_level, draft.ids.nested_layer_ids) if x is not None), None)
        found.append(f"drafter  {draft.family} ({draft.source_format}), {draft.n_aux} aux planes, ids {'absent' if ids is None else list(ids)}")
    if dump:
        info = _opened("dump", find_dump, dump)
        case["training"] = {"dump": {"path": url_of(dump) or _relative(dump, folder)}}
        labels = f", labelled {', '.join(info.labels)}" if info.labels else ""
        found.append(f"dump     {info.format}, {len(info.files)} samples{labels}")
    if server:
        case["serving"] = {"url": server}
        found.append(f"server   {server} (contacted only by a run)")
    folder.mkdir(parents=True, exist_ok=True)
    text = "# A case of Eagle Forensics. Paths are relative to this file.\n"
    for key, value in case.items():
        text += yaml.safe_dump({key: value}, sort_keys=False) + (_hint(key) if key in HINTS else "")
    text += "".join(f"# {key}:\n{_hint(key)}" for key in HINTS if key not in case)
    with path.open("x", encoding="utf-8") as file:  # never through a link that points elsewhere
        file.write(text)
    try:
        load_case(path)
    except CaseError:
        path.unlink()
        raise
    return "\n".join([f"wrote {path}", *(f"  {line}" for line in found), f"next: eagle-forensics run {path}"])


def _opened(option: str, reader: Callable[[Path], Any], place: Path) -> Any:
    try:
        return reader(place)
    except EvidenceError as error:
        raise EvidenceError(f"--{option}: {error}") from None


def _name(folder: Path) -> str:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in folder.resolve().name).strip("-._")
    return name[:64] or "case"


def _relative(place: Path, folder: Path) -> str:
    """The place as it was named: a link stays a link, so that the case follows where it points."""
    return os.path.relpath(place.parent.resolve() / place.name, folder.resolve())


def _hint(key: str) -> str:
    """The lines to fill in, commented; without their `# ` they stand under their key."""
    why, lines = HINTS[key]
    return f"  # ({why}: fill in and remove the #)\n" + "".join(f"#   {line}\n" for line in lines)
