"""Norm state and depth without a bank: what the target's own head reads off a slot, held against the next token.

The argmax of the head does not see the size of a row, so a state is read in three ways: as it is, times the weight of the final norm
(right if no norm was applied) and divided by it (right if it was applied twice). The last state predicts the next token best in the one
way that is right; inner states predict it worse the further they are from the last layer (logit lens).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Rows, Weights

ROWS, LEAST = 160, 32
MULTIPLICATIONS = 1e11
"""Multiply-adds all slots of a dump may cost; a large head is read on fewer rows, never on fewer than `LEAST`."""
WAYS = ("pre", "post", "twice")


@dataclass(frozen=True)
class Teacher:
    """How often the head's argmax on a slot is the next token, for each way to read the slot."""

    state: str | None
    """`pre`, `post` or `twice` (the final norm applied never, once, twice) if the test decides, else None."""
    agreement: tuple[float, float, float]
    """Share of tokens that agree, read as `pre`, `post`, `twice`."""
    margin: stats.Estimate
    """Best minus second best, paired over tokens, interval over sequences."""
    n: int
    text: str

    @property
    def best(self) -> float:
        """The highest agreement: grows with depth."""
        return max(self.agreement)


def teacher_tests(rows: Rows, weights: Weights) -> tuple[Teacher | None, ...]:
    """One answer a slot; None without head, final norm or token ids, or where the width is another. One pass over the head."""
    slots = [i for i, x in enumerate(rows.planes) if weights.norm is not None and x.shape[1] == len(weights.norm)]
    if weights.head is None or rows.tokens is None or not slots:
        return (None,) * len(rows.planes)
    follows = np.flatnonzero((rows.sequence[1:] == rows.sequence[:-1]) & (rows.position[1:] == rows.position[:-1] + 1))
    usable = np.all([measure.health(rows.planes[i]).usable for i in slots], axis=0)
    follows = follows[usable[follows]]
    if len(follows) < LEAST:
        return (None,) * len(rows.planes)
    scale = torch.where(weights.norm.abs() > 1e-3 * weights.norm.abs().median(), weights.norm, torch.inf)
    most = int(np.clip(MULTIPLICATIONS / (math.prod(weights.head.table.shape) * 3 * len(slots)), LEAST, ROWS))
    at = torch.as_tensor(follows[np.linspace(0, len(follows) - 1, min(most, len(follows))).astype(int)])
    read = torch.cat([y for i in slots for y in (rows.planes[i][at] * weights.norm, rows.planes[i][at], rows.planes[i][at] / scale)])
    right = (_argmax(read, weights) == rows.tokens[at + 1].repeat(3 * len(slots))).reshape(len(slots), 3, len(at)).numpy()
    answers = {i: _answer(right[k], rows.sequence[at.numpy()]) for k, i in enumerate(slots)}
    return tuple(answers.get(i) for i in range(len(rows.planes)))


def _argmax(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    best, token = torch.full((len(x),), -torch.inf), torch.zeros(len(x), dtype=torch.int64)
    for start, block in weights.head.blocks():
        value, index = (x @ block.T).max(dim=-1)
        better = value > best
        best, token = torch.where(better, value, best), torch.where(better, index + start, token)
    return token


def _answer(right: np.ndarray, sequence: np.ndarray) -> Teacher:
    agreement = right.mean(axis=1)
    first, second = np.argsort(-agreement, kind="stable")[:2]
    groups = [sequence == s for s in np.unique(sequence)]
    margin = stats.paired_difference([right[first][g].sum() for g in groups], [right[second][g].sum() for g in groups], [g.sum() for g in groups])
    decides = agreement[first] >= THRESHOLDS["teacher_agreement"] and margin.value >= THRESHOLDS["teacher_margin"] and margin.low > 0
    values = ", ".join(f"{100 * a:.0f} % {name}" for a, name in zip(agreement, ("un-normed", "as normed", "as normed twice"), strict=True))
    return Teacher(WAYS[first] if decides else None, tuple(float(a) for a in agreement), margin, right.shape[1],
                   f"the head's argmax is the next token for {values} ({right.shape[1]} tokens)")
