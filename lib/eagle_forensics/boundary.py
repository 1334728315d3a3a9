"""Boundary: the one coordinate in which the layer ids of every engine and trainer are compared.

For a target of L decoder layers, boundary b in 0..L is a place in the residual stream:

    b = 0    the embedding output
    b = j    after layer j-1, which is the input of layer j
    b = L    after the last layer, before the final norm
    L+norm   the same state after the final norm

Raw ids ("post-layer", "verbatim", "+1 only if the first is 1") never cross a module border: `engines/`
turns them into boundaries, everything else speaks boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Boundary:
    """A state of the target's residual stream: `index` in 0..L; `normed` only for the state after the final norm."""

    index: int
    normed: bool = False

    def __str__(self) -> str:
        return f"b={self.index}" + ("+norm" if self.normed else "")

    def describe(self, layers: int | None = None) -> str:
        """In words: `b=3 (output of layer 2)`; with `layers` the last boundary is named as such."""
        if self.normed:
            meaning = "after the final norm"
        elif self.index == 0:
            meaning = "embedding output"
        elif layers is not None and self.index == layers:
            meaning = f"output of the last layer, {self.index - 1}, before the final norm"
        else:
            meaning = f"output of layer {self.index - 1}"
        return f"{self} ({meaning})"


def default_boundaries(layers: int) -> tuple[int, ...]:
    """The boundaries an EAGLE-3 engine captures when no ids are given: (2, L//2, L-3).

    Source: EAGLE modeling_llama_kv.py:1138, sglang 0.5.23 llama.py, vllm 0.33.0 interfaces.py.
    """
    return (2, layers // 2, layers - 3)


def format_boundaries(boundaries: Sequence[int] | None) -> str:
    """`{2, 15, 27}`; `unknown` for None."""
    return "unknown" if boundaries is None else "{" + ", ".join(str(b) for b in boundaries) + "}"


def uniform_shift(trained: Sequence[int], served: Sequence[int]) -> int | None:
    """How many boundaries later every served state lies than its trained one; None if it is not one and the same."""
    if len(trained) != len(served) or not trained:
        return None
    shifts = {s - t for t, s in zip(trained, served, strict=True)}
    return shifts.pop() if len(shifts) == 1 else None
