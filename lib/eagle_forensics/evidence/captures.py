"""Captures: tensors seen at serving time, as samples. What they are is for the fingerprint to say, not for the reader.

Read are the folders of `eagle-forensics capture`, all layouts of a dump (vLLM's extraction files, SGLang's debug dumps and replies with `return_hidden_states`), several kinds in one
folder too, and bare `.pt` tensors or lists and dicts of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.containers import open_json
from eagle_forensics.evidence.fed_files import with_engine
from eagle_forensics.evidence.layouts import layout_of
from eagle_forensics.evidence.layouts.sglang_reply import SGLANG_REPLY
from eagle_forensics.evidence.listing import SIDE_FILES, SUFFIXES, sample_files
from eagle_forensics.evidence.records import EvidenceError, Plane, Provenance, Sample
from eagle_forensics.evidence.samples import members_of, open_sample, read_member


def read_capture(path: str | Path, hidden: int | None = None, problems: list[str] | None = None) -> tuple[Sample, ...]:
    """Samples of a capture file or folder.

    `hidden`: the target's hidden size; rows wider than it (SGLang joins the aux planes) are split into planes of it.
    `loss_mask` marks rows of decoded tokens where the reply tells prompt and decode apart. In a folder, messages of
    unreadable files are appended to `problems` and the rest goes on; without that list the first one raises. EvidenceError
    for anything else.
    """
    path = Path(path)
    if not path.exists():
        raise EvidenceError(f"{path}: does not exist. Correct the path under `captures` in the case.")
    if not path.is_dir():
        return tuple(_file(path, hidden))
    found: list[Sample] = []
    files = sample_files(path)
    files = sorted({*files, *(p for p in path.glob("*.json") if not SIDE_FILES.fullmatch(p.name) and p not in files and _is_broken(p))})
    if not files:
        raise EvidenceError(f"{path}: no sample files ({', '.join(SUFFIXES)}, replies as .json) in it. Correct the path under `captures` in the case.")
    for file in files:
        try:
            found += _file(file, hidden)
        except EvidenceError as error:
            if problems is None:
                raise
            problems.append(str(error))
    return with_engine(found, path)


def _file(file: Path, hidden: int | None) -> Iterator[Sample]:
    content = open_sample(file)
    layout = layout_of(content)
    if layout is None and file.suffix == ".json":
        layout = SGLANG_REPLY
        read_member(layout, layout.members(content)[0] if content else content, file)  # says what a reply lacks
    if layout is None:
        yield _split(_bare(file, content), hidden)
        return
    held = members_of(layout, content, file)
    for number, member in enumerate(held):
        yield _split(read_member(layout, member, file, number if layout.members else None, partial=True), hidden)


def _is_broken(reply: Path) -> bool:
    try:
        open_json(reply)
    except EvidenceError:
        return True
    return False


def _bare(file: Path, content: Any) -> Sample:
    """A bare tensor [T, H] or [T, k, H], or a list or dict of [T, H]."""
    if isinstance(content, torch.Tensor):
        tensor = content[0] if content.dim() == 3 and content.shape[0] == 1 else content
        planes: list[tuple[str | None, torch.Tensor]] = [(None, tensor[:, k]) for k in range(tensor.shape[1])] if tensor.dim() == 3 else [(None, tensor)]
    else:
        named = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list | tuple) else ()
        planes = [(str(k) if isinstance(content, dict) else None, v) for k, v in named if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if not planes:
        raise EvidenceError(f"{file}: holds no states. Expected a tensor [T, H] or [T, k, H], or a list or dict of [T, H].")
    for label, data in planes:
        if data.dim() != 2 or not data.numel() or not data.is_floating_point() or data.dtype.itemsize == 1 or data.shape[0] != planes[0][1].shape[0]:
            raise EvidenceError(f"{file}: {label or 'its tensor'} is {data.dtype} {list(data.shape)}, expected states [T, H] of one length. "
                                "Save one plane a tensor.")
    return Sample(tuple(Plane(i, label, data) for i, (label, data) in enumerate(planes)), None, None, file, file.name,
                  provenance=Provenance(dtype=str(planes[0][1].dtype).removeprefix("torch.")))


def _split(sample: Sample, hidden: int | None) -> Sample:
    """Planes wider than `hidden`, in multiples of it, taken apart in order."""
    if hidden is None or all(p.data.shape[1] <= hidden or p.data.shape[1] % hidden for p in sample.planes):
        return sample
    parts = [(p.label, part) for p in sample.planes
             for part in (p.data.split(hidden, 1) if p.data.shape[1] % hidden == 0 else (p.data,))]
    return replace(sample, planes=tuple(Plane(slot, label, data) for slot, (label, data) in enumerate(parts)))
