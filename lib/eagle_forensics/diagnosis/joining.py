"""What is the story of this run? Joins the findings of all notebooks by the tables of `rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.case import Case
from eagle_forensics.diagnosis import chain, contradictions, deciding, effect, fixing, ranking, remaining
from eagle_forensics.diagnosis import story as telling
from eagle_forensics.diagnosis.records import Conclusion, Decider, DiagnosedFault, Diagnosis, Effect
from eagle_forensics.diagnosis.rules import link_of, rules
from eagle_forensics.faults import catalogue
from eagle_forensics.finding import Finding, Status, verdict


def diagnose(findings: Sequence[Finding], records: Mapping[str, Any], case: Case, missing: int = 0) -> Diagnosis:
    """Join the findings of a run. `records`: what the notebooks left in `evidence/` by name; `missing`: unfinished notebooks."""
    outcome = verdict(findings, missing)
    found = ranking.supported(findings)
    gain = effect.effect(found, findings, records)
    faults = tuple(_diagnosed(one, found, gain, records, case) for one in found)
    suspected = deciding.suspicions(findings, found)
    against = contradictions.contradictions(findings)
    left = contradictions.elimination(findings, records, [f.slug for f in found])
    if left is not None and gain is not None and gain.explained:
        left = left.model_copy(update={"remains": (), "on_paper": (), "excluded": ()})
    open_ = deciding.deciders(found, suspected, left, findings, case, records)
    return Diagnosis(
        verdict=outcome, headline=telling.headline(outcome, faults, findings, missing),
        story=telling.story(outcome, faults, suspected, gain, against, left, findings, records, missing), chain=chain.chain(findings, gain), faults=faults,
        suspicions=suspected, effect=gain, contradictions=against, elimination=left, deciders=open_, next_steps=_next_steps(faults, open_, findings),
        not_examined=tuple(Conclusion(text=f"{f.question} {telling.capital(f.statement)}.", findings=(f.id,)) for f in findings if f.status is Status.SKIPPED))


def _diagnosed(one: ranking.Supported, found: Sequence[ranking.Supported], gain: Effect | None, records: Mapping[str, Any], case: Case) -> DiagnosedFault:
    best, link, gate = one.findings[0], link_of(one.slug), ranking.gate_before(one, found)
    changes = fixing.edits(one.findings)
    verify, see = fixing.verification(one, case, gain)
    return DiagnosedFault(
        slug=one.slug, title=catalogue()[one.slug].title if one.slug in catalogue() else one.slug, plain=rules().plain.get(one.slug, f"{telling.capital(best.statement)}."),
        link=link.name if link else one.slug.split(".")[0], statement=best.statement, findings=one.ids, weight=one.weight, lines=ranking.evidence_lines(one),
        competitor=best.competitor, refuted_by=best.refuted_by, relations=ranking.relations(one, found),
        spoiled_by=f"`{gate.fault}` comes first, for {gate.why}" if gate else None, remedy=next((f.remedy for f in one.findings if f.remedy), None), edits=changes,
        elsewhere=fixing.elsewhere(changes, case, records), predicted_effect=fixing.predicted_effect(one.findings), if_fixed=remaining.if_only(one, found, gain, records), verify=verify, see=see)


def _next_steps(faults: Sequence[DiagnosedFault], open_: Sequence[Decider], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Remedies first; without a fault, what would settle the open questions."""
    if faults:
        return tuple(dict.fromkeys([*(f"{telling.capital(d.remedy)}." for d in faults if d.remedy), "Run the suite again and compare both runs: double faults are common."]))
    waiting = [f for f in findings if f.next_step and (f.status is Status.ERROR or (f.status is Status.INCONCLUSIVE and f.required))]
    if not waiting and not open_ and not any(f.status is Status.PASS for f in findings):
        waiting = [f for f in findings if f.next_step]
    return tuple(dict.fromkeys(f"{telling.capital(f.next_step)}." for f in waiting))
