"""Rotary position embedding of the drafter: inverse frequencies by scaling type, and the rotation (NeoX layout).

Formulas: linear (positions / factor), llama3 (Llama-3.1 smoothing), yarn (arXiv 2309.00071, as in transformers
`modeling_rope_utils`, vLLM and SGLang). `dynamic` leaves the frequencies alone below the trained length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from eagle_forensics.evidence.records import Rope


def frequencies(rope: Rope, head_dim: int, max_positions: int | None = None) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [rotated/2] in float64, and the factor on cos and sin (1.0 but for yarn).

    Raises ValueError for a scaling type that is not known or lacks its parameters.
    """
    rotated = int(head_dim * rope.partial)
    if rotated < 2 or rotated % 2:
        raise ValueError(f"rope: {rope.partial} of head_dim {head_dim} rotates {rotated} dimensions; expected an even number >= 2")
    inverse = rope.theta ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    scaling = rope.scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default"))).lower()
    try:
        if kind in ("default", "dynamic", "mrope"):
            return inverse, 1.0
        if kind == "linear":
            return inverse / float(scaling["factor"]), 1.0
        if kind == "llama3":
            return _llama3(inverse, scaling), 1.0
        if kind in ("yarn", "deepseek_yarn"):
            return _yarn(inverse, scaling, rope.theta, rotated, max_positions)
    except KeyError as missing:
        raise ValueError(f"rope scaling {kind!r} lacks {missing}; found keys {sorted(scaling)}") from None
    raise ValueError(f"rope scaling {kind!r} is not known; known: default, dynamic, linear, llama3, yarn")


def rotation_table(inverse: torch.Tensor, factor: float, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, rotated/2] for positions 0..length-1."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] * inverse
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first 2*cos.shape[-1] dimensions of x [N, heads, D] (NeoX halves); the rest passes."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _llama3(inverse: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * inverse / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return inverse * (smooth + (1 - smooth) / factor)


def _yarn(inverse: torch.Tensor, scaling: Mapping[str, Any], theta: float, rotated: int, max_positions: int | None) -> tuple[torch.Tensor, float]:
    factor = float(scaling["factor"])
    original = scaling.get("original_max_position_embeddings") or max_positions
    if not original:
        raise KeyError("original_max_position_embeddings")

    def dimension(turns: float) -> float:
        return rotated * math.log(float(original) / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(float(scaling.get("beta_fast") or 32)), dimension(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = ((torch.arange(rotated // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    scaled = inverse * (1 - ramp) + inverse / factor * ramp

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        first, second = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = mscale(float(first)) / mscale(float(second)) if first and second else mscale(1.0)
    return scaled, float(attention)
