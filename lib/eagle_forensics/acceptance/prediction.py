"""Which wiring does the measured accept length belong to? Predictions of the drafter walk against the live figure.

The record comes from notebook 02: `steps` holds the accept length predicted for the trained wiring by step count, `wirings`
the same for every hypothesis tried. A hypothesis stays a candidate while its interval meets the measured one; several
candidates are an honest answer (one layer off, two planes swapped and one plane zeroed lie within a few percent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import measured_accept_length
from eagle_forensics.acceptance.runs import Run

TRAINED = "trained"


@dataclass(frozen=True)
class Hypothesis:
    """Predicted accept length of one wiring at the run's step count."""

    name: str
    predicted: stats.Estimate
    distance: float
    """Gap between the predicted and the measured interval, tokens per round; 0 while they meet."""


@dataclass(frozen=True)
class Match:
    """One measured run against all predictions for its step count, nearest first."""

    run: Run
    measured: stats.Estimate
    trained: stats.Estimate
    hypotheses: tuple[Hypothesis, ...]

    @property
    def candidates(self) -> tuple[str, ...]:
        """Wirings whose interval meets the measured one; the trained wiring is called `trained`."""
        return tuple(h.name for h in self.hypotheses if h.distance == 0)

    @property
    def shortfall(self) -> float:
        """Tokens per round by which the measured interval lies below the trained wiring's; 0 if it does not."""
        return max(0.0, self.trained.low - self.measured.high)

    @property
    def excess(self) -> float:
        """Tokens per round by which the measured interval lies above the trained wiring's; 0 if it does not."""
        return max(0.0, self.measured.low - self.trained.high)

    def nearest_other(self, name: str) -> Hypothesis | None:
        """The hypothesis nearest to the measured figure apart from `name`."""
        return next((h for h in self.hypotheses if h.name != name), None)


def predicted_steps(record: Mapping[str, Any]) -> dict[int, stats.Estimate]:
    """Predicted accept length of the trained wiring by step count. Raises ValueError for a record of another form."""
    return _by_steps(record.get("steps"), "steps")


def match(run: Run, record: Mapping[str, Any]) -> Match | None:
    """The run held against every wiring predicted for its step count; None if none is, or nothing was measured.

    `wirings`: `{name: {"3": {"value": 2.06, "low": 2.01, "high": 2.12}}}`.
    """
    measured = measured_accept_length(run)
    steps = predicted_steps(record)
    if measured is None or run.steps not in steps:
        return None
    predictions = {TRAINED: steps[run.steps]}
    for name, table in (record.get("wirings") or {}).items():
        inner = table.get("steps", table) if isinstance(table, Mapping) else table
        by_steps = _by_steps(inner, f"wirings.{name}")
        if run.steps in by_steps:
            predictions.setdefault(str(name), by_steps[run.steps])
    found = [Hypothesis(n, p, max(0.0, p.low - measured.high, measured.low - p.high)) for n, p in predictions.items()]
    found.sort(key=lambda h: (h.distance, abs(h.predicted.value - measured.value)))
    return Match(run, measured, predictions[TRAINED], tuple(found))


def _by_steps(table: Any, where: str) -> dict[int, stats.Estimate]:
    if not isinstance(table, Mapping):
        raise ValueError(f"prediction record: `{where}` is {type(table).__name__}; expected {{\"3\": {{\"value\", \"low\", \"high\"}}}}")
    found = {}
    for steps, cell in table.items():
        try:
            value, low, high = (float(cell[k]) for k in ("value", "low", "high"))
            found[int(steps)] = stats.Estimate(value, low, high, int(cell.get("n", 0)), int(cell.get("clusters", 0)), "predicted")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(f"prediction record: `{where}.{steps}` is {str(cell)[:80]!r}; expected a step count with numbers "
                             "`value`, `low`, `high`") from None
    return found
