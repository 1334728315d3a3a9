"""On which boundaries the drafter was trained, as measured; whether a capture of the server holds the same; the record of both.

A dump proves what was trained on, a capture proves one execution path of one server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics.boundary import format_boundaries, uniform_shift
from eagle_forensics.engines.returning import HOW_DECODE
from eagle_forensics.faults import fault as fault_of
from eagle_forensics.finding import Competitor, Finding, Status
from eagle_forensics.fingerprint.identify import Identification, SlotIdentity, format_ratio

NOTEBOOK = "03_layer_matching"
MAKE_BANK = ("Make the target's states for the tokens of this dump (reference.path, or a target whose weights fit in memory) and run "
             "notebook 03 again.")


@dataclass(frozen=True)
class Rule:
    """What the engine's rule says of this release and this class of target, where it was read."""

    ids: tuple[int, ...]
    """Boundaries that the configured ids mean."""
    default: tuple[int, ...]
    """Boundaries that are captured where no ids are used."""

    def replayed(self, held: Iterable[object]) -> bool:
        """Whether a graph that holds these boundaries was captured with the default list in place of the configured ids."""
        return set(held) == set(self.default) != set(self.ids)


def trained_boundaries(found: Identification) -> tuple[int, ...] | None:
    """Boundaries of the planes that feed the drafter, in file order; None if one of them is not a known whole state.

    The last slot is the teacher's state where it is b=L or L+norm or unknown (trainers drop the last entry); else it feeds too.
    """
    slots = aux_slots(found)
    if not slots or any(s.equals is None or s.equals.normed for s in slots):
        return None
    return tuple(s.equals.index for s in slots)


def aux_slots(found: Identification) -> tuple[SlotIdentity, ...]:
    """The slots that feed the drafter."""
    last = found.slots[-1]
    inner = last.equals is not None and not last.equals.normed and last.equals.index != found.layers
    return found.slots if inner else found.slots[:-1]


def trained_finding(found: Identification, claimed: Sequence[int] | None = None, claimed_by: str = "the trainer's layer ids") -> Finding:
    """`layers.trained`: the boundaries the drafter was trained on, as measured, against those the ids claim."""
    measured = trained_boundaries(found)
    n = max((s.match.error.n for s in found.slots if s.match), default=None)
    common: dict[str, Any] = {"id": "layers.trained", "notebook": NOTEBOOK, "question": "On which boundaries was the drafter trained?",
                                  "observed": None if measured is None else list(measured), "expected": None if claimed is None else list(claimed), "unit": "boundary", "n": n}
    if measured is None:
        known = [str(s.equals) if s.equals else "?" for s in aux_slots(found)]
        return Finding(status=Status.INCONCLUSIVE,
                       statement=f"Not every plane that feeds the drafter is identified ({', '.join(known)}).", next_step=MAKE_BANK, **common)
    worst = max((s.match.error.value for s in aux_slots(found) if s.match), default=0.0)
    nearest = min((s.match.ratio for s in aux_slots(found) if s.match), default=math.inf)
    evidence = f"relative errors at most {worst:.3f}, next best {format_ratio(nearest)} times as far or more"
    if list(measured) != sorted(set(measured)):
        return Finding(status=Status.INCONCLUSIVE, fault="wiring.plane-order", next_step="Look in the trainer for the order in which it concatenates the planes; engines always feed ascending ones.",
                       statement=f"The dump's planes are boundaries {list(measured)} in file order, which is not ascending: engines feed them ascending ({evidence}).", **common)
    if claimed is not None and tuple(claimed) != measured and sorted(claimed) == sorted(measured):
        return Finding(status=Status.INCONCLUSIVE, fault="wiring.plane-order", next_step="Look in the trainer whether it sorts its layer ids before it writes or concatenates the planes.",
                       statement=f"The dump holds {format_boundaries(measured)} in file order, {claimed_by} name the same states as {format_boundaries(claimed)} ({evidence}).", **common)
    if claimed is not None and tuple(claimed) != measured:
        shift = uniform_shift(claimed, measured)
        return Finding(
            status=Status.FAIL, fault="wiring.layer-offset",
            statement=f"The drafter was trained on {format_boundaries(measured)} ({evidence}), not on {format_boundaries(claimed)}, which {claimed_by} claim"
            + (f": every plane is {abs(shift)} boundar{'y' if abs(shift) == 1 else 'ies'} {'later' if shift > 0 else 'earlier'}." if shift else "."),
            competitor=Competitor(fault="feature.partial-sum", margin=evidence,
                                  why_rejected="a partial sum matches no boundary cleanly; these match one each"),
            refuted_by="the ids resolve to the measured boundaries under the convention of the program that wrote the dump",
            remedy=f"Serve {format_boundaries(measured)}: write the ids that the engine turns into them.", **common)
    agrees = f", as {claimed_by} claim" if claimed is not None else ""
    return Finding(status=Status.PASS, statement=f"The drafter was trained on boundaries {format_boundaries(measured)}{agrees}: {evidence}.",
                   refuted_by="a plane that matches another boundary better", **common)


def capture_finding(index: int, capture: Identification, trained: Sequence[int] | None, *, path_kind: str = "unknown", label: str | None = None,
                    rule: Rule | None = None, eager_right: bool | None = None) -> Finding:
    """`layers.capture-N`: does the server feed the boundaries the drafter was trained on? Proves only the execution path captured.

    `rule`: None where no rule is known for the release; `eager_right`: whether another capture shows the trained boundaries on the eager path, None without one.
    """
    name = f"capture {index}" + (f" ({label})" if label else "")
    fed = _fed(capture, trained)
    n = max((s.match.error.n for s in capture.slots if s.match), default=None)
    common: dict[str, Any] = {"id": f"layers.capture-{index}", "notebook": NOTEBOOK, "n": n, "unit": "boundary", "observed": None if fed is None else list(fed),
                                  "expected": None if trained is None else list(trained), "question": f"Does {name} hold the boundaries the drafter was trained on?"}
    if capture.layers and all(s.label for s in capture.slots) and set(range(1, capture.layers)) <= {s.equals.index for s in capture.slots if s.equals}:
        return Finding(status=Status.SKIPPED, required=False, statement=f"{name} holds the residual stream of all {capture.layers} layers under the names of its modules, every one whole: sound states, "
                       "but which of them reach the drafter it does not say.", next_step="Capture the input of the drafter's fc.", **common)
    if fed is None or trained is None:
        what = "the capture's planes are not all identified" if fed is None else "the trained boundaries are not known"
        why_not = next((s.sentence for s in capture.slots if s.equals is None), "")
        return Finding(status=Status.INCONCLUSIVE, statement=f"Cannot compare {name} with training: {what}. {why_not}".strip(), next_step=MAKE_BANK,
                       fault=next((x for s in capture.slots for x in s.suspects), None), **common)
    limits = {"eager": " This proves the eager path only; decode may replay CUDA graphs.", "graph": "", "unknown": " Which execution path it shows is not stated."}[path_kind]
    if fed == tuple(trained):
        return Finding(status=Status.PASS, statement=f"{name} holds {format_boundaries(fed)}, the trained boundaries.{limits}",
                       next_step=HOW_DECODE if path_kind == "eager" else None, refuted_by="a capture of the other execution path that differs", **common)
    if set(fed) < set(trained):
        return Finding(status=Status.INCONCLUSIVE, statement=f"{name} holds {format_boundaries(fed)}, a part of the trained {format_boundaries(trained)}; "
                       "what else reaches the drafter it does not say.", next_step="Capture the input of the drafter's fc.", **common)
    if capture.layers and set(trained) <= set(fed) and set(range(1, capture.layers)) <= set(fed):
        return Finding(status=Status.INCONCLUSIVE, fault="wiring.all-layers", statement=f"{name} holds {len(capture.slots)} states, those of all {capture.layers} layers; if this is what fc reads, "
                       "they were joined instead of selected.", next_step="Compare the width of the drafter's fc input with len(ids) x hidden size.", **common)
    if set(trained) <= set(fed):
        return Finding(status=Status.INCONCLUSIVE, statement=f"{name} holds {format_boundaries(fed)}, more than or in another order than the trained {format_boundaries(trained)}; "
                       "which of them reach the drafter it does not say.", next_step="Capture the input of the drafter's fc.", **common)
    shift = uniform_shift(trained, fed)
    misread = rule is not None and set(fed) == set(rule.ids)
    if path_kind == "graph" and len(fed) == len(trained) and not misread and not _graph_alone(fed, trained, rule, eager_right):
        return Finding(status=Status.INCONCLUSIVE, fault="wiring.layer-offset" if shift and not eager_right else "wiring.graph-default-layers",
                       statement=f"{name} holds {format_boundaries(fed)}, the drafter was trained on {format_boundaries(trained)}" + (f" ({shift:+d} each)" if shift else "")
                       + ". Whether the graph alone holds other layers, or the eager path too, it does not say" + (f"; the engine's default is {format_boundaries(rule.default)}." if rule else "."),
                       next_step="Capture the same prompt on the eager path, or measure the accept length once with --disable-cuda-graph.", **common)
    slug = ("wiring.plane-count" if len(fed) != len(trained) else "wiring.graph-default-layers" if path_kind == "graph" and not misread else
            "feature.aliased-buffer" if path_kind != "graph" and _overwritten(fed, trained, rule) else "wiring.layer-offset")
    rival = {"wiring.layer-offset": "feature.partial-sum", "wiring.graph-default-layers": "wiring.layer-offset", "wiring.plane-count": "wiring.all-layers",
             "feature.aliased-buffer": "wiring.layer-offset"}[slug]
    rejected = {"wiring.layer-offset": "a partial sum matches no boundary cleanly; every plane here matches one",
                "wiring.graph-default-layers": "the eager capture holds the trained boundaries; an offset would move both paths" if eager_right else
                "the configured ids mean the trained boundaries, and the graph holds the engine's default list",
                "feature.aliased-buffer": f"the ids resolve to {format_boundaries(rule.ids if rule else ())}, and one offset does not move planes by {', '.join(f'{f - t:+d}' for f, t in zip(fed, trained, strict=False))}",
                "wiring.plane-count": f"{len(fed)} planes are not all layers"}[slug]
    return Finding(
        status=Status.FAIL, fault=slug,
        statement=f"{name} holds {format_boundaries(fed)}, the drafter was trained on {format_boundaries(trained)}" + (f" ({shift:+d} each)" if shift else "") + f".{limits}",
        competitor=Competitor(fault=rival, margin="next best at least " + format_ratio(min((s.match.ratio for s in capture.slots if s.match), default=math.inf)) + " times as far", why_rejected=rejected),
        refuted_by="the capture comes from another server, configuration or model than the case's", remedy=fault_of(slug).remedy, **common)


def _graph_alone(fed: Sequence[int], trained: Sequence[int], rule: Rule | None, eager_right: bool | None) -> bool:
    """Whether other layers on the graph path are the graph's own doing: its eager path is right, and they are the default where that is known."""
    if rule is None:
        return eager_right is True
    return rule.replayed(fed) and (set(rule.ids) == set(trained) if eager_right is None else eager_right)


def _overwritten(fed: Sequence[int], trained: Sequence[int], rule: Rule | None) -> bool:
    """Planes later by different numbers of layers though the engine's rule serves the trained ones, and not its default: a later layer wrote into what was captured."""
    moves = [f - t for f, t in zip(fed, trained, strict=True)]
    if rule is None or list(rule.ids) != list(trained) or set(fed) == set(rule.default):
        return False
    return min(moves) >= 0 and len(set(moves)) > 1


def _fed(capture: Identification, trained: Sequence[int] | None) -> tuple[int, ...] | None:
    """The capture's boundaries. Its last plane is no teacher's b=L where all of its planes are the trained ones shifted alike."""
    every = tuple(s.equals.index for s in capture.slots if s.equals and not s.equals.normed)
    if trained is not None and len(every) == len(capture.slots) == len(trained) and uniform_shift(trained, every):
        return every
    return trained_boundaries(capture)


def record(found: Identification) -> dict[str, Any]:
    """What the diagnosis needs, as JSON: measured trained boundaries in slot order and the identity of every slot."""
    trained = trained_boundaries(found)
    return {"trained_boundaries": None if trained is None else list(trained), "layers": found.layers, "rows": found.rows, "samples": found.samples,
            "slots": [{"slot": s.slot, "label": s.label, "boundary": s.boundary.index if s.boundary else None, "normed": bool(s.boundary and s.boundary.normed),
                       "state": str(s.state), "sure": s.sure, "candidates": [str(c) for c in s.candidates], "error": s.error,
                       "second_error": s.match.second_error if s.match else None, "suspects": list(s.suspects), "sentence": s.sentence} for s in found.slots],
            "depth_order": list(found.depth_order), "notes": list(found.notes)}
