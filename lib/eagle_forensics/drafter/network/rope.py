"""Rotary position embedding of the drafter: the rotation, in the NeoX layout or interleaved. The frequencies are `engines.rotary`."""

from __future__ import annotations

import math

import torch

from eagle_forensics.engines.rotary import inverse_frequencies
from eagle_forensics.evidence.records import Rope


def frequencies(rope: Rope, head_dim: int, max_positions: int | None = None) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [rotated/2] in float64, and the factor on cos and sin (1.0 but for yarn).

    Raises ValueError for a scaling type that is not known or lacks its parameters.
    """
    inverse, factor = inverse_frequencies(rope, head_dim, max_positions)
    return torch.tensor(inverse, dtype=torch.float64), factor


def rotation_table(inverse: torch.Tensor, factor: float, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, rotated/2] for positions 0..length-1."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] * inverse
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotate the first 2*cos.shape[-1] dimensions of x [N, heads, D]; the rest passes.

    NeoX pairs dimension i with i + half; interleaved (DeepSeek) pairs 2i with 2i + 1 and keeps them there.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., :2 * half], x[..., 2 * half:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pair = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest), -1)


def score_gain(rope: Rope) -> float:
    """What DeepSeek's attention multiplies its scores by under yarn: (0.1 mscale_all_dim ln(factor) + 1)^2, else 1.

    Source: SGLang 0.5.23 `compute_mla_mscale_scaling`; transformers `modeling_deepseek_v3.py`.
    """
    scaling = rope.scaling or {}
    factor, weight = float(scaling.get("factor") or 1.0), float(scaling.get("mscale_all_dim") or 0.0)
    return (0.1 * weight * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
