"""Are measured runs what they are taken for? Definitions, comparability, sanity: findings from the measurements table alone.

Sources of the rules: the definitions of `estimators`, the comparison of `confounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.acceptance import confounds as _confounds
from eagle_forensics.acceptance.estimators import (
    DRAFT_RATE,
    KNOWN_RATES,
    TOLERANCE,
    RateDefinition,
    contradictions,
    stated_rate,
)
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK, few, listed, plural
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

FEW_TOKENS = 10
"""Of 982 greedy responses of a real model 99 % hold 15 distinct tokens or more; the five that loop hold 3 to 5."""


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
                       statement=f"{plural(len(problems), 'row')} of the table cannot be and enter no figure: {few(problems)}",
                       next_step="Correct these rows; an accept length above steps + 1 usually counts by another definition.",
                       evidence=tuple(Evidence(note=p) for p in problems))
    if not checked:
        return Finding(**common, status=Status.SKIPPED, next_step="Write accept_length, steps and accepted_per_position or accept_rate.",
                       statement="No run has two figures of acceptance that could contradict each other: definitions were not checked.")
    if wrong:
        return Finding(
            **common, status=Status.FAIL, fault="measure.definition", n=checked, observed=len(wrong), expected=0, unit="contradictions",
            statement="Figures of acceptance contradict each other: " + few(wrong) + ".",
            competitor=Competitor(fault="runtime.regression", margin="the contradiction is inside one run",
                                  why_rejected="a change of acceptance moves all figures of a run together; these disagree within one run"),
            refuted_by="The raw counters (rounds, proposed and accepted drafts) reproduce both figures under one definition.",
            remedy="Recompute from counters: accept length = 1 + accepted / rounds, rate = (accept length - 1) / steps.",
            evidence=tuple(Evidence(note=text) for text in wrong))
    told = " " + few(meaning) + "." if meaning else ""
    return Finding(**common, status=Status.PASS, n=checked, observed=0, expected=0, unit="contradictions",
                   statement=f"{plural(checked, 'pair')} of figures agree: accept lengths stay within steps + 1 and follow from their rates.{told}")


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
                       + few([f"{c.first} against {c.second}: {c.text()}" for c in bad]) + ". The others differ in speculation only.",
                       next_step="Measure a baseline under those settings, or leave these rows out of the comparison.")
    if bad:
        text = few([f"{c.first} against {c.second}: {c.text()}" for c in bad])
        return Finding(
            **common, status=Status.FAIL, fault="measure.confounded", n=len(pairs), observed=[name for name, _, _ in bad[0].differ], expected=[],
            statement=f"Not comparable: more than speculation differs. {text}.",
            competitor=Competitor(fault="runtime.regression", margin=f"{plural(len(bad[0].differ), 'other field')} differ where none may",
                                  why_rejected="an effect can be put down to one change only if nothing else changed"),
            refuted_by="A baseline measured under the settings of the run with speculation that gives the same tokens/s.",
            evidence=tuple(Evidence(note=f"{c.first} / {c.second}: {c.text()}") for c in bad),
            remedy="Measure the baseline again under the same settings: a 2 x 2 of {old, new} x {speculation off, on} where the environment changed.",
            next_step="Interleave both servers on the same prompts.")
    unknown = sorted({name for c in pairs for name in c.unrecorded})
    if unknown:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, n=len(pairs), observed=unknown,
                       statement=f"No recorded field differs besides speculation, but {listed(unknown)} are not recorded for every run: "
                       "that they are equal is an assumption.", next_step="Write these columns into the measurements table.")
    return Finding(**common, status=Status.PASS, n=len(pairs), observed=[], expected=[],
                   statement=f"{plural(len(pairs), 'comparison')}: only speculation differs.")


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
        text = few([f"{r.label}: {plural(r.distinct_output_tokens, 'distinct token')}" for r in bad])
        return Finding(
            **common, **rule, status=Status.FAIL, fault="measure.degenerate-output", n=len(counted), observed=min(r.distinct_output_tokens for r in bad),
            expected=f"at least {FEW_TOKENS}", statement=f"The output is degenerate, acceptance on it means nothing. {text}.",
            competitor=Competitor(fault="a very good drafter", margin=f"{min(r.distinct_output_tokens for r in bad)} distinct tokens in the whole run",
                                  why_rejected="a good drafter does not reduce what the target says"),
            refuted_by="The response texts hold normal sentences.",
            remedy="Look at the responses; fix the target's path (\"!!!!\" means broken numerics) or take real prompts.",
            next_step="Send the same prompts without speculation and compare the text.")
    if pinned:
        text = few([f"{r.label} at {where}" for r, where in pinned])
        return Finding(**common, status=Status.INCONCLUSIVE, observed=[r.accept_length.value for r, _ in pinned], n=len(pinned),
                       statement=f"Accept length is pinned: {text}. Random weights, broken numerics and looping text look like this as well as "
                       "a very bad or a very good drafter.", next_step="Record distinct_output_tokens and read ten responses.")
    if not counted:
        return Finding(**common, status=Status.SKIPPED, next_step="Record distinct_output_tokens.",
                       statement="Distinct output tokens are not recorded: whether the text is sane was not checked. No accept length is pinned.")
    return Finding(**common, **rule, status=Status.PASS, n=len(counted), observed=min(r.distinct_output_tokens for r in counted),
                   expected=f"at least {FEW_TOKENS}", statement=f"{plural(len(counted), 'run')} with {min(r.distinct_output_tokens for r in counted)} "
                   "distinct tokens or more, no accept length pinned.")


def _rate_fits(run: Run, definition: RateDefinition) -> bool:
    """Within the tolerance of any two accept lengths: the prefill token may count in one figure and not in the other."""
    al, printed = run.accept_length, run.accept_rate
    return definition.rate(al.low - TOLERANCE, run.steps) <= printed.high and printed.low <= definition.rate(al.high + TOLERANCE, run.steps)
