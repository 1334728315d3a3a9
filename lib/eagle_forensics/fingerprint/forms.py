"""Forms of a known state: sliced, shifted by tokens, normed, without the residual, inside a layer, scaled, rotated, noisy.

A form is accepted only if it explains the rows cleanly and the next candidate of its family, and the undamaged states, explain
them several times worse. It is tried only on a slot that no undamaged state explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import measure, midlayer
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.match import SlotMatch
from eagle_forensics.fingerprint.noise import increment_share
from eagle_forensics.fingerprint.rows import Reference, Weights

MAX_ROWS = 512
BUDGET_BYTES = 128 << 20
SHIFTS = (-2, -1, 1, 2)


MOST_RANKS = 64.5
"""A factor above is no number of tensor-parallel ranks that serve one model."""


@dataclass(frozen=True)
class Form:
    """A damaged form of a known state, with the next best candidate of the same family."""

    state: State
    boundary: Boundary
    detail: str
    """`each row holds the state of the position 1 token later`, `rank 3 of 8`."""
    error: float
    """Median per-token relative error; for a rotation of the rows' inner products; inside a layer relative to what its MLP adds."""
    second: float
    second_text: str
    n: int
    """Rows it was tried on."""
    holds: bool
    share: float | None = None
    """Of noise: share of the difference that the increments of the neighbouring layers explain."""

    @property
    def ratio(self) -> float:
        """Second error over best error."""
        return self.second / self.error if self.error > 0 else np.inf


@dataclass(frozen=True)
class Patch:
    """Consecutive rows with the states of every boundary in memory, for trying many candidates."""

    states: Mapping[Boundary, torch.Tensor]
    """Boundary to `[n, H]`."""
    sequence: np.ndarray
    position: np.ndarray
    weights: Weights
    layers: int | None

    @property
    def hidden(self) -> int:
        """H of the target."""
        return next(iter(self.states.values())).shape[1]

    def __len__(self) -> int:
        return len(self.sequence)


def patch_of(reference: Reference) -> Patch:
    """The first rows of the reference, as many as `MAX_ROWS` and `BUDGET_BYTES` allow."""
    first = reference.at(reference.boundaries[0])
    n = max(16, min(MAX_ROWS, len(first), BUDGET_BYTES // (4 * first.shape[1] * len(reference.boundaries))))
    return Patch({b: reference.at(b)[:n].clone() for b in reference.boundaries}, reference.rows.sequence[:n],
                 reference.rows.position[:n], reference.weights, reference.layers)


Candidate = tuple[Boundary, str, torch.Tensor, torch.Tensor]
"""Boundary, detail, rows of the slot, rows they should equal."""


def damaged_forms(x: torch.Tensor, patch: Patch, ordinary: np.ndarray, found: SlotMatch | None) -> tuple[Form, ...]:
    """The best of every family of damage on the ordinary rows of the patch, in the order of `FAMILIES`, up to the first that holds.

    `x`: the slot's rows `[N, W]`; `ordinary`: `[N]` bool; `found`: the nearest undamaged state (None for another width).
    """
    x = x[: len(patch)]
    at = np.flatnonzero(ordinary[: len(patch)])
    plain = found.error.value if found else np.inf
    out = []
    for state, family in FAMILIES:
        limit = min(THRESHOLDS["increment_error" if state is State.NO_RESIDUAL else "clean_error"], plain / THRESHOLDS["clean_ratio"])
        out += _best(state, [_fit(b, detail, a, h) for b, detail, a, h in family(x, patch, at) if len(a) >= 8], limit, len(at))
        if out and out[-1].state is State.SCALED and not _by_ranks(_factor(x[at], patch.states[out[-1].boundary][at]), out[-1].boundary):
            out[-1] = replace(out[-1], holds=False)
        if out and out[-1].holds:
            return tuple(out)
    if plain >= THRESHOLDS["rotation_error"]:
        out += _best(State.ROTATED, _gram(x, patch, at[:256]), THRESHOLDS["gram_error"], min(256, len(at)))
    if found and not _explained(out):
        out += _inside(x, patch, at[: midlayer.ROWS], found)
    if found and not _explained(out):
        out += _noisy(x, patch, at, found)
    return tuple(out)


def _explained(forms: list[Form]) -> bool:
    return any(f.holds for f in forms)


class _Fit(NamedTuple):
    error: float
    high: float
    """90 % quantile: a form holds for the rows, not for most of them."""
    boundary: Boundary
    detail: str


def _fit(boundary: Boundary, detail: str, a: torch.Tensor, h: torch.Tensor) -> _Fit:
    middle, high = np.quantile(measure.token_errors(a, h), [0.5, 0.9])
    return _Fit(float(middle), float(high), boundary, detail)


def _best(state: State, found: list[_Fit], limit: float, n: int) -> list[Form]:
    if len(found) < 2:
        return []
    best, second = sorted(found, key=lambda f: f.error)[:2]
    if best.detail == TWICE:
        state = State.NORMED_TWICE
    holds = best.high <= limit and second.error > 0 and second.error >= THRESHOLDS["clean_ratio"] * best.error
    return [Form(state, best.boundary, best.detail, best.error, second.error, f"{second.boundary}, {second.detail}", n, holds)]


def _slices(x: torch.Tensor, patch: Patch, at: np.ndarray) -> Iterator[Candidate]:
    """A rank's columns of the hidden dimension: alone, or with zeros in the place of the others."""
    hidden, width = patch.hidden, x.shape[1]
    live = (x[at] != 0).any(dim=0).nonzero().flatten()
    if width < hidden and hidden % width == 0:
        own = slice(None)
        places = [(slice(r * width, (r + 1) * width), f"the columns of rank {r} of {hidden // width}") for r in range(hidden // width)]
    elif width == hidden and 0 < len(live) <= hidden // 2:
        own = live
        places = [(live, f"columns {int(live[0])} to {int(live[-1])} of {hidden}, the rest zero")]
    else:
        return
    for boundary, h in patch.states.items():
        for columns, detail in places:
            yield boundary, detail, x[at][:, own], h[at][:, columns]


def _shifts(x: torch.Tensor, patch: Patch, at: np.ndarray) -> Iterator[Candidate]:
    if x.shape[1] != patch.hidden:
        return
    for shift in SHIFTS:
        inside = (at + shift >= 0) & (at + shift < len(patch))
        own, source = at[inside], at[inside] + shift
        same = (patch.sequence[own] == patch.sequence[source]) & (patch.position[own] + shift == patch.position[source]) & (patch.position[source] > 0)
        where = f"{abs(shift)} token{'s' if abs(shift) > 1 else ''} {'later' if shift > 0 else 'earlier'}"
        for boundary, h in patch.states.items():
            yield boundary, f"each row holds the state of the position {where}", x[own[same]], h[source[same]]


TWICE = "the final norm applied twice"


def _normed(x: torch.Tensor, patch: Patch, at: np.ndarray) -> Iterator[Candidate]:
    """The final norm over any state, and over the normed last one."""
    weights = patch.weights
    if weights.norm is None or weights.norm.shape[0] != x.shape[1] or x.shape[1] != patch.hidden:
        return
    for boundary, h in patch.states.items():
        once = weights.normed(h[at])
        if boundary.normed:
            yield boundary, "the final norm applied once", x[at], h[at]
            yield Boundary(boundary.index), TWICE, x[at], once
        elif boundary.index != patch.layers:
            yield boundary, "the final norm applied to an inner state", x[at], once


def _increments(x: torch.Tensor, patch: Patch, at: np.ndarray) -> Iterator[Candidate]:
    """What one layer adds to the residual stream."""
    if x.shape[1] != patch.hidden:
        return
    for boundary, h in patch.states.items():
        before = patch.states.get(Boundary(boundary.index - 1))
        if not boundary.normed and before is not None:
            yield boundary, f"only what layer {boundary.index - 1} adds", x[at], (h - before)[at]


def _scaled(x: torch.Tensor, patch: Patch, at: np.ndarray) -> Iterator[Candidate]:
    """One factor for all tokens, as a double or a missing reduction of a replicated state leaves it."""
    if x.shape[1] != patch.hidden:
        return
    for boundary, h in patch.states.items():
        factor = _factor(x[at], h[at])
        if factor > 0.02:
            yield boundary, f"every value times {factor:.3g}", x[at], factor * h[at]


def _factor(x: torch.Tensor, h: torch.Tensor) -> float:
    return float(((x * h).sum(-1) / h.pow(2).sum(-1).clamp_min(1e-30)).median())


def _by_ranks(factor: float, boundary: Boundary) -> bool:
    """A number of ranks or its inverse: what reductions can do. At the embedding a factor is more likely the scale that some models give it."""
    ranks = max(factor, 1 / factor) if factor > 0 else 0.0
    return boundary.index > 0 and 1.5 < ranks < MOST_RANKS and abs(ranks / round(ranks) - 1) < 0.02


FAMILIES: tuple[tuple[State, Callable[[torch.Tensor, Patch, np.ndarray], Iterator[Candidate]]], ...] = (
    (State.SLICE, _slices), (State.SHIFTED, _shifts), (State.NORMED, _normed), (State.NO_RESIDUAL, _increments), (State.SCALED, _scaled),
)


def _gram(x: torch.Tensor, patch: Patch, at: np.ndarray) -> list[_Fit]:
    """Inner products of the rows, which survive a rotation: per row |G_x - G_h| / |G_h|."""
    if len(at) < 16 or x.shape[1] != patch.hidden:
        return []
    own = x[at] @ x[at].T
    return [_fit(boundary, "inner products equal, values not", own, h[at] @ h[at].T) for boundary, h in patch.states.items()]


INSIDE = {"middle": State.MIDDLE, "mlp": State.NO_RESIDUAL, "reduced": State.REDUCED, "share": State.SHARE}


def _inside(x: torch.Tensor, patch: Patch, at: np.ndarray, found: SlotMatch) -> list[Form]:
    """Forms inside a layer, judged by whether the layer's own MLP closes; single ranks' shares only next to the nearest state."""
    if patch.weights.mlp is None or x.shape[1] != patch.hidden or len(at) < 16:
        return []
    near = {found.best.index, found.best.index + 1, found.second.index}
    every = [b for b in patch.states if b.index and not b.normed]
    first = patch.weights.mlp(0)
    wide = first is None or 12 * first.gate.numel() * len(every) > midlayer.ALL_LAYERS_BYTES
    rows = at[: midlayer.SCREEN]
    screened: list[tuple[float, midlayer.Inner]] = []
    for boundary in every:
        if (not wide or boundary.index in near) and (mlp := patch.weights.mlp(boundary.index - 1)) is not None:
            screened += [(float(np.median(errors)), inner) for inner, errors in midlayer.simple_errors(boundary, x[rows], patch.states[boundary][rows], mlp)]
    if min((error for error, _ in screened), default=np.inf) > THRESHOLDS["increment_error"]:
        for boundary in every:
            if boundary.index in near and (mlp := patch.weights.mlp(boundary.index - 1)) is not None:
                tried = ((inner, inner.errors(x[rows], patch.states[boundary][rows], mlp)) for inner in midlayer.shares(boundary, mlp))
                screened += [(float(np.median(errors)), inner) for inner, errors in tried if errors is not None]
    if len(screened) < 2:
        return []
    (_, best), (second, other) = sorted(screened, key=lambda f: f[0])[:2]
    errors = best.errors(x[at], patch.states[best.boundary][at], patch.weights.mlp(best.boundary.index - 1))
    if errors is None:
        return []
    middle, high = np.quantile(errors, [0.5, 0.9])
    fits = [_Fit(float(middle), float(high), best.boundary, best.detail), _Fit(second, second, other.boundary, other.detail)]
    return _best(INSIDE[best.kind], fits, THRESHOLDS["increment_error"], len(at))


def _noisy(x: torch.Tensor, patch: Patch, at: np.ndarray, found: SlotMatch) -> list[Form]:
    """The nearest state under noise: its tokens know no other, and no part of a layer is missing.

    Half of a small MLP can be missing as undirected as noise is, so it holds only where `_inside` could try that and found nothing.
    """
    if not found.neighbours or len(at) < 16 or found.error.value == 0:
        return []
    tried = found.best.normed or (patch.weights.mlp is not None and found.best.index > 0 and patch.weights.mlp(found.best.index - 1) is not None)
    share = increment_share(x[at], {b: h[at] for b, h in patch.states.items()}, found.best, patch.weights)
    if share is None:
        return []
    holds = (tried and found.error.value <= THRESHOLDS["noise_error"] and found.ratio >= THRESHOLDS["noise_ratio"] and found.votes >= THRESHOLDS["noise_votes"]
             and share <= THRESHOLDS["noise_share"])
    return [Form(State.NOISY, found.best, f"the neighbouring layers explain {share:.0%} of the difference", found.error.value, found.second_error,
                 str(found.second), found.error.n, holds, share)]
