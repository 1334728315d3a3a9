"""How many draft steps pay: cycle time as a line over steps, and the step count with the most tokens/s on it.

    cycle(k) = T0 + k s        T0: what a round costs before any draft; s: what one more draft step costs
    best k   = argmax AL(k) / (T0 + k s)

Not the k with the largest accept length, which only ever grows with k. The line is the dense-target form; a mixture of
experts adds a term that grows with the distinct experts touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import cycle_ms
from eagle_forensics.acceptance.runs import Run

DRAWS = 4000


@dataclass(frozen=True)
class CycleFit:
    """Cycle time over steps, in milliseconds."""

    line: stats.Line
    steps: tuple[int, ...]
    cycles_ms: tuple[float, ...]
    labels: tuple[str, ...]

    @property
    def fixed_ms(self) -> stats.Estimate:
        return self.line.intercept

    @property
    def step_ms(self) -> stats.Estimate:
        return self.line.slope

    def tokens_per_second(self, steps: int, accept_length: float) -> float:
        """Tokens/s at `steps` for an accept length, on this cost line; what a fixed drafter would bring."""
        return 1e3 * accept_length / self.line.at(steps)

    def break_even(self, steps: int, baseline_tokens_per_second: float) -> float:
        """Accept length at which `steps` pays."""
        return self.line.at(steps) * baseline_tokens_per_second / 1e3


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


def fit_cycle(runs: Sequence[Run]) -> CycleFit:
    """The cost line through runs of at least three step counts. Raises ValueError with fewer."""
    points = [(r, cycle_ms(r)) for r in runs if r.is_speculative and r.steps is not None]
    points = [(r, c) for r, c in points if c is not None]
    steps = [r.steps for r, _ in points]
    if len(set(steps)) < 3:
        raise ValueError(f"a cost line needs runs at 3 different step counts or more, got {sorted(set(steps))}; "
                         "measure the same prompts at two more values of steps")
    cycles = [c.value for _, c in points]
    return CycleFit(stats.line(steps, cycles), tuple(steps), tuple(cycles), tuple(r.label for r, _ in points))


def accept_lengths(runs: Sequence[Run]) -> dict[int, stats.Estimate]:
    """AL by step count: measured where measured, else summed from the per-position survival of the longest run.

    Repeats of one step count are averaged over the range they span.
    """
    by_steps: dict[int, list[stats.Estimate]] = {}
    for run in runs:
        if run.is_speculative and run.steps and run.accept_length is not None:
            by_steps.setdefault(run.steps, []).append(run.accept_length)
    found = {}
    longest = max((r for r in runs if r.survival and r.is_speculative and r.steps), key=lambda r: r.steps, default=None)
    if longest is not None:
        for k in range(1, min(longest.steps, len(longest.survival)) + 1):
            found[k] = stats.printed(1 + sum(longest.survival[:k]), 3)
    for k, values in by_steps.items():
        mean = sum(v.value for v in values) / len(values)
        found[k] = stats.Estimate(mean, min(v.low for v in values), max(v.high for v in values), len(values), len(values), values[0].method)
    return dict(sorted(found.items()))


def sweep(fit: CycleFit, lengths: Mapping[int, stats.Estimate], baseline: stats.Estimate | None = None,
          measured: Mapping[int, float] | None = None, *, seed: int = 0) -> Sweep:
    """Compare step counts on the cost line.

    `lengths`: AL by step count (measured or predicted); `baseline`: tokens/s without speculation; `measured`: tokens/s by step
    count. Plausible lines are drawn around the fit, accept lengths uniformly inside their intervals; lines that cost nothing
    or less are dropped.
    """
    fixed, slope = fit.line.draws(DRAWS, seed)
    rng = np.random.default_rng(seed + 1)
    ks = sorted(lengths)
    cycles = fixed[:, None] + slope[:, None] * np.asarray(ks)
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
