"""The findings of notebook 02 on the drafter fed as it was trained: is it any good, as good as logged, and what will it accept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness, paired_accuracy
from eagle_forensics.drafter.metric import MetricComparison, compare_metrics
from eagle_forensics.drafter.prediction.predict import predict_accept_length
from eagle_forensics.drafter.recorded import Problem
from eagle_forensics.drafter.teacher import Teacher
from eagle_forensics.drafter.wirings.battery import WiringResult
from eagle_forensics.drafter.wording import (
    WHY_ZERO,
    accept_text,
    common_fields,
    interval_text,
    percent,
    skipped,
    tokens_needed,
)
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


def accuracy_finding(trained: WiringResult | None, control: WiringResult | None = None, problems: Sequence[Problem] = ()) -> Finding:
    """`drafter.accuracy`: fed the recorded states, does the drafter predict better than without any? `control`: all planes zero."""
    question = "Fed the states it was trained on, can the drafter predict?"
    if trained is None:
        return skipped("drafter.accuracy", question, "No usable sequence with states, tokens and mask.", _left_out(problems) or "name a training dump and the drafter's weights in the case")
    first = trained.accuracy[0]
    accuracies = ", ".join(e.text() for e in trained.accuracy)
    common = common_fields("drafter.accuracy", question, first, "accuracy") | {"evidence": (Evidence(note=f"accuracy of steps 1..{len(trained.accuracy)}: {accuracies}"), *_problem_notes(problems))}
    if control is None:
        return Finding(**common, status=Status.INCONCLUSIVE, next_step="evaluate the wiring of zero planes as control",
                       statement=f"Step 1 is right on {first.text()} tokens; without a control this says nothing about the states.")
    gain = _paired(trained, control)
    common |= {"expected": f"above {control.accuracy[0].value:.3f} (all planes zero)", "threshold": 0.0,
               "threshold_why": f"gain over the drafter without states: {WHY_ZERO}"}
    if gain.low > 0:
        return Finding(**common, status=Status.PASS, statement=(
            f"With {trained.label} the drafter is right on {percent(first)} of {first.n} response tokens at step 1 "
            f"(without any state {percent(control.accuracy[0])}; gain {interval_text(gain)} on the {gain.n} tokens both met); accept length by the walk {accept_text(trained.accept_length)}."))
    if gain.high < 0:
        return Finding(**common, status=Status.INCONCLUSIVE, next_step="see the wiring battery: these states may be in another order or form than the drafter reads them", statement=(
            f"With {trained.label} step 1 is right on {percent(first)} of {first.n} tokens, less often than without any state ({interval_text(gain)} on the {gain.n} tokens both met): "
            "so fed, the states mislead it."))
    return Finding(**common, status=Status.INCONCLUSIVE, next_step=tokens_needed(gain), statement=(
        f"With {trained.label} step 1 is right on {percent(first)} of {first.n} tokens, without any state {percent(control.accuracy[0])}: "
        f"the gain {interval_text(gain)} does not exclude 0, so nothing says that the drafter reads these states."))


def metric_finding(metrics: Mapping[str, float], trained: Correctness | None, *, trainer: str | None = None, teacher: Teacher | None = None, clean: bool = False) -> Finding:
    """`drafter.metric`: do the trainer's logged numbers reproduce, and under which definition? `teacher`: the target's own choices.
    `clean`: no other wiring fits better, so that a figure that does not reproduce is not for the wiring to explain."""
    question = "Does the trainer's logged metric reproduce?"
    compared = compare_metrics(metrics, trained, trainer=trainer, teacher=teacher)
    if not compared or trained is None:
        why = "The case names no metric." if not metrics else "No logged metric can be recomputed here: " + ", ".join(metrics) + "."
        return skipped("drafter.metric", question, why, "write the trainer's metrics under `training.metrics` (full_acc_0, acc_0, ...)")
    worst = max(compared, key=lambda c: (not c.agrees, c.logged - c.recomputed.value))
    common = common_fields("drafter.metric", question, worst.recomputed, "accuracy") | {
        "expected": worst.logged, "threshold": "interval", "threshold_why": "the logged number lies in the 95 % interval of the recomputed one, or below it",
        "evidence": tuple(Evidence(note=_metric_line(c)) for c in compared)}
    low = [c for c in compared if not c.agrees and c.logged > c.recomputed.value]
    if not low:
        agree = sum(c.agrees for c in compared)
        return Finding(**common, status=Status.PASS, statement=(
            f"{agree} of {len(compared)} logged metric(s) lie in the interval recomputed here, none above it: {_metric_line(worst)}. "
            "The drafter is as good as its training said."))
    other = [d for d in worst.agrees_with if d != worst.definition]
    counted = _counted_otherwise(compared, low)
    if counted and clean:
        forced = {c.name: c.recomputed for c in compare_metrics(metrics, trained.with_true_states(), trainer=trainer, teacher=teacher)}
        return _other_count(common, compared, low, counted, forced)
    if other:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.metric-definition",
                       statement=f"{_metric_line(worst)}; as {other[0]} rate it agrees. The name and the number may follow different definitions.",
                       next_step=f"read in the trainer's source whether {worst.name} is a {worst.definition} or a {other[0]} rate")
    if clean:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.serving-mismatch", statement=(
            f"{_metric_line(worst)}: no definition and no wiring reproduces it on the recorded sequences. Either it was measured on other text (the training split), or the training's own "
            "forward differs from the one that serves."), next_step="evaluate the split that the trainer logged; if that is as low, train on one sample: its accept length must approach the number of steps + 1")
    return Finding(**common, status=Status.INCONCLUSIVE,
                   statement=f"{_metric_line(worst)}: the recorded sequences do not reproduce it under any definition.",
                   next_step="see the wiring battery; if the trained wiring is best there, evaluate the trainer's own validation split")


def prediction_finding(trained: Correctness | None, served: Correctness | None = None, *, steps: int | None = None) -> Finding:
    """`drafter.prediction`: the accept length a live server should show, by the walk; with the trained states beside it."""
    question = "What accept length should the live server show?"
    used = served or trained
    if used is None:
        return skipped("drafter.prediction", question, "Nothing was evaluated.", "name a dump, the drafter and the target's embedding")
    steps = min(steps or used.steps, used.steps)
    row = predict_accept_length(used)[steps - 1]
    text = (f"{steps} step(s), greedy, topk 1, with the {'served' if served else 'recorded'} states: accept length {accept_text(row.accept_length)} over {row.accept_length.n} rounds, "
            f"of at most {row.ceiling}; per position {', '.join(f'{s:.3f}' for s in row.survival)}. The product of the accuracies would say {row.product_formula:.3f}.")
    effect = None
    if served is not None and trained is not None and trained is not served:
        effect = f"with the trained states {accept_text(trained.accept_length(min(steps, trained.steps)))}"
    return Finding(**common_fields("drafter.prediction", question, row.accept_length, "tokens per verify round"), required=False,
                   status=Status.PASS if math.isfinite(row.accept_length.low) else Status.INCONCLUSIVE, statement=text, predicted_effect=effect,
                   next_step="hold it against the live accept length in notebook 04; texts of another kind than the recorded ones have another one")


def _counted_otherwise(compared: Sequence[MetricComparison], low: Sequence[MetricComparison]) -> list[str]:
    """Definitions under which every rate of a later step lies that its own name's definition excludes, while step 1, where they coincide,
    reproduces: other text, or other states, would move step 1 as well."""
    first = [c for c in compared if c.step == 0]
    if not first or not all(c.agrees for c in first) or not low or any(not c.step for c in low):
        return []
    return sorted(set.intersection(*(set(c.rivals) for c in low)))


def _other_count(common: dict[str, Any], compared: Sequence[MetricComparison], low: Sequence[MetricComparison], counted: Sequence[str],
                 forced: Mapping[str, stats.Estimate]) -> Finding:
    """`forced`: the figures, by name, of a training whose later steps are fed true states. No forward is fed better ones, so that a figure above its interval was counted otherwise;
    one below it a training that does not feed the drafter's own states back may have logged as well."""
    entry, worst = fault("data.metric-definition"), max(low, key=lambda c: c.logged - c.recomputed.value)
    first = next(c for c in compared if c.step == 0)
    statement = f"{_metric_line(worst)}, while step 1 reproduces ({_metric_line(first)}). Counted as {' or '.join(counted)} rate every logged figure does"
    above = [c for c in low if c.name in forced and c.logged > forced[c.name].high]
    if not above:
        reach = f" ({forced[worst.name].text()})" if worst.name in forced else ""
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.metric-definition", statement=(
            f"{statement}; a training forward that feeds later steps true states instead of the drafter's own reaches them too{reach}."),
            competitor=Competitor(fault="data.serving-mismatch", margin=f"{worst.name}: logged {worst.logged:.4f}, with true states{reach or ' not known'}",
                                  why_rejected="not rejected: either the log counts otherwise, or the training's later steps are not fed back as in serving"),
            next_step=f"read in the trainer's source how {worst.name} is counted and whether its later steps read the drafter's own states")
    surest = max(above, key=lambda c: c.logged - forced[c.name].value)
    return Finding(**common, status=Status.FAIL, fault="data.metric-definition", statement=(
        f"{statement}: the log counts otherwise than its names say, and an accept length computed from them comes out too high. Even fed true states, later steps would give {surest.name} no more than "
        f"{forced[surest.name].text()}."),
        competitor=Competitor(fault=entry.rival, margin=f"{worst.name}: logged {worst.logged - worst.recomputed.value:+.3f} above the {worst.definition} rate, "
                                                        f"{worst.logged - worst.others[counted[0]].value:+.3f} against the {counted[0]} rate",
                              why_rejected="other states, or other text, would change step 1 as well; it reproduces on these tokens"),
        refuted_by=f"the trainer's source counts {worst.name} as {worst.definition} rate", remedy=entry.remedy,
        next_step=f"read in the trainer's source how {worst.name} is counted; the walk's accept length does not depend on it")


def _paired(first: WiringResult, second: WiringResult) -> stats.Estimate:
    """Accuracy difference of step 1; on the sequences' common prefix where one side was dropped at a screening."""
    a, b = first.correctness, second.correctness
    if first.complete == second.complete:
        return paired_accuracy(a, b)
    small, large, sign = (b, a, 1) if first.complete else (a, b, -1)
    by_id = {s.sample_id: s for s in large.sequences}
    pairs = [(int(by_id[s.sample_id].correct[:len(s.positions), 0].sum()), int(s.correct[:, 0].sum()), s.n) for s in small.sequences]
    return stats.paired_difference([sign * p for p, _, _ in pairs], [sign * q for _, q, _ in pairs], [n for _, _, n in pairs])


def _metric_line(c: MetricComparison) -> str:
    verb = "agrees with" if c.agrees else "against"
    return f"{c.name} = {c.logged:.4f} logged {verb} {c.recomputed.text()} recomputed ({c.definition} rate)"


def _left_out(problems: Sequence[Problem]) -> str | None:
    return "; ".join(f"{p.sample_id}: {p.reason}" for p in problems[:3]) or None


def _problem_notes(problems: Sequence[Problem]) -> tuple[Evidence, ...]:
    return (Evidence(note=f"{len(problems)} sequence(s) left out; {_left_out(problems)}"),) if problems else ()
