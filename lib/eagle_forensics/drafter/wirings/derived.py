"""States made from recorded ones: after a norm, sliced by tensor parallelism, without the residual; by name.

A name is `<form> of <plane>`: `final norm of b=30`, `1/8 slice of b=2`, `increment of b=15`. Forms nest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from eagle_forensics.drafter.network.arithmetic import rms_norm
from eagle_forensics.drafter.recorded import ZERO

EMBEDDING = "embedding"
"""Name of the plane that holds the embedding of the tokens: nobody records it, and it was fed by mistake more than once."""
FINAL = "final norm"
"""The target's final norm, with its weight."""
UNIT = "unit rms"
"""Every token at unit root mean square, no weight: a norm forgotten or added."""
INCREMENT = "increment"
"""What the last layer added: the state without its residual."""
_PART = re.compile(r"1/(?P<ranks>\d+) (?P<kind>slice|share)")


@dataclass(frozen=True, eq=False)
class FinalNorm:
    """The target's final norm."""

    weight: torch.Tensor
    """[Ht]; 1 + w for the Gemma type."""
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


def form(kind: str, plane: str) -> str:
    """The name of `plane` in another form; the plane of zeros has none."""
    return plane if plane == ZERO else f"{kind} of {plane}"


def slice_of(ranks: int) -> str:
    """The columns of the first of `ranks` ranks, the others zero."""
    return f"1/{ranks} slice"


def share_of(ranks: int) -> str:
    """The state divided by the ranks: an average where a sum belongs."""
    return f"1/{ranks} share"


def split(name: str) -> tuple[str, str]:
    """(form, plane): `final norm of final norm of b=30` is (`final norm of final norm`, `b=30`); no form is ``."""
    kind, _, plane = name.rpartition(" of ")
    return kind, plane


def needed(name: str) -> tuple[str, ...]:
    """The recorded planes that `name` is made of."""
    kind, plane = split(name)
    return (plane, _before(plane)) if kind.endswith(INCREMENT) else (plane,)


def derive(name: str, recorded: Callable[[str], torch.Tensor], norm: FinalNorm | None, eps: float) -> torch.Tensor:
    """The state called `name`, [N, Ht]. ValueError for a form that is not known, or the final norm without its weight."""
    kind, of, inner = name.partition(" of ")
    if not of:
        return recorded(name)
    if kind == INCREMENT:
        return recorded(inner) - recorded(_before(inner))
    x = derive(inner, recorded, norm, eps)
    if kind == UNIT:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if kind == FINAL:
        if norm is None:
            raise ValueError(f"{name}: the target's norm.weight is not at hand")
        return norm(x)
    part = _PART.fullmatch(kind)
    if part is None:
        raise ValueError(f"no form {kind!r}; known: {FINAL}, {UNIT}, {INCREMENT}, 1/N slice, 1/N share")
    ranks = int(part["ranks"])
    if part["kind"] == "share":
        return x / ranks
    kept = torch.zeros_like(x)
    width = x.shape[1] // ranks
    kept[:, :width] = x[:, :width]
    return kept


def _before(plane: str) -> str:
    match = re.fullmatch(r"b=(\d+)", plane)
    if match is None or match[1] == "0":
        raise ValueError(f"{plane} has no state before it: an increment needs a boundary from b=1 on")
    return f"b={int(match[1]) - 1}"
