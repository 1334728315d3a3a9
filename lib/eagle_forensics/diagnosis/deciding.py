"""What would decide between explanations that are still open, and which one command gets it?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.case import Case
from eagle_forensics.diagnosis.ranking import Supported
from eagle_forensics.diagnosis.records import Conclusion, Decider, Elimination, Suspicion
from eagle_forensics.diagnosis.rules import DecideRule, matches, rules
from eagle_forensics.faults import catalogue
from eagle_forensics.finding import Finding, Status

NOT_REJECTED = "not rejected"
"""How a competitor says that it stays possible (`finding.Competitor.why_rejected`)."""
MOST = 5
"""Observations proposed at once; more is no plan."""


def suspicions(findings: Sequence[Finding], faults: Sequence[Supported]) -> tuple[Suspicion, ...]:
    """Faults that undecided findings point to and that nothing proves."""
    proven = {f.slug for f in faults}
    pointing: dict[str, list[Finding]] = {}
    for item in findings:
        if item.status is Status.INCONCLUSIVE and item.fault and item.fault not in proven and not matches(item.id, rules().hazards):
            pointing.setdefault(item.fault, []).append(item)
    return tuple(Suspicion(slug=slug, title=catalogue()[slug].title if slug in catalogue() else slug,
                           findings=tuple(Conclusion(text=f.statement, findings=(f.id,)) for f in items)) for slug, items in pointing.items())


def deciders(faults: Sequence[Supported], suspected: Sequence[Suspicion], left: Elimination | None, findings: Sequence[Finding], case: Case,
             records: Mapping[str, Any]) -> tuple[Decider, ...]:
    """For every open pair of explanations the observation that decides, at most `MOST`: rivals not rejected, faults that rest on papers alone,
    then suspicions, then what elimination left."""
    pairs: list[tuple[str, str | None, tuple[str, ...]]] = [pair for one in faults for pair in _open_rivals(one)]
    needed = {f.id for f in findings if f.required}
    suspected = sorted(suspected, key=lambda s: not any(i in needed for c in s.findings for i in c.findings))
    pairs += [(s.slug, None, tuple(i for c in s.findings for i in c.findings)) for s in suspected]
    if left is not None and not faults:
        pairs += [(slug, None, left.findings) for slug in (*left.remains, *left.on_paper)]
    places = _places(case, records)
    found: dict[tuple[str, str], Decider] = {}
    for suspicion, rival, ids in pairs:
        rule = rule_for(suspicion, rival)
        if rule is None:
            continue
        one = _decider(rule, suspicion, rival, ids, places, case.serving.engine)
        found.setdefault((one.restart, one.command), one)
    return tuple(found.values())[:MOST]


def _open_rivals(one: Supported) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Competitors that no finding of the fault rejects; for a fault on paper alone also the rejected one, since no tensor has spoken."""
    rivals = [(f, f.competitor) for f in one.findings if f.competitor]
    rejected = {c.fault for _, c in rivals if not c.why_rejected.lower().startswith(NOT_REJECTED)}
    on_paper = one.questions == ("config",)
    return [(one.slug, c.fault, (f.id,)) for f, c in rivals if on_paper or c.fault not in rejected]


def rule_for(suspicion: str, rival: str | None) -> DecideRule | None:
    """The row for a suspicion against this rival, else against the catalogue's rival, else its first."""
    rows = [r for r in rules().deciders if matches(suspicion, [r.suspicion])]
    wanted = [rival, catalogue()[suspicion].rival if suspicion in catalogue() else None]
    return next((r for w in wanted if w for r in rows if r.rival == w), rows[0] if rows else None)


def _decider(rule: DecideRule, suspicion: str, rival: str | None, ids: Sequence[str], places: Mapping[str, str], engine: str | None) -> Decider:
    against = rule.rival if rule.rival != "*" else rival or catalogue()[suspicion].rival
    restart = rule.restart.get(engine or "") or " or ".join(f"{words} ({name})" for name, words in rule.restart.items())
    return Decider(suspicion=suspicion, rival=against, observation=rule.observation, restart=restart, command=rule.command.format_map(places), source=rule.source, findings=tuple(ids))


def _places(case: Case, records: Mapping[str, Any]) -> dict[str, str]:
    """What the commands are filled in with; a word in capitals where the case does not say."""
    served = (records.get("layers") or {}).get("served") or {}
    dumps = case.training.dumps
    return {key: shlex.quote(str(value)) if value else key.upper() for key, value in {
        "case": case.file or "CASE.yaml", "url": case.serving.url, "dump": dumps[0].path if dumps else None, "engine": case.serving.engine,
        "version": case.serving.version, "model_type": served.get("model_type"), "layers": served.get("layers")}.items()}
