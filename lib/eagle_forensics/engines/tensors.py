"""Draft checkpoints: which tensors an engine loads, drops, replaces or never finds, and which head flags it honours.

SGLang checks neither missing nor unexpected tensors: a dropped tensor is silent and the parameter it was for keeps uninitialised memory.
Rules: `tensors.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from eagle_forensics.engines import sglang, trtllm_tensors, vllm
from eagle_forensics.engines.answers import LoadAnswer
from eagle_forensics.engines.planes import planes_of
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import engine_name, nearest, since

_ATTENTION = ("self_attn.qkv_proj.weight", "self_attn.o_proj.weight")
_MLA = ("self_attn.fused_qkv_a_proj_with_mqa.weight", "self_attn.q_a_layernorm.weight", "self_attn.q_b_proj.weight",
        "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight", "self_attn.o_proj.weight")
_REST = ("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight", "mlp.gate_up_proj.weight", "mlp.down_proj.weight")
_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj"), "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa")}
"""A fused module and the modules of a checkpoint that fill it piece by piece."""
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "num_aux_hidden_states", "use_aux_hidden_state",
          "use_last_layernorm")

ONE_LAYER = ("ValueError: EAGLE3 currently only supports 1 layer", "the MLA draft class builds one layer")
"""How the errors begin of a plain and an MLA draft class that build one layer whatever the config says."""
MOST_LAYERS = 1000
"""More than any model has; a larger count is a damaged config, and listing its parameters would take minutes."""
NESTED_FIRST = ("norm_before_fc",)
"""Flags for which the value in `eagle_config`, null included, wins over the one at the top (sglang 0.5.23 llama_eagle3.py:173, vllm 0.32.0 llama_eagle3.py:184)."""


def loading(engine: str, version: str, names: Iterable[str], flags: Any = None, *, draft_architecture: str | None = None) -> LoadAnswer:
    """What `engine` `version` makes of a checkpoint with these tensor `names` (as the file spells them).

    `flags`: the draft's config (a mapping; `eagle_config` is looked into) or a record with the flags as attributes. ValueError for an
    unknown engine or version.
    """
    name = engine_name(engine)
    config = _config(flags)
    if name == "trtllm":
        return trtllm_tensors.load(version, list(dict.fromkeys(names)), flags if isinstance(flags, Mapping) else config)
    at = nearest(name, version, (sglang if name == "sglang" else vllm).releases())
    files = list(dict.fromkeys(names))
    mla = draft_architecture in table("tensors")[name]["mla_classes"] or any("kv_b_proj" in file or "kv_a_proj" in file for file in files)
    notes = [at.note] if at.note else []
    error = _class_error(name, at.release, draft_architecture, mla)
    result = (_sglang if name == "sglang" else _vllm)(files, config, at.release, mla, notes)
    honoured = _honoured(name, at.release, config, mla, notes)
    return LoadAnswer(name, version, *result[:4], honoured, error or result[4], tuple(notes), (table("tensors")[name]["source"],), at.assumed)


def _sglang(files: list[str], config: Mapping[str, Any], release: str, mla: bool, notes: list[str]) -> tuple[Any, ...]:
    rules = table("tensors")["sglang"]
    named_layers = since(rules["layers_since"], release) and not mla
    params, error = _sglang_params(config, release, named_layers, mla)
    own_embedding = _own_embedding(config)
    loaded: dict[str, str] = {}
    dropped: dict[str, str] = {}
    replaced: dict[str, str] = {}
    for file in files:
        if "d2t" in file:
            loaded[file] = "hot_token_id = d2t + arange (an offset table)"
            continue
        if "t2d" in file:
            dropped[file] = "t2d is not used"
            continue
        name = _sglang_name(file, named_layers, mla, rules["renames"])
        plain = name.startswith("lm_head") or (since(rules["model_prefix_since"], release) and not mla and name in params)
        param = _quantized(name if plain else f"model.{name}", params, config)
        if param not in params:
            if not since(rules["model_prefix_since"], release) and ("qkv_proj" in param or "gate_up_proj" in param):
                error = error or f"KeyError: '{param}'"
            dropped[file] = _why_dropped(file, release, mla)
        elif param == "model.embed_tokens.weight" and not own_embedding:
            replaced[file] = "the target's embedding"
        else:
            loaded[file] = param
    if not any("d2t" in file for file in files) and config.get("draft_vocab_size") not in (None, config.get("vocab_size")):
        notes.append("no d2t: draft id k is taken for target id k although the draft vocabulary is smaller, silently")
    shared = set() if own_embedding else {"model.embed_tokens.weight"}
    return loaded, dropped, replaced, _unfilled(params - shared, loaded), error


def _sglang_params(config: Mapping[str, Any], release: str, named_layers: bool, mla: bool) -> tuple[set[str], str | None]:
    """The parameters the draft module builds, and the error its constructor raises, if any."""
    rules = table("tensors")["sglang"]
    count = config.get("num_hidden_layers", 1)
    error = None
    if count != 1 and not named_layers:
        error = f"{ONE_LAYER[1]}; the config says {count}" if mla else ONE_LAYER[0]
    if "target_hidden_size" in config and config["target_hidden_size"] is None:
        error = error or "TypeError: target_hidden_size is null, so the width of fc is None * planes: remove the key"
    if not isinstance(count, int):
        error = error or f"TypeError: num_hidden_layers is {count!r:.40}, not a number"
    elif count > MOST_LAYERS:
        error, count = error or f"num_hidden_layers is {count}: no drafter has so many layers", 1
    layers = [f"layers.{i}" for i in range(count)] if named_layers and isinstance(count, int) else ["midlayer"]
    params = {"model.embed_tokens.weight", "model.fc.weight", "model.norm.weight"}
    params |= {f"model.{layer}.{part}" for layer in layers for part in (*(_MLA if mla else _ATTENTION), *_REST)}
    if not config.get("tie_word_embeddings") and config.get("draft_vocab_size", None if mla else 0) is not None:
        params.add("lm_head.weight")
    if config.get("bias"):
        params.add("model.fc.bias")
    if config.get("use_aux_hidden_state") is False and since(rules["honoured_since"]["use_aux_hidden_state"], release):
        params -= {"model.fc.weight", "model.fc.bias"}  # built, but a state of the draft's own width passes it by
    if (named_layers or mla) and (config.get("fc_norm") or config.get("use_aux_norm")):
        params |= {f"model.fc_norm.{i}.weight" for i in range(planes_of(config))}
    if config.get("norm_before_fc") and not mla and since(rules["honoured_since"]["norm_before_fc"], release):
        params.add("model.input_norm.weight")
    return params, error


def _sglang_name(file: str, named_layers: bool, mla: bool, renames: Mapping[str, str]) -> str:
    """The name under which SGLang looks a checkpoint tensor up, without the `model.` it may put in front."""
    if mla:
        name = re.sub(r"^layers\.0\.", "midlayer.", file)
        name = re.sub(r"\.(q_a_proj|kv_a_proj_with_mqa)\.", ".fused_qkv_a_proj_with_mqa.", name)
        return re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.", name)
    name = file
    for old, modern in renames.items() if named_layers else ():
        name = name.replace(old, modern)
    return _fuse(name)


def _quantized(param: str, params: set[str], config: Mapping[str, Any]) -> str:
    """The plain parameter that a tensor of a quantized export (`q_proj.qweight`, `q_proj.weight_packed`) stands for; else as it is."""
    plain = f"{param.rpartition('.')[0]}.weight"
    return plain if param not in params and config.get("quantization_config") and plain in params else param


def _unfilled(params: set[str], loaded: Mapping[str, str]) -> tuple[str, ...]:
    """Parameters no file tensor reaches, and of the fused ones the pieces that none reaches."""
    sources: dict[str, list[str]] = {}
    for file, param in loaded.items():
        sources.setdefault(param, []).append(file)
    missing = []
    for param in sorted(params):
        files = sources.get(param)
        module = param.split(".")[-2]
        whole = module not in _PARTS or any(f".{module}." in file for file in files or ())
        if not files:
            missing.append(param)
        elif not whole:
            missing += [f"{param}[{part}]" for part in _PARTS[module] if not any(f".{part}." in file for file in files)]
    return tuple(missing)


def _fuse(name: str) -> str:
    return re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.", re.sub(r"\.(q|k|v)_proj\.", ".qkv_proj.", name))


def _vllm(files: list[str], config: Mapping[str, Any], release: str, mla: bool, notes: list[str]) -> tuple[Any, ...]:
    loaded: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for file in files:
        if "t2d" in file:
            dropped[file] = "t2d is not used"
        elif "d2t" in file:
            loaded[file] = "draft_id_to_target_id (an offset table)"
        elif file.startswith(("verifier_norm", "verifier_lm_head")):
            dropped[file] = "not part of the draft"
        else:
            name = file.replace("midlayer.", "layers.0.")
            name = name if mla else _fuse(name)
            loaded[file] = name if "lm_head" in name else f"model.{name}"
    present = {name.removeprefix("model.").split(".")[0] for name in loaded.values()}
    for table_name in ("embed_tokens", "lm_head"):
        if table_name not in present:
            notes.append(f"no {table_name}: the target's is shared")
        else:
            notes.append(f"{table_name}: shared with the target if equal to its table, else kept as the draft's own")
    if not any("d2t" in file for file in files) and config.get("draft_vocab_size") not in (None, config.get("vocab_size")):
        notes.append("no d2t: the mapping stays zero, draft id k becomes target id k although the draft vocabulary is smaller, silently")
    layers = {"layers.0", *(match[0] for name in loaded.values() if (match := re.search(r"layers\.\d+", name)))}
    lora = mla and (config.get("q_lora_rank") is not None or not any(".q_proj." in file for file in files))  # else vllm deepseek_v2.py builds q_proj
    down = _PARTS["fused_qkv_a_proj_with_mqa"] if lora else ("q_proj", "kv_a_proj_with_mqa")
    attention = (*(f"self_attn.{part}.weight" for part in down), *(part for part in _MLA[1:] if lora or ".q_" not in part)) if mla else _ATTENTION
    mlp = tuple(f"mlp.{part}.weight" for part in _PARTS["gate_up_proj"]) if mla else ("mlp.gate_up_proj.weight",)
    parts = (*attention, *mlp, *(part for part in _REST if "gate_up" not in part))
    params = {"model.norm.weight", *(f"model.{layer}.{part}" for layer in layers for part in parts)}
    if config.get("use_aux_hidden_state", True):
        params.add("model.fc.weight")
    quantized = {name: _quantized(param, params, config) for name, param in loaded.items()}
    return loaded, dropped, {}, _unfilled(params, quantized), None


def _honoured(engine: str, release: str, config: Mapping[str, Any], mla: bool, notes: list[str]) -> dict[str, str]:
    rules = table("tensors")[engine]
    out: dict[str, str] = {}
    from_speculators = engine == "vllm" and ("speculators_model_type" in config or "speculators_config" in config)
    for flag in _FLAGS:
        if config.get(flag) is None:
            continue
        first = rules["honoured_since"].get(flag)
        if from_speculators:
            first = rules["speculators_since"].get(flag, first)
        if first is None:
            out[flag] = "ignored in every release"
        elif engine == "vllm" and mla and flag == "norm_before_fc":
            out[flag] = "ignored: the deepseek draft class has no support"
        elif not since(first, release):
            out[flag] = f"ignored before {engine} {first}"
        else:
            out[flag] = "honoured"
    if engine == "sglang" and config.get("norm_before_residual"):
        notes.append("norm_before_residual true is ignored: the residual is always the un-normed state, so this draft is silently wrong in SGLang")
    if engine == "vllm" and config.get("norm_before_residual") is None:
        out["norm_before_residual"] = f"default assumed: {from_speculators} ({'speculators' if from_speculators else 'plain'} config)"
    return out


def _class_error(engine: str, release: str, architecture: str | None, mla: bool) -> str | None:
    rules = table("tensors")[engine]
    if mla and not since(rules["mla_since"], release):
        return f"no MLA EAGLE-3 draft class before {engine} {rules['mla_since']}"
    if architecture is None or architecture in (*rules["classes"], *rules["mla_classes"]):
        return None
    if engine == "vllm":
        wrapped = f"Eagle3{architecture}"  # vllm 0.33.0 EAGLEConfig
        known = "eagle3" in architecture.lower() or wrapped in (*rules["classes"], *rules["mla_classes"])
        return None if known else f"{architecture} becomes {wrapped}, which is not registered"
    return (f"{architecture} is not an EAGLE-3 draft class of SGLang (registered: {', '.join((*rules['classes'], *rules['mla_classes']))}): "
            "another model file loads it, or none")


def _why_dropped(file: str, release: str, mla: bool) -> str:
    if mla and file.startswith("model."):
        return "the MLA class strips no model. prefix: skipping unexpected weight"
    if "layers." in file and not since("0.5.12", release):
        return "the module is named midlayer before 0.5.12: layers.N is dropped silently and the draft layer stays random"
    if "aux_norm" in file or "fc_norm" in file:
        return "used only from 0.5.12 on, and only if fc_norm or use_aux_norm is set"
    if "input_norm" in file:
        return "used only from 0.5.17 on, and only if norm_before_fc is set"
    if file.startswith("lm_head"):
        return "the head is tied to the embedding or taken from the target"
    return "no module of that name: dropped silently"


def _own_embedding(config: Mapping[str, Any]) -> bool:
    """SGLang keeps the draft's embedding only if target_hidden_size exists and differs from hidden_size."""
    return config.get("target_hidden_size") is not None and config.get("target_hidden_size") != config.get("hidden_size")


def _config(flags: Any) -> dict[str, Any]:
    if flags is None:
        return {}
    if is_dataclass(flags) and not isinstance(flags, type):
        return {field.name: getattr(flags, field.name) for field in fields(flags) if getattr(flags, field.name) is not None}
    if not isinstance(flags, Mapping):
        raise ValueError(f"flags must be the draft's config or a record of flags; got {type(flags).__name__}")
    nested = flags.get("eagle_config")
    nested = nested if isinstance(nested, Mapping) else {}
    first = {key: bool(nested[key]) for key in NESTED_FIRST if key in nested}
    return {**nested, **flags, **first}
