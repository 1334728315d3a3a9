"""Forms that lie inside a layer: before its MLP, one rank's share of the MLP, the MLP reduced several times, the MLP alone.

A bank knows the states between layers, not those inside one. But each of these forms determines the state after the attention m, and
m is right exactly if the layer's own MLP leads from it to the next boundary h: m + MLP(m) = h. The figure of merit is therefore
|MLP(m) - (h - m)| / |h - m| per token; a wrong layer, share or factor is off by 0.2 or more, a right one by its rounding (calibration).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.parts import GatedMlp

RANKS = (2, 4, 8, 16)
ROWS, SCREEN = 64, 12
"""Rows on which the best explanation is judged, and on which all are tried first."""
STEPS = 30
DAMPING = 0.5
SETTLED = 0.01
"""Relative change of the state below which the search for a rank's share has ended; the right answer then closes within 0.03."""
ALL_LAYERS_BYTES = 4 << 30
"""Float32 bytes of all MLPs up to which every layer is tried; beyond, only the layers around the nearest state."""


@dataclass(frozen=True)
class Inner:
    """One explanation: the boundary its layer leads to and what it is."""

    boundary: Boundary
    kind: str
    """`middle`, `mlp`, `reduced` or `share`."""
    ranks: int = 1
    rank: int = 0

    @property
    def detail(self) -> str:
        layer = self.boundary.index - 1
        return {"middle": f"after the attention of layer {layer}, before its MLP", "mlp": f"only what the MLP of layer {layer} adds",
                "reduced": f"the MLP of layer {layer} added up {self.ranks} times",
                "share": f"only the share of rank {self.rank} of {self.ranks} in the MLP of layer {layer}"}[self.kind]

    def errors(self, x: torch.Tensor, after: torch.Tensor, mlp: GatedMlp) -> np.ndarray | None:
        """Closure per token for rows `x` `[N, H]` and the states `after` the layer; None where no m can be found."""
        return accepted(*searched(x, after, mlp, self.rank, self.ranks)) if self.kind == "share" else closure(self.middle(x, after), after, mlp)

    def middle(self, x: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """m under this explanation, where it follows in one step."""
        return x if self.kind == "middle" else after - x if self.kind == "mlp" else (x - self.ranks * after) / (1 - self.ranks)


def simple(boundary: Boundary) -> Iterator[Inner]:
    """The forms inside the layer that ends at `boundary` whose m follows in one step."""
    yield Inner(boundary, "middle")
    yield Inner(boundary, "mlp")
    yield from (Inner(boundary, "reduced", ranks) for ranks in RANKS)


def simple_errors(boundary: Boundary, x: torch.Tensor, after: torch.Tensor, mlp: GatedMlp) -> Iterator[tuple[Inner, np.ndarray]]:
    """Every simple form with its closure per token; the MLP's weights are read once for all."""
    tried = list(simple(boundary))
    errors = closure(torch.cat([inner.middle(x, after) for inner in tried]), after.repeat(len(tried), 1), mlp)
    yield from zip(tried, errors.reshape(len(tried), -1), strict=True)


def shares(boundary: Boundary, mlp: GatedMlp) -> Iterator[Inner]:
    """Single ranks' shares of that layer's MLP, whose m must be searched."""
    yield from (Inner(boundary, "share", ranks, rank) for ranks in RANKS if mlp.width % ranks == 0 for rank in range(ranks))


def closure(middle: torch.Tensor, after: torch.Tensor, mlp: GatedMlp) -> np.ndarray:
    """Per token |MLP(m) - (h - m)| / |h - m|: 0 if `middle` is the state from which the layer's MLP leads to `after`."""
    return measure.token_errors(mlp(middle), after - middle)


def mean_closure(mean: torch.Tensor, after: torch.Tensor, ranks: int, mlp: GatedMlp) -> np.ndarray:
    """Per token closure for the mean over all ranks of m + share of the MLP: there the shares add up to one MLP / ranks."""
    return closure((ranks * mean - after) / (ranks - 1), after, mlp)


def searched(x: torch.Tensor, after: torch.Tensor, mlp: GatedMlp, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """m out of m + share(m) = x by damped iteration: per token the closure, and |m + MLP(m) - h| / |h - x|, what it leaves open of what the
    other ranks add. Both `[N]`, nan where the search did not settle."""
    width = mlp.width // ranks
    columns = slice(rank * width, (rank + 1) * width)
    middle = x
    for _ in range(STEPS):
        middle = middle + DAMPING * (x - mlp(middle, columns) - middle)
    settled = measure.token_errors(middle + mlp(middle, columns), x) < SETTLED
    closed, left = np.full((2, len(x)), np.nan, np.float32)
    if settled.any():
        x, middle, after = x[settled], middle[settled], after[settled]
        closed[settled], left[settled] = closure(middle, after, mlp), measure.token_errors(middle + mlp(middle) - x, after - x)
    return closed, left


def accepted(closed: np.ndarray, left: np.ndarray) -> np.ndarray | None:
    """Closure on the tokens where the search of a share settled; None if half of them did not, or if what it leaves open is most of what the other ranks add.

    A false m can make this rank's own share so large that any closure is small.
    """
    settled = np.isfinite(closed)
    return closed[settled] if settled.mean() >= 0.5 and np.median(left[settled]) <= THRESHOLDS["share_error"] else None
