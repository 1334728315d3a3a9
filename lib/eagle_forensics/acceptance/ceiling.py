"""Can speculation win at this cost, whatever the drafter? Cycle time, break-even accept length and ceiling of each run.

    cycle       = accept length / (tokens/s)                time of one draft-and-verify round
    break-even  = cycle x (tokens/s without speculation)     accept length at which speculation pays
    ceiling     = steps + 1                                  accept length of a perfect drafter

A break-even above the ceiling: no drafter can win. Cycle and break-even carry the printing of their figures (an accept length
of 1.6 is anything from 1.55 to 1.65), carried through exactly: every factor is monotone. Sampling noise of the accept length
does not enter them, because tokens cancel: accept length / (tokens/s) is seconds per round. Noise of the clock does, and
only repeats of a run show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from eagle_forensics import stats
from eagle_forensics.acceptance.confounds import baseline_for, compare
from eagle_forensics.acceptance.estimators import sampling_half_width
from eagle_forensics.acceptance.runs import Run

CLOCK = 0.025
"""Speeds that lie nearer than this are not told apart by one measurement each: of one server without speculation 88.8 and 90.0 tokens/s were
published, 1.3 % apart, and 95 % of such pairs lie within 1.96 times that."""


class Outcome(StrEnum):
    """What a run's figures say about speculation at this cost."""

    CANNOT_WIN = "cannot win"
    """Even the lower end of the break-even lies above the ceiling, by more than the clock can move it."""
    LOSES = "loses, but a better drafter could win"
    UNDECIDED = "undecided at this precision"
    WINS = "wins"


@dataclass(frozen=True)
class Ceiling:
    """The ceiling test of one speculative run. Tokens per round for lengths, milliseconds for the cycle."""

    run: Run
    baselines: tuple[str, ...]
    """Labels of the runs without speculation that it is held against."""
    differs: tuple[str, ...]
    """Fields other than speculation in which even the nearest baseline differs: not comparable if any."""
    baseline_tokens_per_second: stats.Estimate
    accept_length: stats.Estimate
    """Measured; printing and, where rounds are known, sampling."""
    cycle_ms: stats.Estimate
    """At concurrency 1; above, the cycle over the concurrency where tokens/s is the aggregate. Break-even is unaffected."""
    break_even: stats.Estimate
    ceiling: int | None
    best_tokens_per_second: stats.Estimate | None
    """What a perfect drafter would reach at this cycle time."""

    @property
    def speedup(self) -> float:
        """Tokens/s with over without speculation."""
        return self.run.tokens_per_second.value / self.baseline_tokens_per_second.value

    @property
    def outcome(self) -> Outcome:
        if self.ceiling is not None and self.break_even.low > self.ceiling * (1 + CLOCK):
            return Outcome.CANNOT_WIN
        if self.run.tokens_per_second.low > self.baseline_tokens_per_second.high:
            return Outcome.WINS
        if self.ceiling is None or self.break_even.high > self.ceiling:
            return Outcome.UNDECIDED
        return Outcome.LOSES if self.run.tokens_per_second.high < self.baseline_tokens_per_second.low else Outcome.UNDECIDED


def cycle_ms(run: Run) -> stats.Estimate | None:
    """Milliseconds of one draft-and-verify round: as measured, else from both figures with the interval of their printing."""
    if run.cycle_ms is not None:
        return run.cycle_ms
    al, speed = run.accept_length, run.tokens_per_second
    if al is None or speed is None or al.low <= 0 or speed.low <= 0:
        return None
    return replace(al, value=1e3 * al.value / speed.value, low=1e3 * al.low / speed.high, high=1e3 * al.high / speed.low,
                   method="printing of accept length and tokens/s")


def measured_accept_length(run: Run, design: float = 1.0) -> stats.Estimate | None:
    """The run's accept length with printing and sampling error added (`design`: of `sampling_half_width`); without `rounds` the printing alone, said in `method`."""
    al = run.accept_length
    if al is not None and al.clusters:  # measured here, with its sampling interval
        return al
    if al is None or not run.rounds or run.ceiling is None:
        return al and replace(al, method=f"{al.method}; rounds not recorded, sampling error unknown")
    half = sampling_half_width(al.value, run.rounds, max(run.ceiling, al.value), run.survival, design)
    how = "per-position survival" if run.survival else "largest variance with that mean"
    return stats.Estimate(al.value, al.low - half, al.high + half, run.rounds, run.rounds, f"{al.method}, sampling by {how}")


def ceilings(runs: Sequence[Run]) -> tuple[Ceiling, ...]:
    """The ceiling test of every speculative run that has accept length, tokens/s and a baseline to be held against."""
    found = []
    for run in runs:
        cycle = cycle_ms(run) if run.is_speculative else None
        baselines, differs = baseline_for(run, tuple(runs))
        if cycle is None or not baselines:
            continue
        base = hull([b.tokens_per_second for b in baselines])
        even = replace(cycle, value=cycle.value * base.value / 1e3, low=cycle.low * base.low / 1e3, high=cycle.high * base.high / 1e3)
        top = run.ceiling
        best = None if top is None else replace(cycle, value=1e3 * top / cycle.value, low=1e3 * top / cycle.high, high=1e3 * top / cycle.low if cycle.low > 0 else float("inf"))
        found.append(Ceiling(run, tuple(b.label for b in baselines), differs, base, measured_accept_length(run), cycle, even, top, best))
    return tuple(found)


def impossible(tests: Sequence[Ceiling]) -> tuple[Ceiling, ...]:
    """Comparable runs that no drafter could have won, unless a repeat of the same settings says otherwise, or another step count or load wins."""
    contradicted = {c.run.settings for c in tests if c.outcome is not Outcome.CANNOT_WIN}
    return tuple(c for c in tests if c.outcome is Outcome.CANNOT_WIN and not c.differs and c.run.settings not in contradicted and not pays_otherwise(c, tests))


def pays_otherwise(test: Ceiling, tests: Sequence[Ceiling]) -> bool:
    """Whether a run that differs in its steps, or in its load, alone wins: then speculation can win at this cost, and only that setting is in question."""
    return any(c.outcome is Outcome.WINS and not c.differs and not (compare(test.run, c.run).confounded and compare(test.run, c.run, frozenset({"concurrency"})).confounded) for c in tests)


def hull(values: Sequence[stats.Estimate]) -> stats.Estimate:
    """Mean of repeats within the interval that covers all of them."""
    mean = sum(v.value for v in values) / len(values)
    method = values[0].method if len(values) == 1 else f"range of {len(values)} repeats"
    return stats.Estimate(mean, min(v.low for v in values), max(v.high for v in values), len(values), len(values), method)


def ratio(a: stats.Estimate, b: stats.Estimate) -> stats.Estimate:
    """a / b of two speeds, from the ends of both intervals."""
    return stats.Estimate(a.value / b.value, a.low / b.high, a.high / b.low, a.n + b.n, 0, "ends of both intervals")
