"""TensorRT-LLM's SaveHiddenStates (`{prefix}_{n}.pt`; `_torch/speculative/save_hidden_state.py`).

A list of `write_interval` dicts `{id, input_ids, hidden_state, aux_hidden_states}`. `hidden_state` is the state after the final norm; where layer
-1 was asked for, it stands a second time at the end of `aux_hidden_states`. With one captured layer there are no aux planes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.layouts.parts import Layout, Parts, flat, has_rank, rows, split


def _is_list(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and has_rank(content[0], "hidden_state", 2)


def _read(content: Any, _: Path) -> Parts:
    if not has_rank(content, "hidden_state", 2):
        raise ValueError("a dict of the list has no `hidden_state` [T, H]")
    aux = isinstance(content, Mapping) and has_rank(content, "aux_hidden_states", 2)
    planes = split(content, "aux_hidden_states", "hidden_state") if aux else [("hidden_state", rows(content["hidden_state"]))]
    return Parts(planes, flat(content, "input_ids"), flat(content, "loss_mask"))


TRTLLM = Layout("trtllm", "a list of dicts with `hidden_state` [T, H]", _is_list, _read, members=list)
