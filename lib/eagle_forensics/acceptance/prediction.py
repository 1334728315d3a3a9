"""Which wiring does the measured accept length belong to? Predictions of the drafter walk against the live figure.

The record comes from notebook 02: `steps` holds the accept length predicted for the trained wiring by step count, `wirings`
the same for every hypothesis tried. A hypothesis stays a candidate while its interval meets the measured one; several
candidates are an honest answer (one layer off, two planes swapped and one plane zeroed lie within a few percent). `trees` and
`temperatures` hold the trained wiring's predictions for draft trees and above temperature 0: a run is held against the prediction
of its own setting, never against the greedy chain's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import measured_accept_length
from eagle_forensics.acceptance.runs import Run

TRAINED = "trained"
RULES = {"target-only": "greedy drafts accepted with the target's probability", "rejection": "lossless rejection of sampled drafts"}
"""How drafts are verified above temperature 0."""


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
    basis: str = ""
    """What the prediction holds for, where it is not the greedy chain."""

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
    """The run held against every wiring predicted for its setting; None if none is, or nothing was measured.

    `wirings`: `{name: {"3": {"value": 2.06, "low": 2.01, "high": 2.12}}}`.
    """
    measured = measured_accept_length(run)
    steps = predicted_steps(record)
    if measured is None or run.steps is None:
        return None
    if isinstance(own := _own_setting(run, record), str):
        return None
    if own is None and run.steps not in steps:
        return None
    basis, predictions = own or ("", {TRAINED: steps[run.steps]})
    for name, table in () if own else (record.get("wirings") or {}).items():
        inner = table.get("steps", table) if isinstance(table, Mapping) else table
        by_steps = _by_steps(inner, f"wirings.{name}")
        if run.steps in by_steps:
            predictions.setdefault(str(name), by_steps[run.steps])
    found = [Hypothesis(n, p, max(0.0, p.low - measured.high, measured.low - p.high)) for n, p in predictions.items()]
    found.sort(key=lambda h: (h.distance, abs(h.predicted.value - measured.value)))
    return Match(run, measured, predictions[TRAINED], tuple(found), basis or _greedy_anyway(run))


def trained_prediction(run: Run, record: Mapping[str, Any]) -> stats.Estimate | None:
    """The trained wiring's accept length at the run's own setting; None if it is not predicted."""
    own = _own_setting(run, record)
    if own is None:
        return predicted_steps(record).get(run.steps)
    return None if isinstance(own, str) else own[1][TRAINED]


def unpredicted(run: Run, record: Mapping[str, Any]) -> str | None:
    """Why a run of another setting than the greedy chain has no prediction in this record; None if it has, or needs none."""
    own = _own_setting(run, record)
    return own if isinstance(own, str) else None


def _own_setting(run: Run, record: Mapping[str, Any]) -> tuple[str, dict[str, stats.Estimate]] | str | None:
    """Prediction of a tree or a temperature, with its words; why there is none; None for what the greedy chain predicts."""
    hot = bool(run.temperature) and run.verification != "greedy"
    if (run.topk or 1) > 1:
        key = f"{run.steps},{run.topk},{run.draft_tokens}"
        if hot:
            return f"{run.label}: no prediction is made for draft trees above temperature 0"
        cell = (record.get("trees") or {}).get(key)
        if cell is None:
            return f"{run.label}: no prediction for its tree of steps,topk,draft tokens {key}; notebook 02 predicts the case's launch setting, and the chain's prediction is not its"
        return f"a tree of topk {run.topk} and {run.draft_tokens} draft tokens", {TRAINED: _by_steps({run.steps: cell}, f"trees.{key}")[run.steps]}
    if not hot:
        return None
    rule = run.verification or "target-only"
    cells = ((record.get("temperatures") or {}).get(f"{run.temperature:g}") or {}).get(rule)
    if cells is None or str(run.steps) not in cells:
        known = ", ".join(record.get("temperatures") or {}) or "none"
        return f"{run.label}: no prediction at temperature {run.temperature:g} (predicted: {known}); that at temperature 0 is not its"
    where = f"temperatures.{run.temperature:g}.{rule}.{run.steps}"
    cell = cells[str(run.steps)]
    if not isinstance(cell, Mapping):
        raise ValueError(f"prediction record: `{where}` is {type(cell).__name__}; expected {{\"low\", \"high\"}}")
    low, high = (_by_steps({run.steps: cell.get(end)}, f"{where}.{end}")[run.steps] for end in ("low", "high"))
    bounds = stats.Estimate((low.value + high.value) / 2, low.low, high.high, low.n, low.clusters, "between the bounds along the recorded text")
    return f"temperature {run.temperature:g} under {RULES[rule]}{'' if run.verification else ', which is assumed'}", {TRAINED: bounds}


def _greedy_anyway(run: Run) -> str:
    return f"temperature 0: this engine verifies greedily on this platform, whatever the temperature ({run.temperature:g} asked)" if run.temperature and run.verification == "greedy" else ""


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
