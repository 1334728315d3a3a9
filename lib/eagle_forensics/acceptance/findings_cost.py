"""Can speculation win at this cost, and with how many steps? Findings from measured runs, each a claim with its rival.

Sources of the rules: the ceiling test of `ceiling`, the cost line of `cost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.acceptance import ceiling as _ceiling
from eagle_forensics.acceptance import confounds as _confounds
from eagle_forensics.acceptance import cost as _cost
from eagle_forensics.acceptance import prediction as _prediction
from eagle_forensics.acceptance.advice import launch_arguments
from eagle_forensics.acceptance.ceiling import Ceiling, Outcome
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK, few, listed, plural, spread
from eagle_forensics.evidence.experts import Experts
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


def ceiling(runs: Sequence[Run], predicted: Mapping[str, Any] | None = None) -> Finding:
    """Can speculation win at this cycle time, whatever the drafter?"""
    common: dict[str, Any] = {"id": "acceptance.ceiling", "question": "Can speculation win at this cost, whatever the drafter?",
                              "notebook": NOTEBOOK, "unit": "tokens per verify round"}
    tests = _ceiling.ceilings(runs)
    if not tests:
        return Finding(**common, status=Status.SKIPPED, statement="The ceiling test was not possible: it would tell whether any "
                       f"drafter can win at this cost. Missing: {_missing_for_ceiling(runs)}.",
                       next_step="Measure tokens/s with and without speculation on the same prompts, and write accept_length and steps.")
    figures = few([_ceiling_line(c) for c in tests])
    lost = _ceiling.impossible(tests)
    if lost:
        worst = max(lost, key=lambda c: c.break_even.low / c.ceiling)
        return _cannot_win(common, worst, figures, f"With {plural(worst.ceiling - 1, 'draft step')} no drafter can win: break-even "
                           f"{spread(worst.break_even)} is above the ceiling {worst.ceiling}", float(worst.ceiling),
                           "steps + 1: every draft accepted and the bonus token, the largest accept length there is")
    comparable = [c for c in tests if not c.differs]
    if not comparable:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"No run without speculation is comparable: {figures}.",
                       next_step="Measure the baseline again under the same settings.",
                       evidence=(Evidence(note="differs: " + ", ".join(sorted({f for c in tests for f in c.differs}))),))
    for test in comparable:
        p = _prediction.trained_prediction(test.run, predicted) if predicted else None
        outdone = p is not None and test.accept_length.low > p.high  # the live text is easier than the predicted one: no bound for it
        if p is not None and not outdone and test.outcome is Outcome.LOSES and test.break_even.low > p.high and not _ceiling.pays_otherwise(test, tests):
            return _cannot_win(common, test, figures, f"{test.run.label}: break-even {spread(test.break_even)} is above the accept length "
                               f"{spread(p)} predicted for this drafter served right", p.high,
                               "upper end of the accept length predicted offline for the trained wiring")
    best = max(comparable, key=lambda c: c.speedup)
    shown = {"observed": best.break_even.value, "expected": best.ceiling, "interval": best.break_even.interval,
             "evidence": (Evidence(note=figures),)}
    p = _prediction.trained_prediction(best.run, predicted) if predicted else None
    if best.outcome is Outcome.WINS:
        return Finding(**common, **shown, status=Status.PASS,
                       statement=f"Speculation wins: {best.run.label} is {best.speedup:.2f}x the baseline; break-even {spread(best.break_even)}, "
                       f"measured {best.accept_length.value:.4g}, ceiling {best.ceiling}.")
    if best.outcome is Outcome.LOSES and p is not None and p.low > best.break_even.high:
        return Finding(**common, **shown, status=Status.PASS,
                       statement=f"The cost leaves room: {best.run.label} loses ({best.speedup:.2f}x) at accept length "
                       f"{best.accept_length.value:.4g}, and the {p.value:.2f} predicted for right wiring is above the break-even "
                       f"{spread(best.break_even)}.",
                       predicted_effect=f"about {1e3 * p.value / best.cycle_ms.value:.1f} tokens/s at the predicted accept length "
                       f"{spread(p)} ({p.value / best.break_even.value:.2f}x the baseline)")
    return Finding(**common, **shown, status=Status.INCONCLUSIVE,
                   statement=f"{best.run.label}, {_ceiling_line(best)}. A better drafter could win; whether this one served right would, "
                   "these figures do not say.",
                   next_step="Predict the accept length of the drafter offline (notebook 02) and compare it with the break-even.")


def _cannot_win(common: dict, test: Ceiling, figures: str, statement: str, threshold: float, why: str) -> Finding:
    margin = test.break_even.value - threshold
    slack = test.break_even.low / threshold - 1
    cut = 1 - threshold / test.break_even.value
    sampled = (Evidence(note=f"{test.run.label}: a round takes {test.cycle_ms.value:.2f} ms"),
               *(() if test.run.rounds else (Evidence(note="rounds are not recorded: the interval is the printing of the figures"),)))
    return Finding(
        **common, status=Status.FAIL, fault="cost.cannot-win", statement=statement,
        observed=test.break_even.value, expected=f"at most {threshold:.4g}", interval=test.break_even.interval,
        n=test.run.rounds, threshold=threshold, threshold_why=why,
        competitor=Competitor(
            fault="data.too-little", margin=f"break-even exceeds the bound by {margin:.2f} tokens per round; even its lower end by {100 * slack:.0f} %",
            why_rejected=f"\"improve the drafter\": a drafter that reached {threshold:.4g} tokens per round would still make only "
            f"{1e3 * threshold / test.cycle_ms.value:.1f} tokens/s against {test.baseline_tokens_per_second.value:.1f} without speculation"),
        refuted_by=f"A repeat with the same settings whose cycle time is below {threshold / test.baseline_tokens_per_second.value * 1e3:.1f} ms "
                   f"(measured: {test.cycle_ms.value:.1f} ms).",
        evidence=(*sampled, Evidence(note=figures, source="cycle = accept length / (tokens/s); break-even = cycle x baseline tokens/s"),),
        remedy=f"Cut the cost of a round first (now {test.cycle_ms.value:.1f} ms, at least {100 * cut:.0f} % must go), or raise the number of "
               "steps if the drafter's later positions are accepted.",
        next_step="Profile one round: verify in a CUDA graph or not, time of the all-reduces (notebook 05); then sweep the step count.")


def steps(runs: Sequence[Run], configured: int | None = None, experts: Experts = _cost.DENSE) -> Finding:
    """Which number of draft steps serves best, and is it the configured one?"""
    common: dict[str, Any] = {"id": "acceptance.steps", "question": "Which number of draft steps gives the most tokens/s?",
                              "notebook": NOTEBOOK, "unit": "draft steps"}
    speculative = [r for r in runs if r.is_speculative and r.steps and _ceiling.cycle_ms(r) is not None]
    counts = sorted({r.steps for r in speculative})
    need = "Measure the same prompts at three step counts or more (for instance 1, 2, 3, 5), interleaved with the baseline."
    if not counts:
        return Finding(**common, status=Status.SKIPPED, next_step=need,
                       statement="No run has steps, accept length and tokens/s: the cost line that names the best step count was not fitted.")
    if len(counts) < 3:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=counts, n=len(counts), next_step=need,
                       statement=f"Runs at {plural(len(counts), 'step count')} ({listed(counts)}) do not fix a cost line; three are needed.")
    mixed = sorted({name for r in speculative[1:] for name, _, _ in _confounds.compare(speculative[0], r).differ})
    if mixed:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=counts, next_step=need,
                       statement=f"The runs differ in more than their steps ({listed(mixed)}): no cost line through them means anything.")
    fit = _cost.fit_cycle(speculative, experts)
    baselines, _ = _confounds.baseline_for(speculative[0], tuple(runs))
    base = _ceiling.hull([b.tokens_per_second for b in baselines]) if baselines else None
    speeds = {k: max(r.tokens_per_second.value for r in speculative if r.steps == k) for k in counts}
    try:
        found = _cost.sweep(fit, _cost.accept_lengths(speculative), base, speeds)
    except ValueError as error:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=counts, next_step=need, statement=f"No best step count: {error}.")
    best = found.best
    line = fit.text()
    gain = f", {best.measured_speedup:.3f}x the baseline" if best.measured_speedup else ""
    summary = f"{plural(best.steps, 'step')} serve{'s' * (best.steps == 1)} best ({best.tokens_per_second.value:.1f} tokens/s on the line{gain}; {line})"
    detail = (Evidence(note="; ".join(_choice_line(c) for c in found.choices)), Evidence(note="milliseconds " + "; ".join(f"{t}: {c.text()}" for t, c in zip(fit.terms, fit.fit.coefficients, strict=True)), source=fit.fit.coefficients[0].method),
              *((Evidence(note=fit.untold),) if fit.untold else ()))
    if base is not None and all(s < base.low for s in speeds.values()):
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=best.steps, n=len(speculative), evidence=detail,
                       statement=f"Every measured step count loses to the baseline of {base.value:.4g} tokens/s ({line}): the number of steps is "
                       "not the lever here.", next_step="Settle cost and wiring first, then sweep the steps again.")
    if configured is None:
        return Finding(**common, status=Status.SKIPPED, observed=best.steps, n=len(speculative), evidence=detail, remedy=_serve_with(best.steps, speculative),
                       statement=f"{summary}. The launch line is not known, so there is no configured step count to hold against it.")
    if configured not in {c.steps for c in found.choices}:
        return Finding(**common, status=Status.INCONCLUSIVE, observed=best.steps, evidence=detail, next_step=need,
                       statement=f"{summary}; the configured {plural(configured, 'step')} were not measured.")
    ratio = found.ratio(configured)
    if configured == best.steps or ratio.high >= 1 - _ceiling.CLOCK:
        same = "as configured" if configured == best.steps else f"the configured {configured} cannot be told from it ({ratio.text()} of its tokens/s)"
        return Finding(**common, status=Status.PASS, observed=best.steps, expected=configured, n=len(speculative), evidence=detail,
                       statement=f"{summary}: {same}.")
    chosen = next(c for c in found.choices if c.steps == configured)
    return Finding(
        **common, status=Status.FAIL, fault="cost.wrong-step-count", observed=configured, expected=best.steps, n=len(speculative),
        interval=ratio.interval, threshold=1 - _ceiling.CLOCK, threshold_why="tokens/s at the configured steps over tokens/s at the best: equal, less what two measurements of one server differ by",
        statement=f"{summary}; the configured {configured} reach only {100 * ratio.value:.1f} % of that "
                  f"(interval of the ratio {ratio.low:.3f} to {ratio.high:.3f}), although their accept length is {chosen.accept_length:g}.",
        competitor=Competitor(fault="cost.cannot-win", margin="no baseline to judge by" if best.probability_wins is None else
                              f"{plural(best.steps, 'step')} beat the baseline in {100 * best.probability_wins:.0f} % of the plausible cost lines",
                              why_rejected="there every step count loses; here another one wins" if best.probability_wins and best.probability_wins > 0.95
                              else "not rejected"),
        refuted_by=f"Interleaved repeats in which {plural(configured, 'step')} reach the tokens/s of {best.steps}.",
        evidence=detail, remedy=_serve_with(best.steps, speculative),
        predicted_effect=f"{1 / ratio.value:.3f}x the tokens/s of {plural(configured, 'step')} (interval {1 / ratio.high:.3f} to {1 / ratio.low:.3f})",
        next_step="Confirm with a fresh run at the recommended steps; repeat the sweep for every concurrency that matters.")


def _serve_with(steps: int, runs: Sequence[Run]) -> str:
    engine = next((r.engine for r in runs if r.engine), None)
    return f"Serve with {plural(steps, 'step')}: `{launch_arguments(engine, steps)}`."


def _missing_for_ceiling(runs: Sequence[Run]) -> str:
    lacks = []
    if not any(r.is_baseline and r.tokens_per_second for r in runs):
        lacks.append("a run without speculation (speculative = 0) with tokens_per_second")
    if not any(r.is_speculative and _ceiling.cycle_ms(r) for r in runs):
        lacks.append("a run with speculation that has accept_length and tokens_per_second")
    return " and ".join(lacks) or "a measurements table"


def _ceiling_line(c: Ceiling) -> str:
    steps = "steps unknown" if c.run.steps is None else plural(c.run.steps, "step")
    text = f"{steps}: cycle {c.cycle_ms.value:.2f} ms, break-even {spread(c.break_even)}, ceiling {c.ceiling if c.ceiling is not None else 'unknown'}, {c.outcome}"
    return text + (f" (baseline differs in {', '.join(c.differs)})" if c.differs else "")


def _choice_line(c: _cost.StepChoice) -> str:
    wins = "" if c.probability_wins is None else f", beats the baseline {100 * c.probability_wins:.0f} %"
    return f"{plural(c.steps, 'step')}: {c.tokens_per_second.value:.1f} tokens/s, best in {100 * c.probability_best:.0f} % of plausible lines{wins}"
