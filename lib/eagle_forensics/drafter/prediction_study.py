"""Steps of notebook 02 on what the logged figures mean and what accept length to expect: definitions, mask, map, trees, temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.mask import mask_finding
from eagle_forensics.drafter.metric import MetricComparison, compare_metric
from eagle_forensics.drafter.recorded import spread
from eagle_forensics.drafter.sampling import SampledPrediction, sampled_predictions
from eagle_forensics.drafter.teacher import FEWEST, Head, Teacher, read_head, read_teacher
from eagle_forensics.drafter.tree_grid import LEAST_SEQUENCES, TreePrediction, tree_grid
from eagle_forensics.drafter.vocabulary import map_finding
from eagle_forensics.drafter.workbench import Workbench
from eagle_forensics.finding import Finding

TEMPERATURES = (0.3, 0.6, 1.0)
HEAD_WORK = 1.2e11
"""Floating-point operations of the target's head for predictions above temperature 0: 2,100 tokens of a 576-wide target with 49,152 tokens."""


@dataclass(frozen=True, eq=False)
class OwnChoices:
    """The target's own choices beside the dump, or why they are not known."""

    head: Head | None
    teacher: Teacher | None
    reason: str
    """Which plane was read how; or why none could be."""


def own_choices(bench: Workbench | None, trained: Correctness | None) -> OwnChoices:
    """The dump's last plane through the target's head; without either the text's tokens stand for the target's choices.

    `trained`: the drafter's own accuracy. A plane that knows the text worse than the drafter is not the target's last state.
    """
    if bench is None:
        return OwnChoices(None, None, "nothing is evaluated")
    if bench.target is None:
        return OwnChoices(None, None, "no target: the text's tokens stand for its own choices")
    if len(bench.slots) <= bench.drafter.n_aux:
        return OwnChoices(None, None, f"the dump's {len(bench.slots)} planes all feed fc, none is the target's last state: the text's tokens stand for its own choices")
    try:
        head = read_head(bench.target)
        teacher = read_teacher(head, bench.sequences, bench.slots[-1], bench.drafter.target_ids().cpu().numpy())
    except ValueError as error:
        return OwnChoices(None, None, f"{error}: the text's tokens stand for the target's own choices")
    if trained is not None and teacher.agreement.high < trained.accuracy(0).low:
        return OwnChoices(None, None, f"{teacher.text}, less often than the drafter's, so it is not the target's last state: the text's tokens stand for the target's own choices")
    return OwnChoices(head, teacher, teacher.text)


def metrics(logged: Mapping[str, float], trained: Correctness | None, own: OwnChoices, *, trainer: str | None) -> list[MetricComparison]:
    """Every logged metric that can be recomputed, under every definition."""
    if trained is None:
        return []
    return [c for name, value in logged.items() if (c := compare_metric(name, value, trained, trainer=trainer, teacher=own.teacher))]


def evidence_checks(bench: Workbench | None, trained: Correctness | None, own: OwnChoices) -> list[Finding]:
    """Does the loss mask lie on the responses, and is a reduced draft vocabulary mapped?"""
    return [mask_finding(bench.sequences, own.teacher), map_finding(bench.drafter, trained)] if bench else []


def trees(bench: Workbench | None, steps: int, *, configured: tuple[int, int, int] | None = None) -> tuple[tuple[TreePrediction, ...], str | None]:
    """The grid of steps x topk x draft tokens with the dump's states, and why it is empty where it is."""
    if bench is None:
        return (), None
    try:
        return tree_grid(bench.drafter, bench.sequences, bench.trained.planes, steps, configured=configured), None
    except ValueError as error:
        return (), str(error)


def temperatures(bench: Workbench | None, own: OwnChoices, steps: int, values: Sequence[float] = TEMPERATURES) -> tuple[tuple[SampledPrediction, ...], str | None]:
    """Chains above temperature 0 with the dump's states, and why there is no prediction where there is none."""
    if bench is None:
        return (), None
    if own.head is None or own.teacher is None or own.teacher.normed is None:
        return (), f"the target's probabilities are not known ({own.reason})"
    try:
        chosen = spread(bench.sequences, max(FEWEST, int(HEAD_WORK / (2 * own.head.weight.numel()))), LEAST_SEQUENCES)
        return sampled_predictions(bench.drafter, own.head, chosen, bench.trained.planes, own.teacher.plane, normed=own.teacher.normed, temperatures=values, steps=steps), None
    except ValueError as error:
        return (), str(error)


def tree_record(grid: Sequence[TreePrediction]) -> dict[str, Any]:
    """`steps,topk,draft_tokens` -> accept length with its interval, for notebook 04."""
    return {f"{p.steps},{p.topk},{p.draft_tokens}": {"value": p.accept_length.value, "low": p.accept_length.low, "high": p.accept_length.high, "n": p.accept_length.n,
                                                     "clusters": p.accept_length.clusters, "method": p.accept_length.method} for p in grid}
