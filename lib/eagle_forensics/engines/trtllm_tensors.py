"""TensorRT-LLM: which tensors of an EAGLE-3 draft its Eagle3ForCausalLM takes. Read in one snapshot of the main line, so every answer is assumed.

`layers.N.` becomes `midlayer.` (one layer) or `midlayer.N.`, then every name but the head's gets `model.` in front. What happens to a
parameter that no tensor fills was not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.engines.answers import LoadAnswer
from eagle_forensics.evidence.records import MOST_IDS

SOURCE = "TensorRT-LLM _torch/models/modeling_speculative.py Eagle3DraftModel, Eagle3ForCausalLM.load_weights (a snapshot of the main line)"
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLA = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
_REST = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "hidden_norm", "input_layernorm", "post_attention_layernorm")


def load(version: str, files: Sequence[str], config: Mapping[str, Any]) -> LoadAnswer:
    """What becomes of these tensors; `config` is the draft's config as written, `eagle_config` nested."""
    nested = config.get("eagle_config") if isinstance(config.get("eagle_config"), Mapping) else {}
    expected = _expected(config, nested)
    shared = config.get("target_hidden_size") in (None, config.get("hidden_size"))
    loaded, dropped, replaced = {}, {}, {}
    for file in files:
        name = re.sub(r"^layers\.0\.", "midlayer.", file) if _layers(config) == 1 else re.sub(r"^layers\.(\d+)\.", r"midlayer.\1.", file)
        if "lm_head" in name:
            loaded[file] = name
        elif name == "embed_tokens.weight" and shared:
            replaced[file] = "the target's embedding"
        elif name in expected:
            loaded[file] = f"model.{name}"
        elif "t2d" in name:
            dropped[file] = "t2d is not used"
        elif "d2t" in name:
            dropped[file] = "no map is built: draft_vocab_size equals vocab_size, or is not given"
        elif name.startswith("model."):
            dropped[file] = "model. is put in front of every name, so model.model. fills nothing"
        else:
            dropped[file] = "no module of that name"
    notes = [f"TensorRT-LLM {version}: its tensor rules were read in one snapshot of the main line and are assumed"]
    if not any("lm_head" in file for file in files):
        notes.append("no lm_head: the target's is shared")
    missing = tuple(f"model.{name}" for name in sorted(expected - {param.removeprefix("model.") for param in loaded.values()}))
    return LoadAnswer("trtllm", version, loaded, dropped, replaced, missing, _flags(config, nested, notes), None, tuple(notes), (SOURCE,), True)


def _layers(config: Mapping[str, Any]) -> int:
    count = config.get("num_hidden_layers", 1)
    return count if isinstance(count, int) and 1 <= count <= 1000 else 1


def _planes(config: Mapping[str, Any]) -> int:
    count = config.get("num_aux_hidden_states")
    return min(count, MOST_IDS) if isinstance(count, int) and count > 0 else 3


def _expected(config: Mapping[str, Any], nested: Mapping[str, Any]) -> set[str]:
    """Names the file must hold, after renaming, without the `model.` in front."""
    count = _layers(config)
    attention = _MLA if config.get("kv_lora_rank") else _ATTENTION
    parts = (*(f"self_attn.{part}" for part in attention), *_REST)
    names = {f"{layer}.{part}.weight" for layer in (["midlayer"] if count == 1 else [f"midlayer.{i}" for i in range(count)]) for part in parts}
    names |= {"fc.weight", "norm.weight"}
    if config.get("bias"):
        names.add("fc.bias")
    if config.get("draft_vocab_size") not in (None, config.get("vocab_size")):
        names.add("d2t")
    if config.get("target_hidden_size") not in (None, config.get("hidden_size")):
        names.add("embed_tokens.weight")
    if nested.get("norm_before_fc"):
        names.add("input_norm.weight")
    if config.get("fc_norm"):
        names |= {f"fc_norm.{i}.weight" for i in range(_planes(config))}
    return names


def _flags(config: Mapping[str, Any], nested: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    out = {}
    if nested.get("norm_before_fc") is not None or config.get("norm_before_fc") is not None:
        out["norm_before_fc"] = "honoured" if nested.get("norm_before_fc") is not None else "ignored: read only inside eagle_config"
    for flag in ("fc_norm", "norm_output"):
        if config.get(flag) is not None:
            out[flag] = "honoured"
    for flag in ("norm_before_residual", "use_aux_norm", "num_aux_hidden_states", "use_aux_hidden_state", "use_last_layernorm"):
        if config.get(flag) is not None or nested.get(flag) is not None:
            out[flag] = "ignored in the code that was read"
    if config.get("norm_before_residual") or nested.get("norm_before_residual"):
        notes.append("norm_before_residual true is ignored: the residual is the un-normed state")
    return out
