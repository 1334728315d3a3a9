"""vLLM's hidden-state connector (`{request}.safetensors`) and speculators 0.5 and later, which uses it (`hs_{i}.safetensors`).

The FP8 backend of speculators 0.9.0 (hs-connectors 0.9.0, `FP8HiddenStatesConnector`) stores float8_e4m3fn and one float32 scale a token
over all its planes, [T, 1, 1].
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import NOTHING, Layout, Parts, flat, rank_in
from eagle_forensics.evidence.records import MOST_IDS

SCALES = "hidden_states_scales"


def _is_extract(content: Any) -> bool:
    if not isinstance(content, Mapping):
        return False
    states, ids = content.get("hidden_states"), content.get("token_ids")
    return isinstance(states, torch.Tensor) and states.dim() == 3 and states.shape[1] <= MOST_IDS and isinstance(ids, torch.Tensor)


def _read(content: Mapping[str, Any], file: Path) -> Parts:
    states, about = content["hidden_states"], replace(NOTHING, engine="vllm")
    if SCALES in content:
        about = replace(about, dtype=str(states.dtype).removeprefix("torch."))
        states = _scaled(states, content[SCALES])
    planes = [(None, states[:, k]) for k in range(states.shape[1])]
    return Parts(planes, flat(content, "token_ids"), flat(content, "loss_mask"), about, *rank_in(file))


def _scaled(states: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if scales.numel() != states.shape[0] or not scales.is_floating_point():
        raise ValueError(f"`{SCALES}` is {scales.dtype} {list(scales.shape)} for {states.shape[0]} tokens, expected one number a token")
    scales = scales.float().reshape(-1, 1, 1)
    if not (scales.isfinite().all() and (scales > 0).all()):
        raise ValueError(f"`{SCALES}` holds values that are not positive and finite")
    return states.to(torch.float32, copy=True).mul_(scales)


VLLM_EXTRACT = Layout("vllm_extract", "`hidden_states` [T, k, H] with `token_ids` [T], with `hidden_states_scales` [T, 1, 1] where it is float8", _is_extract, _read)
