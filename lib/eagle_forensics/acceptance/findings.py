"""The findings of notebook 04, each a claim with its rival, from the measurements table alone.

Sources of the rules: the definitions of `estimators`, the ceiling test of `ceiling`, the cost line of `cost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance import ceiling as _ceiling
from eagle_forensics.acceptance import confounds as _confounds
from eagle_forensics.acceptance import cost as _cost
from eagle_forensics.acceptance import prediction as _prediction
from eagle_forensics.acceptance.ceiling import Ceiling, Outcome
from eagle_forensics.acceptance.estimators import (
    DRAFT_RATE,
    KNOWN_RATES,
    TOLERANCE,
    RateDefinition,
    contradictions,
    stated_rate,
)
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

NOTEBOOK = "04_accept_length"
FEW_TOKENS = 10
"""Of 982 greedy responses of a real model 99 % hold 15 distinct tokens or more; the five that loop hold 3 to 5."""


def evaluate(runs: Sequence[Run], *, predicted: Mapping[str, Any] | None = None, served: str | None = None,
             configured_steps: int | None = None, wiring_faults: Mapping[str, str] | None = None,
             problems: Sequence[str] = ()) -> list[Finding]:
    """All findings of notebook 04, prediction first. `predicted` is notebook 02's record, `served` the name in it of the wiring
    that the engine is known to serve, `wiring_faults` the fault slug of each wiring, `problems` the rows that the reader of the
    table left out (`frame.attrs["problems"]`)."""
    return [prediction(runs, predicted, served=served, wiring_faults=wiring_faults), ceiling(runs, predicted),
            steps(runs, configured_steps), definition(runs, problems), confounded(runs), sanity(runs)]


def ceiling(runs: Sequence[Run], predicted: Mapping[str, Any] | None = None) -> Finding:
    """Can speculation win at this cycle time, whatever the drafter?"""
    common: dict[str, Any] = {"id": "acceptance.ceiling", "question": "Can speculation win at this cost, whatever the drafter?",
                              "notebook": NOTEBOOK, "unit": "tokens per verify round"}
    tests = _ceiling.ceilings(runs)
    if not tests:
        return Finding(**common, status=Status.SKIPPED, statement="The ceiling test was not possible: it would tell whether any "
                       f"drafter can win at this cost. Missing: {_missing_for_ceiling(runs)}.",
                       next_step="Measure tokens/s with and without speculation on the same prompts, and write accept_length and steps.")
    figures = "; ".join(_ceiling_line(c) for c in tests)
    lost = _ceiling.impossible(tests)
    if lost:
        worst = max(lost, key=lambda c: c.break_even.low / c.ceiling)
        return _cannot_win(common, worst, figures, f"With {_plural(worst.ceiling - 1, 'draft step')} no drafter can win: break-even "
                           f"{_range(worst.break_even)} is above the ceiling {worst.ceiling}", float(worst.ceiling),
                           "steps + 1: every draft accepted and the bonus token, the largest accept length there is")
    comparable = [c for c in tests if not c.differs]
    if not comparable:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"No run without speculation is comparable: {figures}.",
                       next_step="Measure the baseline again under the same settings.",
                       evidence=(Evidence(note="differs: " + ", ".join(sorted({f for c in tests for f in c.differs}))),))
    expected = _prediction.predicted_steps(predicted) if predicted else {}
    for test in comparable:
        p = expected.get(test.run.steps)
        outdone = p is not None and test.accept_length.low > p.high  # the live text is easier than the predicted one: no bound for it
        if p is not None and not outdone and test.outcome is Outcome.LOSES and test.break_even.low > p.high:
            return _cannot_win(common, test, figures, f"{test.run.label}: break-even {_range(test.break_even)} is above the accept length "
                               f"{_range(p)} predicted for this drafter served right", p.high,
                               "upper end of the accept length predicted offline for the trained wiring")
    best = max(comparable, key=lambda c: c.speedup)
    shown = {"observed": best.break_even.value, "expected": best.ceiling, "interval": best.break_even.interval,
             "evidence": (Evidence(note=figures),)}
    p = expected.get(best.run.steps)
    if best.outcome is Outcome.WINS:
        return Finding(**common, **shown, status=Status.PASS,
                       statement=f"Speculation wins: {best.run.label} is {best.speedup:.2f}x the baseline; break-even {_range(best.break_even)}, "
                       f"measured {best.accept_length.value:g}, ceiling {best.ceiling}.")
    if best.outcome is Outcome.LOSES and p is not None and p.low > best.break_even.high:
        return Finding(**common, **shown, status=Status.PASS,
                       statement=f"The cost leaves room: {best.run.label} loses ({best.speedup:.2f}x) at accept length "
                       f"{best.accept_length.value:g}, and the {p.value:.2f} predicted for right wiring is above the break-even "
                       f"{_range(best.break_even)}.",
                       predicted_effect=f"about {1e3 * p.value / best.cycle_ms.value:.1f} tokens/s at the predicted accept length "
                       f"{_range(p)} ({p.value / best.break_even.value:.2f}x the baseline)")
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


def steps(runs: Sequence[Run], configured: int | None = None) -> Finding:
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
                       statement=f"Runs at {_plural(len(counts), 'step count')} ({_list(counts)}) do not fix a cost line; three are needed.")
    mixed = sorted({name for r in speculative[1:] for name, _, _ in _confounds.compare(speculative[0], r).differ})
    if mixed:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=counts, next_step=need,
                       statement=f"The runs differ in more than their steps ({_list(mixed)}): no cost line through them means anything.")
    fit = _cost.fit_cycle(speculative)
    baselines, _ = _confounds.baseline_for(speculative[0], tuple(runs))
    base = _ceiling.hull([b.tokens_per_second for b in baselines]) if baselines else None
    speeds = {k: max(r.tokens_per_second.value for r in speculative if r.steps == k) for k in counts}
    try:
        found = _cost.sweep(fit, _cost.accept_lengths(speculative), base, speeds)
    except ValueError as error:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=counts, next_step=need, statement=f"No best step count: {error}.")
    best = found.best
    line = f"cycle = {fit.fixed_ms.value:.2f} + {fit.step_ms.value:.3f} x steps ms"
    gain = f", {best.measured_speedup:.3f}x the baseline" if best.measured_speedup else ""
    summary = f"{_plural(best.steps, 'step')} serve best ({best.tokens_per_second.value:.1f} tokens/s on the line{gain}; {line})"
    detail = Evidence(note="; ".join(_choice_line(c) for c in found.choices))
    if base is not None and all(s < base.low for s in speeds.values()):
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=best.steps, n=len(speculative), evidence=(detail,),
                       statement=f"Every measured step count loses to the baseline of {base.value:g} tokens/s ({line}): the number of steps is "
                       "not the lever here.", next_step="Settle cost and wiring first, then sweep the steps again.")
    if configured is None:
        return Finding(**common, status=Status.SKIPPED, observed=best.steps, n=len(speculative), evidence=(detail,), remedy=f"Serve with {_plural(best.steps, 'step')}.",
                       statement=f"{summary}. The launch line is not known, so there is no configured step count to hold against it.")
    if configured not in {c.steps for c in found.choices}:
        return Finding(**common, status=Status.INCONCLUSIVE, observed=best.steps, evidence=(detail,), next_step=need,
                       statement=f"{summary}; the configured {_plural(configured, 'step')} were not measured.")
    ratio = found.ratio(configured)
    if configured == best.steps or ratio.high >= 1:
        same = "as configured" if configured == best.steps else f"the configured {configured} cannot be told from it ({ratio.text()} of its tokens/s)"
        return Finding(**common, status=Status.PASS, observed=best.steps, expected=configured, n=len(speculative), evidence=(detail,),
                       statement=f"{summary}: {same}.")
    chosen = next(c for c in found.choices if c.steps == configured)
    return Finding(
        **common, status=Status.FAIL, fault="cost.wrong-step-count", observed=configured, expected=best.steps, n=len(speculative),
        interval=ratio.interval, threshold=1.0, threshold_why="tokens/s at the configured steps over tokens/s at the best: equal",
        statement=f"{summary}; the configured {configured} reach only {100 * ratio.value:.1f} % of that "
                  f"(interval of the ratio {ratio.low:.3f} to {ratio.high:.3f}), although their accept length is {chosen.accept_length:g}.",
        competitor=Competitor(fault="cost.cannot-win", margin="no baseline to judge by" if best.probability_wins is None else
                              f"{_plural(best.steps, 'step')} beat the baseline in {100 * best.probability_wins:.0f} % of the plausible cost lines",
                              why_rejected="there every step count loses; here another one wins" if best.probability_wins and best.probability_wins > 0.95
                              else "not rejected"),
        refuted_by=f"Interleaved repeats in which {_plural(configured, 'step')} reach the tokens/s of {best.steps}.",
        evidence=(detail,), remedy=f"Serve with {_plural(best.steps, 'step')}.",
        predicted_effect=f"{1 / ratio.value:.3f}x the tokens/s of {_plural(configured, 'step')} (interval {1 / ratio.high:.3f} to {1 / ratio.low:.3f})",
        next_step="Confirm with a fresh run at the recommended steps; repeat the sweep for every concurrency that matters.")


def definition(runs: Sequence[Run], problems: Sequence[str] = ()) -> Finding:
    """Do the printed accept lengths and rates agree with their definitions and with each other?"""
    common: dict[str, Any] = {"id": "acceptance.definition", "notebook": NOTEBOOK,
                              "question": "Do accept lengths and rates mean what they are taken to mean?"}
    checked, wrong, meaning = 0, [], []
    for run in (r for r in runs if r.is_speculative):
        if (run.accept_length is not None and run.ceiling is not None) or run.survival:
            checked += 1
            wrong += [f"{run.label}: {text}" for text in contradictions(run.accept_length, run.ceiling, run.survival)]
        if run.accept_rate is None or run.accept_length is None or run.steps is None:
            continue
        checked += 1
        stated = stated_rate(run.engine, run.engine_version, run.steps)
        fitting = [d for d in ([stated] if stated else KNOWN_RATES) if _rate_fits(run, d)]
        true = DRAFT_RATE.rate(run.accept_length.value, run.steps)
        if not fitting:
            name = stated.name if stated else "any known definition"
            should = f", which would print {stated.rate(run.accept_length.value, run.steps):.2f}" if stated else ""
            wrong.append(f"{run.label}: accept rate {run.accept_rate.value:g} does not follow from accept length {run.accept_length.value:g} "
                         f"by {name}{should}; the share of accepted drafts is {true:.2f}")
        elif not run.accept_rate.low <= true <= run.accept_rate.high and not _rate_fits(run, DRAFT_RATE):
            meaning.append(f"{run.label}: accept rate {run.accept_rate.value:g} is {fitting[0].name}; the share of accepted drafts is {true:.2f}")
    if problems and not wrong:
        return Finding(**common, status=Status.INCONCLUSIVE, n=checked, observed=len(problems), expected=0, unit="rows left out",
                       statement=f"{_plural(len(problems), 'row')} of the table cannot be and enter no figure: {'; '.join(problems)}",
                       next_step="Correct these rows; an accept length above steps + 1 usually counts by another definition.",
                       evidence=tuple(Evidence(note=p) for p in problems))
    if not checked:
        return Finding(**common, status=Status.SKIPPED, next_step="Write accept_length, steps and accepted_per_position or accept_rate.",
                       statement="No run has two figures of acceptance that could contradict each other: definitions were not checked.")
    if wrong:
        return Finding(
            **common, status=Status.FAIL, fault="measure.definition", n=checked, observed=len(wrong), expected=0, unit="contradictions",
            statement="Figures of acceptance contradict each other: " + "; ".join(wrong) + ".",
            competitor=Competitor(fault="runtime.regression", margin="the contradiction is inside one run",
                                  why_rejected="a change of acceptance moves all figures of a run together; these disagree within one run"),
            refuted_by="The raw counters (rounds, proposed and accepted drafts) reproduce both figures under one definition.",
            remedy="Recompute from counters: accept length = 1 + accepted / rounds, rate = (accept length - 1) / steps.",
            evidence=tuple(Evidence(note=text) for text in wrong))
    told = " " + "; ".join(meaning) + "." if meaning else ""
    return Finding(**common, status=Status.PASS, n=checked, observed=0, expected=0, unit="contradictions",
                   statement=f"{_plural(checked, 'pair')} of figures agree: accept lengths stay within steps + 1 and follow from their rates.{told}")


def confounded(runs: Sequence[Run]) -> Finding:
    """Are the runs with speculation and their baseline comparable?"""
    common: dict[str, Any] = {"id": "acceptance.confounded", "notebook": NOTEBOOK, "unit": "fields",
                              "question": "Does anything but speculation differ between the compared runs?"}
    pairs = []
    for run in (r for r in runs if r.is_speculative and r.tokens_per_second is not None):
        baselines, _ = _confounds.baseline_for(run, tuple(runs))
        pairs += [_confounds.compare(run, b) for b in baselines[:1]]
    if not pairs:
        return Finding(**common, status=Status.SKIPPED, statement="No run with speculation and no baseline to compare: comparability was not checked.",
                       next_step="Measure a run without speculation beside the others.")
    bad = [c for c in pairs if c.confounded]
    if bad and len(bad) < len(pairs):
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, n=len(pairs), observed=[c.first for c in bad], expected=[],
                       statement=f"{len(bad)} of {len(pairs)} comparisons have no baseline under their own settings: "
                       + "; ".join(f"{c.first} against {c.second}: {c.text()}" for c in bad) + ". The others differ in speculation only.",
                       next_step="Measure a baseline under those settings, or leave these rows out of the comparison.")
    if bad:
        text = "; ".join(f"{c.first} against {c.second}: {c.text()}" for c in bad)
        return Finding(
            **common, status=Status.FAIL, fault="measure.confounded", n=len(pairs), observed=[name for name, _, _ in bad[0].differ], expected=[],
            statement=f"Not comparable: more than speculation differs. {text}.",
            competitor=Competitor(fault="runtime.regression", margin=f"{_plural(len(bad[0].differ), 'other field')} differ where none may",
                                  why_rejected="an effect can be put down to one change only if nothing else changed"),
            refuted_by="A baseline measured under the settings of the run with speculation that gives the same tokens/s.",
            evidence=tuple(Evidence(note=f"{c.first} / {c.second}: {c.text()}") for c in bad),
            remedy="Measure the baseline again under the same settings: a 2 x 2 of {old, new} x {speculation off, on} where the environment changed.",
            next_step="Interleave both servers on the same prompts.")
    unknown = sorted({name for c in pairs for name in c.unrecorded})
    if unknown:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, n=len(pairs), observed=unknown,
                       statement=f"No recorded field differs besides speculation, but {_list(unknown)} are not recorded for every run: "
                       "that they are equal is an assumption.", next_step="Write these columns into the measurements table.")
    return Finding(**common, status=Status.PASS, n=len(pairs), observed=[], expected=[],
                   statement=f"{_plural(len(pairs), 'comparison')}: only speculation differs.")


def prediction(runs: Sequence[Run], predicted: Mapping[str, Any] | None, *, served: str | None = None,
               wiring_faults: Mapping[str, str] | None = None) -> Finding:
    """Does the live accept length meet the offline prediction, and if not, which wiring does it match?"""
    common: dict[str, Any] = {"id": "acceptance.prediction", "notebook": NOTEBOOK, "unit": "tokens per verify round",
                              "question": "Does the live accept length meet the offline prediction?"}
    if not predicted:
        return Finding(**common, status=Status.SKIPPED, next_step="Run notebook 02 with drafter, target and a dump.",
                       statement="There is no offline prediction: it would tell a badly fed drafter (live below prediction) from a weak one.")
    matches = [m for m in (_prediction.match(r, predicted) for r in runs if r.is_speculative) if m]
    if not matches:
        return Finding(**common, status=Status.SKIPPED, next_step=f"Measure at one of {sorted(_prediction.predicted_steps(predicted))} steps.",
                       statement="No run was measured at a step count for which the accept length was predicted.")
    m = max(matches, key=lambda m: m.shortfall)
    figures = f"{m.run.label}: measured {_range(m.measured)}, predicted for the trained wiring {_range(m.trained)}"
    shown = {"observed": m.measured.value, "expected": m.trained.value, "interval": m.measured.interval, "n": m.run.rounds,
             "evidence": tuple(Evidence(note=f"{h.name}: {_range(h.predicted)}, {'meets' if h.distance == 0 else f'misses by {h.distance:.3f}'}")
                               for h in m.hypotheses[:8])}
    others = [c for c in m.candidates if c != _prediction.TRAINED]
    if _prediction.TRAINED in m.candidates:
        clash = served in others
        also = f" By itself this does not exclude {_list(others)}: the fingerprint decides." if others else ""
        return Finding(**common, **shown, status=Status.INCONCLUSIVE if clash else Status.PASS,
                       statement=f"{figures}: the prediction is met.{also}")
    if not m.shortfall:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, required=False,
                       statement=f"{figures}: better than predicted by {m.excess:.3f}. The live text is easier, or degenerate.",
                       next_step="Check the output sanity and predict on the text that was served.")
    accused = served if served in others else None
    if accused is None:
        what = f"it matches {_list(m.candidates)}, and accept length alone cannot choose" if m.candidates else "it matches no wiring tried"
        known = f"; the engine is known to serve {served}" if served else ""
        return Finding(**common, **shown, status=Status.INCONCLUSIVE,
                       statement=f"{figures}: {m.shortfall:.3f} short, but {what}{known}.",
                       next_step="Fingerprint the captured tensors (notebook 03); predict on the text that was served.")
    slug = (wiring_faults or {}).get(accused, "wiring.layer-offset")
    return Finding(
        **common, **shown, status=Status.FAIL, fault=slug, threshold=m.trained.low, threshold_why="lower end of the interval predicted for the trained wiring",
        statement=f"{figures}: {m.shortfall:.3f} short even at the ends of the intervals, and it meets {accused}, the wiring that the engine's rules say it serves.",
        competitor=_rival_wiring(m, accused),
        refuted_by="The prediction repeated on the served text falls to the measured figure for the trained wiring.",
        remedy="Feed the trained states: notebooks 01 to 03 name the list for this engine.",
        predicted_effect=f"accept length {_range(m.trained)} at {_plural(m.run.steps, 'step')}",
        next_step="Apply the wiring fix of notebook 01 and measure the same prompts again.")


def sanity(runs: Sequence[Run]) -> Finding:
    """Is the output text real, and is the accept length neither pinned at 1 nor at its ceiling?"""
    common: dict[str, Any] = {"id": "acceptance.sanity", "notebook": NOTEBOOK, "question": "Is the served text sane enough to measure acceptance on?"}
    counted = [r for r in runs if r.distinct_output_tokens is not None]
    pinned = [(r, "1.00" if r.accept_length.value == 1 else f"its ceiling {r.ceiling}") for r in runs
              if r.is_speculative and r.accept_length is not None and r.ceiling and (r.accept_length.value in (1, r.ceiling))]
    rule = {"unit": "distinct tokens", "threshold": float(FEW_TOKENS),
            "threshold_why": "99 % of 982 greedy responses of a real model hold 15 or more, the five that loop hold 3 to 5"}
    bad = [r for r in counted if r.distinct_output_tokens < FEW_TOKENS]
    if bad:
        text = "; ".join(f"{r.label}: {_plural(r.distinct_output_tokens, 'distinct token')}" for r in bad)
        return Finding(
            **common, **rule, status=Status.FAIL, fault="measure.degenerate-output", n=len(counted), observed=min(r.distinct_output_tokens for r in bad),
            expected=f"at least {FEW_TOKENS}", statement=f"The output is degenerate, acceptance on it means nothing. {text}.",
            competitor=Competitor(fault="a very good drafter", margin=f"{min(r.distinct_output_tokens for r in bad)} distinct tokens in the whole run",
                                  why_rejected="a good drafter does not reduce what the target says"),
            refuted_by="The response texts hold normal sentences.",
            remedy="Look at the responses; fix the target's path (\"!!!!\" means broken numerics) or take real prompts.",
            next_step="Send the same prompts without speculation and compare the text.")
    if pinned:
        text = "; ".join(f"{r.label} at {where}" for r, where in pinned)
        return Finding(**common, status=Status.INCONCLUSIVE, observed=[r.accept_length.value for r, _ in pinned], n=len(pinned),
                       statement=f"Accept length is pinned: {text}. Random weights, broken numerics and looping text look like this as well as "
                       "a very bad or a very good drafter.", next_step="Record distinct_output_tokens and read ten responses.")
    if not counted:
        return Finding(**common, status=Status.SKIPPED, next_step="Record distinct_output_tokens.",
                       statement="Distinct output tokens are not recorded: whether the text is sane was not checked. No accept length is pinned.")
    return Finding(**common, **rule, status=Status.PASS, n=len(counted), observed=min(r.distinct_output_tokens for r in counted),
                   expected=f"at least {FEW_TOKENS}", statement=f"{_plural(len(counted), 'run')} with {min(r.distinct_output_tokens for r in counted)} "
                   "distinct tokens or more, no accept length pinned.")


def _rival_wiring(m: _prediction.Match, accused: str) -> Competitor:
    rival = m.nearest_other(accused)
    if rival is None or rival.name == _prediction.TRAINED:
        return Competitor(fault="data.too-little", margin=f"the trained wiring misses the measured interval by {m.shortfall:.3f} tokens per round",
                          why_rejected=f"the drafter is not weak: fed as trained it reaches {m.trained.value:.2f} offline")
    if rival.distance == 0:
        return Competitor(fault=rival.name, margin="none: its interval meets the measured one as well",
                          why_rejected="accept length does not reject it; the engine's own rules serve the wiring named here")
    return Competitor(fault=rival.name, margin=f"its interval misses the measured one by {rival.distance:.3f} tokens per round",
                      why_rejected=f"it would accept {_range(rival.predicted)}")


def _rate_fits(run: Run, definition: RateDefinition) -> bool:
    """Within the tolerance of any two accept lengths: the prefill token may count in one figure and not in the other."""
    al, printed = run.accept_length, run.accept_rate
    return definition.rate(al.low - TOLERANCE, run.steps) <= printed.high and printed.low <= definition.rate(al.high + TOLERANCE, run.steps)


def _missing_for_ceiling(runs: Sequence[Run]) -> str:
    lacks = []
    if not any(r.is_baseline and r.tokens_per_second for r in runs):
        lacks.append("a run without speculation (speculative = 0) with tokens_per_second")
    if not any(r.is_speculative and _ceiling.cycle_ms(r) for r in runs):
        lacks.append("a run with speculation that has accept_length and tokens_per_second")
    return " and ".join(lacks) or "a measurements table"


def _ceiling_line(c: Ceiling) -> str:
    steps = "steps unknown" if c.run.steps is None else _plural(c.run.steps, "step")
    text = f"{steps}: cycle {c.cycle_ms.value:.2f} ms, break-even {_range(c.break_even)}, ceiling {c.ceiling if c.ceiling is not None else 'unknown'}, {c.outcome}"
    return text + (f" (baseline differs in {', '.join(c.differs)})" if c.differs else "")


def _choice_line(c: _cost.StepChoice) -> str:
    wins = "" if c.probability_wins is None else f", beats the baseline {100 * c.probability_wins:.0f} %"
    return f"{_plural(c.steps, 'step')}: {c.tokens_per_second.value:.1f} tokens/s, best in {100 * c.probability_best:.0f} % of plausible lines{wins}"


def _range(e: stats.Estimate) -> str:
    return f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]"


def _plural(n: int | None, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _list(items: Sequence[Any]) -> str:
    return ", ".join(str(i) for i in items)
