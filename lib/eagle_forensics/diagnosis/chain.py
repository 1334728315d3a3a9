"""Which links of the chain from training data to served token hold, which are broken, and which did nobody look at?"""

from __future__ import annotations

from collections.abc import Sequence

from eagle_forensics.diagnosis.effect import MEASURED
from eagle_forensics.diagnosis.records import Effect, Link, State
from eagle_forensics.diagnosis.rules import LinkRule, by_rule, link_of, matches, question, rules, words
from eagle_forensics.finding import Finding, Status


def chain(findings: Sequence[Finding], gain: Effect | None = None) -> tuple[Link, ...]:
    """Every link in order. A fail breaks the link of its fault; a link holds by a deciding pass without anything undecided beside it.

    `gain`: where the states that are served explain the measured accept length, the link that turns states into accepted tokens holds.
    """
    return tuple(_explained(_link(rule, findings), rule, gain) for rule in rules().links)


def _link(rule: LinkRule, findings: Sequence[Finding]) -> Link:
    broken = [f for f in findings if f.status is Status.FAIL and f.fault and link_of(f.fault) is rule]
    own = [f for f in findings if _speaks_of(f, rule)]
    open_ = [f for f in own if f.status is Status.ERROR or (f.status is Status.INCONCLUSIVE and (f.required or f.fault))]
    passed = [f for f in own if f.status is Status.PASS and matches(f.id, rule.decides)]
    if broken:
        return _as(rule, State.BROKEN, ", ".join(dict.fromkeys(f"`{f.fault}`" for f in broken)), broken)
    if open_:
        return _as(rule, State.UNDECIDED, "the evidence does not decide", open_)
    if passed:
        by = sorted({question(f) for f in passed}, key=lambda q: -rules().lines[q].weight)
        unseen = ", if the server follows its release's rules" if all(by_rule(f.id) for f in passed) else ""
        return _as(rule, State.HOLDS, "on paper only" if by == ["config"] else f"by {', '.join(map(words, by))}{unseen}", passed)
    return _as(rule, State.NOT_EXAMINED, f"it takes {rule.missing}", [f for f in own if f.status is Status.SKIPPED])


def _explained(link: Link, rule: LinkRule, gain: Effect | None) -> Link:
    u = gain.unexplained if gain else None
    if link.state is not State.NOT_EXAMINED or u is None or u.low is None or u.high is None or not set(MEASURED) & set(rule.decides):
        return link
    holds = u.low <= 0 <= u.high
    because = "what is accepted is what the served states predict" if holds else f"{u.text()} tokens a round stay unexplained"
    return link.model_copy(update={"state": State.HOLDS if holds else State.UNDECIDED, "because": because, "findings": gain.findings})


def _speaks_of(item: Finding, rule: LinkRule) -> bool:
    """By its fault where it names one, else by its id."""
    if item.fault and (named := link_of(item.fault)):
        return named is rule
    return matches(item.id, (*rule.decides, *rule.says))


def _as(rule: LinkRule, state: State, because: str, found: Sequence[Finding]) -> Link:
    return Link(name=rule.name, asks=rule.asks, state=state, because=because, findings=tuple(dict.fromkeys(f.id for f in found)))
