"""The diagnosis in words: one paragraph for a tired reader, then proof, rival, fix and what remains, each with the findings it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.diagnosis.effect import figure
from eagle_forensics.diagnosis.records import (
    Conclusion,
    Contradiction,
    DiagnosedFault,
    Effect,
    Elimination,
    Figure,
    Suspicion,
)
from eagle_forensics.diagnosis.remaining import unexplained
from eagle_forensics.diagnosis.rules import by_rule, question
from eagle_forensics.finding import Edit, Finding, Status, Verdict


def headline(outcome: Verdict, faults: Sequence[DiagnosedFault], findings: Sequence[Finding], missing: int) -> str:
    """One sentence: the strongest finding, or why there is no verdict, or how much was found right."""
    if faults:
        return f"{capital(faults[0].statement)}."
    if outcome is Verdict.ERROR:
        return f"No verdict: {missing} notebook(s) did not finish." if missing else "No verdict: a check ended in an error."
    if outcome is Verdict.INCONCLUSIVE:
        return "Not enough evidence for a verdict."
    passed = sum(f.status is Status.PASS for f in findings)
    return f"No fault found: {passed} check{'s pass' if passed != 1 else ' passes'}."


def story(outcome: Verdict, faults: Sequence[DiagnosedFault], suspected: Sequence[Suspicion], gain: Effect | None, against: Sequence[Contradiction],
          left: Elimination | None, findings: Sequence[Finding], records: Mapping[str, Any], missing: int) -> tuple[Conclusion, ...]:
    """Paragraphs in reading order; the first one takes no knowledge of the field."""
    parts: list[Conclusion] = []
    if faults:
        parts += [_opening(faults, gain, records), *_proof(faults[0], gain, records), *_fix(faults[0]), *_remains(faults[0], gain)]
        parts += [_also(other) for other in faults[1:]]
    else:
        parts.append(_no_fault(outcome, suspected, findings, missing))
    if left is not None and left.remains:
        parts.append(_eliminated(left))
    parts += [Conclusion(text=f"{c.says} {c.holds}: {c.why}.", findings=c.findings) for c in against]
    undecided = [f for f in findings if f.status is Status.INCONCLUSIVE and f.required]
    if undecided:
        parts.append(Conclusion(text="Undecided: " + sentences(undecided), findings=tuple(f.id for f in undecided)))
    broken = [f for f in findings if f.status is Status.ERROR]
    if broken or missing:
        lost = f" {missing} notebook(s) did not finish." if missing else ""
        parts.append(Conclusion(text=f"Could not be evaluated: {sentences(broken)}{lost}", findings=tuple(f.id for f in broken)))
    return tuple(parts)


def capital(text: str) -> str:
    """A sentence without its full stop, beginning with a capital."""
    text = text.rstrip(".")
    return text[:1].upper() + text[1:]


def sentences(found: Sequence[Finding]) -> str:
    """The statements of findings as sentences."""
    return " ".join(f"{capital(f.statement)}." for f in found)


def change_text(edit: Edit) -> str:
    """An edit in words."""
    release = f" (for {edit.applies_to})" if edit.applies_to else ""
    return f"remove `{edit.key}` from `{edit.file}`{release}" if edit.value is None else f"set `{edit.key}` to {edit.value} in `{edit.file}`{release}"


def _opening(faults: Sequence[DiagnosedFault], gain: Effect | None, records: Mapping[str, Any]) -> Conclusion:
    """The paragraph for a tired reader: what is wrong, what it costs, what to do, what that brings, how sure."""
    first = faults[0]
    about_first = gain is not None and bool(set(first.findings) & set(gain.findings))
    parts = [first.plain]
    if about_first:
        parts += [_cost(gain), *([f"The fix: {change_text(first.edits[0])}." if len(first.edits) == 1 else f"The fix: {capital(first.remedy)}."] if first.edits or first.remedy else []), _gain(gain)]
    else:
        numbers = _ceiling(records) if first.slug == "cost.cannot-win" else None
        parts.append(numbers or f"{capital(first.statement)}.")
        parts += [f"What to do: {inner(first.remedy)}."] if first.remedy else []
        parts += [f"Predicted: {first.predicted_effect.rstrip('.')}."] if first.predicted_effect else []
    parts.append(_sure(first))
    if len(faults) > 1:
        parts.append(f"It is not the only fault: {len(faults) - 1} more {'was' if len(faults) == 2 else 'were'} found.")
    return Conclusion(text=" ".join(parts), findings=tuple(dict.fromkeys((*first.findings, *(gain.findings if about_first else ())))))


def _sure(first: DiagnosedFault) -> str:
    """Which lines of evidence agree, and what they share: the engine's rules, where none of them saw the server."""
    agree = [line.text for line in first.lines]
    who = f"{capital(listed(agree))} {'say' if len(agree) > 1 or agree[0].endswith('s') else 'says'} so"
    if len(agree) == 1:
        return f"{who}; a second, independent line of evidence is missing."
    return f"{who}; what the server does they all take from the engine's rules." if all(map(by_rule, first.findings)) else f"{who} independently of each other."


def _cost(gain: Effect) -> str:
    now, after = gain.accept_length_now, gain.accept_length_after
    return (f"Each round of speculation gives {now.text()} tokens{'' if gain.measured else ', as predicted,'} where {after.text()} are possible."
            if now.value < after.value else f"Each round of speculation gives {now.text()} tokens; {after.text()} are predicted after the fix.")


def _gain(gain: Effect) -> str:
    if gain.tokens_per_second_after is None:
        return "What that brings in tokens/s was not measured."
    speed = f"It should bring {gain.tokens_per_second_after.text(1)} tokens/s instead of {gain.tokens_per_second_now.text(1)}"
    base = f"without speculation it is {_short(gain.baseline_tokens_per_second)}"
    verdict = {True: "so speculation then pays", False: "so speculation loses even then: a round costs too much", None: "so whether speculation then pays is open"}[gain.wins]
    return f"{speed}; {base}, {verdict} (it takes {gain.break_even.text()} tokens a round to break even)."


def _ceiling(records: Mapping[str, Any]) -> str | None:
    """Cost and ceiling of the run that can win least, in plain numbers; None without a record of it."""
    runs = [r for r in (records.get("acceptance") or {}).get("runs") or () if r.get("ceiling") and r.get("comparable") and figure(r.get("baseline_tokens_per_second")) and figure(r.get("accept_length"))]
    if not runs:
        return None
    worst = max(runs, key=lambda r: r["break_even"] / r["ceiling"])
    base, length = figure(worst["baseline_tokens_per_second"]), figure(worst["accept_length"])
    return (f"A round takes {worst['cycle_ms']:.1f} ms. To be as fast as without speculation ({base.value:.1f} tokens/s) it would have to give {worst['break_even']:.2f} tokens; "
            f"it gives {length.value:.2f}, and with its {worst['ceiling'] - 1} draft token{'s' if worst['ceiling'] > 2 else ''} it can give {worst['ceiling']} at most.")


def _proof(first: DiagnosedFault, gain: Effect | None, records: Mapping[str, Any]) -> list[Conclusion]:
    count = len(first.lines)
    parts = [Conclusion(text=f"The broken link: {first.link} (`{first.slug}`). {count} line{'s' if count > 1 else ''} of evidence carr{'y' if count > 1 else 'ies'} it: "
                        + ", ".join(f"{line.text} ({', '.join(line.findings)})" for line in first.lines) + ".", findings=first.findings)]
    plain = _same_drafter(records) if "drafter.served-wiring" in first.findings else None
    if plain:
        parts.append(Conclusion(text=plain, findings=("drafter.served-wiring",)))
    if first.competitor:
        c = first.competitor
        parts.append(Conclusion(text=f"The nearest other explanation is `{c.fault}` ({c.margin}). {capital(c.why_rejected)}. "
                                f"What would refute this verdict: {inner(first.refuted_by)}.", findings=first.findings[:1]))
    if first.spoiled_by:
        parts.append(Conclusion(text=f"Read it with care: {first.spoiled_by}.", findings=first.findings))
    parts += [Conclusion(text=f"{capital(r.text)}.", findings=r.findings) for r in first.relations]
    return parts


def _same_drafter(records: Mapping[str, Any]) -> str | None:
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


def _fix(first: DiagnosedFault) -> list[Conclusion]:
    fix = " ".join(f"{capital(x)}." for x in (first.remedy, first.predicted_effect and f"Predicted: {first.predicted_effect}") if x)
    return [Conclusion(text=f"The fix. {fix}", findings=first.findings)] if fix else []


def _remains(first: DiagnosedFault, gain: Effect | None) -> list[Conclusion]:
    if gain is None or gain.unexplained is None or not set(first.findings) & set(gain.findings):
        return []
    return [Conclusion(text=f"{capital(unexplained(gain))}.", findings=gain.findings)]


def _also(other: DiagnosedFault) -> Conclusion:
    related = "".join(f" {capital(r.text)}." for r in other.relations)
    careful = f" Read it with care: {other.spoiled_by}." if other.spoiled_by else ""
    return Conclusion(text=f"Also found (`{other.slug}`): {inner(other.statement)}.{related}{careful}" + (f" {capital(other.remedy)}." if other.remedy else ""),
                      findings=tuple(dict.fromkeys((*other.findings, *(i for r in other.relations for i in r.findings)))))


def _no_fault(outcome: Verdict, suspected: Sequence[Suspicion], findings: Sequence[Finding], missing: int) -> Conclusion:
    holds = [f for f in findings if f.status is Status.PASS and not f.id.startswith("layers.slot-")]
    measured = [f for f in holds if question(f) != "config"]
    shown = measured or holds
    if outcome is Verdict.PASS:
        opening = "No fault was found in what was examined."
    elif outcome is Verdict.ERROR:
        opening = "A part of the examination failed, so nothing is concluded."
    else:
        opening = "There is not enough evidence to say what is wrong, or that nothing is."
    required = {f.id for f in findings if f.required}
    suspected = [s for s in suspected if any(i in required for c in s.findings for i in c.findings)]
    hint = f" The evidence points to {listed([f'`{s.slug}`' for s in suspected])} without proving it." if suspected else ""
    return Conclusion(text=f"{opening}{hint}" + (f" What holds: {sentences(shown)}" if shown else ""),
                      findings=tuple(dict.fromkeys((*(f.id for f in shown), *(i for s in suspected for c in s.findings for i in c.findings)))))


def _eliminated(left: Elimination) -> Conclusion:
    out = f" {len(left.excluded)} explanations are excluded." if left.excluded else ""
    paper = f" Only papers and the engine's rules speak against {listed([f'`{s}`' for s in left.on_paper])}." if left.on_paper else ""
    return Conclusion(text=f"{left.says} What remains: {listed([f'`{s}`' for s in left.remains])}.{paper}{out}", findings=left.findings)


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "nothing"


def inner(text: str | None) -> str:
    """A sentence as part of another: no full stop, no capital unless a name or an abbreviation starts it."""
    text = (text or "").rstrip(".")
    word = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if word.istitle() and word in _ARTICLES else text


def _short(figure: Figure) -> str:
    return f"{figure.value:.1f}"


_ARTICLES = {"Cut", "The", "A", "An", "With", "Every", "No", "Of", "Slot", "Slots", "It", "Prefill", "Trained"}
