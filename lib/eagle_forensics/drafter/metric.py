"""Which definition a trainer's logged number follows: the same name means different fractions in different programs.

What a name stands for is a row of `definitions.toml`. The number is recomputed under that definition and under every other one
that the data define; whichever hold it are named, so that 74.7 % is compared like with like.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.teacher import Teacher
from eagle_forensics.drafter.walk import runs

_NAME = re.compile(r"^(?:.*/)?(?:(?P<first>\d+)-)?(?P<base>[a-z_]+?)(?:_?(?P<step>\d+))?(?:_epoch)?$")
_TRUTH = {"tokens": "", "greedy": ", target's choice", "restricted": ", target's choice in the draft vocabulary"}
_COUNT = {"product": "product of rates", "run": "mean run", "walk": "walk"}
RATES, LENGTHS = ("marginal", "survival", "conditional"), ("product", "run", "walk")


@dataclass(frozen=True)
class Definition:
    """How a figure is counted; the words are those of `definitions.toml`."""

    count: str
    truth: str = "tokens"
    vocabulary: str = "miss"
    bonus: int | None = None
    """For a length: whether the target's own token of each round counts."""

    @property
    def label(self) -> str:
        """`survival, target's choice in the draft vocabulary`"""
        count = _COUNT.get(self.count, self.count)
        if self.vocabulary == "inside":
            count = "in-vocabulary" if self.count == "marginal" else f"{count} in-vocabulary"
        return count + _TRUTH[self.truth] + {None: "", 0: ", no bonus token", 1: ""}[self.bonus]

    def of(self, correctness: Correctness, step: int) -> stats.Estimate | None:
        """The figure of `step` (rates) or of steps 0..`step` (lengths); `correctness` already judged by this truth. None if undefined."""
        if self.count in LENGTHS:
            return self._length(correctness, step + 1)
        if self.vocabulary == "inside":
            return _ratio(correctness.counts(step), _inside(correctness, step))
        if self.count == "marginal":
            return _ratio(correctness.counts(step), correctness.valid_counts(step))
        starts = correctness.valid_counts(step) if self.count == "survival" or not step else correctness.survived(step - 1)
        return _ratio(correctness.survived(step), starts)

    def _length(self, correctness: Correctness, steps: int) -> stats.Estimate | None:
        first = [s.valid[:, 0] for s in correctness.sequences]
        if self.count == "run":
            sums = [float((runs(s.correct[m, :steps]) + (self.bonus or 0)).sum()) for s, m in zip(correctness.sequences, first, strict=True)]
            return _ratio(sums, correctness.sizes())
        if self.count == "walk":
            walked = [r for s in correctness.sequences if (r := s.rounds(steps)) is not None]
            if not walked:
                return None
            return stats.ratio_of_sums([r.tokens if self.bonus else sum(r.lengths) for r in walked], [r.rounds for r in walked])
        below = [_inside(correctness, k) if self.vocabulary == "inside" else correctness.valid_counts(k) for k in range(steps)]
        columns = np.array([*(correctness.counts(k) for k in range(steps)), *below], float).T
        if not (columns.sum(0)[steps:] > 0).all():
            return None
        return stats.function_of_sums(lambda s: (self.bonus or 0) + np.cumprod(s[..., :steps] / np.maximum(s[..., steps:], 1), -1).sum(-1), columns, correctness.n)


@dataclass(frozen=True)
class Name:
    """What a logged name stands for."""

    definition: Definition
    step: int | None
    """0-based; None for a figure over all steps."""
    source: str


@dataclass(frozen=True)
class MetricComparison:
    """A logged number beside the same number recomputed here."""

    name: str
    logged: float
    step: int | None
    """0-based; None for an accept length over all steps."""
    definition: str
    """The definition that the name stands for."""
    recomputed: stats.Estimate
    """Under that definition; by the data's tokens where `substituted`."""
    agrees_with: tuple[str, ...]
    """Every definition whose interval holds the logged number."""
    others: Mapping[str, stats.Estimate]
    """The same figure under every definition that the data define, the own one among them."""
    substituted: bool
    """The name's definition counts against the target's own choice, which is not at hand; the text's tokens stand for it."""
    source: str
    """Where the name's definition is known from."""

    @property
    def agrees(self) -> bool:
        """The logged number lies in the interval of its own definition."""
        return self.definition in self.agrees_with

    @property
    def equal_to(self) -> tuple[str, ...]:
        """Definitions that give the logged number to its last printed digit."""
        half = 0.5 * 10.0 ** -_decimals(self.logged)
        return tuple(d for d, e in self.others.items() if abs(e.value - self.logged) <= half)

    @property
    def rivals(self) -> tuple[str, ...]:
        """Definitions that hold the number although the name stands for another one."""
        return tuple(d for d in self.agrees_with if d != self.definition)


def named(name: str, trainer: str | None = None) -> Name | None:
    """What `name` stands for in `trainer`, else in the program whose name it is; None for an unknown name or one without its step."""
    match = _NAME.match(name.strip().lower())
    rows = [r for r in _rows() if match and match["base"] in r["names"]]
    row = next((r for r in rows if trainer in r["trainers"]), rows[0] if rows else None)
    if row is None:
        return None
    step = match["step"] or match["first"]
    if row.get("step", True) and step is None:
        return None
    return Name(Definition(row["count"], row["truth"], row["vocabulary"], row.get("bonus")), int(step) if row.get("step", True) else None, row["source"])


def definitions(correctness: Correctness, step: int, teacher: Teacher | None = None, *, lengths: bool = False) -> dict[str, stats.Estimate]:
    """The figure of `step` under every definition that the data define; `lengths`: accept lengths over steps 0..`step`."""
    views = _views(correctness, teacher)
    return {d.label: e for d in _every(lengths) if d.truth in views and (e := d.of(views[d.truth], step)) is not None}


def compare_metrics(logged: Mapping[str, float], correctness: Correctness | None, *, trainer: str | None = None, teacher: Teacher | None = None) -> list[MetricComparison]:
    """Every logged metric that can be recomputed, under every definition; empty without a correctness."""
    return [c for name, value in logged.items() if correctness and (c := compare_metric(name, value, correctness, trainer=trainer, teacher=teacher))]


def compare_metric(name: str, value: float, correctness: Correctness, *, trainer: str | None = None, teacher: Teacher | None = None) -> MetricComparison | None:
    """Hold a logged metric (`full_acc_0`, `val/acc_1`, `tau_sim`) against the recomputed figures.

    None if the name is not known, its step was not unrolled, or it needs more than argmaxes (acceptance_rate). Rates above 1 are
    read as percentages.
    """
    known = named(name, trainer)
    if known is None or (known.step or 0) >= correctness.steps or known.definition.count not in RATES + LENGTHS:
        return None
    own, length = known.definition, known.step is None
    value = value / 100 if not length and 1 < value <= 100 else value
    views = _views(correctness, teacher)
    substituted = own.truth not in views
    if substituted:
        own = Definition(own.count, "tokens", own.vocabulary, own.bonus)
    step = correctness.steps - 1 if length else known.step
    found = {d.label: e for d in _every(length) if d.truth in views and (e := d.of(views[d.truth], step)) is not None}
    if own.label not in found:
        return None
    return MetricComparison(name, value, known.step, own.label, found[own.label], tuple(d for d, e in found.items() if not e.excludes(value)), found,
                            substituted, known.source)


def _every(lengths: bool) -> Iterator[Definition]:
    for truth in ("tokens", "greedy", "restricted"):
        inside = ("miss",) if truth == "restricted" else ("miss", "inside")
        if lengths:
            yield from (Definition("product", truth, v, bonus) for v in inside for bonus in (1, 0))
            yield from (Definition(count, truth, "miss", bonus) for count in ("run", "walk") for bonus in (1, 0))
        else:
            yield from (Definition("marginal", truth, v) for v in inside)
            yield from (Definition(count, truth) for count in ("survival", "conditional"))


def _views(correctness: Correctness, teacher: Teacher | None) -> dict[str, Correctness]:
    views = {"tokens": correctness}
    if teacher is not None and any(s.sample_id in teacher.choices for s in correctness.sequences):
        views |= {truth: teacher.judge(correctness, truth) for truth in ("greedy", "restricted")}
    return views


def _inside(correctness: Correctness, step: int) -> list[int]:
    return [int(s.in_vocabulary[:, step].sum()) for s in correctness.sequences]


def _ratio(above: list[float], below: list[int]) -> stats.Estimate | None:
    return stats.ratio_of_sums(above, below) if any(below) else None


def _decimals(value: float) -> int:
    text = f"{value!r}"
    return len(text.partition(".")[2]) if "e" not in text else 12


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    return tuple(tomllib.loads(resources.files(__package__).joinpath("definitions.toml").read_text(encoding="utf-8"))["metric"])
