"""Where a GPU's time went, out of the spans of its kernels: communication, compute, both, neither."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from eagle_forensics.evidence.nccl.records import Share

if TYPE_CHECKING:
    import numpy as np


def share(communication: array, compute: array) -> Share | None:
    """The share of one device; each array holds start, end, start, end, ... in us. None without a kernel."""
    import numpy as np

    first, second = (np.frombuffer(values, dtype=np.float64).reshape(-1, 2) if values else np.empty((0, 2)) for values in (communication, compute))
    both = np.concatenate([first, second])
    if not len(both):
        return None
    a, b = _covered(first), _covered(second)
    return Share(float(both[:, 1].max() - both[:, 0].min()), a, b, a + b - _covered(both), len(both))


def _covered(spans: np.ndarray) -> float:
    """Length of the union of the spans [n, 2]."""
    import numpy as np

    if not len(spans):
        return 0.0
    spans = spans[np.argsort(spans[:, 0])]
    reach = np.maximum.accumulate(spans[:, 1])
    gaps = spans[1:, 0] - reach[:-1]
    return float(reach[-1] - spans[0, 0] - gaps[gaps > 0].sum())
