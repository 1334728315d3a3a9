"""Slot against boundary: per-token relative errors of every plane to every state of the target.

The relative error decides. The cosine is reported and never decides: neighbouring states have cosine 0.95 to 0.98.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Reference


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
    alignment: float
    """Median cosine between x - h and the increment of the layer before or after `best`, whichever is larger in size.

    Rounding and another engine's arithmetic have no direction; a state that lacks part of a layer's output has one."""
    neighbours: bool
    """True if the bank holds both neighbours of `best`, the states it could be confused with."""
    reasons: tuple[str, ...]
    """Why the match is not clean; empty for a clean one."""

    @property
    def ratio(self) -> float:
        """Second error over best error; infinite for an exact match."""
        return self.second_error / self.error.value if self.error.value > 0 else np.inf

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
    cosines: np.ndarray
    """`[slots, boundaries]` median cosine."""
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
    """Compare every slot with every boundary. One pass over the bank; rows are compared in chunks.

    Raises ValueError if the bank holds fewer than two states: then nothing could be second.
    """
    boundaries, rows = reference.boundaries, reference.rows
    if len(boundaries) < 2:
        raise ValueError(f"the bank holds {len(boundaries)} state; a match needs at least two, so that the second best tells how sure it is.")
    slots, n = len(rows.planes), len(rows)
    health = [measure.health(x) for x in rows.planes]
    errors = np.full((slots, len(boundaries), n), np.nan, np.float32)
    cosines = np.full_like(errors, np.nan)
    norms = np.empty((len(boundaries), n), np.float32)
    own = [measure.token_norms(x) for x in rows.planes]
    overall = np.full((slots, len(boundaries)), np.nan)
    for j, boundary in enumerate(boundaries):
        h = reference.at(boundary)
        size = h.norm(dim=-1)
        norms[j] = size.numpy()
        for slot, x in enumerate(rows.planes):
            if x.shape != h.shape or not health[slot].usable.any():
                continue
            errors[slot, j] = measure.errors_to(x, h, size)
            cosines[slot, j] = measure.token_cosines(errors[slot, j], own[slot], norms[j])
            use = health[slot].usable
            weight = norms[j].astype(float)[use]
            overall[slot, j] = np.sqrt(np.sum((errors[slot, j][use] * weight) ** 2) / max(np.sum(weight**2), 1e-30))
    sink = measure.sinks(norms)
    matches, tokens = [], []
    medians, middle_cosines = np.full((slots, len(boundaries)), np.nan), np.full((slots, len(boundaries)), np.nan)
    for slot in range(slots):
        ordinary = health[slot].usable & ~sink
        if np.isnan(errors[slot]).all() or not ordinary.any():
            matches.append(None)
            tokens.append(None)
            continue
        medians[slot] = np.median(errors[slot][:, ordinary], axis=1)
        middle_cosines[slot] = np.median(cosines[slot][:, ordinary], axis=1)
        best = int(medians[slot].argmin())
        per_token = errors[slot, best].copy()
        per_token[~health[slot].usable] = np.nan
        tokens.append(per_token)
        matches.append(_judge(reference, slot, errors[slot], medians[slot], float(middle_cosines[slot, best]),
                              float(overall[slot, best]), ordinary, sink & health[slot].usable))
    return MatchTable(boundaries, medians, middle_cosines, overall, sink, tuple(matches), tuple(tokens))


def _judge(reference: Reference, slot: int, errors: np.ndarray, medians: np.ndarray, cosine: float, overall: float,
           ordinary: np.ndarray, sink: np.ndarray) -> SlotMatch:
    boundaries, rows = reference.boundaries, reference.rows
    best, second = (int(i) for i in np.argsort(medians, kind="stable")[:2])
    values = errors[best][ordinary]
    estimate = measure.median(values, rows.sequence[ordinary])
    exact = estimate.value == 0
    votes = float((errors[:, ordinary].argmin(axis=0) == best).mean())
    alignment = 0.0 if exact else _alignment(reference, boundaries[best], rows.planes[slot], ordinary)
    neighbours = all(b in boundaries for b in _neighbours(boundaries[best], reference.layers))
    ratio = np.inf if exact else float(medians[second]) / estimate.value
    reasons = []
    if estimate.value > THRESHOLDS["clean_error"]:
        reasons.append(f"error {estimate.value:.3f} is above {THRESHOLDS['clean_error']}")
    if medians[second] == 0 or ratio < THRESHOLDS["clean_ratio"]:
        reasons.append(f"the next best state, {boundaries[second]}, is only {ratio:.1f} times as far" if medians[second] else
                       f"{boundaries[second]} is equal to it")
    if abs(alignment) > THRESHOLDS["alignment"] and ratio < THRESHOLDS["sure_ratio"]:
        reasons.append(f"the difference lies along a layer's increment (cosine {alignment:+.2f}): part of a layer's output may be missing")
    if votes < THRESHOLDS["votes"]:
        reasons.append(f"only {votes:.0%} of the tokens are nearest to it")
    if not neighbours and estimate.value > THRESHOLDS["lonely_error"]:
        reasons.append("the bank lacks its neighbours, from which this error cannot tell it apart")
    return SlotMatch(
        slot=slot, best=boundaries[best], error=estimate, quantiles=tuple(float(q) for q in np.quantile(values, [0.1, 0.9])),
        second=boundaries[second], second_error=float(medians[second]), votes=votes, cosine=cosine, global_error=overall,
        sink_error=float(np.median(errors[best][sink])) if sink.any() else None, alignment=alignment, neighbours=neighbours,
        reasons=tuple(reasons),
    )


def _neighbours(boundary: Boundary, layers: int | None) -> list[Boundary]:
    if boundary.normed:
        return [Boundary(boundary.index)]
    around = (boundary.index - 1, boundary.index + 1)
    return [Boundary(i) for i in around if i >= 0 and (layers is None or i <= layers)]


def _alignment(reference: Reference, best: Boundary, x: torch.Tensor, ordinary: np.ndarray) -> float:
    """Larger in size of the two median cosines between x - h and the increments of the layers next to `best`."""
    if best.normed:
        return 0.0
    at = torch.as_tensor(np.flatnonzero(ordinary)[:2048])
    h = reference.at(best)[at]
    rest = x[at] - h
    found = []
    for other, sign in ((Boundary(best.index - 1), 1), (Boundary(best.index + 1), -1)):
        if other in reference.boundaries:
            increment = sign * (h - reference.at(other)[at])
            found.append(float(torch.nn.functional.cosine_similarity(rest, increment, dim=-1).median()))
    return max(found, key=abs, default=0.0)
