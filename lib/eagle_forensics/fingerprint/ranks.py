"""Do the tensor-parallel ranks hold the same tensor? Equal copies, slices, shares of a sum, or shares inside a layer.

A drafter is fed on every rank, so every rank must hold the whole state. This test runs before the layer match: one rank's share of a
sum looks like a neighbouring layer, only the ranks side by side show what it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import EvidenceError, Sample
from eagle_forensics.fingerprint import measure, midlayer
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Bank, Reference, Weights, collect


class Agreement(StrEnum):
    """What the ranks of one slot hold together."""

    EQUAL = "equal copies"
    SLICES = "slices of the hidden dimension"
    SHARES = "shares whose sum is the state"
    INNER_SHARES = "the state after the attention plus shares of the MLP"
    TOKENS = "rows of different tokens"
    DIFFER = "unequal, unexplained"


@dataclass(frozen=True)
class RankResult:
    """One slot over all ranks."""

    slot: int
    label: str | None
    agreement: Agreement
    boundary: Boundary | None
    """Where the ranks together are that state; None where that was not needed, not possible or not decided."""
    spread: float
    """Median per-token relative difference between a rank and rank 0, of the rank that differs most; nan for other widths."""
    error: float | None
    """Relative error of the ranks put together against the boundary; inside a layer relative to what its MLP adds."""
    second: float | None
    """The same for the next best boundary."""
    ranks: tuple[int, ...]
    norms: tuple[float, ...]
    """Median norm of the rows of each rank."""
    n: int
    text: str


def by_rank(samples: Sequence[Sample]) -> dict[int, tuple[Sample, ...]]:
    """Samples split by the rank that wrote them, in one order, those of the tokens that all ranks recorded.

    Raises EvidenceError if fewer than two ranks recorded, or no tokens were recorded by all of them.
    """
    keyed: dict[int, dict[object, Sample]] = defaultdict(dict)
    for sample in samples:
        if sample.rank is not None:
            keyed[sample.rank].setdefault(_key(sample), sample)
    if len(keyed) < 2:
        raise EvidenceError(f"{len(keyed)} rank recorded, two or more can be compared. Record one forward pass on all ranks.")
    first, *others = (keyed[rank] for rank in sorted(keyed))
    common = [key for key in first if all(key in other for other in others)]
    if not common:
        raise EvidenceError(f"no tokens were recorded by all of the ranks {', '.join(map(str, sorted(keyed)))}. Record one forward pass of one prompt on all ranks.")
    return {rank: tuple(keyed[rank][key] for key in common) for rank in sorted(keyed)}


def compare_ranks(ranks: Mapping[int, Sequence[Sample]], *, bank: Bank | None = None, weights: Weights | None = None, layers: int | None = None) -> tuple[RankResult, ...]:
    """One result a slot. `ranks`: the same recordings as each rank wrote them (`by_rank`).

    Raises EvidenceError if the ranks recorded other numbers of rows or slots: then they cannot be laid side by side.
    """
    numbers = tuple(sorted(ranks))
    rows = {rank: collect(ranks[rank]) for rank in numbers}
    first = rows[numbers[0]]
    for rank, other in rows.items():
        if len(other) != len(first) or len(other.planes) != len(first.planes):
            raise EvidenceError(f"rank {rank} recorded {len(other)} rows in {len(other.planes)} slots, rank {numbers[0]} {len(first)} rows in {len(first.planes)}. "
                                "Record one forward pass of one prompt on all ranks.")
    tokens = next((r.tokens for r in rows.values() if r.tokens is not None), None)
    reference = None
    if bank is not None and tokens is not None:
        try:
            reference = Reference(bank, replace(first, tokens=tokens), weights or Weights(), layers)
        except EvidenceError:
            reference = None
    return tuple(_slot(slot, first.labels[slot], numbers, [rows[rank].planes[slot] for rank in numbers], reference) for slot in range(len(first.planes)))


def _key(sample: Sample) -> object:
    return tuple(sample.input_ids.tolist()) if sample.input_ids is not None else (sample.provenance.forward_pass, len(sample.planes[0].data))


def _slot(slot: int, label: str | None, ranks: tuple[int, ...], planes: list[torch.Tensor], reference: Reference | None) -> RankResult:
    usable = np.all([measure.health(x).usable for x in planes], axis=0)
    norms = tuple(float(np.median(measure.token_norms(x[usable]))) if usable.any() else 0.0 for x in planes)
    same = len({x.shape[1] for x in planes}) == 1
    spread = max(float(np.median(measure.token_errors(x[usable], planes[0][usable]))) for x in planes[1:]) if same and usable.any() else np.nan

    def result(agreement: Agreement, text: str, best: _Best | None = None) -> RankResult:
        return RankResult(slot, label, agreement, best.boundary if best else None, spread, best.error if best else None, best.second if best else None,
                          ranks, norms, int(usable.sum()), text)

    zero = [measure.health(x).zero for x in planes]
    if min(zero) > 0 and max(zero) < len(planes[0]) and (not usable.any() or sum(zero) > 0.5 * len(planes[0])):
        best = _scattered(planes, reference) if reference is not None and same else None
        return result(Agreement.TOKENS, f"{sum(zero)} of {len(planes) * len(planes[0])} rows are zero: each rank holds rows of some tokens only"
                      + (f"; side by side they are {best.boundary} (relative error {best.error:.3f}, next {best.second:.2f})" if best else ""), best)
    if not usable.any():
        return result(Agreement.DIFFER, "no row can be compared: " + ", ".join(
            f"rank {rank} has {h.non_finite} rows that are not finite, {h.zero} zero and {h.constant} constant of {h.rows}" for rank, h in zip(ranks, map(measure.health, planes), strict=True)))
    if same and spread <= THRESHOLDS["clean_error"]:
        return result(Agreement.EQUAL, f"all {len(ranks)} ranks hold the same rows (largest median difference {spread:.1e})")
    if reference is None:
        return result(Agreement.DIFFER, f"the ranks differ by {spread:.2f} of a row; without the target's states for these tokens what they add up to is not known")
    return _explained(planes, ranks, spread, reference, result)


@dataclass(frozen=True)
class _Best:
    boundary: Boundary
    error: float
    high: float
    second: float

    def holds(self, limit: float) -> bool:
        return self.high <= limit and self.second >= THRESHOLDS["clean_ratio"] * self.error


def _explained(planes: list[torch.Tensor], ranks: tuple[int, ...], spread: float, reference: Reference, result) -> RankResult:
    n = min(len(reference.rows), len(planes[0]))
    at = np.flatnonzero(measure.health(planes[0][:n]).usable)[1:513]
    states = {b: reference.at(b)[at] for b in reference.boundaries}
    own, count = [x[at] for x in planes], len(planes)
    hidden = next(iter(states.values())).shape[1]
    width = sum(x.shape[1] for x in own)
    if width == hidden:
        best = _nearest(torch.cat(own, dim=1), states)
        if best and best.holds(THRESHOLDS["clean_error"]):
            return result(Agreement.SLICES, f"each rank holds {own[0].shape[1]} of {hidden} columns; put together they are {best.boundary} (relative error {best.error:.3f}, next {best.second:.2f})", best)
    if any(x.shape[1] != hidden for x in own):
        return result(Agreement.DIFFER, f"widths {[x.shape[1] for x in own]} on the ranks, {hidden} in the target")
    best = _nearest(torch.stack(own).sum(0), states)
    if best and best.holds(THRESHOLDS["clean_error"]):
        return result(Agreement.SHARES, f"the ranks differ by {spread:.2f}; their sum is {best.boundary} (relative error {best.error:.3f}, next {best.second:.2f})", best)
    best = _inner(torch.stack(own).mean(0), states, count, reference.weights)
    if best and best.holds(THRESHOLDS["increment_error"]):
        return result(Agreement.INNER_SHARES, f"the ranks differ by {spread:.2f}; together they are the state after the attention plus the shares of the MLP that leads to "
                      f"{best.boundary} (closes within {best.error:.3f} of what the MLP adds, next {best.second:.2f})", best)
    return result(Agreement.DIFFER, f"the ranks differ by {spread:.2f} of a row, and neither their sum nor their columns are a known state")


def _scattered(planes: list[torch.Tensor], reference: Reference) -> _Best | None:
    """The state that the ranks hold between them; None where a token's row is zero on all ranks or stands on several, or no state is clean."""
    n = min(len(reference.rows), len(planes[0]))
    holders = torch.stack([(x[:n] != 0).any(dim=1) for x in planes]).sum(0)
    if not bool((holders == 1).all()) or planes[0].shape[1] != reference.width:
        return None
    together = torch.stack([x[:n] for x in planes]).sum(0)
    best = _nearest(together[1:513], {b: reference.at(b)[1:513][: n - 1] for b in reference.boundaries})
    return best if best and best.holds(THRESHOLDS["clean_error"]) else None


def _nearest(x: torch.Tensor, states: Mapping[Boundary, torch.Tensor]) -> _Best | None:
    return _ranked({b: measure.token_errors(x, h) for b, h in states.items()})


def _inner(mean: torch.Tensor, states: Mapping[Boundary, torch.Tensor], ranks: int, weights: Weights) -> _Best | None:
    if weights.mlp is None:
        return None
    few = slice(0, midlayer.ROWS)
    near = _nearest(mean, states)
    wanted = [b for b in states if b.index and not b.normed and near and abs(b.index - near.boundary.index) <= 2]
    return _ranked({b: midlayer.mean_closure(mean[few], states[b][few], ranks, mlp) for b in wanted if (mlp := weights.mlp(b.index - 1)) is not None})


def _ranked(errors: Mapping[Boundary, np.ndarray]) -> _Best | None:
    if len(errors) < 2:
        return None
    (boundary, best), (_, second) = sorted(errors.items(), key=lambda item: float(np.median(item[1])))[:2]
    return _Best(boundary, float(np.median(best)), float(np.quantile(best, 0.9)), float(np.median(second)))
