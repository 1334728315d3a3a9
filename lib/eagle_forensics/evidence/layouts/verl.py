"""verl-speco's feature store (`shard_{n}.pt`, listed in `manifest.jsonl`; `trainer/feature_store.py`, 0.1.0): `{"samples": [...], "metadata": ...}`.

`hidden_states` is a list of planes, or the planes joined; `last_hidden_states` (older: `target`) follows. The last token may have no row, because
it was never run: its id is left out then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import Layout, Parts, joined, rows


def _is_shard(content: Any) -> bool:
    samples = content.get("samples") if isinstance(content, Mapping) else None
    return isinstance(samples, list) and bool(samples) and isinstance(samples[0], Mapping) and "hidden_states" in samples[0]


def _read(sample: Any, _: Path) -> Parts:
    if not isinstance(sample, Mapping):
        raise ValueError(f"a sample of the shard is a {type(sample).__name__}")
    states = sample.get("hidden_states")
    last = next((rows(sample[k]) for k in ("last_hidden_states", "target") if isinstance(sample.get(k), torch.Tensor)), None)
    planes: list[tuple[str | None, torch.Tensor]]
    if isinstance(states, torch.Tensor):
        states = rows(states)
        hidden = last.shape[-1] if last is not None and last.dim() == 2 else 0
        planes = joined("hidden_states", states, hidden) if hidden and states.dim() == 2 and states.shape[-1] % hidden == 0 else [("hidden_states", states)]
    elif isinstance(states, list | tuple) and states and all(isinstance(t, torch.Tensor) for t in states):
        planes = [(f"hidden_states[{i}]", rows(t)) for i, t in enumerate(states)]
    else:
        raise ValueError("a sample of the shard has no tensors under `hidden_states`")
    if last is not None:
        planes.append(("last_hidden_states", last))
    length = planes[0][1].shape[0]
    return Parts(planes, _run(sample.get("input_ids"), length), _run(sample.get("loss_mask"), length))


def _run(values: Any, length: int) -> torch.Tensor | None:
    if not isinstance(values, torch.Tensor):
        return None
    values = values.reshape(-1)
    return values[:length] if values.shape[0] == length + 1 else values


VERL_SPECO = Layout("verl_speco", "`samples`: a list of dicts with `hidden_states`", _is_shard, _read, members=lambda c: c["samples"])
