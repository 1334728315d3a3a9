"""Is the difference to the nearest state noise without direction, as quantised weights leave, or part of a layer's output?

Quantised weights move a state by up to half its size, far more than storage or another engine; but the difference points nowhere,
while a state that lacks or repeats a part of a layer differs along what the neighbouring layers add.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint.rows import Weights


def increment_share(x: torch.Tensor, states: Mapping[Boundary, torch.Tensor], best: Boundary, weights: Weights) -> float | None:
    """Median share (0 to 1) of |x - h|^2 that the increments of the layers around `best` explain, best fit per token.

    For L+norm the increment is that of the last layer under the norm. None where the neighbours are not known.
    """
    h = states[best]
    around = _increments(states, best, weights)
    if not around:
        return None
    basis, rest = torch.stack(around, -1), (x - h).unsqueeze(-1)
    fit = basis @ torch.linalg.lstsq(basis, rest).solution
    return float(np.median(((fit.norm(dim=1) / rest.norm(dim=1).clamp_min(1e-30)) ** 2).numpy()))


def _increments(states: Mapping[Boundary, torch.Tensor], best: Boundary, weights: Weights) -> list[torch.Tensor]:
    h = states[best]
    if best.normed:
        before = states.get(Boundary(best.index - 1))
        return [h - weights.normed(before)] if before is not None and weights.norm is not None else []
    return [sign * (h - states[other]) for other, sign in ((Boundary(best.index - 1), 1), (Boundary(best.index + 1), -1)) if other in states]
