"""To which tokens do the rows belong where a capture holds fewer rows than token ids?

Behind a prefix cache only the rows of the last tokens are computed; a recorder that stops early keeps the first. The target's states tell
which: only in the right place do the rows equal one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle_forensics.evidence.records import EvidenceError, Sample
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.match import match
from eagle_forensics.fingerprint.rows import Bank, Reference, Weights, collect


def placed(samples: Sequence[Sample], bank: Bank | None, weights: Weights, layers: int | None = None) -> tuple[Sample, ...]:
    """The samples, each whose rows have a known place with its `input_ids`; the others keep only their `prompt_ids`."""
    return tuple(_placed(s, bank, weights, layers) if s.prompt_ids is not None and s.input_ids is None and bank is not None else s for s in samples)


def _placed(sample: Sample, bank: Bank, weights: Weights, layers: int | None) -> Sample:
    rows = len(sample.planes[0].data)
    tried = [replace(sample, input_ids=sample.prompt_ids[start:start + rows]) for start in (len(sample.prompt_ids) - rows, 0)]
    (error, best), (other, _) = sorted(((_error(s, bank, weights, layers), i) for i, s in enumerate(tried)))
    return tried[best] if error <= THRESHOLDS["clean_error"] and other >= THRESHOLDS["clean_ratio"] * error and other > 0 else sample


def _error(sample: Sample, bank: Bank, weights: Weights, layers: int | None) -> float:
    """Of the slot that fits best, to its nearest state; infinite where the bank holds none of these tokens."""
    try:
        table = match(Reference(bank, collect([sample]), weights, layers))
    except (EvidenceError, ValueError):
        return float("inf")
    return min((m.error.value for m in table.matches if m), default=float("inf"))
