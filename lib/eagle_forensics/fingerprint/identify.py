"""The answer per slot: which boundary, in which state, how sure, in one sentence with its numbers and its rival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import Sample
from eagle_forensics.fingerprint import hypotheses, measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.hypotheses import Form, State, Test
from eagle_forensics.fingerprint.match import MatchTable, SlotMatch, match
from eagle_forensics.fingerprint.measure import Glance, Health
from eagle_forensics.fingerprint.rows import Bank, Reference, Rows, Weights, collect


@dataclass(frozen=True)
class SlotIdentity:
    """Which tensor a slot holds."""

    slot: int
    label: str | None
    boundary: Boundary | None
    """None where the evidence does not decide."""
    state: State
    sure: bool
    """True only if the calibrated tests settle boundary and state; everything else abstains."""
    candidates: tuple[Boundary, ...]
    """What it may be, nearest first; one entry if sure."""
    match: SlotMatch | None
    form: Form | None
    """The damaged form that explains it, if one does."""
    embedding: Test
    twins: Test
    norm: Test
    health: Health
    twin_slot: int | None
    """An earlier slot with exactly the same values."""
    sentence: str
    suspects: tuple[str, ...] = ()
    """Fault slugs that an unsure result points to; never an accusation."""

    @property
    def equals(self) -> Boundary | None:
        """The boundary if the slot is that state whole and unchanged, else None."""
        return self.boundary if self.sure and self.state is State.COMPLETE else None

    @property
    def error(self) -> float | None:
        """Relative error of the accepted explanation, else of the nearest state."""
        return self.form.error if self.form else self.match.error.value if self.match else self.embedding.value


@dataclass(frozen=True)
class Identification:
    """All slots of one dump or capture."""

    slots: tuple[SlotIdentity, ...]
    table: MatchTable | None
    """Slots x boundaries; None without a bank for these tokens."""
    glances: tuple[Glance, ...]
    layers: int | None
    rows: int
    samples: int
    depth_order: tuple[int, ...]
    """Slots by growing median norm: a hint of depth where no bank decides, never a proof."""
    notes: tuple[str, ...] = field(default=())


def identify(samples: Iterable[Sample], *, bank: Bank | None = None, weights: Weights | None = None, layers: int | None = None,
             labels: Sequence[str] | None = None) -> Identification:
    """Say of every slot of `samples` (one dump or one capture) which state of the target it holds.

    `bank`: the target's states for the same tokens; `weights`: see `rows.weights_of`; `layers`: L; `labels`: a manifest's. All optional:
    without bank and weights, equal rows of equal tokens still prove the embedding and norms hint at the depth.
    Raises EvidenceError if no sample can be used.
    """
    weights = weights or Weights()
    rows = collect(samples, labels=labels)
    notes = list(rows.notes)
    reference = table = None
    if bank is not None:
        try:
            reference = Reference(bank, rows, weights, layers)
            table = match(reference)
        except ValueError as error:
            notes.append(f"no layer match: {error}")
    glances = measure.glance(rows)
    slots = tuple(_slot(i, rows, weights, reference, table, layers) for i in range(len(rows.planes)))
    return Identification(slots, table, glances, layers, len(rows), len(rows.samples),
                          tuple(sorted(range(len(glances)), key=lambda i: glances[i].median_norm)), tuple(notes))


def _slot(slot: int, rows: Rows, weights: Weights, reference: Reference | None, table: MatchTable | None, layers: int | None) -> SlotIdentity:
    x, label = rows.planes[slot], rows.labels[slot]
    health = measure.health(x)
    embedding = hypotheses.embedding_test(x, rows, weights, health.usable)
    twins = hypotheses.twin_test(x, rows, health.usable)
    norm = hypotheses.norm_test(x, weights, health.usable)
    found = table.matches[slot] if table else None
    twin_slot = next((i for i in range(slot) if torch.equal(rows.planes[i], x)), None)
    boundary, state, sure, form, suspects, why = _decide(slot, health, embedding, twins, norm, found, reference, table, layers)
    candidates = (boundary,) if sure and boundary else _candidates(boundary, found, norm, layers)
    sentence = _sentence(slot, label, boundary, state, sure, form, found, embedding, twins, norm, health, candidates, why, layers)
    return SlotIdentity(slot, label, boundary if sure else None, state, sure, candidates, found, form, embedding, twins, norm, health,
                        twin_slot, sentence, suspects)


def _decide(slot: int, health: Health, embedding: Test, twins: Test, norm: Test, found: SlotMatch | None, reference: Reference | None,
            table: MatchTable | None, layers: int | None):
    """(boundary, state, sure, form, suspects, why not), by the ordered hypotheses."""
    if health.share < 0.5:
        fault = "feature.non-finite" if health.non_finite >= health.zero else "feature.missing-stage"
        return None, State.BROKEN, True, None, (fault,), "more than half of its rows cannot be compared"
    is_embedding = embedding.holds if embedding.holds is not None else twins.holds
    if is_embedding:
        if found and found.clean and found.best != Boundary(0):
            return None, State.UNKNOWN, False, None, (), f"rows equal the embedding but also {found.best}: bank and weights contradict each other"
        return Boundary(0), State.COMPLETE, True, None, (), ""
    if found and found.clean:
        if found.best == Boundary(0):
            return None, State.UNKNOWN, False, None, (), "the bank's b=0 matches but embed_tokens does not: bank and weights contradict each other"
        return found.best, State.COMPLETE, True, None, (), ""
    if reference is not None and table is not None:
        ordinary = health.usable[: len(table.sinks)] if len(health.usable) == len(table.sinks) else measure.health(reference.rows.planes[slot]).usable
        forms = hypotheses.damaged_forms(reference.rows.planes[slot], reference, ordinary & ~table.sinks,
                                         found.error.value if found else np.inf)
        accepted = next((f for f in forms if f.holds), None)
        if accepted:
            return accepted.boundary, accepted.state, True, accepted, (), ""
        return None, State.UNKNOWN, False, None, _suspects(found, forms), "; ".join(found.reasons) if found else _no_match(reference, slot)
    if norm.holds and layers is not None:
        return Boundary(layers, True), State.UNKNOWN, False, None, (), "a norm was applied, to which state only a bank can tell"
    return None, State.UNKNOWN, False, None, (), "no bank holds states for its tokens"


def _suspects(found: SlotMatch | None, forms: Sequence[Form]) -> tuple[str, ...]:
    out = []
    if found and abs(found.alignment) > THRESHOLDS["alignment"] and found.error.value < 0.5:
        out.append("feature.partial-sum")
    residual = next((f for f in forms if f.state is State.NO_RESIDUAL), None)
    if residual and residual.error < 0.8 and residual.ratio > 1.2 and (not found or residual.error < found.error.value):
        out.append("feature.missing-residual")
    return tuple(out)


def _no_match(reference: Reference, slot: int) -> str:
    width, hidden = reference.rows.planes[slot].shape[1], reference.at(reference.boundaries[0]).shape[1]
    if width != hidden and width % hidden == 0:
        return f"its width {width} is {width // hidden} x {hidden}: several planes in one tensor, to be split before comparing"
    return f"its width is {width}, the target's {hidden}" if width != hidden else "too few usable rows"


def _candidates(boundary: Boundary | None, found: SlotMatch | None, norm: Test, layers: int | None) -> tuple[Boundary, ...]:
    if found:
        return (found.best, found.second)
    if boundary:
        return (boundary,)
    return (Boundary(layers, True),) if norm.holds and layers is not None else ()


def _sentence(slot, label, boundary, state, sure, form, found, embedding, twins, norm, health, candidates, why, layers) -> str:
    name = f"file slot {slot}" + (f", called `{label}`," if label else "")
    if state is State.BROKEN:
        return (f"{name} cannot be identified: of {health.rows} rows {health.non_finite} are not finite, {health.zero} zero and "
                f"{health.constant} constant.")
    if not sure:
        guess = f" Nearest: {' or '.join(str(c) for c in candidates)}, relative error {found.error.value:.3f}, next {found.second_error:.3f}." if found else ""
        known = "; ".join(t.text for t in (embedding, twins, norm) if t.value is not None)
        return f"{name} is not identified: {why}.{guess}" + (f" Known: {known}." if known else "")
    words = _words(boundary, layers)
    if form:
        return (f"{name} holds {words}, {form.state}: {form.detail}; relative error {form.error:.3f}, next best {form.second:.3f} "
                f"({form.second_text}), ratio {_ratio(form.ratio)}.")
    if boundary == Boundary(0):
        proof = embedding.text if embedding.holds else twins.text
        return f"{name} is {words}: {proof}."
    rival = ""
    if found:
        numbers = f"relative error {found.error.value:.3f}, next best {found.second_error:.3f} ({found.second}), ratio {_ratio(found.ratio)}"
        rejected = [t.text for t in (embedding, twins) if t.holds is False]
        rival = f"; it is not the embedding: {', '.join(rejected)}" if rejected else ""
        return f"{name} is {words}: {numbers}{rival}."
    return f"{name} is {words}."


def _words(boundary: Boundary, layers: int | None) -> str:
    if boundary.normed:
        return f"the state after the final norm ({boundary})"
    if boundary.index == 0:
        return "the embedding (b=0)"
    last = "the last layer, before the final norm" if boundary.index == layers else f"layer {boundary.index - 1}"
    return f"the output of {last} ({boundary})"


def _ratio(ratio: float) -> str:
    return "> 100" if ratio > 100 else f"{ratio:.1f}"
