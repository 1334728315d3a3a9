"""What runs of two engine versions tell that differ in nothing else: a regression, or an acceptance rule that differs above temperature 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.fall import UNIT, Fall, nearest, series
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.engines.versions import version_key
from eagle_forensics.finding import Competitor, Finding, Status


def by_version(runs: Sequence[Run], layers: Mapping[str, Any] | None = None) -> Finding | None:
    """None where no two runs differ in the engine's version alone. `layers`: record of notebook 01, of the case's own version."""
    falls: list[Fall] = []
    for by in series(runs, "engine_version"):
        try:
            order = sorted(by, key=version_key)
        except ValueError:
            continue
        for older, newer in pairwise(order):
            falls.append(nearest(by[older], by[newer]))
            if by[newer][0].temperature:  # the rule may be the older one's; states that an older release fed wrongly are its own faults
                falls.append(nearest(by[newer], by[older]))
    if not falls:
        return None
    worst = max(falls, key=lambda f: (f.kind == "shown", f.kind == "open", not f.first.temperature, f.lost))
    common: dict[str, Any] = {"id": "acceptance.by-version", "question": "Does the accept length fall with another engine version?", "notebook": NOTEBOOK, "unit": UNIT} | worst.shown
    text = (f"Accept length {spread(worst.before)} on {worst.first.engine or 'version'} {worst.first.engine_version}, {spread(worst.after)} on {worst.second.engine_version}"
            f"{f' at temperature {worst.first.temperature:g}' if worst.first.temperature is not None else ''}")
    if worst.kind == "none":
        return Finding(**common, status=Status.PASS, statement=f"{text}: no fall of 5 % or more.")
    if worst.kind == "open":
        return Finding(**common, status=Status.INCONCLUSIVE, fault="measure.not-enough-data", statement=f"{text}: the intervals meet, so a fall is neither shown nor excluded.",
                       next_step=worst.advice)
    if not worst.first.temperature:
        return _regression(common, text, worst, layers or {})
    return _sampled(common, text, worst, falls, layers or {})


def _regression(common: dict[str, Any], text: str, found: Fall, layers: Mapping[str, Any]) -> Finding:
    wired = _as_trained(found.second, layers)
    doubt = (f"{listed(found.unrecorded)} not recorded for both" if found.unrecorded else
             "the engine's rules for layer ids in this version were not held against the training (notebook 01)" if wired is None else
             "this version does not serve the layers that were trained (notebook 01): that comes first" if not wired else None)
    more = {"fault": "runtime.regression", "next_step": "Bisect the releases between on the same prompts; compare the greedy text of both, and of the newer one without speculation."}
    if doubt:
        return Finding(**common, **more, status=Status.INCONCLUSIVE, required=wired is not False, statement=f"{text}: it falls with the version, but {doubt}.",
                       competitor=Competitor(fault="wiring.layer-offset", margin=found.margin, why_rejected="not rejected: releases read one list of ids as different layers"))
    return Finding(
        **common, **more, status=Status.FAIL, **found.judged,
        statement=f"{text}, with the same head, prompts, settings and environment; by its own rules the newer one still serves the layers that were trained. The engine, its runner or a backend lost acceptance.",
        competitor=Competitor(fault="measure.confounded", margin=found.margin, why_rejected="one field differs, the version; prompts, temperature, load, steps and environment are recorded and equal"),
        refuted_by="the older version gives the same accept length on the same run manifest", remedy=f"Stay on {found.first.engine_version}, or switch the newer runner or backend off, until the release is mended.",
        predicted_effect=f"accept length {spread(found.before)}")


def _as_trained(run: Run, layers: Mapping[str, Any]) -> bool | None:
    """Whether the run's engine serves the trained layers on all paths, by notebook 01; None where it looked at another version, or could not tell."""
    paths, trained = (layers.get("served") or {}).get("boundaries") or {}, layers.get("trained_by_ids")
    if not _serves(layers, run) or not trained or not any(paths.values()):
        return None
    return all(sorted(ids) == sorted(trained) for ids in paths.values() if ids is not None)


def _serves(layers: Mapping[str, Any], run: Run) -> bool:
    """Whether notebook 01 looked at the run's engine and version."""
    return str(layers.get("engine")).lower() == f"{run.engine} {run.engine_version}".lower()


def _sampled(common: dict[str, Any], text: str, found: Fall, falls: Sequence[Fall], layers: Mapping[str, Any]) -> Finding:
    if _serves(layers, found.first):
        return Finding(**common, status=Status.PASS, statement=f"{text}; {layers['engine']} is served, which is not the one that accepts less.")
    greedy = next((f for f in falls if not f.first.temperature and f.first.temperature is not None and
                   {f.first.engine_version, f.second.engine_version} == {found.first.engine_version, found.second.engine_version}), None)
    more = {"fault": "runtime.acceptance-rule", "next_step": "Compare the verification rule of both releases (rejection sampling, exact match, thresholds) on their launch lines and in their source."}
    doubt = ("at temperature 0 the two were not compared" if greedy is None else "at temperature 0 as large a difference is not excluded" if greedy.kind == "open" or not greedy.excludes(found.lost) else
             f"{listed(found.unrecorded)} not recorded for both" if found.unrecorded else None)
    if doubt:
        return Finding(**common, **more, status=Status.INCONCLUSIVE, statement=f"{text}: it falls with the version, but {doubt}.",
                       competitor=Competitor(fault="runtime.regression", margin=found.margin, why_rejected="not rejected: a regression of the drafter's states falls at temperature 0 as well"))
    return Finding(
        **(common | more | {"evidence": (*found.evidence, *greedy.evidence)}), status=Status.FAIL,
        statement=f"{text}; at temperature 0 both accept alike ({spread(greedy.before)}, {spread(greedy.after)}). The drafts are as good, so they are verified by another rule.",
        **found.judged,
        competitor=Competitor(fault="data.too-little", margin=found.margin, why_rejected="a weak drafter, or one that is fed wrong states, loses at temperature 0 as well, and in both versions"),
        refuted_by="the same ratio of the two versions at temperature 0", remedy="Compare at temperature 0 first; take the release, or the setting, that verifies by rejection sampling.",
        predicted_effect=f"accept length {spread(found.before)} at that temperature")
