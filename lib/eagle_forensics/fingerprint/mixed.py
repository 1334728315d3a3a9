"""Do all samples of a dump hold the same state in the same slot? A minority from another run moves no median, so it is looked for by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.match import MatchTable

LEAST = 8
"""Ordinary tokens of a sample whose median is looked at."""
FARTHER = 4.0
"""Times the slot's own error: noise differs less between samples, another layer's state more."""


@dataclass(frozen=True)
class Stranger:
    """A sample that is not what its slot holds in the others."""

    slot: int
    sample: str
    error: float
    """Median relative error of its tokens to the slot's state."""


def strangers(table: MatchTable, sequence: np.ndarray, samples: Sequence[str]) -> tuple[Stranger, ...]:
    """Samples that lie farther from the state of a cleanly matched slot than half way to the next one. `sequence`: `[N]` numbers of samples, as in the table."""
    found = []
    for slot, (match, errors) in enumerate(zip(table.matches, table.token_errors, strict=True)):
        if match is None or not match.clean or errors is None:
            continue
        limit = max(THRESHOLDS["clean_error"], FARTHER * match.error.value, match.second_error / 2)
        for number in np.unique(sequence):
            own = errors[(sequence == number) & ~table.sinks]
            own = own[~np.isnan(own)]
            if len(own) >= LEAST and (middle := float(np.median(own))) > limit:
                found.append(Stranger(slot, samples[number], middle))
    return tuple(found)
