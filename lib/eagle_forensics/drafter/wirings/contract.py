"""The findings of notebook 02 on the contract of the training: which wiring and which boundaries this drafter fits best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.drafter.recorded import ZERO
from eagle_forensics.drafter.wirings.battery import WiringResult
from eagle_forensics.drafter.wirings.search import Searched, boundaries_of
from eagle_forensics.drafter.wording import (
    accept_text,
    common_fields,
    interval_text,
    percent,
    skipped,
    tokens_needed,
)
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

FAULT_OF = {"flags": "drafter.norm-flags", "rope": "drafter.rope", "d2t": "vocab.map-semantics", "forms": "feature.norm-state",
            "token_shift": "data.hidden-shift", "hidden_shift": "data.hidden-shift", "states": "wiring.plane-order"}
"""Part in which the best wiring departs from the trained one -> fault, the most specific first."""
NEXT = {"drafter.norm-flags": "compare the flags in the drafter's config.json with those of the training run", "drafter.rope": "compare the rotary setup in the drafter's config.json with that of the training run",
        "vocab.map-semantics": "check whether the d2t of the checkpoint holds offsets or token ids", "feature.norm-state": "check in the trainer's source whether it normalises the states, and which",
        "data.hidden-shift": "read the trainer's shift of tokens and states"}
"""Fault -> what to look at; the others concern the planes."""
SHOWN = 5
"""Wirings a finding lists; the table has all."""


def wiring_findings(results: Sequence[WiringResult], *, contract: str | None, recorded: Sequence[str] = ()) -> tuple[Finding, ...]:
    """`drafter.wiring`: is the wiring that the trainer is known to use the one this drafter fits best? One more finding for every further
    fault, where several parts are wrong at once.

    `results` of `investigate`, the trained wiring named `trained` among them. `contract`: where that wiring is known from
    (`speculators 0.3.0 concatenates all planes but the last`); without it a better wiring is named, nobody is accused. `recorded`: the
    dump's planes; a rival that reads others (the embedding) is told, but no trainer that reads this dump can have used it.
    """
    question = "Which wiring was the drafter trained for?"
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    honest = [r for r in results if not r.wiring.leaks]
    if trained is None or len(honest) < 2:
        return (skipped("drafter.wiring", question, "The battery did not run.", "name a training dump with at least as many planes as fc reads"),)
    best = honest[0]
    common = common_fields("drafter.wiring", question, best.accuracy[0], "accuracy of step 1") | {
        "observed": best.wiring.label, "expected": trained.wiring.label, "evidence": tuple(Evidence(note=_line(r)) for r in honest[:SHOWN]), "threshold": 0.0,
        "threshold_why": "mean run of correct steps minus that of the best, same tokens; intervals of all wirings hold together at 95 %"}
    leak = max((r for r in results if r.wiring.leaks), key=lambda r: r.mean_run, default=None)
    if leak is not None and leak.difference.low > 0:
        return (Finding(**common, status=Status.INCONCLUSIVE, fault="data.hidden-shift", next_step="read the trainer's shift of tokens and states",
                        statement=f"{leak.label} fits better than any wiring a server can provide: the training may have seen the token it had to predict."),)
    alive = [r for r in honest if r is best or r.difference.high >= 0]
    if best is trained:
        return (_contract_is_best(common, trained, honest, alive, len(results), recorded),)
    lead = f"{best.label} fits better than {trained.label} ({percent(best.accuracy[0])} against {percent(trained.accuracy[0])} at step 1)"
    certain = [f for f in FAULT_OF if all(f in r.wiring.differences(trained.wiring) for r in alive)]
    others = ", ".join(r.label for r in alive[1:SHOWN])
    doubt = ("its lead does not exclude 0" if trained.difference.high >= 0
             else "it reads a state that the dump does not hold, so no trainer that reads this dump can have fed it" if not _recordable(best, recorded)
             else "it does not beat the drafter without states" if _at_the_floor(best, results)
             else f"neither can it be told from {others}, which depart from it in other ways" if not certain
             else "how the trainer read the dump is not known, so nobody is accused" if contract is None else None)
    if doubt:
        step = (tokens_needed(trained.difference) if trained.difference.high >= 0
                else "ask which dump the training read" if not _recordable(best, recorded) else tokens_needed(alive[1].difference) if not certain
                else "name the trainer and its version in the case")
        return (Finding(**common, status=Status.INCONCLUSIVE, statement=f"{lead}, but {doubt}.", next_step=step),)
    return _wrong(common, best, trained, honest, alive, certain, str(contract))


def boundaries_finding(searched: Searched | None, dump: Sequence[int] | None) -> Finding:
    """`drafter.boundaries`: of all the target's own states, do those of the dump fit the drafter as well as any? `dump`: the boundaries
    that its planes were found to be, None if they are not among those tried."""
    question = "Which boundaries of the target was the drafter trained at?"
    if searched is None:
        return skipped("drafter.boundaries", question, "The target's own states are not at hand.", "give the target's weights or a reference bank whose texts are in the dump")
    best = searched.results[0]
    common = common_fields("drafter.boundaries", question, best.accuracy[0], "accuracy of step 1") | {
        "required": False, "observed": format_boundaries(searched.best), "evidence": (
            Evidence(note=f"{searched.tried} choices of {searched.planes} boundaries searched on {searched.sequences} sequences; the best, its neighbours and the runners-up compared"),
            *(Evidence(note=_line(r)) for r in searched.results[:SHOWN]))}
    names = {boundaries_of(r.wiring): r for r in searched.results}
    alike = [searched.best, *(boundaries_of(r.wiring) for r in searched.like_best)]
    rivals = "; ".join(f"block {i + 1} of fc: {', '.join(str(b) for b in sorted(set(block)))}" for i, block in enumerate(zip(*alike, strict=True)))
    undecided = f"{len(searched.like_best)} other choice(s) cannot be told from it on {best.n} tokens ({rivals})" if searched.like_best else "every other choice compared is worse"
    found = f"Fed the target's own states it fits {format_boundaries(searched.best)} best, step 1 right on {percent(best.accuracy[0])}; {undecided}"
    own = names.get(tuple(dump)) if dump else None
    nearest = searched.like_best[0].difference if searched.like_best else None
    if own is None:
        settled = nearest is None
        return Finding(**common, status=Status.PASS if settled and dump else Status.INCONCLUSIVE, statement=f"{found}.",
                       next_step="identify the planes of the dump in notebook 03" if settled or nearest is None else tokens_needed(nearest))
    common["expected"] = format_boundaries(dump)
    if own.difference.high < 0:
        return Finding(**(common | {"required": True}), status=Status.INCONCLUSIVE, fault="wiring.layer-offset", statement=(
            f"{found}. The dump's planes are {format_boundaries(dump)}, which are worse ({interval_text(own.difference)} right steps in a row on the same tokens): "
            "it may not be what the drafter was trained on."), next_step="identify the planes of the dump in notebook 03, and ask which dump the training read")
    if own is best:
        return Finding(**common, status=Status.PASS, next_step=tokens_needed(nearest) if nearest is not None else None, statement=(
            f"The dump's {format_boundaries(dump)} fit best of {searched.tried} choices searched, step 1 right on {percent(best.accuracy[0])}; {undecided}."))
    return Finding(**common, status=Status.PASS, statement=(
        f"Of {searched.tried} choices searched none fits significantly better than the dump's {format_boundaries(dump)} "
        f"({interval_text(own.difference)} right steps in a row against the best, {format_boundaries(searched.best)}). {found}."),
        next_step=tokens_needed(nearest) if nearest is not None else None)


def _contract_is_best(common: dict[str, Any], trained: WiringResult, honest: Sequence[WiringResult], alive: Sequence[WiringResult], tried: int,
                      recorded: Sequence[str]) -> Finding:
    def apart(r: WiringResult) -> bool:
        """A rival that decides nothing about what the dump's reader did: it reads another state, or differs in rope alone."""
        return bool(recorded) and (not _recordable(r, recorded) or r.wiring.differences(trained.wiring) == ("rope",))

    open_ones = [r for r in alive[1:] if not apart(r)]
    if open_ones:
        rival = open_ones[0]
        why = "proposes the same token everywhere" if rival.equal_to_best else f"cannot be told from it on {rival.n} tokens: {interval_text(rival.difference)}"
        return Finding(**common, status=Status.INCONCLUSIVE, next_step=tokens_needed(rival.difference),
                       statement=f"The trained wiring is best of {tried}, but {rival.label} {why}{_more(open_ones[1:])}.")
    rival = max((r for r in honest[1:] if not apart(r)), key=lambda r: r.difference.value, default=honest[1])
    aside = "".join(f" {r.label} cannot be told from it ({interval_text(r.difference)}): {tokens_needed(r.difference)}." for r in alive[1:] if apart(r))
    return Finding(**common, status=Status.PASS, statement=(
        f"Of {tried} wirings the trained one is best: {trained.label}, step 1 right on {percent(trained.accuracy[0])} of {trained.n} tokens; "
        f"next is {rival.label} with a mean run {interval_text(rival.difference)} apart on the same {rival.n} tokens.{aside}"))


def _wrong(common: dict[str, Any], best: WiringResult, trained: WiringResult, honest: Sequence[WiringResult], alive: Sequence[WiringResult],
           certain: Sequence[str], contract: str) -> tuple[Finding, ...]:
    parts: dict[str, list[str]] = {}
    for field in certain:
        parts.setdefault(FAULT_OF[field], []).append(field)
    both = "" if len(parts) < 2 else f" {len(parts)} things are wrong at once: {', '.join(parts)}."
    if len(alive) > 1:
        both += f" {', '.join(r.label for r in alive[1:SHOWN])} cannot be told from it; all of them depart from the contract in the same parts."
    found: list[Finding] = []
    for number, (slug, fields) in enumerate(parts.items()):
        entry = fault(slug)
        rival = max((r for r in honest if r not in alive and not set(r.wiring.differences(trained.wiring)) & set(fields)), key=lambda r: r.difference.value, default=trained)
        statement = (f"As {contract}, the drafter is fed {trained.label}: step 1 right on {percent(trained.accuracy[0])} of {trained.n} tokens; fed {best.label} it is right on "
                     f"{percent(best.accuracy[0])} (mean run of the trained wiring {interval_text(trained.difference)} against it).{both}")
        if number:
            statement = (f"{len(parts)} things are wrong at once, {slug} beside {found[0].fault}: fed {best.label} the drafter is right on {percent(best.accuracy[0])} at step 1; with {' and '.join(fields).replace('_', ' ')} as "
                         f"trained the best is {rival.label}, {interval_text(rival.difference)} right tokens in a row against it.")
        own = common | {"id": "drafter.wiring" if not number else f"drafter.wiring.{slug.replace('.', '-')}"}
        found.append(Finding(
            **own, status=Status.FAIL, fault=slug, statement=statement,
            competitor=Competitor(fault=entry.rival, margin=f"{rival.label}: mean run {interval_text(rival.difference)} against the best",
                                  why_rejected=f"no wiring that leaves {', '.join(fields)} as trained reaches the best on the same tokens. {entry.told_apart}"),
            refuted_by=entry.refuted_if, remedy=entry.remedy, predicted_effect=f"accept length {accept_text(best.accept_length)} instead of {accept_text(trained.accept_length)}",
            next_step=NEXT.get(slug, "check in the trainer's source which planes it concatenates, and in which order")))
    return tuple(found)


def _recordable(r: WiringResult, recorded: Sequence[str]) -> bool:
    """The wiring reads nothing but planes of the dump; `recorded` empty: what the dump holds is not known."""
    return not recorded or set(r.wiring.states) <= {*recorded, ZERO}


def _at_the_floor(best: WiringResult, results: Iterable[WiringResult]) -> bool:
    floor = next((r for r in results if set(r.wiring.planes) == {ZERO} and r.wiring.planes), None)
    return floor is not None and floor.difference.high >= 0


def _line(r: WiringResult) -> str:
    return f"{r.label}: {r.accuracy[0].text()}, accept length {accept_text(r.accept_length)}" + ("" if r.complete else " (dropped at screening)")


def _more(others: Sequence[WiringResult]) -> str:
    return f"; nor can {', '.join(r.label for r in others[:SHOWN])}" if others else ""
