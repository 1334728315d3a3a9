"""Verify rounds by the walk: which chains a server would really have started, and how far each got.

A server does not start a chain at every position: it starts one after the prefill, and the next where the last one ended. So: at
a position take the run of correct steps (at most `steps`), add the bonus token, move on by that much. On the text a server
generated this reproduces its verify count exactly; the product of marginal accuracies does not, because a chain starts right
after a rejection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rounds:
    """Verify rounds over one response (or several, added up)."""

    rounds: int
    tokens: int
    """Tokens the rounds emitted: every response token but the first of each response, which comes from prefill."""
    accepted_per_position: tuple[int, ...]
    """Rounds that accepted step 1, 2, ...: divided by `rounds`, the survival per position (vLLM's definition)."""
    starts: tuple[int, ...]
    """Row at which each round began."""
    lengths: tuple[int, ...]
    """Accepted draft tokens of each round, without the bonus token."""

    @property
    def accept_length(self) -> float:
        """tokens / rounds: 1 to steps + 1, the bonus token included, cut at the end of the text."""
        return self.tokens / self.rounds

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(self.rounds + other.rounds, self.tokens + other.tokens,
                      tuple(a + b for a, b in zip(self.accepted_per_position, other.accepted_per_position, strict=True)),
                      self.starts + other.starts, self.lengths + other.lengths)


def runs(correct: np.ndarray) -> np.ndarray:
    """[P] leading correct steps of each row of `correct` [P, K]."""
    return np.cumprod(np.asarray(correct, bool), axis=1).sum(1)


def walk(correct: np.ndarray, steps: int | None = None) -> Rounds:
    """Rounds over one response: `correct` [P, K] bool, row 0 the first position after prefill, one row a token to emit.

    Steps beyond the end of the text are False. `steps` caps the chain, at most K. ValueError for an empty or misshapen input.
    """
    correct = np.asarray(correct, bool)
    if correct.ndim != 2 or not correct.size:
        raise ValueError(f"the walk needs [positions, steps], got {correct.shape}")
    steps = correct.shape[1] if steps is None else steps
    if not 1 <= steps <= correct.shape[1]:
        raise ValueError(f"steps = {steps}: the correctness holds 1 to {correct.shape[1]}")
    return walk_lengths(runs(correct[:, :steps]), steps)


def walk_lengths(length: np.ndarray, steps: int) -> Rounds:
    """Rounds over one response of which `length` [P] draft tokens, at most `steps`, would be accepted from each row."""
    starts, lengths, at = [], [], 0
    while at < len(length):
        starts.append(at)
        lengths.append(int(length[at]))
        at += lengths[-1] + 1
    reached = np.asarray(lengths)
    return Rounds(len(starts), len(length), tuple(int((reached > i).sum()) for i in range(steps)), tuple(starts), tuple(lengths))


def added(responses: Iterable[Rounds]) -> Rounds | None:
    """Rounds of several responses added up; None without any."""
    total: Rounds | None = None
    for rounds in responses:
        total = rounds if total is None else total + rounds
    return total
