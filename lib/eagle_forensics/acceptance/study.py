"""The steps of notebook 04 in order; a case without measurements is answered with one finding that says what to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from eagle_forensics import stats
from eagle_forensics.acceptance import (
    cost,
    figures,
    findings_checks,
    findings_cost,
    findings_prediction,
    prediction,
    rendering,
)
from eagle_forensics.acceptance.ceiling import ceilings
from eagle_forensics.acceptance.runs import Run, runs
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.evidence.measurements import read_measurements
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, Status

QUESTION = "Is there a measured run to judge?"


@dataclass(frozen=True)
class Work:
    """The measured runs of a case; empty with the reason in `opening`."""

    runs: tuple[Run, ...]
    frame: pd.DataFrame | None
    problems: tuple[str, ...]
    predicted: Mapping[str, Any] | None
    """Record of notebook 02."""
    configured_steps: int | None
    opening: tuple[Finding, ...]


def begin(case: Case, *, predicted: Mapping[str, Any] | None, layers: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None) -> Work:
    """Read the measurements. `predicted`, `layers`: records of notebooks 02 and 01; `arguments`: effective launch arguments."""
    common = {"id": "acceptance.evidence", "question": QUESTION, "notebook": NOTEBOOK}
    steps = (arguments or {}).get("num_steps")
    if case.measurements is None:
        return Work((), None, (), predicted, steps, (Finding(
            **common, status=Status.SKIPPED, statement="Not examined: the case has no measurements table and no live server was measured",
            next_step="Measure accept length and tokens/s with and without speculation on the same prompts and name the CSV under `measurements`; "
                      "it decides whether any drafter can win at this cost."),))
    try:
        frame = read_measurements(case.measurements)
        return Work(runs(frame), frame, tuple(frame.attrs.get("problems", ())), predicted or None, steps, ())
    except (EvidenceError, OSError, ValueError) as error:
        return Work((), None, (), predicted, steps, (Finding(
            **common, status=Status.ERROR, statement=" ".join(str(error).split()), next_step="Correct the table, then run again."),))


def table(work: Work) -> pd.DataFrame | None:
    """The measured runs with the columns that hold anything."""
    if work.frame is None:
        return None
    shown = work.frame.dropna(axis=1, how="all")
    return shown.assign(**{c: shown[c].map(lambda v: None if v is None or v != v else "; ".join(map(str, v)) if isinstance(v, tuple) else v)
                           for c in shown.columns if shown[c].dtype == object})


def predicted_against_measured(work: Work) -> list[Finding]:
    """The live accept length against the prediction of notebook 02."""
    served = (work.predicted or {}).get("served_wiring")
    return [findings_prediction.prediction(work.runs, work.predicted, served=served)] if work.runs else []


def prediction_picture(work: Work) -> Any:
    """The measured accept length on the predictions of all wirings; None without either."""
    if not work.predicted:
        return None
    matches = [m for m in (prediction.match(r, work.predicted) for r in work.runs if r.is_speculative) if m]
    return figures.prediction_plot(max(matches, key=lambda m: m.shortfall)) if matches else None


def ceiling(work: Work) -> list[Finding]:
    """Can speculation win at all at this cost?"""
    return [findings_cost.ceiling(work.runs, work.predicted)] if work.runs else []


def ceiling_picture(work: Work) -> Any:
    tests = ceilings(work.runs)
    return figures.ceiling_plot(tests) if tests else None


def steps(work: Work) -> list[Finding]:
    """Which number of steps pays?"""
    return [findings_cost.steps(work.runs, work.configured_steps)] if work.runs else []


def steps_picture(work: Work) -> Any:
    """Tokens/s against steps; None where no cost line can be drawn."""
    speculative = [r for r in work.runs if r.is_speculative]
    baselines = [r.tokens_per_second for r in work.runs if r.is_baseline and r.tokens_per_second is not None]
    speeds = {r.steps: r.tokens_per_second.value for r in speculative if r.steps and r.tokens_per_second}
    try:
        found = cost.sweep(cost.fit_cycle(speculative), cost.accept_lengths(speculative), baselines[0] if baselines else None, speeds)
    except ValueError:
        return None
    return figures.steps_plot(found)


def checks(work: Work) -> list[Finding]:
    """Definitions, comparability, rendering of the prompts, sanity of the text."""
    if not work.runs:
        return []
    return [findings_checks.definition(work.runs, work.problems), findings_checks.confounded(work.runs), rendering.rendering(work.runs), findings_checks.sanity(work.runs)]


def record(work: Work) -> dict[str, Any]:
    """Break-even, ceiling, cycle and the figures behind them of every run: for the comparison of runs, and for notebook 05."""
    return {"runs": [{"label": c.run.label, "steps": c.run.steps, "cycle_ms": c.cycle_ms.value, "break_even": c.break_even.value,
                      "ceiling": c.ceiling, "outcome": str(c.outcome), "comparable": not c.differs, "accept_length": _figure(c.accept_length),
                      "cycle_ms_interval": _figure(c.cycle_ms), "baseline_tokens_per_second": _figure(c.baseline_tokens_per_second)}
                     for c in ceilings(work.runs)]}


def _figure(e: stats.Estimate) -> dict[str, float]:
    return {"value": e.value, "low": e.low, "high": e.high}
