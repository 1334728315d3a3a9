"""Acceptance with its uncertainty, its two forms per position, and the checks of figures against each other.

Survival S_i: share of rounds that accepted at least i drafts. Conditional a_i: share of the rounds that reached position i
and accepted it. Accept length AL = 1 + sum of survivals, the bonus token included. What an engine prints under which name,
and the plain conversions, are `engines.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from eagle_forensics import stats
from eagle_forensics.engines.metrics import (
    accept_length_from_survival,
    accept_length_to_accept_rate,
    survival_from_histogram,
)

TOLERANCE = 0.03
"""Largest gap between two accept lengths that stay one figure: the prefill token alone moves SGLang's by 0.023 (2.153 and 2.130
on one real run); the three-decimal survivals of a published card give 2.301 where the card prints 2.30."""
DESIGN = 5.0
"""Variance of an accept length over that of as many independent rounds: a response is easy or hard to draft as a whole. Measured on 79 greedy
responses of 63 to 87 rounds of a real pair: 5.6, 5.0, 5.2, 5.1 with 1, 2, 3, 5 drafts; on 11 of 23 rounds: 3.0 to 4.2. Two runs of the same
prompts share a part of it that no table tells."""
FEW_ROUNDS = 500
"""Taken for a run whose rounds are not recorded: seven responses of that pair, so no benchmark has fewer."""
SMALLEST = 0.05
"""Loss as a share of the accept length. The smallest that was published as a fault of an engine: 5.4 % (2.39 to 2.26, prefix cache, sglang #11231) and
5.8 % (2.41 to 2.27, batch of 32, sglang #21212); one prompt set served twice in another order of kernels moves by less."""


@dataclass(frozen=True)
class RateDefinition:
    """What a printed "accept rate" divides: tokens of a round with or without the bonus, by steps with or without it."""

    name: str
    bonus_in_numerator: bool
    bonus_in_denominator: bool

    def rate(self, accept_length: float, steps: int) -> float:
        """The rate this definition prints for that accept length."""
        return (accept_length - (not self.bonus_in_numerator)) / (steps + self.bonus_in_denominator)

    def accept_length(self, rate: float, steps: int) -> float:
        """The accept length behind a printed rate."""
        return rate * (steps + self.bonus_in_denominator) + (not self.bonus_in_numerator)


DRAFT_RATE = RateDefinition("accepted drafts / proposed drafts", False, False)
TOKEN_RATE = RateDefinition("tokens per round / (steps + 1)", True, True)
KNOWN_RATES = (DRAFT_RATE, TOKEN_RATE)


def stated_rate(engine: str | None, version: str | None, steps: int) -> RateDefinition | None:
    """The definition that this engine and version print, by `engines.metrics`; None where it is not known."""
    if not engine or not version or steps < 1:
        return None
    tokens = steps + 1 if engine.lower() == "sglang" else steps
    try:
        nothing_accepted = accept_length_to_accept_rate(engine, version, 1.0, draft_tokens=tokens)
    except ValueError:
        return None
    known = DRAFT_RATE if nothing_accepted == 0 else TOKEN_RATE
    return replace(known, name=f"{known.name}, the definition of {engine} {version}")


def accept_length_of_requests(accepted: Sequence[float], rounds: Sequence[float], *, seed: int = 0) -> stats.Estimate:
    """AL over requests, one pair each, with a bootstrap over requests (rounds of one request are correlated)."""
    tokens = np.asarray(accepted, float) + np.asarray(rounds, float)
    return stats.ratio_of_sums(tokens, rounds, seed=seed)


def conditional_of(survival: Sequence[float]) -> tuple[float | None, ...]:
    """Conditional acceptance per position from survival; None at positions that no round reached."""
    before = (1.0, *survival)[:len(survival)]
    return tuple(s / b if b > 0 else None for s, b in zip(survival, before, strict=True))


def from_histogram(counts: Sequence[int]) -> stats.Estimate:
    """AL from a histogram of rounds: counts[j] rounds accepted exactly j drafts. Interval: 1.96 sd / sqrt(rounds).

    Rounds are taken as independent, which they nearly are given the text; over few requests prefer
    `accept_length_of_requests`. Raises ValueError for a histogram without a round.
    """
    survival = survival_from_histogram(counts)
    al, rounds = accept_length_from_survival(survival), int(sum(counts))
    half = sampling_half_width(al, rounds, len(counts), survival)
    return stats.Estimate(al, al - half, al + half, rounds, rounds, "standard error of the histogram")


def sampling_half_width(al: float, rounds: int, ceiling: float, survival: Sequence[float] | None = None, design: float = 1.0) -> float:
    """1.96 standard errors of an AL over `rounds` rounds; `design`: DESIGN where two runs are held against each other.

    With survivals the variance of a round is known; without, it is at most (AL - 1)(ceiling - AL), the largest variance of
    anything between 1 and the ceiling with that mean.
    """
    if survival:
        mean = sum(survival)
        second = sum((2 * i - 1) * s for i, s in enumerate(survival, 1))
        variance = second - mean**2
    else:
        variance = (al - 1) * (ceiling - al)
    return 1.96 * (design * max(variance, 0.0) / rounds) ** 0.5


def contradictions(al: stats.Estimate | None, ceiling: float | None, survival: Sequence[float] | None,
                   tolerance: float = TOLERANCE) -> tuple[str, ...]:
    """What cannot be true of one run's figures, one sentence each; `al` with its printing interval, ceiling = steps + 1."""
    found = []
    if al is not None and al.high < 1:
        found.append(f"accept length {al.value:g} is below 1: it does not count the bonus token")
    if al is not None and ceiling is not None and al.low > ceiling + tolerance:
        found.append(f"accept length {al.value:g} is above the ceiling {ceiling:g} of these settings")
    if survival:
        rising = [i for i, (a, b) in enumerate(pairwise(survival), 2) if b > a]
        if rising:
            found.append(f"acceptance rises at position {rising[0]}: these are conditional rates, not survival")
        elif al is not None:
            total = accept_length_from_survival(survival)
            if not al.low - tolerance <= total <= al.high + tolerance:
                found.append(f"per-position survival sums to an accept length of {total:.3f}, the table says {al.value:g}")
        if ceiling is not None and len(survival) > ceiling - 1:
            found.append(f"{len(survival)} positions accepted where at most {ceiling - 1:g} are proposed")
    return tuple(found)
