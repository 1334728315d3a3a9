"""Are several rotated slots rotated by one and the same matrix, as a checkpoint with a rotated residual stream leaves them?

Rows x = h R and y = g S have the inner products x yT = h R ST gT, equal to h gT for all rows exactly if R and S agree on them. So the test
needs no Procrustes fit: that finds R as well, but from fewer rows than H it fits any two sets of equal inner products, and R decides nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from eagle_forensics.fingerprint.calibration import THRESHOLDS


def shared_rotation(planes: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> tuple[bool | None, float]:
    """True if one rotation leads from the `[n, H]` states to all planes, False if one has its own, None in between; with the largest error.

    The error: per row |x yT - h gT| / |h gT| between the first slot and another, median over rows.
    """
    x, h = planes[0], states[0]
    errors = []
    for y, g in zip(planes[1:], states[1:], strict=True):
        wanted = h @ g.T
        errors.append(float(np.median(((x @ y.T - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-30)).numpy())))
    worst = max(errors)
    return (True if worst <= THRESHOLDS["gram_error"] else False if worst >= THRESHOLDS["rotation_error"] else None), worst
