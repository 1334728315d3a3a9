"""Which definition a trainer's logged number follows: the same name means different fractions in different programs.

marginal      right at step k / response tokens                                  EAGLE, SpecForge, AngelSlim acc_k
survival      right at steps 0..k / response tokens                              speculators full_acc_k
conditional   right at steps 0..k / chains right at steps 0..k-1                 speculators cond_acc_k
in-vocabulary right at step k / response tokens the draft vocabulary holds       TorchSpec acc_k (true rate = coverage x this)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness

BY_NAME = {"full_acc": "survival", "cond_acc": "conditional", "acc": "marginal", "accuracy": "marginal", "test_acc": "marginal",
           "eval_acc": "marginal", "val_acc": "marginal", "train_acc": "marginal", "plosses_acc": "marginal", "position_acc": "marginal"}
"""Metric name without its step -> the definition of the trainers that use it. TorchSpec overrides `acc` by `trainer`."""
BY_TRAINER = {("torchspec", "acc"): "in-vocabulary"}
_NAME = re.compile(r"^(?:.*/)?(?P<base>[a-z_]+?)_?(?P<step>\d+)(?:_epoch)?$")


@dataclass(frozen=True)
class MetricComparison:
    """A logged number beside the same number recomputed here."""

    name: str
    logged: float
    step: int
    """0-based."""
    definition: str
    """The definition that the name stands for."""
    recomputed: stats.Estimate
    """Under that definition."""
    agrees_with: tuple[str, ...]
    """Every definition whose interval holds the logged number."""

    @property
    def agrees(self) -> bool:
        """The logged number lies in the interval of its own definition."""
        return self.definition in self.agrees_with


def definitions(correctness: Correctness, step: int) -> dict[str, stats.Estimate]:
    """The rate of `step` under every definition that the data define."""
    tokens = correctness.valid_counts(step)
    found = {"marginal": correctness.accuracy(step), "survival": stats.ratio_of_sums(correctness.survived(step), tokens)}
    starts = correctness.survived(step - 1) if step else tokens
    if any(starts):
        found["conditional"] = stats.ratio_of_sums(correctness.survived(step), starts)
    inside = [int(s.in_vocabulary[:, step].sum()) for s in correctness.sequences]
    if any(inside):
        found["in-vocabulary"] = stats.ratio_of_sums(correctness.counts(step), inside)
    return found


def compare_metric(name: str, value: float, correctness: Correctness, *, trainer: str | None = None) -> MetricComparison | None:
    """Hold a logged metric (`full_acc_0`, `val/acc_1`) against the recomputed rates; None if the name is not known or its step
    was not unrolled. Percentages (above 1) are read as such."""
    match = _NAME.match(name.strip().lower())
    definition = match and (BY_TRAINER.get((trainer or "", match["base"])) or BY_NAME.get(match["base"]))
    if not match or not definition or int(match["step"]) >= correctness.steps:
        return None
    step, value = int(match["step"]), value / 100 if 1 < value <= 100 else value
    found = definitions(correctness, step)
    if definition not in found:
        return None
    return MetricComparison(name, value, step, definition, found[definition], tuple(d for d, e in found.items() if not e.excludes(value)))
