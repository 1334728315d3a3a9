"""The target model: `read_target(folder)` reads config.json and, where weights are at hand, their headers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence import configs
from eagle_forensics.evidence.records import EvidenceError, Target, TensorInfo
from eagle_forensics.evidence.tensors import missing_shards, read_index

NESTED_TEXT = ("text_config", "language_config", "llm_config")
"""Where multimodal configs keep the language model (Kimi-K2.5, Qwen-VL, Gemma 3: text_config)."""

PREFIX = re.compile(r"^(language_model\.model\.|model\.language_model\.|language_model\.|model\.)")

NORM_PLUS_ONE = ("gemma", "gemma2", "gemma3", "recurrent_gemma", "vaultgemma", "qwen3_next", "qwen3_5", "qwen3_5_moe", "minimax_m3_vl")
"""Types whose RMSNorm is x * (1 + w) (transformers 5.24 modeling files); gemma3n and gemma4 multiply by w."""

SQRT_EMBEDDING = ("gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "recurrent_gemma", "vaultgemma")
"""Types that multiply the embedding by sqrt(hidden) (transformers 5.24 modeling files)."""

EMBEDDING_KEYS = ("embedding_multiplier", "scale_emb", "embedding_multiplier_scale")
"""Config keys of such a factor: Granite and Falcon-H1, MiniCPM, Grok."""


def read_target(path: Path | str) -> Target:
    """The target of a model folder (or of its config.json alone); weights are optional, only headers are read.

    EvidenceError for a folder without config.json or a config without layers, hidden size or vocabulary.
    """
    path = Path(path)
    file, raw = configs.read_config(path, "target")
    config, notes = lift_text(raw, file)
    layers = configs.integer(config, "num_hidden_layers", "n_layer", "num_layers", where=file, required=True)
    hidden = configs.integer(config, "hidden_size", "n_embd", "d_model", where=file, required=True)
    vocab = configs.integer(config, "vocab_size", where=file, required=True)
    eps = configs.number(config, "rms_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon", "layer_norm_eps", where=file)
    if eps is None:
        eps = 1e-6
        notes.append("config.json gives no norm epsilon; 1e-6 is assumed.")
    rope, rope_notes = configs.rope(config, file)
    inner_type = _text(config.get("text_model_type", config.get("model_type")))
    factor, factor_note = _embedding_factor(config, inner_type, hidden, file)
    tensors, index_notes = _weights(path, file)
    return Target(
        path=path, config=config, model_type=_text(raw.get("model_type")) or inner_type, architectures=configs.strings(raw, "architectures", file)
        or configs.strings(config, "architectures", file), layers=layers, hidden=hidden, vocab=vocab, eps=eps, rope=rope, tensors=tensors,
        norm_plus_one=_family(inner_type) in NORM_PLUS_ONE, embedding_factor=factor,
        notes=(*notes, *rope_notes, *factor_note, *index_notes),
    )  # fmt: skip


def lift_text(raw: Mapping[str, Any], where: Path) -> tuple[dict[str, Any], list[str]]:
    """A multimodal config with its language model lifted to the top, and a note if it was.

    `model_type` and `architectures` stay those of the outer config, by which engines choose the class; the inner type is
    kept as `text_model_type`.
    """
    for key in NESTED_TEXT:
        inner = raw.get(key)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise EvidenceError(f"{where}: `{key}` is {inner!r:.80}; expected an object. Correct the config.")
        outer = {k: v for k, v in raw.items() if k != key}
        lifted = {**outer, **inner}
        for name in ("model_type", "architectures"):
            if raw.get(name) is not None:
                lifted[name] = raw[name]
        lifted["text_model_type"] = inner.get("model_type")
        return lifted, [f"the language model is described by `{key}` ({inner.get('model_type')})."]
    return dict(raw), []


def canonical_name(name: str) -> str:
    """A target's tensor name without the language model's prefix: `model.norm.weight` becomes `norm.weight`."""
    return PREFIX.sub("", name)


def _weights(path: Path, file: Path) -> tuple[dict[str, TensorInfo], list[str]]:
    if not path.is_dir():
        return {}, ["only a config file was given: no weights."]
    notes = []
    absent = missing_shards(path)
    if absent:
        notes.append(f"{len(absent)} shards of the index are not in the folder (first: {absent[0]}); their tensors are unknown.")
    tensors: dict[str, TensorInfo] = {}
    for name, info in read_index(path, partial=True).items():
        canonical = canonical_name(name)
        tensors[canonical if canonical not in tensors else name] = info
    if not tensors and not absent:
        notes.append("the folder holds no safetensors: config only.")
    return tensors, notes


def _embedding_factor(config: Mapping[str, Any], model_type: str, hidden: int, where: Path) -> tuple[float, list[str]]:
    if _family(model_type) in SQRT_EMBEDDING:
        return math.sqrt(hidden), [f"{model_type} multiplies its embedding by sqrt({hidden})."]
    factor = configs.number(config, *EMBEDDING_KEYS, where=where, default=1.0)
    return factor, [] if factor == 1.0 else [f"the embedding is multiplied by {factor:g} (config.json)."]


def _family(model_type: str) -> str:
    return model_type.removesuffix("_text")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
