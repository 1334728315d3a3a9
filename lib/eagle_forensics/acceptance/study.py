"""The steps of notebook 04 in order; a case without measurements is answered with one finding that says what to measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from eagle_forensics import stats
from eagle_forensics.acceptance import (
    advice,
    figures,
    findings_checks,
    findings_cost,
    findings_prediction,
    live_study,
    prediction,
    rendering,
)
from eagle_forensics.acceptance.ceiling import ceilings
from eagle_forensics.acceptance.live_frames import (
    as_run,
    definitions_frame,
    domains_frame,
    positions_frame,
    servers_frame,
)
from eagle_forensics.acceptance.live_study import LiveWork
from eagle_forensics.acceptance.runs import Run, runs
from eagle_forensics.acceptance.two_by_two import two_by_two
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.evidence.measurements import read_measurements
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, Status

QUESTION = "Is there a measured run to judge?"


@dataclass(frozen=True)
class Work:
    """The measured runs of a case, of its table and of its live servers; empty with the reason in `opening`."""

    tabled: tuple[Run, ...]
    """Rows of the measurements table."""
    frame: pd.DataFrame | None
    problems: tuple[str, ...]
    predicted: Mapping[str, Any] | None
    """Record of notebook 02."""
    configured_steps: int | None
    opening: tuple[Finding, ...]
    live: LiveWork

    @property
    def measured(self) -> tuple[Run, ...]:
        """Runs measured live just now."""
        return tuple(as_run(m) for m in self.live.all if m.good)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, those measured live first."""
        return (*self.measured, *self.tabled)

    @property
    def swept(self) -> tuple[Run, ...]:
        """The runs that may hold several step counts: the table's; a live server has one."""
        return self.tabled if any(r.is_speculative for r in self.tabled) else self.measured


def begin(case: Case, *, predicted: Mapping[str, Any] | None, layers: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None,
          live: LiveWork | None = None) -> Work:
    """Read the measurements beside what was measured `live`. `predicted`, `layers`: records of notebooks 02 and 01; `arguments`: effective launch arguments."""
    common = {"id": "acceptance.evidence", "question": QUESTION, "notebook": NOTEBOOK}
    live = live or LiveWork({})
    steps = (arguments or {}).get("num_steps")
    if case.measurements is None:
        missing = () if live.measurements or live.opening else (Finding(
            **common, status=Status.SKIPPED, statement="Not examined: the case has no measurements table and no live server was measured",
            next_step="Name a live server under `serving.url` (and one without speculation under `serving.baseline_url`), or measure accept length and tokens/s with "
                      "and without speculation on the same prompts and name the CSV under `measurements`; it decides whether any drafter can win at this cost."),)
        return Work((), None, (), predicted or None, steps, missing, live)
    try:
        frame = read_measurements(case.measurements)
        return Work(runs(frame), frame, tuple(frame.attrs.get("problems", ())), predicted or None, steps, (), live)
    except (EvidenceError, OSError, ValueError) as error:
        return Work((), None, (), predicted, steps, (Finding(
            **common, status=Status.ERROR, statement=" ".join(str(error).split()), next_step="Correct the table, then run again."),), live)


def measured_live(work: Work) -> list[Finding]:
    """What the live servers gave; nothing where none was asked for."""
    return live_study.measured(work.live)


def servers_table(work: Work) -> pd.DataFrame | None:
    """The live servers, a row a server and setting; None without one."""
    return servers_frame(work.live.all) if work.live.measurements else None


def table(work: Work) -> pd.DataFrame | None:
    """The measured runs with the columns that hold anything."""
    if work.frame is None:
        return None
    shown = work.frame.dropna(axis=1, how="all")
    return shown.assign(**{c: shown[c].map(lambda v: None if v is None or v != v else "; ".join(map(str, v)) if isinstance(v, tuple) else v)
                           for c in shown.columns if shown[c].dtype == object})


def predicted_against_measured(work: Work) -> list[Finding]:
    """The accept length measured live, and the tabled one, against the prediction of notebook 02."""
    served = (work.predicted or {}).get("served_wiring")
    found = [findings_prediction.prediction(work.measured, work.predicted, served=served, live=True)] if work.measured else []
    return found + ([findings_prediction.prediction(work.tabled, work.predicted, served=served)] if work.tabled else [])


def prediction_picture(work: Work) -> Any:
    """The measured accept length on the predictions of all wirings; None without either."""
    if not work.predicted:
        return None
    matches = [m for m in (prediction.match(r, work.predicted) for r in work.measured or work.tabled if r.is_speculative) if m]
    return figures.prediction_plot(max(matches, key=lambda m: m.shortfall)) if matches else None


def positions_table(work: Work) -> pd.DataFrame | None:
    """Acceptance of the live server by position; None without one."""
    return positions_frame(work.live.speculation) if work.live.speculation else None


def domains_table(work: Work) -> pd.DataFrame | None:
    """Accept length of the live server by domain of prompts; None without one."""
    return domains_frame(work.live.speculation) if work.live.speculation else None


def told_apart(work: Work) -> list[Finding]:
    """Where the live accept length falls: by round, prompt length, domain, cache, load, temperature."""
    return live_study.told_apart(work.live)


def definitions_table(work: Work) -> pd.DataFrame | None:
    """The live counts under every definition; None without them."""
    return definitions_frame(work.live.speculation) if work.live.speculation else None


def reconciled(work: Work) -> list[Finding]:
    """Counts of single answers, the server's counter and its log against each other."""
    return live_study.reconciled(work.live)


def ceiling(work: Work) -> list[Finding]:
    """Can speculation win at all at this cost?"""
    return [findings_cost.ceiling(work.runs, work.predicted)] if work.runs else []


def ceiling_picture(work: Work) -> Any:
    tests = ceilings(work.runs)
    return figures.ceiling_plot(tests) if tests else None


def steps(work: Work) -> list[Finding]:
    """Which number of steps pays?"""
    return [findings_cost.steps(work.swept, work.configured_steps)] if work.runs else []


def speed_picture(work: Work) -> Any:
    """Tokens/s against steps, on the cost line where there is one, else as measured; None without a baseline to hold them against."""
    found = advice.sweep_of(work.swept)
    if found is not None:
        return figures.steps_plot(found)
    tests = [c for c in ceilings(work.runs) if not c.differs and c.run.steps is not None]
    return figures.speed_plot(tests) if tests else None


def recommendation(work: Work) -> pd.DataFrame | None:
    """What to write on the launch line, {what, write}; None without a sweep of the steps."""
    found = _advice(work)
    if found is None:
        return None
    rows = [("launch arguments", found.arguments)]
    if found.adaptive is not None:
        rows.append(("or --speculative-adaptive with --speculative-adaptive-config naming a file of", json.dumps(found.adaptive)))
    return pd.DataFrame(rows, columns=["what", "write"])


def _advice(work: Work) -> advice.Advice | None:
    first = next((r for r in work.swept if r.is_speculative), None)
    return advice.advise(work.swept, first.engine, first.engine_version) if first else None


def checks(work: Work) -> list[Finding]:
    """Definitions, comparability, rendering of the prompts, sanity of the text: of the table. Those of the live servers come with their measurement."""
    if not work.tabled:
        return []
    return [findings_checks.definition(work.tabled, work.problems), findings_checks.confounded(work.tabled), rendering.rendering(work.tabled),
            findings_checks.sanity(work.tabled), *filter(None, [two_by_two(work.tabled)])]


def record(work: Work) -> dict[str, Any]:
    """Break-even, ceiling, cycle and the figures behind them of every run, and what was measured live: for the comparison of runs, and for notebook 05."""
    found = {"runs": [{"label": c.run.label, "steps": c.run.steps, "cycle_ms": c.cycle_ms.value, "break_even": c.break_even.value,
                       "ceiling": c.ceiling, "outcome": str(c.outcome), "comparable": not c.differs, "accept_length": _figure(c.accept_length),
                       "cycle_ms_interval": _figure(c.cycle_ms), "baseline_tokens_per_second": _figure(c.baseline_tokens_per_second)}
                      for c in ceilings(work.runs)]}
    recommended = _advice(work)
    if recommended is not None:
        found["recommended"] = {"steps": recommended.steps, "arguments": recommended.arguments, "adaptive": recommended.adaptive}
    return found | ({"live": live_study.record(work.live)} if work.live.measurements else {})


def _figure(e: stats.Estimate) -> dict[str, float]:
    return {"value": e.value, "low": e.low, "high": e.high}
