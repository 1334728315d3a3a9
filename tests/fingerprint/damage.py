"""Generators of damaged dumps of the real target: every kind is planes per sample, and what a right identification says.

`Kind.planes(real, i, b)` are the rows of sequence i for a slot that is meant to be boundary b; `expected(b)` the boundary that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint.hypotheses import State

from .real import Real

Planes = Callable[[Real, int, int], torch.Tensor]
WIDE = (1, 2, 7, 15, 22, 27, 29, 30)
"""First, last and inner boundaries, where layers add much and little."""


@dataclass(frozen=True)
class Kind:
    """One kind of dump, and the truth about it."""

    planes: Planes
    state: State
    """State a sure answer must name."""
    boundaries: tuple[int, ...] = (2, 15, 27)
    last: bool = True
    """A healthy b=L as last plane."""
    expected: Callable[[int, int], Boundary] = lambda b, layers: Boundary(b)
    skip: int = 0
    """First tokens that the recording lacks: a cached prefix."""
    capture: bool = False
    """A capture of a server, which holds all token ids, and not a dump, which holds those of its rows."""


@dataclass(frozen=True)
class Outcome:
    """What was said of one slot."""

    kind: str
    evidence: str
    """`bank`, `weights` or `nothing`."""
    boundary: int
    verdict: str
    """`right`, `not sure` or `WRONG`."""
    sentence: str


def kinds(real: Real) -> dict[str, Kind]:
    """Every kind by name. `last` planes are made by the caller."""
    last, norm = real.layers, real.weights.normed
    hidden = real.target.hidden
    rotation = torch.linalg.qr(torch.randn(hidden, hidden, generator=torch.Generator().manual_seed(0)))[0]
    normed = lambda b, layers: Boundary(layers, True)  # noqa: E731

    def stored(dtype: torch.dtype) -> Planes:
        def planes(r: Real, i: int, b: int) -> torch.Tensor:
            x = r.state(i, b)
            scale = 448 / x.abs().amax(-1, keepdim=True) if dtype.itemsize == 1 else torch.ones(1)
            return ((x * scale).to(dtype).float() / scale)
        return planes

    return {
        "healthy": Kind(lambda r, i, b: r.state(i, b), State.COMPLETE, boundaries=WIDE),
        "stored as float16": Kind(stored(torch.float16), State.COMPLETE, boundaries=WIDE),
        "stored as float8, a scale a token": Kind(stored(torch.float8_e4m3fn), State.COMPLETE, boundaries=WIDE),
        "computed in bfloat16": Kind(lambda r, i, b: r.in_bfloat16[i].states[b], State.COMPLETE, boundaries=WIDE),
        "shift by one layer": Kind(lambda r, i, b: r.state(i, b + 1), State.COMPLETE, expected=lambda b, layers: Boundary(b + 1), boundaries=WIDE[:-1]),
        "permuted slots": Kind(lambda r, i, b: r.state(i, b), State.COMPLETE, boundaries=(15, 2, 27)),
        "embedding first": Kind(lambda r, i, b: r.state(i, b), State.COMPLETE, boundaries=(0, 2, 15)),
        "post-norm final": Kind(lambda r, i, b: r.state(i, last + 1), State.COMPLETE, boundaries=(last,), last=False, expected=normed),
        "double norm": Kind(lambda r, i, b: norm(r.state(i, last + 1)), State.NORMED_TWICE, boundaries=(last,), last=False),
        "inner planes normed": Kind(lambda r, i, b: norm(r.state(i, b)), State.NORMED, boundaries=WIDE[:-1]),
        "TP slice, 8 ranks": Kind(lambda r, i, b: r.state(i, b)[:, hidden // 8:hidden // 4], State.SLICE, last=False, boundaries=WIDE),
        "TP slice, the rest zero": Kind(lambda r, i, b: torch.cat([r.state(i, b)[:, :hidden // 2], torch.zeros(len(r.ids[i]), hidden // 2)], 1), State.SLICE, boundaries=WIDE),
        "TP partial sum, rank 3 of 8": Kind(lambda r, i, b: r.partial(i, b, 3, 8), State.SHARE, boundaries=WIDE),
        "TP partial sum, rank 1 of 2": Kind(lambda r, i, b: r.partial(i, b, 1, 2), State.SHARE, boundaries=WIDE),
        "before the MLP": Kind(lambda r, i, b: r.runs[i].middle[b - 1], State.MIDDLE, boundaries=WIDE),
        "MLP reduced 8 times": Kind(lambda r, i, b: 8 * r.state(i, b) - 7 * r.runs[i].middle[b - 1], State.REDUCED, boundaries=WIDE),
        "state reduced 8 times": Kind(lambda r, i, b: 8 * r.state(i, b), State.SCALED, boundaries=WIDE),
        "missing residual": Kind(lambda r, i, b: r.state(i, b) - r.state(i, b - 1), State.NO_RESIDUAL, boundaries=WIDE),
        "MLP output only": Kind(lambda r, i, b: r.state(i, b) - r.runs[i].middle[b - 1], State.NO_RESIDUAL, boundaries=WIDE),
        "alias of the last plane": Kind(lambda r, i, b: r.state(i, 27), State.COMPLETE, expected=lambda b, layers: Boundary(27)),
        "rotated": Kind(lambda r, i, b: r.state(i, b) @ rotation, State.ROTATED, boundaries=WIDE),
        "int4 target, groups of 64": Kind(lambda r, i, b: r.quantised(4, 64)[i].states[b], State.NOISY, boundaries=WIDE),
        "int8 target, a scale a row": Kind(lambda r, i, b: r.quantised(8, 0)[i].states[b], State.COMPLETE, boundaries=WIDE),
        "one token late": Kind(lambda r, i, b: r.state(i, b).roll(1, 0), State.SHIFTED, boundaries=WIDE),
        "one token early": Kind(lambda r, i, b: r.state(i, b).roll(-1, 0), State.SHIFTED, boundaries=WIDE),
        "truncated: cached prefix of 24 tokens": Kind(lambda r, i, b: r.state(i, b), State.COMPLETE, skip=24, boundaries=WIDE),
        "truncated: all ids, rows behind 24 cached tokens": Kind(lambda r, i, b: r.state(i, b), State.COMPLETE, skip=24, capture=True, boundaries=WIDE),
        "zero rows": Kind(lambda r, i, b: torch.zeros_like(r.state(i, b)), State.BROKEN, last=False),
        "constant rows": Kind(lambda r, i, b: torch.ones_like(r.state(i, b)), State.BROKEN, last=False),
        "non-finite rows": Kind(lambda r, i, b: torch.full_like(r.state(i, b), torch.nan), State.BROKEN, last=False),
    }
