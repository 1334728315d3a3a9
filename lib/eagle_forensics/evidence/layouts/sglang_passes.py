"""SGLang's `--debug-tensor-dump-output-folder`: `[target|draft/]TP{t}_PP{p}_Rank{r}_pid{n}/Pass{i}.pt` (`debug_utils/tensor_dump_forward_hook.py`, 0.5.23).

A pass holds the output of every leaf module by name. Of these, the residual stream is what a sample keeps: the embedding, the second output of every
`input_layernorm` (its input plus the residual: the state before that layer), both of the last `norm`, and a draft's `fc`. What is named `model`,
`lm_head` or `logits_processor` belongs to the pass before, because the file is written before the top-level hook returns, and is not read. The flag
switches CUDA graphs off, so only the eager path is seen.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import NOTHING, Layout, Parts, sequences

IDS, POSITIONS = ".forward_batch_info.input_ids", ".forward_batch_info.positions"
STREAM = re.compile(r"(?:.*\.)?(?:embed_tokens|fc|layers\.\d+\.input_layernorm\[1\]|(?<!\w)norm(?:\[[01]\])?)")
"""Names of the residual stream, an output of several with its number."""
RANK = re.compile(r"TP(\d+)_(?:PP\d+_)?Rank\d+_pid\d+")


def _is_pass(content: Any) -> bool:
    return isinstance(content, Mapping) and _info(content, IDS) is not None and any(STREAM.fullmatch(name) for name, _ in _outputs(content))


def _info(content: Mapping[str, Any], ending: str) -> torch.Tensor | None:
    return next((v for k, v in content.items() if isinstance(k, str) and k.endswith(ending) and isinstance(v, torch.Tensor) and v.dim() == 1), None)


def _outputs(content: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    found = []
    for name, value in content.items():
        parts = [(f"{name}[{i}]", part) for i, part in enumerate(value)] if isinstance(value, list | tuple) else [(str(name), value)]
        found += [(label, part) for label, part in parts if isinstance(part, torch.Tensor) and part.is_floating_point() and part.dim() == 2]
    return found


def _members(content: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], slice]]:
    ids, positions = _info(content, IDS), _info(content, POSITIONS)
    if positions is None or positions.shape != ids.shape:
        return [(content, slice(0, ids.shape[0]))]
    return [(content, where) for where in sequences(positions)]


def _read(member: tuple[Mapping[str, Any], slice], path: Path) -> Parts:
    content, where = member
    ids = _info(content, IDS)
    planes = [(name, value[where]) for name, value in _outputs(content) if STREAM.fullmatch(name) and value.shape[0] == ids.shape[0]]
    if not planes:
        raise ValueError(f"none of its outputs has the {ids.shape[0]} rows of the pass")
    rank, number = RANK.fullmatch(path.parent.name), re.search(r"\d+", path.stem)
    role = path.parent.parent.name if path.parent.parent.name in ("target", "draft") else ""
    about = replace(NOTHING, engine="sglang", path_kind="eager", forward_pass=int(number[0]) if number else None)
    return Parts(planes, ids[where], None, about, "/".join(filter(None, (role, path.name))), int(rank[1]) if rank else None)


SGLANG_PASSES = Layout("sglang_passes", "outputs of modules by name (`model.embed_tokens`, `model.layers.0.input_layernorm`, ...) with "
                       "`model.forward_batch_info.input_ids`", _is_pass, _read, members=_members)
