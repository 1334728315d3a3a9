"""Diagnosis: joins the findings of all five notebooks into one story with its proof, rivals, fix and what remains.

Explicit tables, no black box: a fault is ranked by the kinds of evidence that carry it (a tensor outweighs a behaviour, a
behaviour outweighs a claim), and every conclusion names the findings it rests on. It abstains when evidence is missing
and says "no fault found" for a healthy case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.case import Case
from eagle_forensics.faults import catalogue, fault
from eagle_forensics.finding import Competitor, Edit, Finding, Record, Status, Verdict, verdict

WEIGHT = {"layers": 3, "drafter": 2, "acceptance": 2, "nccl": 2, "config": 1}
"""Weight of one line of evidence by the question it answers (principle 1: numbers over labels)."""

EXPLAINS = {
    ("wiring.mislabelled-dump", "wiring.layer-offset"):
        "whoever writes the ids from these labels serves the wrong states",
    ("wiring.mislabelled-dump", "wiring.plane-order"): "the order was read from the labels",
    ("args.draft-budget-overridden", "cost.cannot-win"):
        "the draft budget caps the accept length below the break-even",
}
"""(cause, consequence) -> how the first leads to the second."""

LINES = {"layers": "the tensors", "drafter": "the drafter's behaviour", "acceptance": "the live measurement", "config": "the claims", "nccl": "the interconnect"}
"""The lines of evidence, by the question of a finding."""

LINKS = {"args": "launch arguments", "wiring": "which states are fed", "feature": "the captured tensor", "drafter": "head semantics",
         "vocab": "vocabulary map", "load": "loading", "data": "training data", "runtime": "engine state", "measure": "measurement",
         "cost": "cost of a verify round", "nccl": "interconnect"}
"""The links of the chain, by the first part of a fault's slug."""


class DiagnosedFault(Record):
    """One supported fault with everything that carries and limits it."""

    slug: str
    title: str
    link: str
    """Which link of the chain is broken."""
    statement: str
    """The strongest finding's sentence."""
    findings: tuple[str, ...]
    """Ids of the findings that carry it, strongest first."""
    weight: int
    """Sum of the weights of the questions that found it."""
    competitor: Competitor | None
    refuted_by: str | None
    remedy: str | None
    edits: tuple[Edit, ...]
    predicted_effect: str | None
    caused_by: str | None = None
    """Slug of the fault that explains this one, with the reason."""
    if_fixed: str = ""
    """What would still be wrong if only this were fixed."""


class Diagnosis(Record):
    """The opening of the post-mortem."""

    verdict: Verdict
    headline: str
    """One sentence a tired reader understands."""
    story: tuple[str, ...]
    """Paragraphs: what is broken, the proof, the rival, the fix and its effect, what remains."""
    faults: tuple[DiagnosedFault, ...]
    """Supported faults, strongest first."""
    contradictions: tuple[str, ...]
    """Pairs of statements that cannot both be true, and which one holds."""
    next_steps: tuple[str, ...]
    not_examined: tuple[str, ...]
    """Questions without evidence, and what would answer them."""


def diagnose(findings: Sequence[Finding], records: Mapping[str, Any], case: Case, missing: int = 0) -> Diagnosis:
    """Join the findings of a run. `records`: what the notebooks left in `evidence/` by name; `missing`: unfinished notebooks."""
    outcome = verdict(findings, missing)
    failed = [f for f in findings if f.status is Status.FAIL]
    faults = _faults(failed)
    return Diagnosis(
        verdict=outcome, headline=_headline(outcome, faults, findings, missing), story=_story(outcome, faults, findings, records, missing),
        faults=faults, contradictions=_contradictions(findings), next_steps=_next_steps(faults, findings),
        not_examined=tuple(f"{f.question} {_capital(f.statement)}." for f in findings if f.status is Status.SKIPPED))


def _question(item: Finding) -> str:
    return item.id.split(".", 1)[0]


def _faults(failed: Sequence[Finding]) -> tuple[DiagnosedFault, ...]:
    chain = {slug: i for i, slug in enumerate(catalogue())}
    by_slug: dict[str, list[Finding]] = {}
    for item in failed:
        by_slug.setdefault(item.fault, []).append(item)
    result = []
    for slug, items in by_slug.items():
        items = sorted(items, key=lambda f: -WEIGHT.get(_question(f), 1))
        best = items[0]
        cause = next((f"{a}: {why}" for (a, b), why in EXPLAINS.items() if b == slug and a in by_slug), None)
        others = [s for s in by_slug if s != slug]
        result.append(DiagnosedFault(
            slug=slug, title=fault(slug).title if slug in chain else slug, link=LINKS.get(slug.split(".")[0], slug), statement=best.statement,
            findings=tuple(f.id for f in items), weight=sum({_question(f): WEIGHT.get(_question(f), 1) for f in items}.values()),
            competitor=best.competitor, refuted_by=best.refuted_by, remedy=next((f.remedy for f in items if f.remedy), None),
            edits=_unique_edits(items), predicted_effect=_effect(items), caused_by=cause,
            if_fixed="nothing that was examined" if not others else ", ".join(others)))
    return tuple(sorted(result, key=lambda d: (-d.weight, chain.get(d.slug, len(chain)))))


def _unique_edits(items: Sequence[Finding]) -> tuple[Edit, ...]:
    seen: dict[tuple[str, str], Edit] = {}
    for item in items:
        for edit in item.edits:
            seen.setdefault((edit.file, edit.key), edit)
    return tuple(seen.values())


def _effect(items: Sequence[Finding]) -> str | None:
    """The behaviour's own prediction (notebook 02) before any other words."""
    ordered = sorted((f for f in items if f.predicted_effect), key=lambda f: _question(f) != "drafter")
    return ordered[0].predicted_effect if ordered else None


def _headline(outcome: Verdict, faults: Sequence[DiagnosedFault], findings: Sequence[Finding], missing: int) -> str:
    if faults:
        return f"{_capital(faults[0].statement)}."
    if outcome is Verdict.ERROR:
        return f"No verdict: {missing} notebook(s) did not finish." if missing else "No verdict: a check ended in an error."
    if outcome is Verdict.INCONCLUSIVE:
        return "Not enough evidence for a verdict."
    return f"No fault found: {sum(f.status is Status.PASS for f in findings)} checks pass."


def _story(outcome: Verdict, faults: Sequence[DiagnosedFault], findings: Sequence[Finding], records: Mapping[str, Any], missing: int) -> tuple[str, ...]:
    paragraphs = []
    if faults:
        first = faults[0]
        paragraphs.append(f"The broken link is {first.link} (`{first.slug}`): {_inner(first.statement)}.")
        plain = _in_plain_numbers(records) if "drafter.served-wiring" in first.findings else None
        if plain:
            paragraphs.append(plain)
        if len(first.findings) > 1:
            lines: dict[str, list[str]] = {}
            for i in first.findings:
                lines.setdefault(LINES[i.split(".", 1)[0]], []).append(i)
            said = ", ".join(f"{line} ({', '.join(ids)})" for line, ids in lines.items())
            paragraphs.append(f"{len(lines)} line{'s' if len(lines) > 1 else ''} of evidence carr{'y' if len(lines) > 1 else 'ies'} it: {said}.")
        if first.competitor:
            c = first.competitor
            paragraphs.append(f"The nearest other explanation is `{c.fault}` ({c.margin}). {_capital(c.why_rejected)}. "
                              f"What would refute this verdict: {_inner(first.refuted_by)}.")
        if first.caused_by:
            paragraphs.append(f"How it came about: {_inner(first.caused_by)}.")
        fix = " ".join(f"{_capital(x)}." for x in (first.remedy, first.predicted_effect and f"Predicted: {first.predicted_effect}") if x)
        if fix:
            paragraphs.append(f"The fix. {fix}")
        for other in faults[1:]:
            relation = f" It follows from {other.caused_by}." if other.caused_by else ""
            paragraphs.append(f"Also found (`{other.slug}`): {_inner(other.statement)}.{relation}" + (f" {_capital(other.remedy)}." if other.remedy else ""))
    else:
        holds = [f for f in findings if f.status is Status.PASS and not f.id.startswith("layers.slot-")]
        measured = [f for f in holds if WEIGHT.get(_question(f), 1) > 1]
        if holds:
            paragraphs.append("What holds: " + " ".join(f"{_capital(f.statement)}." for f in measured or holds))
    undecided = [f for f in findings if f.status is Status.INCONCLUSIVE and f.required]
    if undecided:
        paragraphs.append("Undecided: " + " ".join(f"{_capital(f.statement)}." for f in undecided))
    broken = [f for f in findings if f.status is Status.ERROR]
    if broken or missing:
        paragraphs.append("Could not be evaluated: " + " ".join([*(f"{_capital(f.statement)}." for f in broken),
                                                                 *([f"{missing} notebook(s) did not finish."] if missing else [])]))
    return tuple(paragraphs)


def _in_plain_numbers(records: Mapping[str, Any]) -> str | None:
    """What the wrong states do to this drafter, from the record of notebook 02; None without both feeds."""
    record = records.get("prediction") or {}
    trained, served = record.get("trained"), record.get("served")
    if not trained or not served or record.get("served_wiring") == "trained":
        return None
    engine = (records.get("layers") or {}).get("engine", "the server")

    def feed(part: Mapping[str, Any]) -> str:
        return f"{part['accuracy']['value']:.1%} of first draft tokens right and {part['accept_length']['value']:.2f} tokens a round"

    return (f"Fed the states of its training dump the drafter has {feed(trained)}; fed what {engine} serves, {feed(served)} "
            f"({trained['accuracy']['n']} tokens of recorded text). The drafter is fine; what it is fed is not.")


def _contradictions(findings: Sequence[Finding]) -> tuple[str, ...]:
    by_id = {f.id: f for f in findings}
    result = []
    labels = by_id.get("layers.labels")
    if labels and labels.status is Status.FAIL:
        result.append("The labels of the dump and its tensors cannot both be right (layers.labels); the tensors decide.")
    standalone, served = by_id.get("drafter.metric"), by_id.get("drafter.served-wiring")
    if standalone and served and standalone.status is Status.PASS and served.status is Status.FAIL:
        result.append("The drafter is as good as its trainer says (drafter.metric), yet not as it is served (drafter.served-wiring): "
                      "the drafter is fine, what it is fed is not.")
    return tuple(result)


def _next_steps(faults: Sequence[DiagnosedFault], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Remedies first; without a fault, what would settle the open questions."""
    if faults:
        return tuple(dict.fromkeys([*(f"{_capital(d.remedy)}." for d in faults if d.remedy),
                                    "Run the suite again and compare both runs: double faults are common."]))
    waiting = [f for f in findings if f.next_step and (f.status is Status.ERROR or (f.status is Status.INCONCLUSIVE and f.required))]
    if not waiting and not any(f.status is Status.PASS for f in findings):
        waiting = [f for f in findings if f.next_step]
    return tuple(dict.fromkeys(f"{_capital(f.next_step)}." for f in waiting))


def _capital(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].upper() + text[1:]


def _inner(text: str) -> str:
    """A sentence as part of another: no full stop, no capital unless a name or an abbreviation starts it."""
    text = text.rstrip(".")
    word = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if word.istitle() and word in _ARTICLES else text


_ARTICLES = {"The", "A", "An", "With", "Every", "No", "Of", "Slot", "Slots", "It", "Prefill", "Trained"}
