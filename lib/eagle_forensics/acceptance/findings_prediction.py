"""Does the measured accept length meet the offline prediction, and if not, which wiring does it match?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.acceptance import prediction as _prediction
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK, listed, plural, spread
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


def prediction(runs: Sequence[Run], predicted: Mapping[str, Any] | None, *, served: str | None = None,
               wiring_faults: Mapping[str, str] | None = None, live: bool = False) -> Finding:
    """Does the measured accept length meet the offline prediction, and if not, which wiring does it match?

    `predicted`: the record of notebook 02; `live`: the runs were measured here, after that record was written.
    """
    common: dict[str, Any] = {"id": "acceptance.live-prediction" if live else "acceptance.prediction", "notebook": NOTEBOOK, "unit": "tokens per verify round",
                              "question": "Does the accept length predicted before contain the one measured now?" if live else
                              "Does the live accept length meet the offline prediction?"}
    if not predicted:
        return Finding(**common, status=Status.SKIPPED, next_step="Run notebook 02 with drafter, target and a dump.",
                       statement="There is no offline prediction: it would tell a badly fed drafter (live below prediction) from a weak one.")
    matches = [m for m in (_prediction.match(r, predicted) for r in runs if r.is_speculative) if m]
    if not matches:
        if others := [why for r in runs if r.is_speculative and (why := _prediction.unpredicted(r, predicted))]:
            return Finding(**common, status=Status.SKIPPED, statement=f"{'; '.join(dict.fromkeys(others[:3]))}.", next_step=(
                "Name this setting on the launch line of the case (trees) or in notebook 02's parameter `temperature`, run notebook 02, then this one."))
        return Finding(**common, status=Status.SKIPPED, next_step=f"Measure at one of {sorted(_prediction.predicted_steps(predicted))} steps.",
                       statement="No run was measured at a step count for which the accept length was predicted.")
    m = max(matches, key=lambda m: m.shortfall)
    figures = f"{m.run.label}: measured {spread(m.measured)}, predicted for the trained wiring{f' at {m.basis}' if m.basis else ''} {spread(m.trained)}"
    shown = {"observed": m.measured.value, "expected": m.trained.value, "interval": m.measured.interval, "n": m.run.rounds,
             "evidence": tuple(Evidence(note=f"{h.name}: {spread(h.predicted)}, {'meets' if h.distance == 0 else f'misses by {h.distance:.3f}'}")
                               for h in m.hypotheses[:8]) + (_made_before(m) if live else ())}
    others = [c for c in m.candidates if c != _prediction.TRAINED]
    if _prediction.TRAINED in m.candidates:
        clash = served in others
        also = f" By itself this does not exclude {listed(others)}: the fingerprint decides." if others else ""
        return Finding(**common, **shown, status=Status.INCONCLUSIVE if clash else Status.PASS,
                       statement=f"{figures}: {_met(m) if live else 'the prediction is met'}.{also}")
    if not m.shortfall:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, required=False,
                       statement=f"{figures}: better than predicted by {m.excess:.3f}. The live text is easier, or degenerate.",
                       next_step="Check the output sanity and predict on the text that was served.")
    accused = served if served in others else None
    if accused is None:
        what = f"it matches {listed(m.candidates)}, and accept length alone cannot choose" if m.candidates else \
            f"it matches no wiring tried (nearest: {m.hypotheses[0].name}, missed by {m.hypotheses[0].distance:.3f})"
        known = f"; the engine is known to serve {served}" if served else ""
        return Finding(**common, **shown, status=Status.INCONCLUSIVE,
                       statement=f"{figures}: {m.shortfall:.3f} short, but {what}{known}.",
                       next_step="Fingerprint the captured tensors (notebook 03); predict on the text that was served.")
    slug = (wiring_faults or {}).get(accused, "wiring.layer-offset")
    return Finding(
        **common, **shown, status=Status.FAIL, fault=slug, threshold=m.trained.low, threshold_why="lower end of the interval predicted for the trained wiring",
        statement=f"{figures}: {m.shortfall:.3f} short even at the ends of the intervals, and it meets {accused}, the wiring that the engine's rules say it serves.",
        competitor=_rival_wiring(m, accused),
        refuted_by="The prediction repeated on the served text falls to the measured figure for the trained wiring.",
        remedy="Feed the trained states: notebooks 01 to 03 name the list for this engine.",
        predicted_effect=f"accept length {spread(m.trained)} at {plural(m.run.steps, 'step')}",
        next_step="Apply the wiring fix of notebook 01 and measure the same prompts again.")


def _met(m: _prediction.Match) -> str:
    return "the prediction contains the measured value" if not m.trained.excludes(m.measured.value) else "the intervals of prediction and measurement meet"


def _made_before(m: _prediction.Match) -> tuple[Evidence, ...]:
    t = m.trained
    return (Evidence(note=f"predicted before the measurement, on {t.n} tokens or rounds of {t.clusters} recorded sequences; measured on {m.run.dataset} prompts "
                     f"({m.run.prompts_hash})", path="evidence/02_prediction.json"),)


def _rival_wiring(m: _prediction.Match, accused: str) -> Competitor:
    rival = m.nearest_other(accused)
    if rival is None or rival.name == _prediction.TRAINED:
        return Competitor(fault="data.too-little", margin=f"the trained wiring misses the measured interval by {m.shortfall:.3f} tokens per round",
                          why_rejected=f"the drafter is not weak: fed as trained it reaches {m.trained.value:.2f} offline")
    if rival.distance == 0:
        return Competitor(fault=rival.name, margin="none: its interval meets the measured one as well",
                          why_rejected="accept length does not reject it; the engine's own rules serve the wiring named here")
    return Competitor(fault=rival.name, margin=f"its interval misses the measured one by {rival.distance:.3f} tokens per round",
                      why_rejected=f"it would accept {spread(rival.predicted)}")
