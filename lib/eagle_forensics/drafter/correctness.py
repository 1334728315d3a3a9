"""Which draft tokens would have been right: per sequence, per response position, per step, and the figures drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.recorded import Recorded, Span, chain_rows, spans
from eagle_forensics.drafter.walk import Rounds, added, runs, walk

NO_TOKEN = -1


@dataclass(frozen=True, eq=False)
class SequenceCorrectness:
    """One sequence: row r stands for position t = positions[r]; its step k predicts token t+2+k.

    Rows before a response, whose later steps reach into it, count for the accuracy of those steps alone, as in the trainers.
    """

    sample_id: str
    group: str | None
    positions: np.ndarray
    """[P]"""
    predicted: np.ndarray
    """[P, K] target id of the draft token."""
    truth: np.ndarray
    """[P, K] token of the sequence; -1 where it is no response token."""
    in_vocabulary: np.ndarray
    """[P, K] whether the drafter's vocabulary holds the true token at all."""
    spans: tuple[Span, ...]
    vocabulary: np.ndarray
    """[Vd] target id of each draft id: all the drafter can say."""

    @property
    def valid(self) -> np.ndarray:
        """[P, K]: x_{t+2+k} is a response token."""
        return self.truth != NO_TOKEN

    @property
    def correct(self) -> np.ndarray:
        """[P, K]; a token outside the draft vocabulary is a miss, so is what is no response token."""
        return (self.predicted == self.truth) & self.valid

    @property
    def whole(self) -> np.ndarray:
        """[P, K]: steps 0..k all predict response tokens."""
        return np.cumprod(self.valid, axis=1).astype(bool)

    @property
    def n(self) -> int:
        """Response tokens that a first step predicts."""
        return int(self.valid[:, 0].sum())

    def with_true_states(self) -> SequenceCorrectness:
        """As if every later step read the recorded states in place of the drafter's own: step k at t is then the first step at t+k."""
        at = self.positions[:, None] + np.arange(self.truth.shape[1])
        row = np.minimum(np.searchsorted(self.positions, at), len(self.positions) - 1)
        known = self.positions[row] == at
        return replace(self, predicted=self.predicted[row, 0], truth=np.where(known, self.truth, NO_TOKEN), in_vocabulary=self.in_vocabulary & known)

    def rounds(self, steps: int | None = None) -> Rounds | None:
        """The walk over every response, added up; None if prefill already gives each response's only token."""
        correct = self.correct
        responses = ((self.positions >= span.live) & (self.positions < span.stop) for span in self.spans)
        return added(walk(correct[mine], steps) for mine in responses if mine.any())


@dataclass(frozen=True, eq=False)
class Correctness:
    """All sequences under one wiring. Figures resample sequences, never tokens."""

    sequences: tuple[SequenceCorrectness, ...]
    steps: int

    @property
    def n(self) -> int:
        """Response tokens: the denominator of the first step's accuracy."""
        return sum(s.n for s in self.sequences)

    def accuracy(self, step: int) -> stats.Estimate:
        """Share of right tokens at `step` (0-based), whatever came before: the trainers' teacher-forced acc_k."""
        return stats.ratio_of_sums(self.counts(step), self.valid_counts(step))

    def survival(self, step: int) -> stats.Estimate:
        """Share of chains whose steps 0..`step` are all right, among chains that long."""
        return stats.ratio_of_sums(self.survived(step), [int(s.whole[:, step].sum()) for s in self.sequences])

    def conditional(self, step: int) -> stats.Estimate:
        """Share right at `step` among chains whose earlier steps were all right: alpha_k."""
        if step == 0:
            return self.survival(0)
        return stats.ratio_of_sums(
            self.survived(step), [int((s.correct[:, :step].all(1) & s.whole[:, step]).sum()) for s in self.sequences])

    def coverage(self) -> stats.Estimate:
        """Share of true tokens that the draft vocabulary holds: no accuracy can exceed it."""
        return stats.ratio_of_sums([int(s.in_vocabulary[:, 0].sum()) for s in self.sequences], self.sizes())

    def accept_length(self, steps: int | None = None) -> stats.Estimate:
        """Tokens per verify round by the walk, bonus token included; n counts rounds."""
        walked = [r for s in self.sequences if (r := s.rounds(steps)) is not None]
        if not walked:
            raise ValueError("no response holds more than the token that prefill gives")
        return stats.ratio_of_sums([r.tokens for r in walked], [r.rounds for r in walked])

    def rounds(self, steps: int | None = None) -> Rounds:
        """The walk over all sequences, added up."""
        total = added(r for s in self.sequences if (r := s.rounds(steps)) is not None)
        if total is None:
            raise ValueError("no response holds more than the token that prefill gives")
        return total

    def counts(self, step: int) -> list[int]:
        """Right tokens at `step`, one number a sequence."""
        return [int(s.correct[:, step].sum()) for s in self.sequences]

    def valid_counts(self, step: int) -> list[int]:
        """Response tokens that `step` predicts, one number a sequence."""
        return [int(s.valid[:, step].sum()) for s in self.sequences]

    def survived(self, step: int) -> list[int]:
        """Chains right through `step`, one number a sequence."""
        return [int(s.correct[:, :step + 1].all(1).sum()) for s in self.sequences]

    def run_sums(self) -> list[int]:
        """Summed leading runs of correct steps over all chains, one number a sequence."""
        return [int(runs(s.correct).sum()) for s in self.sequences]

    def sizes(self) -> list[int]:
        """Response tokens, one number a sequence."""
        return [s.n for s in self.sequences]

    def with_true_states(self) -> Correctness:
        """What a training would count whose later steps read the recorded states in place of the drafter's own."""
        return Correctness(tuple(s.with_true_states() for s in self.sequences), self.steps)

    def of_group(self, group: str) -> Correctness:
        """The sequences of one domain."""
        return Correctness(tuple(s for s in self.sequences if s.group == group), self.steps)


def judge(item: Recorded, draft_ids: torch.Tensor, target_ids: torch.Tensor) -> SequenceCorrectness:
    """Hold the drafter's argmax [P, K] (draft ids, rows of `chain_rows`) against the sequence. `target_ids` [Vd]: what each draft id means."""
    steps = draft_ids.shape[1]
    positions = chain_rows(item.loss_mask, steps).numpy()
    at = positions[:, None] + np.arange(steps) + 2
    last = len(item) - 1
    valid = (at <= last) & item.loss_mask.numpy()[np.minimum(at, last)]
    truth = np.where(valid, item.input_ids.numpy()[np.minimum(at, last)], NO_TOKEN)
    meaning = target_ids.numpy()
    return SequenceCorrectness(item.sample_id, item.group, positions, meaning[draft_ids.numpy()], truth,
                               _held(truth, meaning) & valid, spans(item.loss_mask), meaning)


def _held(truth: np.ndarray, meaning: np.ndarray) -> np.ndarray:
    """Which of `truth` (a token id or NO_TOKEN) are among `meaning`: a look-up, as `np.isin` sorts the whole vocabulary every time."""
    known = np.zeros(max(int(meaning.max()), int(truth.max())) + 2, dtype=bool)
    known[meaning[meaning >= 0]] = True
    return known[truth]


def paired_accuracy(first: Correctness, second: Correctness, step: int = 0, *, level: float = stats.LEVEL) -> stats.Estimate:
    """Accuracy of `first` minus `second` at `step` on the same tokens."""
    _same(first, second)
    return stats.paired_difference(first.counts(step), second.counts(step), first.valid_counts(step), level=level)


def paired_accept_length(first: Correctness, second: Correctness, steps: int | None = None, *, level: float = stats.LEVEL) -> stats.Estimate:
    """Accept length of `first` minus `second` by the walk on the same text."""
    _same(first, second)
    pairs = [(a, b) for x, y in zip(first.sequences, second.sequences, strict=True)
             if (a := x.rounds(steps)) is not None and (b := y.rounds(steps)) is not None]
    return stats.paired_difference([a.tokens for a, _ in pairs], [b.tokens for _, b in pairs],
                                   [a.rounds for a, _ in pairs], [b.rounds for _, b in pairs], level=level)


def _same(first: Correctness, second: Correctness) -> None:
    if [s.sample_id for s in first.sequences] != [s.sample_id for s in second.sequences] or first.sizes() != second.sizes():
        raise ValueError("a paired comparison needs the same sequences on both sides")
