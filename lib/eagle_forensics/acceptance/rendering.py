"""Were runs that are compared measured on the same rendered prompts? A chat template or its thinking mode changes what the drafter sees.

One dataset rendered in two ways has two hashes of the rendered prompts. Where nothing else differs and the acceptance does, the rendering is the cause:
the drafter is one and the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance.confounds import compare
from eagle_forensics.acceptance.estimators import DESIGN, FEW_ROUNDS, SMALLEST, sampling_half_width
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

MOST_RENDERINGS = 5
PROMPTS = frozenset({"prompts_hash"})


def rendering(runs: Sequence[Run]) -> Finding:
    """`data.template` where two runs differ in nothing but the rendered prompts of one dataset, and in their acceptance."""
    common: dict[str, Any] = {"id": "acceptance.rendering", "notebook": NOTEBOOK, "question": "Were the compared runs measured on the same rendered prompts?",
                              "unit": "share of drafts accepted"}
    speculative = [r for r in runs if r.is_speculative and _share(r) is not None]
    if len(speculative) < 2:
        return Finding(**common, status=Status.SKIPPED, required=False, statement="Fewer than two runs with speculation: there is nothing to compare.",
                       next_step="Measure the same prompts with the chat template (and thinking mode) of training and of service.")
    pairs = sorted(_pairs(speculative), key=lambda p: -_gap(*p))
    if not pairs:
        unknown = [r.label for r in speculative if r.prompts_hash is None]
        if unknown:
            return Finding(**common, status=Status.SKIPPED, required=False, statement=f"prompts_hash is not recorded for {', '.join(unknown[:5])}: whether the prompts were rendered alike was not checked.",
                           next_step="Write a hash of the rendered prompts (after the chat template) into prompts_hash.")
        same = len({r.prompts_hash for r in speculative}) == 1
        return Finding(**common, status=Status.PASS, n=len(speculative), statement=f"{len(speculative)} runs with speculation were measured on the same rendered prompts: their template does not part them."
                       if same else "No two runs differ in their rendered prompts alone; what else differs is in the table.")
    low, high = sorted(pairs[0], key=lambda r: _share(r).value)
    worse, better = _share(low), _share(high)
    words = f"the run \"{low.label}\" accepts {worse.value:.1%} of its drafts, \"{high.label}\" {better.value:.1%}"
    unrecorded = [name for name in compare(low, high, PROMPTS).unrecorded if name not in PROMPTS] + (["dataset"] if low.dataset is None or high.dataset is None else [])
    common |= {"observed": worse.value, "expected": better.value, "interval": worse.interval, "n": min(r.rounds for r in (low, high)) if low.rounds and high.rounds else None,
               "evidence": tuple(Evidence(note=f"{r.label}: rendered prompts {r.prompts_hash}, share {_share(r).text()}" + ("" if r.rounds else f", rounds not recorded (taken as {FEW_ROUNDS})"))
                                 for r in (low, high))}
    if _gap(low, high) <= 0 or _lost(low, high) < SMALLEST:
        return Finding(**common, status=Status.PASS, statement=f"{words}: the prompts were rendered in two ways ({low.prompts_hash}, {high.prompts_hash}), and the acceptance cannot be told apart, or by less than {SMALLEST:.0%} of the accept length.")
    if unrecorded:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.template", statement=f"{words}; their rendered prompts differ, but {', '.join(unrecorded)} are not recorded for both: "
                       "the template is one possible cause.", next_step="Write these columns; with one dataset and nothing else different, the rendering is the cause.")
    return Finding(
        **common, status=Status.FAIL, fault="data.template",
        statement=f"{words}, on one dataset ({low.dataset}) and the same settings: only the rendered prompts differ (hash {low.prompts_hash} against {high.prompts_hash}). "
        "A chat template or thinking mode other than in training feeds the drafter another text.",
        threshold=0.0, threshold_why=f"a difference whose interval (printing and sampling of both runs, whole responses alike) excludes 0, and that is {SMALLEST:.0%} of the accept length or more",
        competitor=Competitor(fault="data.too-little", margin=f"{better.value - worse.value:.1%} between two runs of one drafter, at least {_gap(low, high):.1%} at the ends of the intervals",
                              why_rejected=f"a weak drafter is weak on both renderings; this one accepts {better.value:.1%} on the other. data.domain is no rival either: the dataset is the same"),
        refuted_by="the same two figures with one and the same hash of the rendered prompts",
        remedy="Render the prompts of training, benchmark and service alike: the same chat template, thinking on or off on all sides (SGLang and vLLM: chat_template_kwargs, --chat-template). "
        "If service needs the other mode, train on it.",
        predicted_effect=f"{better.value:.1%} of the drafts accepted, as on the other rendering (interval {better.low:.3f} to {better.high:.3f})",
        next_step="Print the first and the last 20 tokens of one rendered prompt of each run and of one training sample, and look for the think block.")


def _pairs(speculative: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Of runs that differ in the rendered prompts alone: for two renderings the two runs that lie nearest, so that repeats must agree.

    More than MOST_RENDERINGS hashes under equal settings are prompts drawn anew for every run, no template.
    """
    groups: dict[tuple, dict[str, list[Run]]] = {}
    for run in speculative:
        if run.prompts_hash:
            groups.setdefault(replace(run, label="", prompts_hash=None).settings, {}).setdefault(run.prompts_hash, []).append(run)
    for renderings in groups.values():
        if len(renderings) <= MOST_RENDERINGS:
            for ours, theirs in combinations(renderings.values(), 2):
                yield min(((a, b) for a in _ends(ours) for b in _ends(theirs)), key=lambda pair: _gap(*pair))


def _ends(repeats: Sequence[Run]) -> tuple[Run, Run]:
    return min(repeats, key=lambda r: _share(r).low), max(repeats, key=lambda r: _share(r).high)


def _share(run: Run) -> stats.Estimate | None:
    """Share of drafts accepted, with the interval of printing and sampling."""
    rounds = run.rounds or FEW_ROUNDS
    if run.accept_length is not None and run.steps:
        al, steps = run.accept_length, run.steps
        half = sampling_half_width(min(max(al.value, 1.0), steps + 1.0), rounds, steps + 1, run.survival, DESIGN)
        return stats.Estimate((al.value - 1) / steps, (al.low - half - 1) / steps, (al.high + half - 1) / steps, rounds, rounds, "printing and sampling")
    if run.accept_rate is not None:
        rate = run.accept_rate
        half = sampling_half_width(1 + rate.value, rounds, 2, design=DESIGN)
        return stats.Estimate(rate.value, rate.low - half, rate.high + half, rounds, rounds, "printing and sampling")
    return None


def _lost(low: Run, high: Run) -> float:
    """Difference of the two as a share of the higher accept length; one draft a round where the steps are not recorded, which makes it smallest."""
    steps = low.steps or 1
    return steps * (_share(high).value - _share(low).value) / (1 + steps * _share(high).value)


def _gap(a: Run, b: Run) -> float:
    """Distance between the intervals of two runs; negative where they overlap."""
    first, second = _share(a), _share(b)
    return max(first.low - second.high, second.low - first.high)
