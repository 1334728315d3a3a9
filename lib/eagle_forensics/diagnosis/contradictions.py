"""Which findings contradict each other, which side holds, and what is left where offline and live disagree?

Elimination: a fault that could explain good offline, low live falls out where a tensor or a behaviour excludes it, or an argument makes it
impossible. What only papers and the engine's rules exclude is kept apart: the server may not do what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.diagnosis.effect import measured, shortfall
from eagle_forensics.diagnosis.records import Conclusion, Contradiction, Elimination
from eagle_forensics.diagnosis.rules import ContradictionRule, by_rule, matches, rules, slugs
from eagle_forensics.finding import Finding, Status

OFFLINE = ("drafter.metric", "drafter.accuracy")
"""Findings whose pass means that the drafter is good on recorded states; the first one that passes or is undecided counts. A fail is one of the log, not of the drafter."""


def contradictions(findings: Sequence[Finding]) -> tuple[Contradiction, ...]:
    """Every row of the table whose two sides this run holds."""
    return tuple(found for rule in rules().contradictions if (found := _contradiction(rule, findings)))


def elimination(findings: Sequence[Finding], records: Mapping[str, Any], named: Sequence[str] = ()) -> Elimination | None:
    """Offline against live and what remains of the explanations; None unless both were evaluated. `named`: faults that are proven already."""
    offline = next((f for i in OFFLINE for f in findings if f.id == i and f.status in (Status.PASS, Status.INCONCLUSIVE)), None)
    live = measured(findings)
    if offline is None or live is None:
        return None
    low = shortfall(findings, records) is not None
    if not low and live.status is not Status.PASS:
        return None
    cell = f"{'good' if offline.status is Status.PASS else 'bad'}_{'low' if low else 'good'}"
    rule = rules().cells[cell]
    remains, on_paper, excluded = [], [], []
    for slug in (s for s in slugs(rule.remains) if s not in named):
        by = excluded_by(slug, findings, records)
        if by is None:
            remains.append(slug)
        elif by.findings and all(map(by_rule, by.findings)):
            on_paper.append(slug)
        else:
            excluded.append(Conclusion(text=slug if by.findings else f"{slug}: {by.text}", findings=by.findings))
    return Elimination(cell=cell, says=rule.says, findings=(offline.id, live.id), remains=tuple(remains), on_paper=tuple(on_paper), excluded=tuple(excluded))


def excluded_by(slug: str, findings: Sequence[Finding], records: Mapping[str, Any]) -> Conclusion | None:
    """What excludes a fault: passed findings (those that saw the server, before those of its rules), or a launch argument; None where nothing does."""
    arguments = records.get("arguments") or {}
    passed = [f.id for f in findings if f.status is Status.PASS and any(matches(f.id, [c.finding]) and slug in c.faults for c in rules().clears)]
    strong = [i for i in passed if not by_rule(i)]
    if strong:
        return Conclusion(text="", findings=tuple(strong))
    ruled_out = next((w for w in rules().without if slug in w.faults and w.argument in arguments and arguments[w.argument] == w.value), None)
    if ruled_out:
        return Conclusion(text=f"{ruled_out.argument} is {ruled_out.value}: {ruled_out.source}")
    return Conclusion(text="", findings=tuple(passed)) if passed else None


def _contradiction(rule: ContradictionRule, findings: Sequence[Finding]) -> Contradiction | None:
    first, second = _side(rule.first, rule.first_is, rule.faults, findings), _side(rule.second, rule.second_is, rule.faults, findings)
    if not first or (rule.second and not second):
        return None
    return Contradiction(name=rule.name, says=rule.says, holds=rule.holds, why=rule.why, findings=(*first, *second), source=rule.source)


def _side(ids: Sequence[str], states: Sequence[str], faults: Sequence[str], findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f.id for f in findings if matches(f.id, ids) and f.status.value in states and (f.status is not Status.FAIL or not faults or matches(f.fault or "", faults)))
