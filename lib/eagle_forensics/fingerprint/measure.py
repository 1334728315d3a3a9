"""Robust figures of rows: per-token relative error and cosine, attention sinks, unusable rows, first values and norms.

A relative error over a whole tensor is the error of its largest token (an attention sink may carry 160 times the norm of the
others), so everything here is per token and summarised by medians over the ordinary tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Rows

CHUNK_BYTES = 256 << 10
"""Float32 bytes of one side compared at a time: what stays in a core's own cache (4096 rows of 576 at once were 2 times slower)."""


def token_errors(x: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    """Per token |x - reference| / |reference|, `[N]`, for `[N, H]` tensors; 0 where both rows are zero."""
    return errors_to(x, reference, reference.norm(dim=-1))


def errors_to(x: torch.Tensor, reference: torch.Tensor, norms: torch.Tensor) -> np.ndarray:
    """`token_errors` with the norms of the reference's rows, `[N]`, known."""
    if not len(x):
        return np.empty(0, np.float32)
    step = max(1, CHUNK_BYTES // (4 * x.shape[1]))
    distance, buffer = torch.empty(len(x)), torch.empty(min(step, len(x)), x.shape[1])  # one buffer: a new one a chunk costs more than the arithmetic
    for start in range(0, len(x), step):
        a = x[start:start + step]
        difference = torch.sub(a, reference[start:start + step], out=buffer[: len(a)])
        torch.linalg.vector_norm(difference, dim=-1, out=distance[start:start + step])
    errors = torch.nan_to_num(distance / norms, nan=0.0, posinf=torch.inf)
    return errors.where(torch.isfinite(norms), torch.inf).numpy()  # squares of values above 1e19 are beyond float32: nothing is known of such a row


def errors_from(products: np.ndarray, x_norms: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """`token_errors` out of the rows' inner products with the reference's and the norms of both: exact to about 1e-3, the root of what float32 carries."""
    a, b = x_norms.astype(float), norms.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.sqrt(np.maximum(a**2 + b**2 - 2 * products, 0)) / b
    return np.where(np.isnan(found), np.where((a == 0) & (b == 0), 0, np.inf), found).astype(np.float32)


def token_cosines(errors: np.ndarray, x_norms: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Cosine per token out of the error and the norms of both sides (law of cosines: no second pass over the rows)."""
    a, b = x_norms.astype(float), norms.astype(float)
    with np.errstate(invalid="ignore"):
        return (a**2 + b**2 - (errors * b) ** 2) / np.maximum(2 * a * b, 1e-30)


def token_norms(x: torch.Tensor) -> np.ndarray:
    """L2 norm of every row, `[N]`."""
    return x.norm(dim=-1).numpy()


def sinks(norms: np.ndarray) -> np.ndarray:
    """Attention sinks and other tokens of massive norm, `[N]` bool: norm above `sink_norm_ratio` x the median of any plane.

    `norms` is `[planes, N]`. A plane in which more than one row in 20 stands out has no sinks, it has another distribution.
    """
    norms = np.atleast_2d(norms)
    middle = np.median(norms, axis=1, keepdims=True)
    out = norms > THRESHOLDS["sink_norm_ratio"] * middle
    out[out.mean(axis=1) > 0.05] = False
    return out.any(axis=0)


def by_sequence(values: np.ndarray, sequence: np.ndarray) -> list[np.ndarray]:
    """Values split into one array a sequence, the groups of every interval."""
    return [values[sequence == s] for s in np.unique(sequence)]


def median(values: np.ndarray, sequence: np.ndarray) -> stats.Estimate:
    """Median over tokens with a 95 % bootstrap interval over sequences."""
    return stats.median_over_groups(by_sequence(values, sequence))


@dataclass(frozen=True)
class Health:
    """Rows of a slot that no comparison can use."""

    rows: int
    non_finite: int
    """Rows with a NaN or an infinity."""
    zero: int
    """Rows of zeros only."""
    constant: int
    """Rows whose values are all equal, and not zero."""
    usable: np.ndarray
    """`[N]` bool."""

    @property
    def share(self) -> float:
        """Share of rows that can be compared."""
        return float(self.usable.mean()) if self.rows else 0.0


def usable(x: torch.Tensor) -> np.ndarray:
    """Rows of `[N, H]` that a comparison can use, `[N]` bool: finite, and not all values equal."""
    doubtful = (~torch.isfinite(x.sum(dim=-1)) | (x[:, 0] == x[:, -1])).numpy()
    found = ~doubtful
    found[doubtful] = health(x[torch.as_tensor(doubtful)]).usable
    return found


def health(x: torch.Tensor) -> Health:
    """Counts non-finite, zero and constant rows of `[N, H]`."""
    least, most = torch.aminmax(x, dim=-1)
    finite = torch.isfinite(least) & torch.isfinite(most)
    zero = (least == 0) & (most == 0)
    constant = finite & ~zero & (least == most) & (x.shape[-1] > 1)
    return Health(len(x), int((~finite).sum()), int(zero.sum()), int(constant.sum()), (finite & ~zero & ~constant).numpy())


@dataclass(frozen=True)
class Glance:
    """The human check: what one would print of a slot first."""

    slot: int
    label: str | None
    width: int
    tokens: int
    first_values: tuple[float, ...]
    """First five values of the first ordinary row."""
    row: int
    """Position of that row in its sample."""
    median_norm: float
    """Median L2 norm of ordinary rows."""
    quantiles: tuple[float, float]
    """10 % and 90 % quantile of those norms."""
    sink_norm: float | None
    """Largest norm among the sinks; None without sinks."""
    sinks: int
    norms: np.ndarray = field(repr=False, compare=False)
    """`[N]` L2 norm of every row, in the order of the rows."""


def glance(rows: Rows, *, values: int = 5) -> tuple[Glance, ...]:
    """First values and norms of every slot; the values come from one row, the first that is ordinary in all slots."""
    usable = np.stack([health(x).usable for x in rows.planes])
    norms = np.stack([token_norms(torch.nan_to_num(x)) for x in rows.planes])
    sink = np.stack([_sinks_of(norms[slot], usable[slot]) for slot in range(len(norms))])
    ordinary = (usable & ~sink).all(axis=0)
    row = int(ordinary.argmax())
    out = []
    for slot, x in enumerate(rows.planes):
        mine = norms[slot][usable[slot] & ~sink[slot]]
        low, middle, high = np.quantile(mine if len(mine) else norms[slot], [0.1, 0.5, 0.9])
        out.append(Glance(slot, rows.labels[slot], x.shape[1], len(x), tuple(float(v) for v in x[row, :values]), int(rows.position[row]),
                          float(middle), (float(low), float(high)),
                          float(norms[slot][sink[slot]].max()) if sink[slot].any() else None, int(sink[slot].sum()), norms[slot]))
    return tuple(out)


def _sinks_of(norms: np.ndarray, usable: np.ndarray) -> np.ndarray:
    out = np.zeros(len(norms), bool)
    if usable.any():
        out[usable] = sinks(norms[usable])
    return out
