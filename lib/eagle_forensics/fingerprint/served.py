"""The measured trained boundaries against those the engine's rule serves: tensors on one side, version rules on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_forensics.boundary import format_boundaries, uniform_shift
from eagle_forensics.case import Case
from eagle_forensics.engines.remedy import serve_boundaries
from eagle_forensics.evidence.records import Target
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.fingerprint.identify import Identification, format_ratio
from eagle_forensics.fingerprint.trained import NOTEBOOK, aux_slots, trained_boundaries

QUESTION = "Does the engine serve the states that the dump's tensors are?"


def served_finding(found: Identification, layers: Mapping[str, Any] | None, case: Case, target: Target | None) -> Finding:
    """`layers.served`. `layers`: the record of notebook 01; None or without an answer of the engine's rule: skipped."""
    answer = (layers or {}).get("served") or {}
    measured = trained_boundaries(found)
    eager = (answer.get("boundaries") or {}).get("eager")
    engine = (layers or {}).get("engine", "the engine")
    common: dict[str, Any] = {"id": "layers.served", "notebook": NOTEBOOK, "question": QUESTION, "unit": "boundaries",
                              "observed": eager, "expected": None if measured is None else list(measured)}
    if not eager or measured is None:
        what = "the engine's captured boundaries are not known (notebook 01)" if not eager else "not every plane of the dump is identified"
        return Finding(**common, status=Status.SKIPPED, required=False, statement=f"Not compared: {what}",
                       next_step="Give serving.engine, serving.version and the drafter's config; run notebook 01 first.")
    slots = [s for s in aux_slots(found) if s.match]
    worst = max((s.match.error.value for s in slots), default=0.0)
    nearest = min((s.match.ratio for s in slots), default=float("inf"))
    proof = f"relative error of the planes at most {worst:.3f}, the next boundary {format_ratio(nearest)} times as far or more"
    common |= {"n": max((s.match.error.n for s in slots), default=None),
               "evidence": (Evidence(note=proof, path="evidence/03_match.csv"), *(Evidence(note="engine rule", source=s) for s in answer.get("sources", ())))}
    wrong = {path: b for path, b in answer["boundaries"].items() if b is not None and sorted(b) != sorted(measured)}
    if not wrong and list(measured) != sorted(measured):
        return Finding(**common, status=Status.INCONCLUSIVE, fault="wiring.plane-order",
                       statement=f"{engine} serves the states of the dump, but ascending; the dump holds them as {format_boundaries(measured)} ({proof})",
                       next_step="Look in the trainer for the order in which it concatenates the planes; notebook 02 tries every order.")
    if len(measured) > len(eager) and set(eager) <= set(measured):
        return Finding(**common, status=Status.INCONCLUSIVE, fault="wiring.plane-order",
                       statement=f"{engine} serves {format_boundaries(eager)}, all of them among the dump's {format_boundaries(measured)} ({proof}); which planes the trainer fed the dump does not say",
                       next_step="Look in the trainer for the planes it concatenates; notebook 02 tries every window.")
    if len(set(measured)) < len(measured):
        return Finding(**common, status=Status.INCONCLUSIVE, fault="feature.aliased-buffer",
                       statement=f"the dump holds {format_boundaries(measured)}: a plane that stands twice says nothing about the third state the drafter was meant to be fed ({proof})",
                       next_step="Settle first why two planes are equal (layers.alias).")
    if not wrong:
        return Finding(**common, status=Status.PASS, statement=f"{engine} serves {format_boundaries(eager)}, the boundaries the dump's tensors are ({proof})")
    if answer.get("assumed"):
        return Finding(**common, fault="wiring.layer-offset", status=Status.INCONCLUSIVE,
                       statement=f"the dump holds {format_boundaries(measured)} ({proof}); {engine} would serve {format_boundaries(eager)} if it followed the nearest release whose source was read",
                       next_step=f"Capture the fed states on the serving host, or name the exact version of {engine}.")
    if set(wrong) == {"graph"}:
        return Finding(
            **common, fault="wiring.graph-default-layers", status=Status.FAIL,
            statement=f"the dump holds {format_boundaries(measured)} and prefill serves them, but CUDA-graph decode on {engine} replays {format_boundaries(wrong['graph'])}",
            competitor=Competitor(fault="wiring.layer-offset", margin="eager path right, graph path wrong", why_rejected="an offset would shift the eager path as well"),
            refuted_by="equal eager and graph captures of one prompt, or the same accept length with CUDA graphs off",
            remedy="SGLang 0.5.11 or later; --disable-cuda-graph as the test", next_step="Measure the accept length once with --disable-cuda-graph.")
    fix = serve_boundaries(case, target, measured, answer.get("runner")) if target else None
    shift = uniform_shift(sorted(measured), sorted(eager))
    moved = f", every state {abs(shift)} boundar{'y' if abs(shift) == 1 else 'ies'} {'later' if shift > 0 else 'earlier'}" if shift else ""
    return Finding(
        **common, fault="wiring.layer-offset", status=Status.FAIL,
        statement=f"the drafter was trained on boundaries {format_boundaries(measured)}, {engine} serves {format_boundaries(eager)}{moved}"
        + (", the embedding among them" if 0 in eager and 0 not in measured else ""),
        competitor=Competitor(fault="wiring.mislabelled-dump" if any(s.label for s in found.slots) else "feature.partial-sum", margin=proof,
                              why_rejected="the dump's planes were identified by their values, whatever their labels say"
                              if any(s.label for s in found.slots) else "a partial sum matches no boundary cleanly; these match one each"),
        refuted_by=f"a capture of the fed states on the serving host that matches {format_boundaries(measured)}",
        remedy=fix.text if fix else None, edits=fix.edits if fix else (),
        next_step="Apply the list above and run the suite again; notebook 02 says what the wrong states cost.")
