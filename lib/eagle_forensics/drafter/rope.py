"""Rotary position embedding of the drafter: the rotation (NeoX layout). The frequencies are `engines.rotary`."""

from __future__ import annotations

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


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first 2*cos.shape[-1] dimensions of x [N, heads, D] (NeoX halves); the rest passes."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
