"""What is a faster all-reduce worth in tokens per second, at which number of steps, and is communication the lever at all?

    round(N) = F + e U(N) / k        N = steps + 1 tokens verified, U the distinct experts they touch (`evidence.experts`)

For a dense target U(N)/k is N. Rounds come from notebook 04's record: cycle = accept length / (tokens/s). Plain decode sends
the same messages, so a faster all-reduce speeds up the baseline too: both are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle_forensics import stats
from eagle_forensics.evidence.experts import Experts
from eagle_forensics.nccl.sizes import MessagePlan


@dataclass(frozen=True)
class Round:
    """One measured run, as notebook 04 recorded it."""

    label: str
    steps: int
    accept_length: stats.Estimate
    cycle_ms: stats.Estimate
    baseline: stats.Estimate
    """Tokens/s without speculation."""

    @property
    def tokens(self) -> int:
        return self.steps + 1


@dataclass(frozen=True)
class Cost:
    """The line through the rounds."""

    line: stats.Line
    experts: Experts
    baseline_ms: float

    @property
    def fixed_ms(self) -> stats.Estimate:
        return self.line.intercept

    @property
    def load_ms(self) -> stats.Estimate:
        """Per token of a dense target, per `k` experts of a mixture."""
        return self.line.slope

    def round_ms(self, tokens: float) -> float:
        return self.line.at(self.experts.load(tokens))

    @property
    def penalty_ms(self) -> float:
        """What a round costs beside plain decode, however few tokens it verifies: the round of one token less a decode step."""
        return self.round_ms(1) - self.baseline_ms


@dataclass(frozen=True)
class Worth:
    """One run with a faster all-reduce."""

    round: Round
    tokens_per_second: stats.Estimate
    break_even: stats.Estimate
    """Accept length needed, against the baseline with the same saving."""
    tuned_baseline: float
    """Tokens/s of plain decode with the same saving."""

    @property
    def speedup(self) -> float:
        """Over the baseline that gained too."""
        return self.tokens_per_second.value / self.tuned_baseline

    @property
    def confounded_speedup(self) -> float:
        """Over the old baseline: what a comparison under two environments would show."""
        return self.tokens_per_second.value / self.round.baseline.value


def rounds(record: Mapping[str, Any] | None) -> tuple[Round, ...]:
    """The comparable runs of notebook 04's record `acceptance`; none without it."""
    found = []
    for run in (record or {}).get("runs", ()):
        figures = [run.get(k) for k in ("accept_length", "cycle_ms_interval", "baseline_tokens_per_second")]
        if run.get("steps") and all(isinstance(x, Mapping) for x in figures) and run.get("comparable", True):
            found.append(Round(run["label"], run["steps"], *(stats.Estimate(x["value"], x["low"], x["high"], 0, 0, "notebook 04") for x in figures)))
    return tuple(found)


def cost(measured: Sequence[Round], routing: Experts) -> Cost:
    """The line through rounds of three step counts or more. Raises ValueError with fewer."""
    line = stats.line([routing.load(r.tokens) for r in measured], [r.cycle_ms.value for r in measured])
    baseline = sum(r.baseline.value for r in measured) / len(measured)
    return Cost(line, routing, 1e3 / baseline)


def worth(run: Round, plan: MessagePlan, saved_us: stats.Estimate) -> Worth:
    """The run if each all-reduce of a verify took `saved_us` less. Draft steps and plain decode are credited the same time each.

    Raises ValueError for a saving that leaves no time.
    """
    verify = _times(saved_us, plan.count / 1e3)
    both = _times(saved_us, (plan.count + plan.draft_count) / 1e3)
    decode = 1e3 / run.baseline.value - verify.value
    if run.cycle_ms.low - both.high <= 0 or decode <= 0:
        raise ValueError(f"{saved_us.value:.1f} us less on each of {plan.count} all-reduces is more than a round of {run.cycle_ms.value:.1f} ms "
                         f"or a decode step of {1e3 / run.baseline.value:.1f} ms: all-reduces cannot have taken that long there")
    cycle = replace(run.cycle_ms, value=run.cycle_ms.value - both.value, low=run.cycle_ms.low - both.high, high=run.cycle_ms.high - both.low)
    al = run.accept_length
    speed = replace(al, value=1e3 * al.value / cycle.value, low=1e3 * al.low / cycle.high, high=1e3 * al.high / cycle.low, method="printing, and the A/B's interval")
    even = replace(cycle, value=cycle.value / decode, low=cycle.low / decode, high=cycle.high / decode, method=speed.method)
    return Worth(run, speed, even, 1e3 / decode)


def _times(x: stats.Estimate, factor: float) -> stats.Estimate:
    return replace(x, value=x.value * factor, low=x.low * factor, high=x.high * factor)
