"""What accept length to expect live, for every chain length: the walk, beside the numbers it is usually confused with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness
from eagle_forensics.drafter.walk import walk


@dataclass(frozen=True)
class Prediction:
    """Expectation for a chain of `steps` drafts (topk 1, steps + 1 draft tokens), greedy."""

    steps: int
    accept_length: stats.Estimate
    """Tokens per verify round by the walk, bonus token included."""
    per_position: tuple[stats.Estimate, ...]
    """Share of rounds that accept step 1, 2, ... (vLLM's per-position rates)."""
    product_formula: float
    """1 + a1 + a1 a2 + ... of the marginal accuracies: too high, since a round starts right after a rejection."""
    vocabulary_bound: float
    """Accept length of a drafter that is right wherever its vocabulary holds the token."""

    @property
    def survival(self) -> tuple[float, ...]:
        return tuple(e.value for e in self.per_position)

    @property
    def ceiling(self) -> int:
        return self.steps + 1


def predict_accept_length(correctness: Correctness) -> tuple[Prediction, ...]:
    """One Prediction for each chain length 1..K of the unrolled steps."""
    accuracies = [correctness.accuracy(k).value for k in range(correctness.steps)]
    found = []
    for steps in range(1, correctness.steps + 1):
        walked = [r for s in correctness.sequences if (r := s.rounds(steps)) is not None]
        found.append(Prediction(
            steps, correctness.accept_length(steps),
            tuple(stats.ratio_of_sums([r.accepted_per_position[i] for r in walked], [r.rounds for r in walked]) for i in range(steps)),
            1 + sum(accumulate(accuracies[:steps], mul)), _vocabulary_bound(correctness, steps)))
    return tuple(found)


def _vocabulary_bound(correctness: Correctness, steps: int) -> float:
    parts = [walk(s.in_vocabulary[mine], steps) for s in correctness.sequences for span in s.spans
             if (mine := (s.positions >= span.live) & (s.positions < span.stop)).any()]
    return sum(p.tokens for p in parts) / sum(p.rounds for p in parts)


def by_position(correctness: Correctness, edges: tuple[int, ...] = (0, 64, 128, 256, 512, 1024, 2048, 4096)) -> dict[tuple[int, int], stats.Estimate]:
    """(first, last) token position -> accuracy of step 1 there; a fall with position points to rope."""
    found = {}
    for low, high in zip(edges, [*edges[1:], np.iinfo(np.int64).max], strict=True):
        inside = [(s, (s.positions >= low) & (s.positions < high)) for s in correctness.sequences]
        sizes = [int(s.valid[m, 0].sum()) for s, m in inside]
        if sum(sizes):
            found[low, int(high) - 1] = stats.ratio_of_sums([int(s.correct[m, 0].sum()) for s, m in inside], sizes)
    return found


@dataclass(frozen=True)
class RoundView:
    """One verify round of a text, for the accept/reject view."""

    start: int
    """Position of the first drafted token."""
    drafted: tuple[int, ...]
    accepted: int
    bonus: int | None
    """The target's own token that ends the round; None at the end of the text."""


def round_views(sequence: SequenceCorrectness, steps: int | None = None) -> tuple[RoundView, ...]:
    """Round by round: what was drafted on this text, how much was accepted, which token the target put instead."""
    found = []
    for span in sequence.spans:
        rows = np.nonzero((sequence.positions >= span.live) & (sequence.positions < span.stop))[0]
        if not len(rows):
            continue
        rounds = walk(sequence.correct[rows], steps)
        for at, length in zip(rounds.starts, rounds.lengths, strict=True):
            drafted = sequence.predicted[rows[at], :len(rounds.accepted_per_position)]
            end = at + length
            bonus = int(sequence.truth[rows[end], 0]) if end < len(rows) else None
            found.append(RoundView(int(sequence.positions[rows[at]]) + 2, tuple(map(int, drafted)), length, bonus))
    return tuple(found)
