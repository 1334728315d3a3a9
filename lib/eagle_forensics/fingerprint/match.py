"""Slot against boundary: per-token relative errors of every plane to every state of the target.

The relative error decides. The cosine is reported and never decides: neighbouring states have cosine 0.95 to 0.98.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Reference

NEAR = 0.1
"""Relative error below which two rows are subtracted: above it inner products in float32 give it to 1e-4 of its value."""
NEAR_ROWS = 512
"""Single rows that are gathered and subtracted at once; where most rows of a chunk are near, all are subtracted where they lie."""


@dataclass(frozen=True)
class SlotMatch:
    """The nearest and the second nearest state of one slot."""

    slot: int
    best: Boundary
    error: stats.Estimate
    """Median over ordinary tokens of |x - h| / |h|, interval by bootstrap over sequences."""
    quantiles: tuple[float, float]
    """10 % and 90 % quantile of that error over ordinary tokens."""
    second: Boundary
    second_error: float
    votes: float
    """Share of ordinary tokens whose own nearest state is `best`."""
    cosine: float
    """Median cosine to `best`; reported, never deciding."""
    global_error: float
    """Relative error over the whole tensor, sinks included: what a naive comparison would print."""
    sink_error: float | None
    """Median error of the sinks; None without sinks."""
    look_again: Callable[[], float] = field(repr=False, compare=False)
    """Gives `alignment`: a second look at the bank, taken once and only where the margin is thin."""
    neighbours: bool
    """True if the bank holds both neighbours of `best`, the states it could be confused with."""
    reasons: tuple[str, ...]
    """Why the match is not clean; empty for a clean one."""

    @property
    def ratio(self) -> float:
        """Second error over best error; infinite for an exact match."""
        return self.second_error / self.error.value if self.error.value > 0 else np.inf

    @property
    def alignment(self) -> float:
        """Median cosine between x - h and the increment of the layer before or after `best`, whichever is larger in size.

        Rounding and another engine's arithmetic have no direction; a state that lacks part of a layer's output has one.
        """
        return self.look_again()

    @property
    def clean(self) -> bool:
        """True if the slot is this state beyond the calibrated doubt."""
        return not self.reasons


@dataclass(frozen=True)
class MatchTable:
    """Slots x boundaries on the rows both sides have."""

    boundaries: tuple[Boundary, ...]
    errors: np.ndarray
    """`[slots, boundaries]` median per-token relative error over ordinary tokens; nan for a slot of another width."""
    global_errors: np.ndarray
    """`[slots, boundaries]` relative error of the whole tensor; shown because it misleads."""
    sinks: np.ndarray
    """`[N]` bool: attention sinks, left out of the medians and reported apart."""
    matches: tuple[SlotMatch | None, ...]
    """One a slot; None where the width forbids a comparison or too few rows are usable."""
    token_errors: tuple[np.ndarray | None, ...]
    """Per slot `[N]` errors to its best boundary, sinks included; nan for unusable rows."""

    @property
    def n(self) -> int:
        """Ordinary tokens."""
        return int((~self.sinks).sum())


def match(reference: Reference) -> MatchTable:
    """Compare every slot with every boundary.

    One pass over the bank gives all inner products, hence all distances as far as float32 carries (|x-h|^2 = |x|^2 + |h|^2 - 2xh); rows nearer than
    `NEAR` are subtracted on the way. Raises ValueError if the bank holds fewer than two states: then nothing could be second.
    """
    boundaries, rows = reference.boundaries, reference.rows
    if len(boundaries) < 2:
        raise ValueError(f"the bank holds {len(boundaries)} state; a match needs at least two, so that the second best tells how sure it is.")
    usable = [measure.usable(x) for x in rows.planes]
    own = [measure.token_norms(x) for x in rows.planes]
    norms, errors = _distances(reference, own)
    sink = measure.sinks(norms)
    ordinary = [u & ~sink for u in usable]
    compared = [slot for slot in errors if ordinary[slot].any()]
    medians, overall = (np.full((len(rows.planes), len(boundaries)), np.nan) for _ in range(2))
    matches: list[SlotMatch | None] = [None] * len(rows.planes)
    tokens: list[np.ndarray | None] = [None] * len(rows.planes)
    for slot in compared:
        use = usable[slot]
        medians[slot] = np.median(errors[slot][:, ordinary[slot]], axis=1)
        weights = np.square(norms[:, use], dtype=float)
        overall[slot] = np.sqrt((np.square(errors[slot][:, use], dtype=float) * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-30))
        best = int(medians[slot].argmin())
        tokens[slot] = np.where(use, errors[slot][best], np.float32(np.nan))
        cosine = float(np.median(measure.token_cosines(errors[slot][best], own[slot], norms[best])[ordinary[slot]]))
        matches[slot] = _judge(reference, slot, errors[slot], medians[slot], cosine, float(overall[slot, best]), ordinary[slot], sink & use)
    return MatchTable(boundaries, medians, overall, sink, tuple(matches), tuple(tokens))


def _distances(reference: Reference, own: Sequence[np.ndarray]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Norms of the states, `[boundaries, N]`, and per slot of their width the errors of its rows, whose norms are `own`, to them, `[boundaries, N]`."""
    planes = {slot: x for slot, x in enumerate(reference.rows.planes) if x.shape[1] == reference.width}
    shape = len(reference.boundaries), len(reference.rows)
    norms, errors = np.empty(shape, np.float32), np.empty((len(planes), *shape), np.float32)
    sizes = np.stack([own[slot] for slot in planes])[:, None] if planes else np.empty((0, 1, shape[1]), np.float32)
    for at, states in reference.chunks(reference.boundaries):
        length = torch.linalg.vector_norm(states, dim=-1)
        norms[:, at] = length
        if not planes:
            continue
        x = torch.stack([x[at] for x in planes.values()])
        products = torch.bmm(x.transpose(0, 1), states.permute(1, 2, 0)).permute(1, 2, 0)
        found = torch.from_numpy(measure.errors_from(products.numpy(), sizes[:, :, at], norms[:, at]))
        near = found < NEAR
        for slot, which in (near.sum(-1) > near.shape[-1] // 2).nonzero().tolist():
            found[slot, which] = torch.from_numpy(measure.errors_to(x[slot], states[which], length[which]))
            near[slot, which] = False
        for slot, which, row in zip(*(index.split(NEAR_ROWS) for index in near.nonzero(as_tuple=True)), strict=True):  # sinks are near to many states
            found[slot, which, row] = torch.from_numpy(measure.errors_to(x[slot, row], states[which, row], length[which, row]))
        errors[:, :, at] = found
    return norms, dict(zip(planes, errors, strict=True))


def _judge(reference: Reference, slot: int, errors: np.ndarray, medians: np.ndarray, cosine: float, overall: float,
           ordinary: np.ndarray, sink: np.ndarray) -> SlotMatch:
    boundaries, rows = reference.boundaries, reference.rows
    best, second = (int(i) for i in np.argsort(medians, kind="stable")[:2])
    values = errors[best][ordinary]
    estimate = measure.median(values, rows.sequence[ordinary])
    exact = estimate.value == 0
    votes = float((errors[:, ordinary].argmin(axis=0) == best).mean())
    alignment = cache(lambda: 0.0 if exact else _alignment(reference, boundaries[best], rows.planes[slot], ordinary))
    neighbours = all(b in boundaries for b in _neighbours(boundaries[best], reference.layers))
    ratio = np.inf if exact else float(medians[second]) / estimate.value
    reasons = []
    if estimate.value > THRESHOLDS["clean_error"]:
        reasons.append(f"error {estimate.value:.3f} is above {THRESHOLDS['clean_error']}")
    if medians[second] == 0 or ratio < THRESHOLDS["clean_ratio"]:
        reasons.append(f"the next best state, {boundaries[second]}, is only {ratio:.1f} times as far" if medians[second] else
                       f"{boundaries[second]} is equal to it")
    if ratio < THRESHOLDS["sure_ratio"] and abs(alignment()) > THRESHOLDS["alignment"]:
        reasons.append(f"the difference lies along a layer's increment (cosine {alignment():+.2f}): part of a layer's output may be missing")
    if votes < THRESHOLDS["votes"]:
        reasons.append(f"only {votes:.0%} of the tokens are nearest to it")
    if not neighbours and estimate.value > THRESHOLDS["lonely_error"]:
        reasons.append("the bank lacks its neighbours, from which this error cannot tell it apart")
    return SlotMatch(
        slot=slot, best=boundaries[best], error=estimate, quantiles=tuple(float(q) for q in np.quantile(values, [0.1, 0.9])),
        second=boundaries[second], second_error=float(medians[second]), votes=votes, cosine=cosine, global_error=overall,
        sink_error=float(np.median(errors[best][sink])) if sink.any() else None, look_again=alignment, neighbours=neighbours,
        reasons=tuple(reasons),
    )


def _neighbours(boundary: Boundary, layers: int | None) -> list[Boundary]:
    if boundary.normed:
        return [Boundary(boundary.index)]
    around = (boundary.index - 1, boundary.index + 1)
    return [Boundary(i) for i in around if i >= 0 and (layers is None or i <= layers)]


def _alignment(reference: Reference, best: Boundary, x: torch.Tensor, ordinary: np.ndarray) -> float:
    """Larger in size of the two median cosines between x - h and the increments of the layers next to `best`."""
    around = [b for i in (-1, 0, 1) if (b := Boundary(best.index + i)) in reference.boundaries]
    if best.normed or len(around) < 2:
        return 0.0
    cosines = np.empty((len(around) - 1, len(x)), np.float32)
    for at, states in reference.chunks(around):
        rest, increments = x[at] - states[around.index(best)], states.diff(dim=0)
        sizes = torch.linalg.vector_norm(increments, dim=-1) * torch.linalg.vector_norm(rest, dim=-1)
        cosines[:, at] = (torch.linalg.vecdot(increments, rest) / sizes.clamp(min=1e-30)).numpy()
    return max((float(np.median(c[ordinary])) for c in cosines), key=abs)
