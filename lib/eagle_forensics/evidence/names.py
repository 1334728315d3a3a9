"""Canonical tensor names of an EAGLE-3 drafter, whatever trainer wrote it.

    embed_tokens? fc input_norm? fc_norm.i? layers.N.{hidden_norm, input_layernorm, self_attn.*, post_attention_layernorm,
    mlp.*} norm lm_head? d2t? t2d? mask_hidden?

Fused projections are given as their parts: row ranges of the one tensor in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eagle_forensics.evidence.records import TensorInfo

PREFIX = re.compile(r"^(eagle_module|draft_model|module|model)\.")

RENAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^midlayer\."), "layers.0."),  # EAGLE, SpecForge, AngelSlim
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),  # vLLM
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),  # first EAGLE-3.1 exports
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)

KNOWN = re.compile(
    r"^(d2t|t2d|mask_hidden"
    r"|(embed_tokens|fc|input_norm|fc_norm\.\d+|norm|lm_head|verifier_norm|verifier_lm_head)\.(weight|bias)"
    r"|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
    r"|layers\.\d+\.(hidden_norm|input_layernorm|post_attention_layernorm)\.(weight|bias)"
    r"|layers\.\d+\.self_attn\.((q|k|v|o|q_a|q_b|kv_b)_proj|kv_a_proj_with_mqa|qkv_proj|fused_qkv_a_proj_with_mqa"
    r"|(q|k)_norm|(q_a|kv_a)_layernorm)\.\w+"
    r"|layers\.\d+\.mlp\.(gate|up|down|gate_up)_proj\.\w+)$"
)
"""Names that some engine or trainer gives a meaning; the rest is reported as unknown."""

LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True)
class HeadSizes:
    """Row counts by which fused projections are cut; None where the config does not say."""

    q: int | None = None
    kv: int | None = None
    q_lora: int | None = None
    kv_a: int | None = None


def canonical(name: str) -> str:
    """The canonical name of a tensor: `model.midlayer.mlp.up_proj.weight` becomes `layers.0.mlp.up_proj.weight`."""
    while PREFIX.match(name):
        name = PREFIX.sub("", name, count=1)
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name


def map_tensors(files: Mapping[str, TensorInfo], sizes: HeadSizes) -> tuple[dict[str, TensorInfo], tuple[str, ...], list[str]]:
    """File names to canonical names: the tensors, the file names that map to none, and notes on what was odd."""
    tensors: dict[str, TensorInfo] = {}
    unknown: list[str] = []
    notes: list[str] = []
    for name, info in files.items():
        target = canonical(name)
        if not KNOWN.match(target):
            unknown.append(name)
            continue
        parts, note = _split(target, info, sizes)
        if note:
            notes.append(note)
        for part, part_info in parts.items():
            if part in tensors:
                unknown.append(name)
                notes.append(f"{name} and {tensors[part].name} are both {part}; the second is left out.")
            else:
                tensors[part] = part_info
    return tensors, tuple(unknown), notes


def count_layers(tensors: Mapping[str, TensorInfo]) -> int:
    """Decoder layers that have weights."""
    return len({m[1] for name in tensors if (m := LAYER.match(name))})


def _split(name: str, info: TensorInfo, sizes: HeadSizes) -> tuple[dict[str, TensorInfo], str | None]:
    """A fused projection as its parts; any other tensor as itself."""
    stem, _, leaf = name.rpartition(".")
    module = stem.rpartition(".")[2]
    cuts: dict[str, tuple[tuple[str, int | None], ...]] = {
        "qkv_proj": (("q_proj", sizes.q), ("k_proj", sizes.kv), ("v_proj", sizes.kv)),
        "gate_up_proj": (("gate_proj", _half(info)), ("up_proj", _half(info))),
        "fused_qkv_a_proj_with_mqa": (("q_a_proj", sizes.q_lora), ("kv_a_proj_with_mqa", sizes.kv_a)),
    }
    if module not in cuts or leaf not in ("weight", "bias"):
        return {name: info}, None
    parts = cuts[module]
    rows = [count for _, count in parts]
    if not info.shape or None in rows or sum(rows) != info.shape[0]:
        wanted = " + ".join(f"{part} {'?' if count is None else count}" for part, count in parts)
        return {name: info}, f"{info.name} is fused but its shape {list(info.shape)} is not {wanted} rows of the config: kept whole."
    prefix = stem.removesuffix(module)
    cut = {f"{prefix}{part}.{leaf}": piece for (part, _), piece in zip(parts, _pieces(info, rows), strict=True)}
    return cut, f"{info.name} is fused; it is read as {', '.join(part for part, _ in parts)}, row by row."


def _pieces(info: TensorInfo, rows: Sequence[int]) -> list[TensorInfo]:
    pieces, start = [], info.row_start
    for count in rows:
        nbytes = info.nbytes // info.shape[0] * count
        pieces.append(replace(info, shape=(count, *info.shape[1:]), nbytes=nbytes, row_start=start))
        start += count
    return pieces


def _half(info: TensorInfo) -> int | None:
    return info.shape[0] // 2 if info.shape and info.shape[0] % 2 == 0 else None
