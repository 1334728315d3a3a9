"""What runs tell that differ in one switch alone: prefix cache, DP attention, grammar, images, CUDA graphs. The rules are `switches.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.fall import UNIT, Fall, nearest, series
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.finding import Competitor, Finding, Status

GRAPH = {
    "on": "with CUDA graphs", "next_step": "Start with --disable-cuda-graph (vLLM: --enforce-eager) and measure the same prompts; capture the drafter's input on both paths (notebook 03)."}


@cache
def rules() -> Mapping[str, Mapping[str, Any]]:
    """Column to its rule."""
    return tomllib.loads(resources.files(__package__).joinpath("switches.toml").read_text(encoding="utf-8"))


def switched(runs: Sequence[Run], layers: Mapping[str, Any] | None = None) -> list[Finding]:
    """A finding for each switch that runs differ in alone. `layers`: record of notebook 01."""
    found = []
    for column, rule in (*rules().items(), ("cuda_graph", _graph(layers or {}))):
        falls = [nearest(by[False], by[True]) for by in series(runs, column, frozenset(rule.get("apart", ())))]
        if falls:
            found.append(_finding(column, rule, max(falls, key=lambda f: (f.kind == "shown", f.lost))))
    return found


def _graph(layers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rule of CUDA graphs: which fault, by whether this release's graphs capture the configured layers; with neither known, none."""
    paths = (layers.get("served") or {}).get("boundaries") or {}
    eager, graph = paths.get("eager"), paths.get("graph")
    if eager is None or graph is None:
        return GRAPH | {"fault": "runtime.graph-dtype", "rival": "wiring.graph-default-layers", "open": "which layers this release captures in its graphs is not known"}
    if list(eager) != list(graph):
        return GRAPH | {
            "fault": "wiring.graph-default-layers", "rival": "runtime.graph-dtype", "why": f"This release replays boundaries {listed(graph)} from its graphs; without them it captures {listed(eager)}.",
            "why_rejected": "no damaged ids are needed: the two paths capture different layers by the engine's own rules", "refuted_by": "equal dumps of the eager and the graph path",
            "remedy": "SGLang 0.5.11 or later, or --disable-cuda-graph."}
    return GRAPH | {
        "fault": "runtime.graph-dtype", "rival": "wiring.graph-default-layers", "why": "The same layers are captured on both paths, so what the graph replays is damaged: an index dtype, a pointer, a stale compile cache.",
        "why_rejected": f"by this release's rules both paths capture boundaries {listed(graph)}", "refuted_by": "the same two runs with an emptied compile cache, without a difference",
        "remedy": "Empty the compile cache, update the engine, or serve the draft without graphs."}


def _finding(column: str, rule: Mapping[str, Any], found: Fall) -> Finding:
    common: dict[str, Any] = {"id": f"acceptance.by-{column.replace('_', '-')}", "question": f"Does the accept length fall {rule['on']}?", "notebook": NOTEBOOK, "unit": UNIT} | found.shown
    text = f"Accept length {spread(found.before)} without, {spread(found.after)} {rule['on']} (\"{found.first.label}\", \"{found.second.label}\")"
    if found.kind == "none":
        return Finding(**common, status=Status.PASS, statement=f"{text}: no loss of 5 % or more.")
    if found.kind == "open":
        return Finding(**common, status=Status.INCONCLUSIVE, fault="measure.not-enough-data", statement=f"{text}: the intervals meet, so a loss is neither shown nor excluded.",
                       next_step=f"{found.advice} {rule['next_step']}")
    suspicion = {"status": Status.INCONCLUSIVE, "fault": rule["fault"], "next_step": rule["next_step"]}
    if doubt := _doubt(rule, found):
        return Finding(**common, **suspicion, statement=f"{text}: it falls, but {doubt}.",
                       competitor=Competitor(fault=rule["rival"], margin=found.margin, why_rejected="not rejected: see the statement"))
    return Finding(
        **common, **(suspicion | {"status": Status.FAIL}), statement=f"{text}, and no other setting differs. {rule['why']}", **found.judged,
        competitor=Competitor(fault=rule["rival"], margin=found.margin, why_rejected=rule["why_rejected"]), refuted_by=rule["refuted_by"], remedy=rule["remedy"],
        predicted_effect=f"accept length {spread(found.before)}, as without")


def _doubt(rule: Mapping[str, Any], found: Fall) -> str | None:
    """Why the switch is not the only explanation; None if it is."""
    if rule.get("open"):
        return rule["open"]
    if rule.get("text") and not found.same_text:
        return "a grammar changes the text, and whether both answered with the same tokens is not recorded (outputs_hash) or they did not"
    missing = [name for name in found.unrecorded if name not in rule.get("apart", ())] + [n for n in rule.get("same", ()) if getattr(found.first, n) is None]
    return f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} not recorded for both runs" if missing else None
