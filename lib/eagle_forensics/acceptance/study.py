"""The steps of notebook 04 in order; a case without measurements is answered with one finding that says what to measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from eagle_forensics import stats
from eagle_forensics.acceptance import (
    advice,
    figures,
    findings_checks,
    findings_cost,
    findings_prediction,
    papers,
    prediction,
    recorded,
    rendering,
)
from eagle_forensics.acceptance.ceiling import ceilings, cycle_ms
from eagle_forensics.acceptance.live import findings as live_findings
from eagle_forensics.acceptance.live import study as live_study
from eagle_forensics.acceptance.live.frames import (
    as_run,
    definitions_frame,
    domains_frame,
    positions_frame,
    servers_frame,
)
from eagle_forensics.acceptance.live.measure import Measurement
from eagle_forensics.acceptance.live.study import LiveWork
from eagle_forensics.acceptance.papers import Papers
from eagle_forensics.acceptance.runs import Run, runs
from eagle_forensics.acceptance.sweep import findings as findings_sweep
from eagle_forensics.acceptance.sweep import frames as sweep_frames
from eagle_forensics.acceptance.sweep.run import SweepWork
from eagle_forensics.acceptance.sweep.visits import Role
from eagle_forensics.acceptance.tabled.study import splits
from eagle_forensics.acceptance.two_by_two import two_by_two
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.evidence.experts import Experts, read_experts
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
    sweep: SweepWork = field(default_factory=SweepWork)
    experts: Experts = field(default_factory=Experts)
    papers: Papers = field(default_factory=Papers)

    @property
    def measured(self) -> tuple[Run, ...]:
        """Runs measured live just now."""
        return (*(as_run(m) for m in self.live.all if m.good), *self.sweep.runs)

    @property
    def speculation(self) -> Measurement | None:
        """The live measurement with speculation; of a sweep the one with the most steps."""
        swept = [v for v in self.sweep.visits if v.first and v.steps]
        return self.live.speculation or max(swept, key=lambda v: v.steps).first if swept else self.live.speculation

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, those measured live first."""
        return (*self.measured, *self.tabled)

    @property
    def swept(self) -> tuple[Run, ...]:
        """The runs that may hold several step counts: of a sweep over live servers, else the table's where it has their cost; a single live server has one."""
        if any(r.is_speculative for r in self.sweep.runs):
            return self.sweep.runs
        return self.tabled if any(r.is_speculative and cycle_ms(r) for r in self.tabled) else self.measured or self.tabled


def begin(case: Case, *, predicted: Mapping[str, Any] | None, layers: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None,
          live: LiveWork | None = None, sweep: SweepWork | None = None) -> Work:
    """Read the measurements beside what was measured `live` and in a `sweep`. `predicted`, `layers`: records of notebooks 02 and 01; `arguments`: effective launch arguments."""
    common = {"id": "acceptance.evidence", "question": QUESTION, "notebook": NOTEBOOK}
    live, sweep = live or LiveWork({}), sweep or SweepWork()
    steps = sweep.configured if sweep.configured is not None else (arguments or {}).get("num_steps")
    routing = read_experts(case.target.path if case.target else None)
    beside = papers.read(case, layers, arguments)
    if case.measurements is None:
        missing = () if live.measurements or live.opening or sweep.asked or case.answers else (Finding(
            **common, status=Status.SKIPPED, statement="Not examined: the case has no measurements table and no live server was measured",
            next_step="Name a live server under `serving.url` (and one without speculation under `serving.baseline_url`), or measure accept length and tokens/s with "
                      "and without speculation on the same prompts and name the CSV under `measurements`; it decides whether any drafter can win at this cost."),)
        return Work((), None, (), predicted or None, steps, missing, live, sweep, routing, beside)
    try:
        frame = read_measurements(case.measurements)
        return Work(runs(frame), frame, tuple(frame.attrs.get("problems", ())), predicted or None, steps, (), live, sweep, routing, beside)
    except (EvidenceError, OSError, ValueError) as error:
        return Work((), None, (), predicted, steps, (Finding(
            **common, status=Status.ERROR, statement=" ".join(str(error).split()), next_step="Correct the table, then run again."),), live, sweep, routing, beside)


def measured_live(work: Work) -> list[Finding]:
    """What the live servers gave; nothing where none was asked for."""
    return live_study.measured(work.live)


def swept_live(work: Work) -> list[Finding]:
    """Was every step count of the sweep measured, and is its text fit to measure on? Nothing where no sweep was asked for."""
    if not work.sweep.visits:
        return list(work.sweep.opening)
    alone = work.speculation and not work.live.speculation
    return [findings_sweep.measured(work.sweep), *([live_findings.sane(work.speculation)] if alone else [])]


def sweep_table(work: Work) -> pd.DataFrame | None:
    """The servers of the sweep in order; None without one."""
    return sweep_frames.visits_frame(work.sweep) if work.sweep.visits else None


def choices_table(work: Work) -> pd.DataFrame | None:
    """The step counts on the cost line with their probabilities; None where no line can be drawn."""
    found = advice.sweep_of(_one_load(work), work.experts)
    return sweep_frames.choices_frame(found) if found else None


def confirmed(work: Work) -> list[Finding]:
    """Does a fresh server do what the sweep promised?"""
    return [findings_sweep.confirmed(work.sweep)] if work.sweep.visits else []


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
    return positions_frame(work.speculation) if work.speculation else None


def domains_table(work: Work) -> pd.DataFrame | None:
    """Accept length of the live server by domain of prompts; None without one."""
    return domains_frame(work.speculation) if work.speculation else None


def told_apart(work: Work) -> list[Finding]:
    """Where the live accept length falls: by round, prompt length, domain, cache, load, temperature."""
    return live_study.told_apart(work.live)


def definitions_table(work: Work) -> pd.DataFrame | None:
    """The live counts under every definition; None without them."""
    return definitions_frame(work.speculation) if work.speculation else None


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
    found = [findings_cost.steps(_one_load(work), work.configured_steps, work.experts)] if work.runs else []
    return found + [f for f in (findings_sweep.right_wiring(work.sweep, work.predicted),) if f]


def _one_load(work: Work) -> tuple[Run, ...]:
    """The swept runs; of a sweep over live servers those at its first concurrency."""
    return work.sweep.first_runs if work.swept == work.sweep.runs else work.swept


def speed_picture(work: Work) -> Any:
    """Tokens/s against steps, on the cost line where there is one, else as measured; None without a baseline to hold them against."""
    found = advice.sweep_of(_one_load(work), work.experts)
    if found is not None:
        fresh = work.sweep.at(Role.FRESH)
        return figures.steps_plot(found, ahead=findings_sweep.promised(work.sweep, work.predicted), fresh=fresh.runs[0] if fresh and fresh.runs else None)
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
    return advice.advise(work.swept, first.engine, first.engine_version, work.experts) if first else None


def checks(work: Work) -> list[Finding]:
    """Of the recorded answers and the table: sanity of the text, definitions, comparability, rendering, and what runs differ in alone. Those of the live servers come with their measurement."""
    beside = work.papers
    found = recorded.findings(beside.answers)
    if not work.tabled:
        return found
    return [*found, findings_checks.definition(work.tabled, work.problems), findings_checks.confounded(work.tabled), rendering.rendering(work.tabled),
            findings_checks.sanity(work.tabled), *filter(None, [two_by_two(work.tabled)]), *splits(work.tabled, beside)]


def record(work: Work) -> dict[str, Any]:
    """Break-even, ceiling, cycle and the figures behind them of every run, and what was measured live: for the comparison of runs, and for notebook 05."""
    found = {"runs": [{"label": c.run.label, "steps": c.run.steps, "cycle_ms": c.cycle_ms.value, "break_even": c.break_even.value,
                       "ceiling": c.ceiling, "outcome": str(c.outcome), "comparable": not c.differs, "accept_length": _figure(c.accept_length),
                       "cycle_ms_interval": _figure(c.cycle_ms), "baseline_tokens_per_second": _figure(c.baseline_tokens_per_second)}
                      for c in ceilings(work.runs)]}
    recommended = _advice(work)
    if recommended is not None:
        found["recommended"] = {"steps": recommended.steps, "arguments": recommended.arguments, "adaptive": recommended.adaptive}
    if work.sweep.visits:
        found["sweep"] = sweep_frames.record(work.sweep)
    return found | ({"live": live_study.record(work.live)} if work.live.measurements else {})


def _figure(e: stats.Estimate) -> dict[str, float]:
    return {"value": e.value, "low": e.low, "high": e.high}
