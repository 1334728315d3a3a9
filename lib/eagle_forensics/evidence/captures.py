"""Captures: tensors seen at serving time, as samples. What they are is for the fingerprint to say, not for the reader.

Read are vLLM's extraction files (`hidden_states` [T, k, H], `token_ids`) and folders of them or of any known dump layout,
SGLang's `/generate` replies with `return_hidden_states` (0.5.20 and later: prompt rows first, then one row a decoded
token), and bare `.pt` tensors or lists and dicts of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.layouts import layout_of, open_pt
from eagle_forensics.evidence.records import EvidenceError, Plane, Sample

JSON_LIMIT = 1 << 30
"""Bytes of a JSON reply worth reading: one prompt of 2,000 tokens with three planes of 7,168 numbers is below it."""


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
    if path.is_dir():
        return _folder(path, hidden, problems)
    if path.suffix == ".json":
        return tuple(_replies(path, hidden))
    if path.suffix in (".pt", ".pth"):
        content = open_pt(path)
        if not (isinstance(content, dict) and layout_of(content)):
            return (_sample(path, path.name, _named_planes(path, content), None, None, hidden),)
    return tuple(_split_all(sample, hidden) for sample in iter_samples(find_dump(path)))


def _folder(path: Path, hidden: int | None, problems: list[str] | None) -> tuple[Sample, ...]:
    replies = sorted(path.glob("*.json"))
    try:
        info = find_dump(path)
    except EvidenceError:
        files = [p for p in sorted(path.iterdir()) if p.suffix in (".pt", ".pth", ".json") and p.name != "manifest.json"]
        if not files:
            raise
        found: list[Sample] = []
    else:
        files = [file for file in replies if _is_reply(file)]
        found = [_split_all(sample, hidden) for sample in iter_samples(info, problems=problems)]
    for file in files:
        try:
            found += read_capture(file, hidden)
        except EvidenceError as error:
            if problems is None:
                raise
            problems.append(str(error))
    return tuple(found)


def _is_reply(file: Path) -> bool:
    with file.open("rb") as stream:
        return b"hidden_states" in stream.read(1 << 20)


def _replies(path: Path, hidden: int | None) -> Iterator[Sample]:
    if path.stat().st_size > JSON_LIMIT:
        raise EvidenceError(f"{path}: {path.stat().st_size >> 20} MiB of JSON; save fewer prompts a file (limit {JSON_LIMIT >> 20} MiB).")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: no readable JSON ({str(error)[:100]}). Save the server's reply as it came.") from None
    replies = content if isinstance(content, list) else [content]
    for index, reply in enumerate(replies):
        inner = reply.get("response", reply) if isinstance(reply, dict) else None
        meta = inner.get("meta_info") if isinstance(inner, dict) else None
        rows = meta.get("hidden_states") if isinstance(meta, dict) else None
        if not isinstance(rows, list) or not rows:
            raise EvidenceError(f"{path}: reply {index} has no `meta_info.hidden_states`. Start the server with --enable-return-hidden-states "
                                "(or --enable-return-aux-hidden-states) and send \"return_hidden_states\": true.")
        try:
            states, prompt = _rows(rows)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise EvidenceError(f"{path}: reply {index}: {error}. Expected prompt rows [T][W], then one row [W] a decoded token.") from None
        ids = _reply_ids(reply, inner, prompt, states.shape[0])
        mask = torch.arange(states.shape[0]) >= prompt
        yield _sample(path, f"{path.name}[{index}]", [(None, states)], ids, mask, hidden)


def _rows(rows: list) -> tuple[torch.Tensor, int]:
    """All rows [T, W] and how many of them are prompt rows."""
    prompt = torch.tensor(rows[0], dtype=torch.float32)
    if prompt.dim() != 2 or not prompt.numel():
        raise ValueError(f"the prompt's states have the shape {list(prompt.shape)}")
    decoded = [torch.tensor(row, dtype=torch.float32).reshape(-1, prompt.shape[1]) for row in rows[1:]]
    return torch.cat([prompt, *decoded]), prompt.shape[0]


def _reply_ids(reply: dict, inner: dict, prompt: int, rows: int) -> torch.Tensor | None:
    """Token ids of the rows, where the prompt's ids were saved beside the reply and agree with its length."""
    asked = reply.get("input_ids") or reply.get("prompt_token_ids") or (reply.get("request") or {}).get("input_ids")
    made = inner.get("output_ids") or []
    if not isinstance(asked, list) or len(asked) != prompt or not all(type(i) is int for i in [*asked, *made]):
        return None
    ids = [*asked, *made][:rows]
    return torch.tensor(ids) if len(ids) == rows else None


def _named_planes(path: Path, content: Any) -> list[tuple[str | None, torch.Tensor]]:
    """Planes of a bare tensor [T, H] or [T, k, H], or of a list or dict of [T, H]."""
    if isinstance(content, torch.Tensor):
        tensor = content[0] if content.dim() == 3 and content.shape[0] == 1 else content
        return [(None, tensor[:, k]) for k in range(tensor.shape[1])] if tensor.dim() == 3 else [(None, tensor)]
    named = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list | tuple) else ()
    planes = [(str(k) if isinstance(content, dict) else None, v) for k, v in named if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if not planes:
        raise EvidenceError(f"{path}: holds no states. Expected a tensor [T, H] or [T, k, H], or a list or dict of [T, H].")
    return planes


def _sample(path: Path, name: str, planes: list[tuple[str | None, torch.Tensor]], ids: torch.Tensor | None,
            mask: torch.Tensor | None, hidden: int | None) -> Sample:
    for label, data in planes:
        if data.dim() != 2 or not data.numel() or not data.is_floating_point() or data.shape[0] != planes[0][1].shape[0]:
            raise EvidenceError(f"{path}: {label or 'its tensor'} is {data.dtype} {list(data.shape)}, expected states [T, H] of one length. "
                                "Save one plane a tensor.")
    sample = Sample(tuple(Plane(i, label, data) for i, (label, data) in enumerate(planes)), ids, mask, path, name)
    return _split_all(sample, hidden)


def _split_all(sample: Sample, hidden: int | None) -> Sample:
    """Planes wider than `hidden`, in multiples of it, taken apart in order."""
    if hidden is None or all(p.data.shape[1] <= hidden or p.data.shape[1] % hidden for p in sample.planes):
        return sample
    parts = [(p.label, part) for p in sample.planes
             for part in (p.data.split(hidden, 1) if p.data.shape[1] % hidden == 0 else (p.data,))]
    planes = tuple(Plane(slot, label, data) for slot, (label, data) in enumerate(parts))
    return Sample(planes, sample.input_ids, sample.loss_mask, sample.source, sample.sample_id)
