"""Which faults does the evidence support, and which comes first?

Order: a gate before what it makes meaningless, a cause before what it produces, then by weight of the independent lines of evidence, then
in the order of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eagle_forensics.diagnosis.records import Conclusion
from eagle_forensics.diagnosis.rules import Gate, matches, question, rules, weight, words
from eagle_forensics.faults import catalogue
from eagle_forensics.finding import Finding, Status


@dataclass(frozen=True)
class Supported:
    """A fault with the failed findings that carry it, strongest line of evidence first."""

    slug: str
    findings: tuple[Finding, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f.id for f in self.findings)

    @property
    def questions(self) -> tuple[str, ...]:
        """The independent lines of evidence, strongest first."""
        return tuple(dict.fromkeys(map(question, self.findings)))

    @property
    def weight(self) -> int:
        return weight(self.questions)


def supported(findings: Iterable[Finding]) -> tuple[Supported, ...]:
    """The faults that failed findings name, in the order in which they are to be read."""
    by_slug: dict[str, list[Finding]] = {}
    for item in findings:
        if item.status is Status.FAIL and item.fault:
            by_slug.setdefault(item.fault, []).append(item)
    chain = {slug: i for i, slug in enumerate(catalogue())}
    found = [Supported(slug, tuple(sorted(items, key=lambda f: -weight([question(f)])))) for slug, items in by_slug.items()]
    found.sort(key=lambda s: (-s.weight, chain.get(s.slug, len(chain))))
    return _with_causes_first(found)


def gate_before(fault: Supported, found: Sequence[Supported]) -> Gate | None:
    """The gate among the supported faults that makes all of this fault's lines of evidence meaningless; None if one line stands."""
    present = {s.slug for s in found} - {fault.slug}
    if any(g.fault == fault.slug for g in rules().gates):
        return None
    return next((g for g in rules().gates if g.fault in present and set(fault.questions) <= set(g.spoils)), None)


def relations(fault: Supported, found: Sequence[Supported]) -> tuple[Conclusion, ...]:
    """How the other supported faults bear on this one, each with the findings of that other."""
    said = {"produces": "{0} produces it: {1}; mending that mends this", "origin": "{0} is how it may have come about: {1}", "contributes": "{0} is a part of it: {1}"}
    return tuple(Conclusion(text=said[r.kind].format(f"`{other.slug}`", r.why), findings=other.ids)
                 for r in rules().relations if r.effect == fault.slug for other in found if other.slug != fault.slug and matches(other.slug, [r.cause]))


def produced_by(fault: Supported, found: Sequence[Supported]) -> tuple[str, ...]:
    """Slugs of the supported faults without which this one would not be there."""
    return tuple(o.slug for r in rules().relations if r.kind == "produces" and r.effect == fault.slug for o in found if o.slug != fault.slug and matches(o.slug, [r.cause]))


def evidence_lines(fault: Supported) -> tuple[Conclusion, ...]:
    """Each independent line of evidence in words, with its findings."""
    return tuple(Conclusion(text=words(q), findings=tuple(i for i in fault.ids if question(i) == q)) for q in fault.questions)


def _with_causes_first(found: Sequence[Supported]) -> tuple[Supported, ...]:
    by_slug: Mapping[str, Supported] = {s.slug: s for s in found}
    order: dict[str, Supported] = {}

    def place(one: Supported, above: frozenset[str]) -> None:
        gate = gate_before(one, found)
        for slug in (*([gate.fault] if gate else []), *produced_by(one, found)):
            if slug not in above:
                place(by_slug[slug], above | {one.slug})
        order.setdefault(one.slug, one)

    for one in found:
        place(one, frozenset())
    return tuple(order.values())
