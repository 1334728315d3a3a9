"""The findings of notebook 02: is the drafter fine, which wiring was it trained for, what does the served wiring cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.boundary import format_boundaries, uniform_shift
from eagle_forensics.drafter.battery import WiringResult
from eagle_forensics.drafter.correctness import Correctness, paired_accept_length, paired_accuracy
from eagle_forensics.drafter.metric import MetricComparison, compare_metric
from eagle_forensics.drafter.predict import predict_accept_length
from eagle_forensics.drafter.recorded import ZERO, Problem
from eagle_forensics.drafter.wiring import Wiring
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Edit, Evidence, Finding, Status

NOTEBOOK = "02_drafter_accuracy"
FAULT_OF = {"flags": "drafter.norm-flags", "rope": "drafter.rope", "d2t": "vocab.map-semantics", "normed": "feature.norm-state",
            "token_shift": "data.mask-shift", "hidden_shift": "data.mask-shift", "planes": "wiring.plane-order"}
"""Field in which the best wiring departs from the trained one -> fault, the most specific first."""
WHY_ZERO = "the paired interval of the difference on the same tokens excludes 0 (sequences resampled)"


def accuracy_finding(trained: WiringResult | None, control: WiringResult | None = None, problems: Sequence[Problem] = ()) -> Finding:
    """`drafter.accuracy`: fed the recorded states, does the drafter predict better than without any? `control`: all planes zero."""
    question = "Fed the states it was trained on, can the drafter predict?"
    if trained is None:
        return _skipped("drafter.accuracy", question, "No usable sequence with states, tokens and mask.", _left_out(problems) or "name a training dump and the drafter's weights in the case")
    first = trained.accuracy[0]
    accuracies = ", ".join(e.text() for e in trained.accuracy)
    common = _common("drafter.accuracy", question, first, "accuracy") | {"evidence": (Evidence(note=f"accuracy of steps 1..{len(trained.accuracy)}: {accuracies}"), *_problem_notes(problems))}
    if control is None:
        return Finding(**common, status=Status.INCONCLUSIVE, next_step="evaluate the wiring of zero planes as control",
                       statement=f"Step 1 is right on {first.text()} tokens; without a control this says nothing about the states.")
    gain = _paired(trained, control)
    common |= {"expected": f"above {control.accuracy[0].value:.3f} (all planes zero)", "threshold": 0.0,
               "threshold_why": f"gain over the drafter without states: {WHY_ZERO}"}
    if gain.low > 0:
        return Finding(**common, status=Status.PASS, statement=(
            f"With {trained.label} the drafter is right on {_percent(first)} of {first.n} response tokens at step 1 "
            f"(without any state {_percent(control.accuracy[0])}; gain {_interval_text(gain)} on the {gain.n} tokens both met); accept length by the walk {_al(trained.accept_length)}."))
    return Finding(**common, status=Status.INCONCLUSIVE, next_step=_needed(gain), statement=(
        f"With {trained.label} step 1 is right on {_percent(first)} of {first.n} tokens, without any state {_percent(control.accuracy[0])}: "
        f"the gain {_interval_text(gain)} does not exclude 0, so nothing says that the drafter reads these states."))


def metric_finding(metrics: Mapping[str, float], trained: Correctness | None, *, trainer: str | None = None) -> Finding:
    """`drafter.metric`: do the trainer's logged numbers reproduce, and under which definition?"""
    question = "Does the trainer's logged metric reproduce?"
    compared = [c for name, value in metrics.items() if trained and (c := compare_metric(name, value, trained, trainer=trainer))]
    if not compared or trained is None:
        why = "The case names no metric." if not metrics else "No logged metric can be recomputed here: " + ", ".join(metrics) + "."
        return _skipped("drafter.metric", question, why, "write the trainer's metrics under `training.metrics` (full_acc_0, acc_0, ...)")
    worst = max(compared, key=lambda c: (not c.agrees, c.logged - c.recomputed.value))
    common = _common("drafter.metric", question, worst.recomputed, "accuracy") | {
        "expected": worst.logged, "threshold": "interval", "threshold_why": "the logged number lies in the 95 % interval of the recomputed one, or below it",
        "evidence": tuple(Evidence(note=_metric_line(c)) for c in compared)}
    low = [c for c in compared if not c.agrees and c.logged > c.recomputed.value]
    if not low:
        agree = sum(c.agrees for c in compared)
        return Finding(**common, status=Status.PASS, statement=(
            f"{agree} of {len(compared)} logged metric(s) lie in the interval recomputed here, none above it: {_metric_line(worst)}. "
            "The drafter is as good as its training said."))
    other = [d for d in worst.agrees_with if d != worst.definition]
    if other:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.metric-definition",
                       statement=f"{_metric_line(worst)}; as {other[0]} rate it agrees. The name and the number may follow different definitions.",
                       next_step=f"read in the trainer's source whether {worst.name} is a {worst.definition} or a {other[0]} rate")
    return Finding(**common, status=Status.INCONCLUSIVE,
                   statement=f"{_metric_line(worst)}: the recorded sequences do not reproduce it under any definition.",
                   next_step="see the wiring battery; if the trained wiring is best there, evaluate the trainer's own validation split")


def wiring_finding(results: Sequence[WiringResult], *, contract: str | None) -> Finding:
    """`drafter.wiring`: is the wiring that the trainer is known to use the one this drafter fits best?

    `results` of `run_battery`, the trained wiring named `trained` among them. `contract`: where that wiring is known from
    (`speculators 0.3.0 concatenates all planes but the last`); without it a better wiring is named, nobody is accused.
    """
    question = "Which wiring was the drafter trained for?"
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    honest = [r for r in results if not r.wiring.leaks]
    if trained is None or len(honest) < 2:
        return _skipped("drafter.wiring", question, "The battery did not run.", "name a training dump with at least as many planes as fc reads")
    best = honest[0]
    table = tuple(Evidence(note=f"{r.label}: {r.accuracy[0].text()}, accept length {_al(r.accept_length)}" + ("" if r.complete else " (dropped at screening)")) for r in honest[:5])
    common = _common("drafter.wiring", question, best.accuracy[0], "accuracy of step 1") | {
        "observed": best.wiring.label, "expected": trained.wiring.label, "evidence": table, "threshold": 0.0,
        "threshold_why": "mean run of correct steps minus that of the best, same tokens; intervals of all wirings hold together at 95 %"}
    leak = max((r for r in results if r.wiring.leaks), key=lambda r: r.mean_run, default=None)
    if leak is not None and leak.difference.low > 0:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.mask-shift", next_step="read the trainer's shift of tokens and states",
                       statement=f"{leak.label} fits better than any wiring a server can provide: the training may have seen the token it had to predict.")
    if best is trained:
        rival = honest[1]
        if rival.difference.high < 0:
            return Finding(**common, status=Status.PASS, statement=(
                f"Of {len(results)} wirings the trained one is best: {trained.label}, step 1 right on {_percent(trained.accuracy[0])} of {trained.n} tokens; "
                f"next is {rival.label} with a mean run {_interval_text(rival.difference)} apart on the same {rival.n} tokens."))
        return Finding(**common, status=Status.INCONCLUSIVE, next_step=_needed(rival.difference), statement=(
            f"The trained wiring is best of {len(results)}, but {rival.label} cannot be told from it on {rival.n} tokens: {_interval_text(rival.difference)}."))
    if trained.difference.high >= 0 or contract is None or _at_the_floor(best, results):
        reason = ("its lead does not exclude 0" if trained.difference.high >= 0 else "how the trainer read the dump is not known" if contract is None
                  else "it does not beat the drafter without states")
        return Finding(**common, status=Status.INCONCLUSIVE, next_step=_needed(trained.difference) if trained.difference.high >= 0 else "name the trainer and its version in the case",
                       statement=f"{best.label} fits better than {trained.label} ({_percent(best.accuracy[0])} against {_percent(trained.accuracy[0])} at step 1), but {reason}.")
    return _wrong_wiring(common, best, trained, honest, contract)


def served_finding(
    trained: Correctness | None, served: Correctness | None, *, trained_boundaries: Sequence[int] | None, served_boundaries: Sequence[int] | None,
    control: Correctness | None = None, captured: bool = False, edits: tuple[Edit, ...] = (), remedy: str | None = None,
) -> Finding:
    """`drafter.served-wiring`: what do the served states cost against the recorded ones, on the same tokens?

    `served`: evaluated on the target's states at the served boundaries. Computed states need `control`, the trained boundaries
    computed the same way, so that the computation itself cannot explain a loss; states captured from the server do not.
    """
    question = "What do the served states cost this drafter?"
    if trained is None or served is None:
        return _skipped("drafter.served-wiring", question, "The served states are not at hand, so their cost is not known.",
                        "give the target's weights, a reference bank or a capture, and the engine with its version")
    difference = paired_accuracy(served, trained)
    lengths = paired_accept_length(served, trained)
    names = f"served {format_boundaries(served_boundaries)}, trained {format_boundaries(trained_boundaries)}"
    facts = (f"{names}: step 1 right on {_percent(served.accuracy(0))} against {_percent(trained.accuracy(0))} of {trained.n} tokens, "
             f"difference {_interval_text(difference)}; accept length {served.accept_length().value:.3f} against {trained.accept_length().value:.3f}, "
             f"difference {_interval_text(lengths)}")
    common = _common("drafter.served-wiring", question, served.accuracy(0), "accuracy of step 1") | {
        "observed": round(difference.value, 4), "expected": 0.0, "unit": "accuracy of step 1, served minus trained", "interval": _interval(difference),
        "threshold": 0.0, "threshold_why": WHY_ZERO}
    same = served_boundaries is not None and trained_boundaries is not None and tuple(served_boundaries) == tuple(trained_boundaries)
    if difference.high < 0:
        against = control or (trained if captured else None)
        loss = paired_accuracy(served, against) if against else None
        if same:
            return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. The boundaries agree, so the states themselves differ.",
                           next_step="compare the states plane by plane in notebook 03 (norm state, partial sums, slices)")
        if loss is None or loss.high >= 0:
            why = "no control of the computed states exists" if loss is None else f"computed at the trained boundaries they lose as much ({_interval_text(loss)})"
            return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}; but {why}, so the computation may be to blame.",
                           next_step="compute the states at the trained boundaries with the same code and compare them with the dump")
        return _wrong_layers(common, facts, served, trained, loss, served_boundaries, trained_boundaries, edits, remedy)
    if difference.low > 0:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. The served states suit the drafter better than those of the dump: the dump may not be what it was trained on.",
                       next_step="identify the planes of the dump in notebook 03")
    if same:
        return Finding(**common, status=Status.PASS, statement=f"{facts}. The server feeds what the drafter was trained on.")
    return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. Accuracy cannot tell the two apart here.",
                   next_step=_needed(difference) + "; the fingerprint of notebook 03 decides without accuracy")


def prediction_finding(trained: Correctness | None, served: Correctness | None = None, *, steps: int | None = None) -> Finding:
    """`drafter.prediction`: the accept length a live server should show, by the walk; with the trained states beside it."""
    question = "What accept length should the live server show?"
    used = served or trained
    if used is None:
        return _skipped("drafter.prediction", question, "Nothing was evaluated.", "name a dump, the drafter and the target's embedding")
    steps = min(steps or used.steps, used.steps)
    row = predict_accept_length(used)[steps - 1]
    text = (f"{steps} step(s), greedy, topk 1, with the {'served' if served else 'recorded'} states: accept length {_al(row.accept_length)} over {row.accept_length.n} rounds, "
            f"of at most {row.ceiling}; per position {', '.join(f'{s:.3f}' for s in row.survival)}. The product of the accuracies would say {row.product_formula:.3f}.")
    effect = None
    if served is not None and trained is not None and trained is not served:
        effect = f"with the trained states {_al(trained.accept_length(min(steps, trained.steps)))}"
    return Finding(**_common("drafter.prediction", question, row.accept_length, "tokens per verify round"), required=False,
                   status=Status.PASS if math.isfinite(row.accept_length.low) else Status.INCONCLUSIVE, statement=text, predicted_effect=effect,
                   next_step="hold it against the live accept length in notebook 04; texts of another kind than the recorded ones have another one")


def _wrong_wiring(common: dict[str, Any], best: WiringResult, trained: WiringResult, honest: Sequence[WiringResult], contract: str) -> Finding:
    fields = best.wiring.differences(trained.wiring)
    kinds = list(dict.fromkeys(FAULT_OF[f] for f in FAULT_OF if f in fields))
    slug = kinds[0]
    entry = fault(slug)
    others = [r for r in honest if r is not best and not set(r.wiring.differences(trained.wiring)) & set(fields)]
    rival = max(others, key=lambda r: r.mean_run)
    both = "" if len(kinds) < 2 else f" Two things differ at once: {', '.join(kinds)}."
    return Finding(**common, status=Status.FAIL, fault=slug, statement=(
        f"By {contract} the drafter is fed {trained.label}: step 1 right on {_percent(trained.accuracy[0])} of {trained.n} tokens; fed {best.label} it is right on "
        f"{_percent(best.accuracy[0])} (mean run of the trained wiring {_interval_text(trained.difference)} against it).{both}"),
        competitor=Competitor(fault=entry.rival, margin=f"{rival.label}: mean run {_interval_text(rival.difference)} against the best",
                              why_rejected=f"no wiring that leaves {', '.join(fields)} as trained reaches the best on the same tokens. {entry.told_apart}"),
        refuted_by=entry.refuted_if, remedy=entry.remedy, predicted_effect=f"accept length {_al(best.accept_length)} instead of {_al(trained.accept_length)}",
        next_step="check in the trainer's source which planes it concatenates, and in which order")


def _wrong_layers(common: dict[str, Any], facts: str, served: Correctness, trained: Correctness, loss: stats.Estimate, served_boundaries: Sequence[int] | None,
                  trained_boundaries: Sequence[int] | None, edits: tuple[Edit, ...], remedy: str | None) -> Finding:
    ordered = served_boundaries is not None and trained_boundaries is not None and sorted(served_boundaries) == sorted(trained_boundaries)
    slug = "wiring.plane-order" if ordered else "wiring.layer-offset"
    entry = fault(slug)
    shift = uniform_shift(trained_boundaries, served_boundaries) if served_boundaries and trained_boundaries else None
    where = f" Every state is {abs(shift)} boundary(s) {'late' if shift > 0 else 'early'}." if shift else ""
    return Finding(**common, status=Status.FAIL, fault=slug, statement=f"{facts}.{where}",
                   competitor=Competitor(fault="data.too-little", margin=f"{_interval_text(loss)} accuracy between two feeds of one drafter on the same {trained.n} tokens",
                                         why_rejected="a weak drafter is equally weak under both feeds; drafter, tokens and the way the states were computed are the same, only the boundaries differ"),
                   refuted_by=entry.refuted_if, remedy=remedy or entry.remedy, edits=edits,
                   predicted_effect=f"accept length {_al(trained.accept_length())} instead of {_al(served.accept_length())} with {trained.steps} steps",
                   next_step="apply the remedy and rerun notebooks 01 and 02; notebook 04 measures the effect")


def _at_the_floor(best: WiringResult, results: Sequence[WiringResult]) -> bool:
    floor = next((r for r in results if set(r.wiring.planes) == {ZERO} and r.wiring.planes), None)
    return floor is not None and floor.difference.high >= 0


def _paired(first: WiringResult, second: WiringResult) -> stats.Estimate:
    """Accuracy difference of step 1; on the sequences' common prefix where one side was dropped at a screening."""
    a, b = first.correctness, second.correctness
    if first.complete == second.complete:
        return paired_accuracy(a, b)
    small, large, sign = (b, a, 1) if first.complete else (a, b, -1)
    by_id = {s.sample_id: s for s in large.sequences}
    pairs = [(int(by_id[s.sample_id].correct[:len(s.positions), 0].sum()), int(s.correct[:, 0].sum()), s.n) for s in small.sequences]
    return stats.paired_difference([sign * p for p, _, _ in pairs], [sign * q for _, q, _ in pairs], [n for _, _, n in pairs])


def _common(id: str, question: str, estimate: stats.Estimate, unit: str) -> dict[str, Any]:
    return {"id": id, "question": question, "notebook": NOTEBOOK, "observed": round(estimate.value, 4), "unit": unit, "n": estimate.n,
            "interval": _interval(estimate)}


def _skipped(id: str, question: str, why: str, next_step: str) -> Finding:
    return Finding(id=id, question=question, notebook=NOTEBOOK, status=Status.SKIPPED, statement=why, next_step=next_step)


def _interval(e: stats.Estimate) -> tuple[float, float] | None:
    return (e.low, e.high) if math.isfinite(e.low) and math.isfinite(e.high) else None


def _interval_text(e: stats.Estimate) -> str:
    return f"{e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"


def _percent(e: stats.Estimate) -> str:
    return f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]" if _interval(e) else f"{100 * e.value:.1f} %"


def _al(e: stats.Estimate) -> str:
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" if _interval(e) else f"{e.value:.3f} (no interval)"


def _needed(e: stats.Estimate) -> str:
    """How many tokens would settle a difference as large as the one measured."""
    if not _interval(e):
        return "at least two sequences are needed for an interval"
    if e.value == 0:
        return f"the difference is 0 on {e.n} tokens: no number of tokens settles it"
    half = (e.high - e.low) / 2
    return f"about {max(e.n + 1, math.ceil(e.n * (half / e.value) ** 2))} tokens of like text would settle a difference of {e.value:+.3f} ({e.n} were at hand)"


def _metric_line(c: MetricComparison) -> str:
    verb = "agrees with" if c.agrees else "against"
    return f"{c.name} = {c.logged:.4f} logged {verb} {c.recomputed.text()} recomputed ({c.definition} rate)"


def _left_out(problems: Sequence[Problem]) -> str | None:
    return "; ".join(f"{p.sample_id}: {p.reason}" for p in problems[:3]) or None


def _problem_notes(problems: Sequence[Problem]) -> tuple[Evidence, ...]:
    return (Evidence(note=f"{len(problems)} sequence(s) left out; {_left_out(problems)}"),) if problems else ()


def drafter_findings(
    results: Sequence[WiringResult], *, contract: str | None, metrics: Mapping[str, float] | None = None, trainer: str | None = None,
    served: Correctness | None = None, control: Correctness | None = None, captured: bool = False, trained_boundaries: Sequence[int] | None = None,
    served_boundaries: Sequence[int] | None = None, edits: tuple[Edit, ...] = (), remedy: str | None = None, steps: int | None = None, problems: Sequence[Problem] = (),
) -> tuple[Finding, ...]:
    """All five findings of notebook 02 from a battery's results; what is absent is skipped with the reason."""
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    zero = next((r for r in results if r.wiring.same_feed(Wiring((ZERO,) * len(r.wiring.planes)))), None)
    own = trained.correctness if trained else None
    return (
        accuracy_finding(trained, zero, problems), metric_finding(metrics or {}, own, trainer=trainer), wiring_finding(results, contract=contract),
        served_finding(own, served, trained_boundaries=trained_boundaries, served_boundaries=served_boundaries, control=control, captured=captured, edits=edits, remedy=remedy),
        prediction_finding(own, served, steps=steps))
