"""TorchSpec's debug batches (`save_debug_train_data`, `train_dump.py`) and its evaluation cache (`eval_rank_{r}.pt`, a list of batches).

A batch is padded: `input_ids` [B, S], `hidden_states` [B, S, n*H], `last_hidden_states` [B, S, H], `attention_mask` and `loss_mask` [B, S]. The ranks
of a data-parallel trainer hold different batches.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import Layout, Parts, joined


def _batches(content: Any) -> list[Mapping[str, Any]]:
    held = content if isinstance(content, list) else [content.get("batch")] if isinstance(content, Mapping) else []
    return [b for b in held if isinstance(b, Mapping) and all(isinstance(b.get(k), torch.Tensor) for k in ("input_ids", "hidden_states"))
            and b["input_ids"].dim() == 2 and b["hidden_states"].dim() == 3]


def _members(content: Any) -> list[tuple[Mapping[str, Any], int]]:
    return [(batch, row) for batch in _batches(content) for row in range(batch["input_ids"].shape[0])]


def _read(member: Any, _: Path) -> Parts:
    batch, row = member
    kept = _real(batch, row)
    states = batch["hidden_states"][row, kept]
    last = batch.get("last_hidden_states")
    if isinstance(last, torch.Tensor) and last.dim() == 3:
        last = last[row, kept]
        if not last.shape[-1] or states.shape[-1] % last.shape[-1]:
            raise ValueError(f"`hidden_states` is {states.shape[-1]} wide, no multiple of the {last.shape[-1]} of `last_hidden_states`")
        planes = [*joined("hidden_states", states, last.shape[-1]), ("last_hidden_states", last)]
    else:
        planes = [("hidden_states", states)]
    mask = batch.get("loss_mask")
    return Parts(planes, batch["input_ids"][row, kept], mask.reshape(batch["input_ids"].shape)[row, kept] if isinstance(mask, torch.Tensor) else None)


def _real(batch: Mapping[str, Any], row: int) -> slice:
    """Columns of a row that are no padding."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, torch.Tensor):
        return slice(None)
    real = torch.nonzero(mask[row]).flatten()
    if not real.numel():
        return slice(0, 0)
    first, last = int(real[0]), int(real[-1])
    if real.numel() != last - first + 1:
        raise ValueError("`attention_mask` has a gap: the row is no padded sequence")
    return slice(first, last + 1)


TORCHSPEC = Layout("torchspec", "`batch` (or a list of batches) with `input_ids` [B, S] and `hidden_states` [B, S, n*H]",
                   lambda c: bool(_batches(c)), _read, members=_members)
