"""A sweep over live servers as tables and as a record."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd

from eagle_forensics.acceptance.cost import Sweep
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.sweep.findings import drift
from eagle_forensics.acceptance.sweep.run import SweepWork
from eagle_forensics.acceptance.sweep.visits import Role, Visit
from eagle_forensics.acceptance.words import spread


def visits_frame(work: SweepWork) -> pd.DataFrame:
    """One row a server and concurrency, in the order in which they were measured; partial and failed ones with their reason."""
    rows = []
    for v in work.visits:
        runs = {r.concurrency: r for r in v.runs}
        for m in v.measurements or (None,):
            run = runs.get(m.settings.concurrency) if m else None
            rows.append({
                "steps": v.steps, "for": str(v.role), "concurrency": m.settings.concurrency if m else None, "prompts": m.workload.prompts_hash if m else None,
                "answers": len(m.good) if m else 0, "verify rounds": run.rounds if run else None, "accept length": spread(run.accept_length) if run and run.accept_length else None,
                "round, ms": spread(run.cycle_ms) if run and run.cycle_ms else None, "tokens/s": spread(run.tokens_per_second) if run and run.tokens_per_second else None,
                "ended": v.problem or ("kept from an earlier run" if v.reused else m.stopped)})
    return pd.DataFrame(rows)


def choices_frame(found: Sweep) -> pd.DataFrame:
    """The step counts on the cost line: tokens/s with interval, probability of being the best and of beating plain decoding."""
    return pd.DataFrame([{
        "steps": c.steps, "accept length": c.accept_length, "round, ms": found.fit.at(c.steps), "tokens/s": c.tokens_per_second.value, "low": c.tokens_per_second.low,
        "high": c.tokens_per_second.high, "best in": f"{c.probability_best:.0%}", "beats none in": None if c.probability_wins is None else f"{c.probability_wins:.0%}",
        "measured, x none": c.measured_speedup,
    } for c in found.choices])


def record(work: SweepWork) -> dict[str, Any]:
    """What a later comparison needs."""
    found, moved = work.sweep, drift(work)
    return {
        "asked": list(work.asked), "configured": work.configured, "recommended": work.recommended,
        "visits": [{"steps": v.steps, "for": str(v.role), "problem": v.problem, "reused": v.reused, "runs": [_run(r) for r in v.runs]} for v in work.visits],
        "cost": None if found is None else {"text": found.fit.text(), "terms": list(found.fit.terms), "coefficients_ms": [asdict(c) for c in found.fit.fit.coefficients], "untold": found.fit.untold},
        "choices": [] if found is None else [asdict(c) for c in found.choices],
        "drift": None if moved is None else asdict(moved.ratio), "fresh": _fresh(work.at(Role.FRESH))}


def _fresh(visit: Visit | None) -> dict[str, Any] | None:
    return _run(visit.runs[0]) if visit and visit.runs else None


def _run(r: Run) -> dict[str, Any]:
    return {"label": r.label, "steps": r.steps, "concurrency": r.concurrency, "rounds": r.rounds, "survival": r.survival,
            **{k: None if (e := getattr(r, k)) is None else asdict(e) for k in ("accept_length", "cycle_ms", "tokens_per_second")}}
