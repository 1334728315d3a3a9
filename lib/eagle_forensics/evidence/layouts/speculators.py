"""speculators before 0.8: v0 (joined planes and `target`) and v1 (a list of planes, `data_{i}.pt`; 0.3.0 and 0.4.0)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import Layout, Parts, flat, has_rank, pair, rows


def _is_list(content: Any) -> bool:
    states = content.get("hidden_states") if isinstance(content, Mapping) else None
    return isinstance(states, list | tuple) and bool(states) and all(isinstance(t, torch.Tensor) for t in states)


def _list(content: Mapping[str, Any], _: Path) -> Parts:
    return Parts([(None, rows(t)) for t in content["hidden_states"]], flat(content, "input_ids"), flat(content, "loss_mask"))


SPECULATORS_V1 = Layout("speculators_v1", "`hidden_states` is a list of tensors [T, H]", _is_list, _list)
SPECULATORS_V0 = Layout(
    "speculators_v0", "`hidden_state` [T, n*H] with `target` [T, H]",
    lambda c: has_rank(c, "hidden_state", 2) and has_rank(c, "target", 2),
    lambda c, _: pair(c, "hidden_state", "target"))
