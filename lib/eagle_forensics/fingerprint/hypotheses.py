"""The ordered hypotheses about one slot, each naming its rival: unusable rows, width, embedding, norm state, and the damaged
forms of a known state (shifted, scaled, sliced, normed, residual missing, rotated).

Tests that need no bank come first. A damaged form is accepted only if it explains the rows cleanly and the next candidate of its
family, and the undamaged states, explain them several times worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Reference, Rows, Weights

SAMPLE = 512
"""Rows on which the damaged forms are tried."""
SHIFTS = (-2, -1, 1, 2)


class State(StrEnum):
    """In which form a slot holds the state of its boundary."""

    COMPLETE = "complete"
    NORMED = "normed"
    NORMED_TWICE = "normed twice"
    NO_RESIDUAL = "without the residual"
    SLICE = "slice of the hidden dimension"
    SCALED = "scaled"
    SHIFTED = "shifted by tokens"
    ROTATED = "rotated"
    BROKEN = "broken rows"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """What a state is called in the fault catalogue, and the rival it must be told from."""

    fault: str | None
    rival: str


EXPLANATIONS = {
    State.COMPLETE: Explanation(None, "wiring.layer-offset"),
    State.NORMED: Explanation("feature.norm-state", "data.norm-twice"),
    State.NORMED_TWICE: Explanation("data.norm-twice", "feature.norm-state"),
    State.NO_RESIDUAL: Explanation("feature.missing-residual", "feature.rotated-basis"),
    State.SLICE: Explanation("feature.tp-slice", "feature.partial-sum"),
    State.SCALED: Explanation("feature.partial-sum", "feature.norm-state"),
    State.SHIFTED: Explanation("data.mask-shift", "wiring.layer-offset"),
    State.ROTATED: Explanation("feature.rotated-basis", "feature.missing-residual"),
    State.BROKEN: Explanation("feature.non-finite", "feature.missing-stage"),
    State.UNKNOWN: Explanation(None, "a bank of another model"),
}


@dataclass(frozen=True)
class Test:
    """One hypothesis, its number and whether it holds; None where the evidence for it is missing or does not decide."""

    __test__ = False  # no pytest class

    name: str
    holds: bool | None
    value: float | None
    """The statistic; its meaning is in `text`."""
    n: int
    """Tokens, pairs or rows behind it."""
    text: str


def embedding_test(x: torch.Tensor, rows: Rows, weights: Weights, usable: np.ndarray) -> Test:
    """Equal to `embed_tokens[ids]` up to storage rounding? Value: median per token of |x - e| / |x|."""
    name = "embedding"
    if weights.embed is None or rows.tokens is None:
        missing = "the target's embed_tokens" if weights.embed is None else "token ids"
        return Test(name, None, None, 0, f"not tested against embed_tokens: {missing} missing")
    at = np.flatnonzero(usable)[:4 * SAMPLE]
    if not len(at):
        return Test(name, None, None, 0, "not tested: no usable rows")
    ids, inverse = torch.unique(rows.tokens[torch.as_tensor(at)], return_inverse=True)
    table = weights.embed(ids.tolist()).to(torch.float32)
    if table.shape[1] != x.shape[1]:
        return Test(name, None, None, 0, f"not tested: embed_tokens has width {table.shape[1]}, the slot {x.shape[1]}")
    h = table[inverse]
    best, factor = min((float(np.median(measure.token_errors(h * f, x[at]))), f) for f in {1.0, weights.embedding_factor})
    scaled = f" x {factor:g}" if factor != 1 else ""
    return Test(name, best <= THRESHOLDS["embedding_error"], best, len(at),
                f"rows {'equal' if best <= THRESHOLDS['embedding_error'] else 'differ from'} embed_tokens[ids]{scaled} "
                f"({_by(best)}, median of {len(at)} tokens)")


def twin_test(x: torch.Tensor, rows: Rows, usable: np.ndarray) -> Test:
    """Do equal tokens of one sample have equal rows? Only the embedding forgets the context. Needs no weights."""
    name = "equal tokens"
    if rows.tokens is None:
        return Test(name, None, None, 0, "not tested: no token ids")
    first: dict[tuple[int, int], int] = {}
    pairs = []
    tokens = rows.tokens.tolist()
    for i in np.flatnonzero(usable).tolist():
        key = (int(rows.sequence[i]), tokens[i])
        if first.setdefault(key, i) != i:
            pairs.append((first[key], i))
    if len(pairs) < 10:
        return Test(name, None, None, len(pairs), f"not decided: only {len(pairs)} pairs of equal tokens")
    a, b = (torch.as_tensor(side) for side in zip(*pairs[:4 * SAMPLE], strict=True))
    value = float(np.median(measure.token_errors(x[b], x[a])))
    equal = value <= THRESHOLDS["twin_error"]
    return Test(name, equal, value, len(a), f"equal tokens have {'equal' if equal else 'unequal'} rows ({_by(value)}, median of {len(a)} pairs)")


def norm_test(x: torch.Tensor, weights: Weights, usable: np.ndarray) -> Test:
    """Has a final norm just been applied? Then rms(x / w) is 1 for every token; value: median of |rms - 1|."""
    name = "norm state"
    if weights.norm is None or weights.norm.shape[0] != x.shape[1]:
        return Test(name, None, None, 0, "not tested: the weight of the target's final norm is missing" if weights.norm is None
                    else f"not tested: the final norm has width {weights.norm.shape[0]}, the slot {x.shape[1]}")
    safe = weights.norm.abs() > 1e-3 * weights.norm.abs().median()
    at = np.flatnonzero(usable)
    if not len(at):
        return Test(name, None, None, 0, "not tested: no usable rows")
    off = ((x[at][:, safe] / weights.norm[safe]).pow(2).mean(-1).sqrt() - 1).abs().numpy()
    value, high = float(np.median(off)), float(np.quantile(off, 0.9))
    if high <= THRESHOLDS["norm_rms"]:
        return Test(name, True, value, len(at), f"normed: rms(x/w) is 1 within {high:.3f} for 90 % of {len(at)} tokens")
    if value > 5 * THRESHOLDS["norm_rms"]:
        return Test(name, False, value, len(at), f"not normed: rms(x/w) is off 1 by {value:.2f} (median of {len(at)} tokens)")
    return Test(name, None, value, len(at), f"norm state not decided: rms(x/w) is off 1 by {value:.3f} in the median, {high:.3f} at 90 %")


@dataclass(frozen=True)
class Form:
    """A damaged form of a known state, with the next best candidate of the same family."""

    state: State
    boundary: Boundary
    detail: str
    """`every row holds the state of the next token`, `rank 3 of 8`."""
    error: float
    second: float
    second_text: str
    holds: bool

    @property
    def ratio(self) -> float:
        return self.second / self.error if self.error > 0 else np.inf


Candidate = tuple[Boundary, str, torch.Tensor, torch.Tensor]
"""boundary, detail, rows of the slot, rows they should equal."""


def damaged_forms(x: torch.Tensor, reference: Reference, ordinary: np.ndarray, plain: float) -> tuple[Form, ...]:
    """Every family of damage tried on at most `SAMPLE` ordinary rows; `plain` is the error of the nearest undamaged state."""
    chosen = np.flatnonzero(ordinary)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(SAMPLE, len(chosen))).astype(int)]
    families: list[tuple[State, Callable[..., Iterator[Candidate]]]] = [
        (State.SLICE, _slices), (State.SHIFTED, _shifts), (State.NORMED, _normed), (State.NO_RESIDUAL, _increments), (State.SCALED, _scaled)]
    forms = []
    for state, family in families:
        found = sorted(((float(np.median(measure.token_errors(a, h))), b, detail) for b, detail, a, h in family(x, reference, chosen)
                        if len(a)), key=lambda f: f[0])
        if len(found) > 1:
            limit = THRESHOLDS["increment_error" if state is State.NO_RESIDUAL else "clean_error"]
            forms.append(_form(state, found, min(limit, plain / THRESHOLDS["clean_ratio"])))
    rotated = _gram(x, reference, chosen)
    return (*forms, *([rotated] if rotated else []))


def _form(state: State, found: list[tuple[float, Boundary, str]], limit: float) -> Form:
    (error, boundary, detail), (second, other, other_detail) = found[:2]
    if state is State.NORMED and "twice" in detail:
        state = State.NORMED_TWICE
    holds = error <= limit and second >= THRESHOLDS["clean_ratio"] * error and second > 0
    return Form(state, boundary, detail, error, second, f"{other}{', ' + other_detail if other_detail else ''}", holds)


def _slices(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Iterator[Candidate]:
    """A rank's columns of the hidden dimension: alone, or with zeros in the place of the others."""
    hidden = reference.at(reference.boundaries[0]).shape[1]
    live = (x[at] != 0).any(dim=0).nonzero().flatten()
    if x.shape[1] < hidden and hidden % x.shape[1] == 0:
        width = x.shape[1]
        places = [(torch.arange(r * width, (r + 1) * width), torch.arange(width), f"rank {r} of {hidden // width}") for r in range(hidden // width)]
    elif x.shape[1] == hidden and 0 < len(live) <= hidden // 2:
        places = [(live, live, f"columns {int(live[0])} to {int(live[-1])} of {hidden}, the rest zero")]
    else:
        return
    for boundary in reference.boundaries:
        h = reference.at(boundary)[at]
        for columns, own, detail in places:
            yield boundary, detail, x[at][:, own], h[:, columns]


def _shifts(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Iterator[Candidate]:
    rows = reference.rows
    if x.shape[1] != reference.at(reference.boundaries[0]).shape[1]:
        return
    for boundary in reference.boundaries:
        h = reference.at(boundary)
        for shift in SHIFTS:
            source = at + shift
            inside = (source >= 0) & (source < len(rows))
            own, source = at[inside], source[inside]
            same = (rows.sequence[own] == rows.sequence[source]) & (rows.position[source] > 0)
            where = f"{abs(shift)} token{'s' if abs(shift) > 1 else ''} {'later' if shift > 0 else 'earlier'}"
            yield boundary, f"each row holds the state of the position {where}", x[own[same]], h[source[same]]


def _normed(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Iterator[Candidate]:
    """The final norm over any state, and over the normed last one."""
    weights = reference.weights
    if weights.norm is None or weights.norm.shape[0] != x.shape[1]:
        return
    for boundary in reference.boundaries:
        once = weights.normed(reference.at(boundary)[at])
        if boundary.normed:
            yield Boundary(boundary.index), "final norm applied twice", x[at], once
        elif boundary.index != reference.layers:
            yield boundary, "final norm applied to an inner state", x[at], once
    last = Boundary(reference.layers, True) if reference.layers is not None else None
    if last in reference.boundaries:
        yield Boundary(last.index), "final norm applied once", x[at], reference.at(last)[at]


def _increments(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Iterator[Candidate]:
    """What one layer adds to the residual stream."""
    for boundary in reference.boundaries:
        before = Boundary(boundary.index - 1)
        if not boundary.normed and before in reference.boundaries:
            h = reference.at(boundary)[at]
            if h.shape[1] != x.shape[1]:
                return
            yield boundary, f"only what layer {before.index} adds", x[at], h - reference.at(before)[at]


def _scaled(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Iterator[Candidate]:
    """One factor for all tokens, as a double or a missing reduction of replicated states leaves it."""
    for boundary in reference.boundaries:
        h = reference.at(boundary)[at]
        if h.shape[1] != x.shape[1]:
            return
        factor = float(((x[at] * h).sum(-1) / h.pow(2).sum(-1).clamp_min(1e-30)).median())
        if factor > 0.02:
            yield boundary, f"every value times {factor:.3g}", x[at], factor * h


def _gram(x: torch.Tensor, reference: Reference, at: np.ndarray) -> Form | None:
    """Inner products of the rows survive a rotation; compared per row, median of |G_x - G_h| / |G_h|."""
    at = at[:256]
    if len(at) < 16:
        return None
    own = x[at] @ x[at].T
    found = []
    for boundary in reference.boundaries:
        h = reference.at(boundary)[at]
        if h.shape[1] != x.shape[1]:
            return None
        gram = h @ h.T
        found.append((float(np.median(measure.token_errors(own, gram))), boundary, "inner products equal, values differ"))
    found.sort(key=lambda f: f[0])
    return _form(State.ROTATED, found, THRESHOLDS["gram_error"])


def _by(value: float) -> str:
    return "exactly" if value == 0 else f"relative error {value:.3f}" if value >= 0.001 else f"relative error {value:.1e}"
