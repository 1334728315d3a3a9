"""What runs tell that differ in the head alone: is the served one weak everywhere, or in some text only?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.acceptance.recorded import Recorded
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.fall import UNIT, Fall, nearest, series
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


def by_head(runs: Sequence[Run], served: str | None, answers: Recorded) -> Finding | None:
    """The `served` head against each other one of the same target, text by text; None where no such pair is in the table. `answers`: recorded ones, by domain (the table's dataset)."""
    texts: dict[str, dict[str, Fall]] = {}
    for by in series(runs, "drafter"):
        for other in set(by) - {served}:
            if served in by:
                dataset = by[served][0].dataset or "the prompts"
                texts.setdefault(other, {})[dataset] = nearest(by[other], by[served])
    if not texts:
        return None
    other, falls = max(texts.items(), key=lambda item: sum(f.kind == "shown" for f in item[1].values()))
    weak, even, low = ([d for d, f in falls.items() if f.kind == kind] for kind in ("shown", "none", "open"))
    worst = max(falls.values(), key=lambda f: (f.kind == "shown", f.lost))
    notes = tuple(Evidence(note=f"{d}: {other} {spread(f.before)}, {served} {spread(f.after)}") for d, f in falls.items())
    common: dict[str, Any] = {"id": "acceptance.by-head", "question": "Does another head of the same target accept more on the same prompts?", "notebook": NOTEBOOK, "unit": UNIT} | worst.shown | {"evidence": notes}
    text = f"{served} against {other} on the same prompts"
    if not weak:
        open_ = f" On {listed(low)} the intervals meet." if low else ""
        return Finding(**common, status=Status.INCONCLUSIVE if low else Status.PASS, fault="measure.not-enough-data" if low else None,
                       statement=f"{text}: no loss of 5 % or more on {listed(even) or 'any'}.{open_}", next_step=worst.advice if low else None)
    even = [d for d in even if falls[d].excludes(worst.lost)]  # level is what leaves no room for such a loss
    said = f"{text}: {spread(worst.after)} against {spread(worst.before)} on {worst.first.dataset or 'them'}; lower on {listed(weak)}" + (f", level on {listed(even)}" if even else "")
    missing = sorted({name for d in (*weak, *even) for name in falls[d].unrecorded})
    if not even or missing:
        why = f"{listed(missing)} are not recorded for all runs" if missing else "a head that is fed wrong states is lower on every text as well"
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.too-little" if not even else "data.domain", statement=f"{said}. {why[0].upper()}{why[1:]}.",
                       competitor=Competitor(fault="wiring.layer-offset", margin=worst.margin, why_rejected="not rejected: the standalone accuracy (notebook 02) decides: high there, it is the wiring"),
                       next_step="Notebook 02: the accuracy of this head offline; low there too, more or regenerated training data.")
    unwritten = [] if answers.whole else [d for d in weak if d not in answers.written]
    if unwritten:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.domain", statement=f"{said}. Whether its draft vocabulary holds the tokens of {listed(unwritten)} is not known.",
                       competitor=Competitor(fault="vocab.coverage", margin=worst.margin, why_rejected="not rejected: recorded answers of that text beside the drafter's d2t decide"),
                       next_step="Name recorded answers of that text under `answers`.")
    return Finding(
        **common, status=Status.FAIL, fault="data.domain", **worst.judged,
        statement=f"{said}. The engine, its settings and the target's text are the same, and this head is as good elsewhere: its training lacks such text.",
        competitor=Competitor(fault="vocab.coverage", margin=worst.margin, why_rejected="its draft vocabulary is whole" if answers.whole else f"its draft vocabulary holds nearly all tokens of the recorded answers of {listed(weak)}"),
        refuted_by=f"equal accept lengths of both heads on {listed(weak)} in interleaved repeats", remedy=f"Train further with text like {listed(weak)} mixed in.",
        predicted_effect=f"up to {spread(worst.before)} on {worst.first.dataset}, as the other head", next_step=f"Train on a sample of {listed(weak)} and measure the same prompts.")
