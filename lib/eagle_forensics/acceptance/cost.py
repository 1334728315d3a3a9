"""How many draft steps pay: the cost of a round over steps, and the step count with the most tokens/s on it.

    dense target:         cycle(k) = T0 + k s                       T0: a round before any draft; s: one more draft step
    mixture of experts:   cycle(k) = T0 + k s + e U(k + 1) / topk   U: distinct experts that the k + 1 verified tokens touch
    best k   = argmax AL(k) / cycle(k)

Not the k with the largest accept length, which only ever grows with k. Three coefficients need four step counts; with three, a mixture's
draft steps and experts are not told apart, and the cost is taken over the experts alone (the model of notebook 05).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import cycle_ms, measured_accept_length
from eagle_forensics.acceptance.estimators import DESIGN, FEW_ROUNDS, sampling_half_width
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.evidence.experts import Experts

DRAWS = 4000
DENSE = Experts()


@dataclass(frozen=True)
class CycleFit:
    """Cost of a round over steps, in milliseconds."""

    fit: stats.Linear
    terms: tuple[str, ...]
    """What the coefficients stand before: `fixed`, then `step`, `experts` or both."""
    experts: Experts
    steps: tuple[int, ...]
    cycles_ms: tuple[float, ...]
    labels: tuple[str, ...]

    def coefficient(self, term: str) -> stats.Estimate | None:
        """Milliseconds of a term; None where these runs do not fix it."""
        return self.fit.coefficients[self.terms.index(term)] if term in self.terms else None

    @property
    def fixed_ms(self) -> stats.Estimate:
        return self.fit.coefficients[0]

    @property
    def step_ms(self) -> stats.Estimate | None:
        return self.coefficient("step")

    @property
    def experts_ms(self) -> stats.Estimate | None:
        """Of reading as many experts as one token touches; None for a dense target."""
        return self.coefficient("experts")

    def at(self, steps: int) -> float:
        return self.fit.at(_row(steps, self.terms, self.experts))

    def draws(self, steps: Sequence[int], seed: int = 0) -> np.ndarray:
        """Plausible cycles [DRAWS, steps]; the same draw for all step counts."""
        return self.fit.draws(DRAWS, seed) @ np.array([_row(k, self.terms, self.experts) for k in steps]).T

    def tokens_per_second(self, steps: int, accept_length: float) -> float:
        """Tokens/s at `steps` for an accept length, on this cost line; what a fixed drafter would bring."""
        return 1e3 * accept_length / self.at(steps)

    def break_even(self, steps: int, baseline_tokens_per_second: float) -> float:
        """Accept length at which `steps` pays."""
        return self.at(steps) * baseline_tokens_per_second / 1e3

    def text(self) -> str:
        """`cycle = 8.35 + 1.016 x steps ms`."""
        e = self.experts
        words = {"step": "steps", "experts": f"(distinct experts of {e.count} / {e.per_token})"}
        return f"cycle = {self.fixed_ms.value:.2f}" + "".join(
            f" {'-' if c.value < 0 else '+'} {abs(c.value):.3f} x {words[t]}" for t, c in zip(self.terms[1:], self.fit.coefficients[1:], strict=True)) + " ms"

    @property
    def untold(self) -> str | None:
        """Why the draft steps and the experts of a mixture are not told apart; None where they are, or for a dense target."""
        if not self.experts.sparse:
            return None
        if self.step_ms is None:
            return (f"{len(set(self.steps))} step counts do not fix three coefficients (fixed, per draft step, per expert): four are needed. "
                    "All of the growth is put on the experts")
        loose = [name for name, e in (("a draft step", self.step_ms), ("the experts", self.experts_ms)) if not e.excludes(0.0)]
        return f"the cost of {' and of '.join(loose)} cannot be told from 0: over few steps both grow alike" if loose else None


@dataclass(frozen=True)
class StepChoice:
    """One step count on the cost line."""

    steps: int
    accept_length: float
    tokens_per_second: stats.Estimate
    """On the line, with the uncertainty of the line and of the accept length."""
    probability_best: float
    """Share of plausible lines and accept lengths in which this step count has the most tokens/s."""
    probability_wins: float | None
    """Share in which it beats the baseline; None without one."""
    measured_speedup: float | None
    """Measured tokens/s over the baseline's."""


@dataclass(frozen=True)
class Sweep:
    """The step counts compared."""

    fit: CycleFit
    choices: tuple[StepChoice, ...]
    baseline: stats.Estimate | None
    draws: np.ndarray
    """Plausible tokens/s, [draws, choices]; the same draw for all step counts."""

    @property
    def best(self) -> StepChoice:
        """Most tokens/s on the line."""
        return max(self.choices, key=lambda c: c.tokens_per_second.value)

    def ratio(self, steps: int) -> stats.Estimate:
        """Tokens/s at `steps` over the best's, with interval. Raises ValueError for a step count that is not compared."""
        index = {c.steps: i for i, c in enumerate(self.choices)}
        if steps not in index:
            raise ValueError(f"{steps} steps are not among those compared: {sorted(index)}")
        best = self.best
        draws = self.draws[:, index[steps]] / self.draws[:, index[best.steps]]
        value = self.choices[index[steps]].tokens_per_second.value / best.tokens_per_second.value
        return stats.interval_of(draws, value, len(self.fit.steps), "plausible cost lines and accept lengths")


def fit_cycle(runs: Sequence[Run], experts: Experts = DENSE) -> CycleFit:
    """The cost through runs of at least three step counts, with the routing of the target. Raises ValueError with fewer."""
    points = [(r, cycle_ms(r)) for r in runs if r.is_speculative and r.steps is not None]
    points = [(r, c) for r, c in points if c is not None]
    steps = [r.steps for r, _ in points]
    if len(set(steps)) < 3:
        raise ValueError(f"a cost line needs runs at 3 different step counts or more, got {sorted(set(steps))}; "
                         "measure the same prompts at two more values of steps")
    terms = ("fixed", "step") if not experts.sparse else ("fixed", "experts") if len(set(steps)) == 3 else ("fixed", "step", "experts")
    cycles = [c.value for _, c in points]
    fit = stats.linear([_row(k, terms, experts) for k in steps], cycles)
    return CycleFit(fit, terms, experts, tuple(steps), tuple(cycles), tuple(r.label for r, _ in points))


def _row(steps: int, terms: Sequence[str], experts: Experts) -> tuple[float, ...]:
    values = {"fixed": 1.0, "step": float(steps), "experts": experts.load(steps + 1)}
    return tuple(values[t] for t in terms)


def accept_lengths(runs: Sequence[Run]) -> dict[int, stats.Estimate]:
    """AL by step count: measured where measured, else summed from the per-position survival of the longest run.

    Repeats of one step count are averaged over the range they span. Above temperature 0 every run answers with another text, whose sampling enters.
    """
    by_steps: dict[int, list[stats.Estimate]] = {}
    for run in runs:
        if run.is_speculative and run.steps and run.accept_length is not None:
            by_steps.setdefault(run.steps, []).append(measured_accept_length(replace(run, rounds=run.rounds or FEW_ROUNDS), DESIGN) if run.temperature else run.accept_length)
    found = {}
    longest = max((r for r in runs if r.survival and r.is_speculative and r.steps), key=lambda r: r.steps, default=None)
    if longest is not None:
        for k in range(1, min(longest.steps, len(longest.survival)) + 1):
            found[k] = _of_positions(longest.survival[:k], longest.rounds)
    for k, values in by_steps.items():
        mean = sum(v.value for v in values) / len(values)
        found[k] = stats.Estimate(mean, min(v.low for v in values), max(v.high for v in values), len(values), len(values), values[0].method)
    return dict(sorted(found.items()))


def _of_positions(survival: Sequence[float], rounds: int | None) -> stats.Estimate:
    """Accept length of as many steps as positions: the printing of the shares, and where the rounds are known their sampling."""
    al = stats.printed(1 + sum(survival), 3)
    if not rounds:
        return al
    half = sampling_half_width(al.value, rounds, len(survival) + 1, survival)
    return stats.Estimate(al.value, al.low - half, al.high + half, rounds, 0, f"{al.method}, sampling by per-position survival")


def sweep(fit: CycleFit, lengths: Mapping[int, stats.Estimate], baseline: stats.Estimate | None = None,
          measured: Mapping[int, float] | None = None, *, seed: int = 0) -> Sweep:
    """Compare step counts on the cost line.

    `lengths`: AL by step count (measured or predicted); `baseline`: tokens/s without speculation; `measured`: tokens/s by step
    count. Plausible lines are drawn around the fit, accept lengths uniformly inside their intervals; lines that cost nothing
    or less are dropped.
    """
    rng = np.random.default_rng(seed + 1)
    ks = sorted(lengths)
    cycles = fit.draws(ks, seed)
    possible = (cycles > 0).all(axis=1)
    if not possible.any():
        raise ValueError("the cycle times fit no cost line with a positive time for every step count")
    als = np.column_stack([rng.uniform(lengths[k].low, lengths[k].high, DRAWS) for k in ks])
    speeds = (1e3 * als / cycles)[possible]
    base = None if baseline is None else rng.uniform(baseline.low, baseline.high, len(speeds))
    top = speeds.argmax(axis=1)
    choices = []
    for i, k in enumerate(ks):
        speed = stats.interval_of(speeds[:, i], fit.tokens_per_second(k, lengths[k].value), len(fit.steps), "plausible cost lines")
        got = (measured or {}).get(k)
        choices.append(StepChoice(
            k, lengths[k].value, speed, float((top == i).mean()), None if base is None else float((speeds[:, i] > base).mean()),
            got / baseline.value if got is not None and baseline is not None else None))
    return Sweep(fit, tuple(choices), baseline, speeds)
