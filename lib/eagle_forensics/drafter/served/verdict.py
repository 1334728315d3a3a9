"""The finding on the served text: which wiring takes the server's own rounds, which do not, and when nobody is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.drafter.network.forms import FAULTS
from eagle_forensics.drafter.served.text import GRAPH, Known, Walked, by_rules, named, trained_wiring
from eagle_forensics.drafter.served.walked import ServedText
from eagle_forensics.drafter.wirings.contract import FAULT_OF
from eagle_forensics.drafter.wording import SERVED_TEXT, interval_text
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

SHOWN = 6
CHANCE = 1 - stats.LEVEL
LEAST_MISSED = 2
"""Answers that a rejected wiring has to miss: one near tie can change the count of one answer. On few answers some of a hundred wirings give all
counts by chance, but then others miss only one, and nobody is named."""
SERVABLE = ("layer", "flags", "rope", "d2t", "forms", "states")
"""Parts that a server can get wrong; a shift of tokens is not among them, so it accuses nobody."""


def served_text_finding(text: ServedText) -> Finding:
    """`acceptance.served-text`: the wiring whose walk gives the server's verify counts, against the trained one."""
    found, known = text.walked, text.known
    trained = _of(found, trained_wiring(known))
    fits = [w for w in found if _reproduces(w, text.exact)]
    nearest = fits[0] if fits else found[0]
    shown: dict[str, Any] = {
        "observed": sum(nearest.rounds), "expected": sum(nearest.served), "unit": "verify rounds on the served text", "n": sum(nearest.served),
        "evidence": (*(Evidence(note=line(w, known, exact=text.exact)) for w in _told(found, trained)), *(Evidence(note=f"left out: {o}") for o in text.left_out))}
    how = "to the integer" if text.exact else f"within the interval ({text.dtype}: counts of single answers depend on rounding)"
    lead = f"{text.answers} served answers, {sum(nearest.served)} verify rounds; {len(found)} wirings walked"
    if not fits:
        return Finding(**SERVED_TEXT, **shown, status=Status.INCONCLUSIVE, required=False, next_step="Capture the served states and fingerprint them (notebook 03).", statement=(
            f"{lead}: none gives the server's counts {how}; nearest is {line(nearest, known, exact=text.exact)}."))
    others = [w for w in fits if trained is not None and _states(w) != _states(trained)]
    served = by_rules(known)
    if trained in fits:
        if others and (text.exact or served is None or not trained.wiring.same_feed(served)):
            return _several(shown, lead, how, [trained, *others], known)
        return _right(shown, lead, how, text, trained, fits)
    if trained is None or len({_states(w) for w in fits}) > 1:
        return _several(shown, lead, how, fits, known)
    certain = [part for part in SERVABLE if all(part in w.wiring.differences(trained.wiring) for w in fits)]
    faults = {_fault(w, trained, certain) for w in fits} if certain else set()
    rivals = [w for w in found if w not in fits and w is not trained and (_states(w) != _states(fits[0]) or ("layer" in certain and _fault(w, trained, ("layer",)) not in faults))]
    rival = rivals[0] if rivals else trained
    if len(faults) != 1 or trained.missed < LEAST_MISSED or (text.exact and rival.missed < LEAST_MISSED) or (not text.exact and (served is None or not any(w.wiring.same_feed(served) for w in fits))):
        return _several(shown, lead, how, fits, known)
    if text.exact and (chance := _by_chance(fits[0], len(found))) > CHANCE:
        return _several(shown, lead, how, fits, known, f"the server accepts so few drafts that one of {len(found)} wirings may give its counts by chance ({chance:.2g})")
    if "layer" in certain and not (cost := stats.paired_difference(trained.tokens, trained.tokens, trained.rounds, trained.served)).low > 0:
        doubt = f"computed the reference's way the drafter does not accept more for certain ({interval_text(cost)}), so its training may have computed it so"
        return _several(shown | {"fault": faults.pop() if cost.value > 0 else None}, lead, how, fits, known, doubt)
    return _wrong(shown, lead, how, text, trained, fits, certain, rivals)


def line(w: Walked, known: Known, *, exact: bool) -> str:
    """`served by the engine's rules: b=0, b=2, b=15: 16 of 16 answers, 0 rounds off`."""
    apart = "" if exact else f", accept length apart {interval_text(w.difference)}"
    return f"{named(w.wiring, known)}: {len(w.served) - w.missed} of {len(w.served)} answers, {w.off} rounds off{apart}"


def _right(shown: dict[str, Any], lead: str, how: str, text: ServedText, trained: Walked, fits: Sequence[Walked]) -> Finding:
    rival = next((w for w in text.walked if w not in fits and _states(w) != _states(trained)), None)
    if rival is None or (text.exact and rival.missed < LEAST_MISSED):
        return Finding(**SERVED_TEXT, **shown, status=Status.INCONCLUSIVE, required=False, next_step="Ask more prompts, or longer answers.", statement=(
            f"{lead}: the trained wiring gives the server's counts {how}, but {line(rival, text.known, exact=text.exact) if rival else 'no other states were walked'}: too near to be told from it."))
    also = [named(w.wiring, text.known) for w in fits if w is not trained]
    more = f" By itself this does not exclude {', '.join(also[:3])}." if also else ""
    return Finding(**SERVED_TEXT, **shown, status=Status.PASS, statement=(
        f"{lead}. {named(trained.wiring, text.known)} gives the server's counts {how}; the nearest states that do not: {line(rival, text.known, exact=text.exact)}.{more}"),
        competitor=Competitor(fault="wiring.layer-offset", margin=f"{rival.off} verify rounds, {rival.missed} of {text.answers} answers", why_rejected=f"under {named(rival.wiring, text.known)} the drafter takes other rounds on this very text"))


def _wrong(shown: dict[str, Any], lead: str, how: str, text: ServedText, trained: Walked, fits: Sequence[Walked], certain: Sequence[str],
           rivals: Sequence[Walked]) -> Finding:
    best, known = fits[0], text.known
    slug = _fault(best, trained, certain)
    rules = by_rules(known)
    agree = " It is what the engine's rules say it serves." if rules and best.wiring.same_feed(rules) else " The engine's rules say otherwise." if rules else ""
    entry = fault(slug)
    rival = next((w for w in rivals if "layer" in certain and _fault(w, trained, SERVABLE) == entry.rival), rivals[0] if rivals else trained)
    return Finding(
        **SERVED_TEXT, **shown, status=Status.FAIL, fault=slug, threshold=0, threshold_why="the same text, weights and arithmetic: the same rounds",
        statement=f"{lead}. {named(best.wiring, known)} gives the server's counts {how}, the trained wiring does not: {line(trained, known, exact=text.exact)}.{agree}",
        competitor=Competitor(fault=entry.rival, margin=f"the nearest other {'reading' if rival.wiring.planes == best.wiring.planes else 'feed'} ({named(rival.wiring, known)}) misses {rival.missed} of {text.answers} answers by {rival.off} verify rounds",
                              why_rejected=f"text, drafter and number of steps are the server's own; only {' and '.join(certain)} differ. {entry.told_apart}"),
        refuted_by="The same walk on answers to other prompts, served under the same launch line, gives other counts.", remedy=text.remedy if text.remedy and "states" in certain else entry.remedy,
        predicted_effect=f"on this text {sum(trained.rounds)} instead of {sum(trained.served)} verify rounds", next_step="Apply the fix, measure the same prompts, and walk them again.")


def _several(shown: dict[str, Any], lead: str, how: str, fits: Sequence[Walked], known: Known, doubt: str = "") -> Finding:
    names = ", ".join(named(w.wiring, known) for w in fits[:SHOWN])
    why = f"{doubt}, and nobody is accused" if doubt else "what it was trained at is not known" if known.trained is None else "this text cannot choose, and nobody is accused"
    return Finding(**SERVED_TEXT, **shown, status=Status.INCONCLUSIVE, required=False, statement=f"{lead}. The server's counts are given {how} by {names}; {why}.",
                   next_step="Run notebook 02 with a dump, so that the trained boundaries are known." if known.trained is None else "Ask more prompts, or longer answers; the fingerprint of notebook 03 decides without counts.")


def _reproduces(w: Walked, exact: bool) -> bool:
    return not w.missed if exact else w.difference.bounded is not None and not w.difference.excludes(0.0)


def _of(found: Sequence[Walked], wiring: Any) -> Walked | None:
    return next((w for w in found if wiring is not None and w.wiring.same_feed(wiring)), None)


def _fault(w: Walked, trained: Walked, parts: Sequence[str]) -> str | None:
    """What a server that feeds or computes so is accused of: the fault of the first of these parts in which it departs from the trained wiring."""
    departs = [p for p in parts if p in w.wiring.differences(trained.wiring)]
    if "states" in departs:
        same = sorted(w.wiring.states) == sorted(trained.wiring.states)
        return "wiring.graph-default-layers" if w.wiring.name == GRAPH else "wiring.plane-order" if same else "wiring.layer-offset"
    return next((FAULTS[w.wiring.layer] if p == "layer" else FAULT_OF[p] for p in departs), None)


def _by_chance(w: Walked, wirings: int) -> float:
    """Chance that some wiring gives all counts without being the server's: each takes as many rounds less than tokens as it does, at random."""
    spared = [tokens - rounds for tokens, rounds in zip(w.tokens, w.served, strict=True)]
    return min(1.0, wirings * stats.chance_of_equal_counts(sum(spared) / len(spared), len(spared)))


def _states(w: Walked) -> tuple[str, ...]:
    return w.wiring.planes


def _told(found: Sequence[Walked], trained: Walked | None) -> list[Walked]:
    """The nearest wirings, and the trained one wherever it stands."""
    head = list(found[:SHOWN])
    return head + ([trained] if trained is not None and trained not in head else [])
