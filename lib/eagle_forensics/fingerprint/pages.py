"""Do the rows of a recording that hold nothing lie in whole pages of a cache?

A block table read in another page size leaves whole pages unwritten: the empty rows begin and end on multiples of the page, again and
again, with sound rows between them. Rows of a cached prefix stand at the start, padding at the end; both say nothing about pages.
Whole chunks of a chunked prefill that were lost leave aligned runs as well, hundreds of rows each: those are told apart from no page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics.evidence.records import Sample
from eagle_forensics.fingerprint import measure

LEAST_PAGE, MOST_PAGE = 8, 128
"""Tokens of a page: engines use 16, 32, 64 (flashmla, trtllm_mla) or 128 (cutlass_mla, fa4); half of 16 where one half of each page is lost."""
LEAST_CHUNK = 512
"""Rows of the shortest chunk that engines prefill by default (vLLM's first chunked prefill; SGLang from 2048)."""
MOST_CHANCE = 1e-3
"""Runs of rows lost at random places are taken for pages less often than this."""


@dataclass(frozen=True)
class EmptyRows:
    """Rows of zeros or of one value."""

    inside: int
    """Between sound rows, over all slots."""
    outside: int
    """At the start or the end of a sample."""
    rows: int
    """All rows, over all slots."""
    page: int | None
    """Tokens of the page on whose multiples every inner run begins and ends; None where chance explains that too."""
    runs: int
    """Different inner runs."""
    chance: float
    """That this many runs at random places begin and end on multiples of such a page."""
    chunks: bool
    """The inner runs are as long as chunks of a prefill, or lie on multiples that no page has: lost chunks explain them too."""


def empty_rows(samples: Sequence[Sample]) -> EmptyRows:
    """Counts the empty rows of all slots and says whether those between sound rows lie in whole pages.

    Two runs at least: one alone is also what a lost chunk of a prefill leaves. Slots and samples that lose the same rows count once.
    """
    inside = outside = total = 0
    runs: set[tuple[int, int]] = set()
    for sample in samples:
        for plane in sample.planes:
            empty = ~measure.health(plane.data).usable & np.asarray(plane.data.isfinite().all(dim=-1))
            total += len(empty)
            if empty.all():
                outside += len(empty)
                continue
            for start, stop in _runs(empty):
                if start and stop < len(empty):
                    inside += stop - start
                    runs.add((start, stop))
                else:
                    outside += stop - start
    common = math.gcd(*(edge for run in runs for edge in run)) if runs else 0
    grain = common & -common
    chance = float(grain) ** (-2 * len(runs)) if grain else 1.0
    aligned = len(runs) > 1 and grain >= LEAST_PAGE and chance <= MOST_CHANCE
    chunks = aligned and (grain > MOST_PAGE or min(stop - start for start, stop in runs) >= LEAST_CHUNK)
    return EmptyRows(inside, outside, total, grain if aligned and not chunks else None, len(runs), chance, chunks)


def _runs(empty: np.ndarray) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], empty.view(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
