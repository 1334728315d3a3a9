"""Steps of notebook 02 on what the logged figures mean and what accept length to expect: definitions, mask, map, trees, temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.frames import plain
from eagle_forensics.drafter.mask import mask_finding
from eagle_forensics.drafter.prediction.sampling import SampledPrediction, sampled_predictions
from eagle_forensics.drafter.prediction.tree_grid import LEAST_SEQUENCES, TreePrediction, tree_grid
from eagle_forensics.drafter.recorded import spread
from eagle_forensics.drafter.teacher import FEWEST, Head, Teacher, read_head, read_teacher
from eagle_forensics.drafter.vocabulary import map_finding
from eagle_forensics.drafter.workbench import Workbench
from eagle_forensics.finding import Finding

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


def evidence_checks(bench: Workbench | None, trained: Correctness | None, own: OwnChoices) -> list[Finding]:
    """Does the loss mask lie on the responses, and is a reduced draft vocabulary mapped?"""
    return [mask_finding(bench.sequences, own.teacher), map_finding(bench.drafter, trained)] if bench else []


def trees(bench: Workbench | None, steps: int, arguments: Mapping[str, Any] | None = None) -> tuple[tuple[TreePrediction, ...], str | None]:
    """The grid of steps x topk x draft tokens with the dump's states, and why it is empty where it is.

    `arguments`: the effective launch arguments (record of notebook 01): their own setting is part of the grid.
    """
    if bench is None:
        return (), None
    if why := _unsayable(bench):
        return (), why
    asked = [(arguments or {}).get(key) for key in ("num_steps", "topk", "num_draft_tokens")]
    configured = (asked[0], asked[1], asked[2]) if all(isinstance(v, int) and v > 0 for v in asked) else None
    try:
        return tree_grid(bench.drafter, bench.sequences, bench.trained.planes, steps, configured=configured), None
    except ValueError as error:
        return (), str(error)


def greedy(trained: Correctness | None, steps: int) -> float | None:
    """The walk's accept length at temperature 0; None without a trained wiring."""
    return trained.accept_length(min(steps, trained.steps)).value if trained else None


def temperatures(bench: Workbench | None, own: OwnChoices, steps: int, values: Sequence[float]) -> tuple[tuple[SampledPrediction, ...], str | None]:
    """Chains above temperature 0 with the dump's states, and why there is no prediction where there is none."""
    if bench is None:
        return (), None
    if not values:
        return (), "no temperature above 0 is asked for"
    if why := _unsayable(bench):
        return (), why
    if own.head is None or own.teacher is None or own.teacher.normed is None:
        return (), f"the target's probabilities are not known ({own.reason})"
    try:
        chosen = spread(bench.sequences, max(FEWEST, int(HEAD_WORK / (2 * own.head.weight.numel()))), LEAST_SEQUENCES)
        return sampled_predictions(bench.drafter, own.head, chosen, bench.trained.planes, own.teacher.plane, normed=own.teacher.normed, temperatures=values, steps=steps), None
    except ValueError as error:
        return (), str(error)


def _unsayable(bench: Workbench) -> str | None:
    """Why the drafter cannot be fed its own tokens: read as offsets, its d2t leads out of the vocabulary."""
    ids = bench.drafter.target_ids()
    outside = int(((ids < 0) | (ids >= bench.drafter.vocab)).sum())
    return f"{outside} of {len(ids)} draft ids mean tokens outside the target's vocabulary of {bench.drafter.vocab}: d2t is no offset map" if outside else None


def setting_record(grid: Sequence[TreePrediction], sampled: Sequence[SampledPrediction]) -> dict[str, Any]:
    """For notebook 04, each empty without predictions: `trees` (`steps,topk,draft_tokens` -> accept length with its interval) and `temperatures`
    (temperature -> rule of verification -> steps -> lower and upper bound)."""
    found: dict[str, Any] = {"trees": {f"{p.steps},{p.topk},{p.draft_tokens}": plain(p.accept_length) for p in grid}} if grid else {}
    for p in sampled:
        rules = found.setdefault("temperatures", {}).setdefault(f"{p.temperature:g}", {})
        rules.setdefault(p.rule, {})[str(p.steps)] = {"low": plain(p.low), "high": plain(p.high)}
    return found
