"""The same prompt recorded twice: eager and graph path, dump and server, two engines. Needs no bank, only equal tokens.

Slot against slot by the relative error per token. Equal within other arithmetic's rounding: the same state. Else another one: a second
recording need not say which, and this module does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats
from eagle_forensics.evidence.records import EvidenceError, Sample
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Reference, Weights, collect


@dataclass(frozen=True)
class Pairing:
    """Two recordings of the same tokens, slot by slot."""

    errors: np.ndarray
    """`[slots of the first, slots of the second]` median per-token relative error over ordinary tokens; nan for other widths."""
    same: tuple[int | None, ...]
    """For every slot of the first the slot of the second that holds the same state; None where none does."""
    estimates: tuple[stats.Estimate | None, ...]
    """Error of every slot of the first to the nearest slot of the second."""
    n: int
    """Ordinary tokens."""

    @property
    def equal(self) -> bool:
        """True if both hold the same states in the same order."""
        return self.errors.shape[0] == self.errors.shape[1] and self.same == tuple(range(len(self.same)))

    @property
    def reordered(self) -> bool:
        """True if both hold the same states in another order."""
        return not self.equal and self.errors.shape[0] == self.errors.shape[1] and None not in self.same and len(set(self.same)) == len(self.same)


def pair(first: Sequence[Sample], second: Sequence[Sample]) -> Pairing:
    """Raises EvidenceError if the two share no tokens, or one of them has none."""
    rows, other = collect(first), collect(second)
    if other.tokens is None:
        raise EvidenceError("one of the two recordings has no token ids, so their rows cannot be laid side by side. Record input_ids with both.")
    bank = _Recorded(list(second), range(len(other.planes)))
    reference = Reference(bank, rows, Weights())
    mine = reference.rows
    theirs = [reference.at(slot) for slot in bank.boundaries]
    usable = np.all([measure.health(x).usable for x in (*mine.planes, *theirs)], axis=0)
    ordinary = usable & ~measure.sinks(np.stack([measure.token_norms(x.nan_to_num()) for x in mine.planes]))
    if not ordinary.any():
        raise EvidenceError("no row of the two recordings can be compared.")
    errors = np.full((len(mine.planes), len(theirs)), np.nan)
    values: dict[tuple[int, int], np.ndarray] = {}
    for i, x in enumerate(mine.planes):
        for j, y in enumerate(theirs):
            if x.shape == y.shape:
                values[i, j] = measure.token_errors(x, y)[ordinary]
                errors[i, j] = np.median(values[i, j])
    nearest = [int(np.nanargmin(row)) if np.isfinite(row).any() else None for row in errors]
    same = tuple(j if j is not None and errors[i, j] <= THRESHOLDS["clean_error"] else None for i, j in enumerate(nearest))
    estimates = tuple(measure.median(values[i, j], mine.sequence[ordinary]) if j is not None else None for i, j in enumerate(nearest))
    return Pairing(errors, same, estimates, int(ordinary.sum()))


class _Recorded:
    """A recording in the place of a bank: its slots are the boundaries."""

    def __init__(self, samples: list[Sample], slots: range) -> None:
        self.samples = [s for s in samples if s.input_ids is not None and len(s.planes) == len(slots)]
        self.boundaries, self.sequences = tuple(slots), [s.input_ids for s in self.samples]

    def plane(self, i: int, slot: int):
        return self.samples[i].planes[slot].data
