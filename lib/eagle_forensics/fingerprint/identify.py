"""The answer per slot: which boundary, in which state, how sure, in one sentence with its numbers and its rival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import Sample
from eagle_forensics.fingerprint import hypotheses, measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.forms import Form, Patch, damaged_forms, patch_of
from eagle_forensics.fingerprint.hypotheses import State, Test
from eagle_forensics.fingerprint.match import MatchTable, SlotMatch, match
from eagle_forensics.fingerprint.measure import Glance, Health
from eagle_forensics.fingerprint.rotation import shared_rotation
from eagle_forensics.fingerprint.rows import Bank, Reference, Rows, Weights, collect
from eagle_forensics.fingerprint.teacher import Teacher, teacher_tests


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
    teacher: Teacher | None = None
    """What the target's head reads off the slot; only where no bank identifies it."""

    @property
    def equals(self) -> Boundary | None:
        """The boundary if the slot is that state whole (noise without direction allowed), else None."""
        return self.boundary if self.sure and self.state in (State.COMPLETE, State.NOISY) else None

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
    """Slots by what the head reads off them (logit lens), without a head by growing median norm: a hint of depth, never a proof."""
    sequence: np.ndarray = field(repr=False, compare=False)
    """`[N]`: sample number of every row."""
    position: np.ndarray = field(repr=False, compare=False)
    """`[N]`: position of every row in its sample."""
    notes: tuple[str, ...] = field(default=())


def identify(samples: Iterable[Sample] | Rows, *, bank: Bank | None = None, weights: Weights | None = None, layers: int | None = None,
             labels: Sequence[str] | None = None) -> Identification:
    """Say of every slot of `samples` (of one dump or one capture, or their rows) which state of the target it holds.

    `bank`: the target's states for the same tokens; `weights`: see `rows.weights_of`; `layers`: L; `labels`: a manifest's. All optional:
    without bank and weights, equal rows of equal tokens still prove the embedding and norms hint at the depth.
    Raises EvidenceError if no sample can be used.
    """
    weights = weights or Weights()
    rows = samples if isinstance(samples, Rows) else collect(samples, labels=labels)
    notes = list(rows.notes)
    reference = table = None
    if bank is not None:
        try:
            reference = Reference(bank, rows, weights, layers)
            table = match(reference)
            if reference.late:
                notes.append(f"{len(reference.late)} of {len(rows.samples)} samples begin at a later position of their sequence (position {min(reference.late.values())} and on): "
                             "the rows of a cached prefix were not recorded, or the sample was cut; token ids and rows agree from there on")
        except ValueError as error:
            notes.append(f"no layer match: {error}")
    bench = _Bench(rows, weights, reference, table, layers)
    slots = _with_shared_rotation(tuple(_slot(i, bench) for i in range(len(rows.planes))), bench)
    glances = measure.glance(rows)
    lens = all(s.teacher for s in slots)
    order = sorted(range(len(slots)), key=lambda i: slots[i].teacher.best if lens else glances[i].median_norm)
    return Identification(slots, table, glances, layers, len(rows), len(rows.samples), tuple(order), rows.sequence, rows.position, tuple(notes))


class _Bench:
    """Everything the slots are held against; the patch is read once, and only if a slot needs it."""

    def __init__(self, rows: Rows, weights: Weights, reference: Reference | None, table: MatchTable | None, layers: int | None) -> None:
        self.rows, self.weights, self.reference, self.table, self.layers = rows, weights, reference, table, layers

    @cached_property
    def patch(self) -> Patch:
        return patch_of(self.reference)

    @cached_property
    def teachers(self) -> tuple[Teacher | None, ...]:
        return teacher_tests(self.rows, self.weights)

    def forms(self, slot: int) -> tuple[Form, ...]:
        x = self.reference.rows.planes[slot]
        return damaged_forms(x, self.patch, measure.health(x).usable & ~self.table.sinks, self.table.matches[slot])


def _with_shared_rotation(slots: tuple[SlotIdentity, ...], bench: _Bench) -> tuple[SlotIdentity, ...]:
    """Says in the sentence of rotated slots whether one rotation explains them all."""
    rotated = [s for s in slots if s.sure and s.state is State.ROTATED]
    if len(rotated) < 2:
        return slots
    at = np.flatnonzero(~bench.table.sinks[: len(bench.patch)])[:256]
    one, error = shared_rotation([bench.reference.rows.planes[s.slot][at] for s in rotated], [bench.patch.states[s.boundary][at] for s in rotated])
    if one is None:
        return slots
    names = ", ".join(str(s.slot) for s in rotated)
    tail = (f" One and the same rotation explains slots {names} (products between slots equal within {error:.4f}): a target whose residual stream is rotated." if one
            else f" Slots {names} are not rotated alike (products between slots differ by {error:.2f}).")
    return tuple(replace(s, sentence=s.sentence + tail) if s.sure and s.state is State.ROTATED else s for s in slots)


@dataclass(frozen=True)
class _Decision:
    boundary: Boundary | None = None
    state: State = State.UNKNOWN
    sure: bool = False
    form: Form | None = None
    suspects: tuple[str, ...] = ()
    why_not: str = ""
    teacher: Teacher | None = None


def _slot(slot: int, bench: _Bench) -> SlotIdentity:
    rows, weights = bench.rows, bench.weights
    x, label = rows.planes[slot], rows.labels[slot]
    health = measure.health(x)
    tests = (hypotheses.embedding_test(x, rows, weights, health.usable), hypotheses.twin_test(x, rows, health.usable),
             hypotheses.norm_test(x, weights, health.usable))
    found = bench.table.matches[slot] if bench.table else None
    decision = _decide(slot, health, tests, found, bench)
    twin = next((i for i in range(slot) if torch.equal(rows.planes[i], x)), None)
    if decision.boundary and decision.sure:
        candidates = (decision.boundary,)
    else:
        candidates = (found.best, found.second) if found else (decision.boundary,) if decision.boundary else ()
    return SlotIdentity(slot, label, decision.boundary if decision.sure else None, decision.state, decision.sure, candidates, found,
                        decision.form, *tests, health, twin, _sentence(slot, label, decision, found, tests, health, bench.layers),
                        decision.suspects, decision.teacher)


def _decide(slot: int, health: Health, tests: tuple[Test, Test, Test], found: SlotMatch | None, bench: _Bench) -> _Decision:
    """The ordered hypotheses: unusable rows, embedding, layer match, damaged forms, norm state alone."""
    embedding, twins, norm = tests
    if health.share < 0.5:
        fault = "feature.non-finite" if health.non_finite >= health.zero else "feature.missing-stage"
        return _Decision(state=State.BROKEN, sure=True, suspects=(fault,))
    is_embedding = embedding.holds if embedding.holds is not None else twins.holds
    clean = found.best if found and found.clean else None
    if is_embedding and clean not in (None, Boundary(0)):
        return _Decision(why_not=f"its rows behave like the embedding and equal {clean}: bank and weights contradict each other")
    if clean == Boundary(0) and embedding.holds is False:
        return _Decision(why_not="it equals the bank's b=0 but not embed_tokens: bank and weights contradict each other")
    if is_embedding or clean:
        return _Decision(Boundary(0) if is_embedding else clean, State.COMPLETE, sure=True)
    if bench.table is not None:
        forms = bench.forms(slot)
        accepted = next((f for f in forms if f.holds), None)
        if accepted:
            return _Decision(accepted.boundary, accepted.state, sure=True, form=accepted)
        return _Decision(suspects=_suspects(found, forms), why_not="; ".join(found.reasons) if found else _no_match(bench, slot))
    return _without_bank(slot, norm, bench)


def _without_bank(slot: int, norm: Test, bench: _Bench) -> _Decision:
    """Norm state by the norm's weight and by what the head reads; the boundary stays a candidate."""
    teacher = bench.teachers[slot]
    state = teacher.state if teacher else None
    if bench.layers is not None and (state or norm.holds):
        if state == "twice":
            return _Decision(Boundary(bench.layers), State.NORMED_TWICE, teacher=teacher, suspects=("data.norm-twice",),
                             why_not="the final norm was applied twice, to which state only a bank can tell")
        if state == "pre" and not norm.holds:
            return _Decision(Boundary(bench.layers), teacher=teacher, why_not="un-normed and read by the head like the last layer's state; a layer before it only a bank can exclude")
        if norm.holds:
            return _Decision(Boundary(bench.layers, True), teacher=teacher, why_not="a norm was applied, to which state only a bank can tell")
    return _Decision(teacher=teacher, why_not="no bank holds states for its tokens")


def _suspects(found: SlotMatch | None, forms: Sequence[Form]) -> tuple[str, ...]:
    out = []
    if found and abs(found.alignment) > THRESHOLDS["alignment"] and found.error.value < 0.5:
        out.append("feature.partial-sum")
    residual = next((f for f in forms if f.state is State.NO_RESIDUAL), None)
    if residual and residual.error < 0.8 and residual.ratio > 1.2 and (not found or residual.error < found.error.value):
        out.append("feature.missing-residual")
    return tuple(out)


def _no_match(bench: _Bench, slot: int) -> str:
    width, hidden = bench.rows.planes[slot].shape[1], bench.patch.hidden
    if width == hidden:
        return "too few of its rows can be compared"
    if width % hidden == 0:
        return f"its width {width} is {width // hidden} x {hidden}: several planes in one tensor, to be split before comparing"
    return f"its width is {width}, the target's {hidden}, and no slice of a state explains it"


def _sentence(slot: int, label: str | None, decision: _Decision, found: SlotMatch | None, tests: tuple[Test, Test, Test],
              health: Health, layers: int | None) -> str:
    name = f"file slot {slot}" + (f", called `{label}`," if label else "")
    if decision.state is State.BROKEN:
        return (f"{name} cannot be identified: of {health.rows} rows {health.non_finite} are not finite, {health.zero} zero and "
                f"{health.constant} constant.")
    if not decision.sure:
        nearest = (f" Nearest: {found.best}, relative error {found.error.value:.3f}, then {found.second} with {found.second_error:.3f}."
                   if found else "")
        known = "; ".join([*(t.text for t in tests if t.value is not None), *([decision.teacher.text] if decision.teacher else [])])
        return f"{name} is not identified: {decision.why_not}.{nearest}" + (f" Known: {known}." if known else "")
    words, form = _words(decision.boundary, layers), decision.form
    if form:
        return (f"{name} is {words}, {form.state}: {form.detail}; relative error {form.error:.3f}, next best {form.second:.3f} "
                f"({form.second_text}), ratio {format_ratio(form.ratio)}.")
    if decision.boundary == Boundary(0):
        return f"{name} is {words}: " + ", ".join(t.text for t in tests[:2] if t.holds) + "."
    embedding, twins, _ = tests
    rejected = ", ".join([*([f"rows of equal tokens differ by {twins.value:.2f} ({twins.n} pairs)"] if twins.holds is False else []),
                          *([f"its rows differ from embed_tokens[ids] by {embedding.value:.2f}"] if embedding.holds is False else [])])
    return (f"{name} is {words}: relative error {format_error(found.error.value)}, next best {found.second_error:.3f} ({found.second}), ratio "
            f"{format_ratio(found.ratio)}" + (f"; it is not the embedding: {rejected}" if rejected else "") + ".")


def _words(boundary: Boundary, layers: int | None) -> str:
    if boundary.normed:
        return f"the state after the final norm ({boundary})"
    if boundary.index == 0:
        return "the embedding (b=0)"
    last = "the last layer, before the final norm" if boundary.index == layers else f"layer {boundary.index - 1}"
    return f"the output of {last} ({boundary})"


def format_error(error: float) -> str:
    """`0` if exact, else three digits."""
    return "0" if error == 0 else "below 0.001" if error < 0.001 else f"{error:.3f}"


def format_ratio(ratio: float) -> str:
    """`> 100` or one digit."""
    return "> 100" if ratio > 100 else f"{ratio:.1f}"
