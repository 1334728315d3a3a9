"""What is wrong with the states of a capture themselves, whatever layers they are: damaged forms, rows of nothing, one buffer under two slots.

A form that the training dump shows as well is no difference between training and serving: the dump's own slots name it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from eagle_forensics.evidence.records import Sample
from eagle_forensics.faults import fault as fault_of
from eagle_forensics.finding import Competitor, Finding, Status
from eagle_forensics.fingerprint.consistency import rows_finding
from eagle_forensics.fingerprint.findings import form_rival
from eagle_forensics.fingerprint.hypotheses import EXPLANATIONS, State
from eagle_forensics.fingerprint.identify import Identification, SlotIdentity
from eagle_forensics.fingerprint.pages import MOST_CHANCE, EmptyRows, empty_rows
from eagle_forensics.fingerprint.trained import NOTEBOOK


def flaw_findings(index: int, capture: Identification, samples: Sequence[Sample], dump: Identification, trained: Sequence[int] | None, *, scattered: bool = False) -> list[Finding]:
    """Everything that is wrong with capture `index`; empty for a sound one. `scattered`: other ranks hold the rows that are zero here."""
    found = _forms(index, capture, dump, trained, scattered)
    if any(s.health.non_finite for s in capture.slots if s.state is not State.BROKEN):
        found.append(rows_finding(capture, f"layers.capture-{index}-rows"))
    elif not scattered:
        found += _empty(index, empty_rows(samples))
    return [*found, *_twins(index, capture, trained)]


def _forms(index: int, capture: Identification, dump: Identification, trained: Sequence[int] | None, scattered: bool) -> list[Finding]:
    known = {(s.boundary, s.state) for s in dump.slots if s.sure}
    by_fault: dict[str, list[SlotIdentity]] = defaultdict(list)
    for s in capture.slots:
        if s.state is State.BROKEN and not scattered and not s.health.usable.any():
            by_fault[s.suspects[0]].append(s)
        elif s.sure and s.state is not State.BROKEN and EXPLANATIONS[s.state].fault and (s.boundary, s.state) not in known:
            by_fault[EXPLANATIONS[s.state].fault].append(s)
        elif s.equals and s.equals.normed and trained is not None and len(trained) == len(capture.slots) and trained[s.slot] == capture.layers:
            by_fault["feature.norm-state"].append(s)
    return [_form(f"layers.capture-{index}-form" + (f"-{number}" if number else ""), slug, slots) for number, (slug, slots) in enumerate(by_fault.items())]


def _form(id: str, slug: str, slots: list[SlotIdentity]) -> Finding:
    first = slots[0]
    common: dict[str, Any] = {"id": id, "notebook": NOTEBOOK, "fault": slug, "question": "Are the served states whole?", "observed": None if first.error is None else round(first.error, 5),
                              "unit": "relative error of this explanation", "n": first.form.n if first.form else first.health.rows}
    statement = " ".join(s.sentence for s in slots)
    if first.state is State.SHIFTED:
        return Finding(status=Status.INCONCLUSIVE, statement=f"{statement} The recorder may have paired rows and tokens like this, not the server.",
                       next_step="Capture one prompt again with `eagle-forensics capture`.", **common)
    if first.equals:
        rival = Competitor(fault=fault_of(slug).rival, margin=f"relative error {first.error:.3f} to {first.equals}", why_rejected="the drafter was trained on this layer's state before the norm, which the dump proves")
    else:
        rival = form_rival(first, slug)
    return Finding(status=Status.FAIL, statement=statement, competitor=rival, refuted_by=fault_of(slug).refuted_if, remedy=fault_of(slug).remedy, **common)


def _empty(index: int, rows: EmptyRows) -> list[Finding]:
    common: dict[str, Any] = {"id": f"layers.capture-{index}-rows", "notebook": NOTEBOOK, "question": "Does every row of the capture hold a state?", "observed": rows.inside, "expected": 0,
                              "unit": "empty rows between sound ones", "n": rows.rows}
    if rows.page:
        slug = "runtime.page-units"
        return [Finding(status=Status.FAIL, fault=slug, threshold=MOST_CHANCE,
                        threshold_why=f"{rows.runs} runs at random places begin and end on multiples of {rows.page} with a chance of {rows.chance:.0e} (1/{rows.page} an edge)",
                        statement=f"{rows.inside} of {rows.rows} rows are zero or constant, in {rows.runs} runs that all begin and end on multiples of {rows.page} tokens: whole pages were read that nobody wrote.",
                        competitor=Competitor(fault="runtime.stale-draft-cache", margin=f"{rows.inside} rows of one value", why_rejected="stale rows are old states, not zeros or constants"),
                        refuted_by=fault_of(slug).refuted_if, remedy=fault_of(slug).remedy,
                        next_step="Serve once with a page size of 1, or with the page size that the draft's attention backend expects, and capture again.", **common)]
    if rows.chunks:
        return [Finding(status=Status.INCONCLUSIVE, fault="runtime.page-units",
                        statement=f"{rows.inside} of {rows.rows} rows are zero or constant, in {rows.runs} runs so long and so aligned that they may be lost chunks of a chunked prefill as well as pages that nobody wrote.",
                        next_step="Capture the same prompt once without chunked prefill (SGLang --chunked-prefill-size -1): rows that stay empty are pages.", **common)]
    if rows.inside:
        return [Finding(status=Status.INCONCLUSIVE, statement=f"{rows.inside} of {rows.rows} rows between sound ones are zero or constant, in no pattern of pages: rows were lost, in the server or in the recorder.",
                        next_step="Capture the same prompt again and see whether the same rows are empty.", **common)]
    return []


def _twins(index: int, capture: Identification, trained: Sequence[int] | None) -> list[Finding]:
    twins = [(s.twin_slot, s.slot) for s in capture.slots if s.twin_slot is not None and s.state is not State.BROKEN]
    if not twins or trained is None or len(trained) != len(capture.slots) or all(trained[a] == trained[b] for a, b in twins):
        return []
    slug, held = "feature.aliased-buffer", capture.slots[twins[0][1]]
    return [Finding(id=f"layers.capture-{index}-alias", notebook=NOTEBOOK, question="Do two served slots hold the same values?", status=Status.FAIL, fault=slug, n=capture.rows,
                    statement="; ".join(f"served slots {a} and {b} are equal in every value, trained on boundaries {trained[a]} and {trained[b]}" for a, b in twins)
                    + (f"; both are {held.equals.describe(capture.layers)}." if held.equals else "."),
                    competitor=Competitor(fault="wiring.plane-count", margin=f"{capture.rows} rows equal in every value", why_rejected="engines capture a layer once even where its id stands twice: that gives a plane less, not an equal one"),
                    refuted_by=fault_of(slug).refuted_if, remedy=fault_of(slug).remedy)]
