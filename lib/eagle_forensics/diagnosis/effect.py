"""What does the fix bring? Accept length from the walk of notebook 02, speed over the time of a round from notebook 04.

    lost         = predicted for the trained states - measured
    explained    = predicted for the trained states - predicted for the served states
    unexplained  = lost - explained = predicted for the served states - measured
    tokens/s after the fix = predicted accept length / time of a round

Differences and ratios are taken between the ends of both intervals: wider than 95 %, never narrower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eagle_forensics.diagnosis.ranking import Supported
from eagle_forensics.diagnosis.records import Effect, Figure
from eagle_forensics.finding import Finding

MEASURED = ("acceptance.live-prediction", "acceptance.prediction")
"""Findings that hold a measured accept length against the prediction for its own setting; the first one evaluated counts."""
FED = ("drafter.served-wiring", "drafter.served-graph", "layers.served", "config.served-boundaries", *MEASURED)
"""Findings that say which states are served."""


def effect(faults: Sequence[Supported], findings: Sequence[Finding], records: Mapping[str, Any]) -> Effect | None:
    """What serving the trained states brings; None unless a fault is about the states that are served and both feeds were predicted."""
    predicted = records.get("prediction") or {}
    carried = tuple(dict.fromkeys(i for f in faults if f.slug.startswith("wiring.") for i in f.ids if i in FED))
    served = (predicted.get("wirings") or {}).get(predicted.get("served_wiring") or "")
    if not carried or not served:
        return None
    met = measured(findings)
    steps, after = _prediction(met, predicted, records)
    before = figure(served.get(str(steps)))
    if met is None:
        return None if after is None or before is None else Effect(steps=steps, accept_length_now=before, measured=False, accept_length_after=after, findings=carried)
    now, chain = _observed(met), after == figure((predicted.get("steps") or {}).get(str(steps)))
    timed = _timed(now, steps, records)
    return Effect(steps=steps, accept_length_now=now, measured=True, accept_length_after=after, unexplained=minus(before, now) if chain and before else None,
                  findings=tuple(dict.fromkeys((*carried, met.id, *(["acceptance.ceiling"] if timed else [])))), **_speed(timed, after))


def measured(findings: Sequence[Finding]) -> Finding | None:
    """The finding that holds a measured accept length against its prediction; None if nothing was measured or predicted."""
    by_id = {f.id: f for f in findings}
    return next((f for i in MEASURED if (f := by_id.get(i)) and isinstance(f.observed, float | int) and isinstance(f.expected, float | int)), None)


def shortfall(findings: Sequence[Finding], records: Mapping[str, Any]) -> Figure | None:
    """Tokens a round by which the measured accept length lies below the prediction for the trained states; None unless the intervals are apart."""
    met = measured(findings)
    if met is None:
        return None
    _, after = _prediction(met, records.get("prediction") or {}, records)
    lost = minus(after, _observed(met)) if after else None
    return lost if lost and lost.low is not None and lost.low > 0 else None


def minus(a: Figure, b: Figure) -> Figure:
    """a - b, between the ends of both intervals."""
    if None in (a.low, a.high, b.low, b.high):
        return Figure(value=a.value - b.value)
    return Figure(value=a.value - b.value, low=a.low - b.high, high=a.high - b.low)


def figure(cell: Any) -> Figure | None:
    """A record's `{value, low, high}`; None for anything else."""
    if not isinstance(cell, Mapping) or not all(isinstance(cell.get(k), float | int) for k in ("value", "low", "high")):
        return None
    return Figure(value=cell["value"], low=cell["low"], high=cell["high"])


def _prediction(met: Finding | None, predicted: Mapping[str, Any], records: Mapping[str, Any]) -> tuple[int | None, Figure | None]:
    """Steps, and the accept length predicted for the trained states: the one that was held against the measurement, else that of the configured steps."""
    table = predicted.get("steps") or {}
    if met is not None:
        found = next(((s, f) for s, f in _cells(predicted) if f.value == met.expected), None)
        return found or (None, Figure(value=met.expected))
    configured = str((records.get("arguments") or {}).get("num_steps"))
    steps = configured if configured in table else max(table, key=int, default=None)
    return (int(steps), figure(table[steps])) if steps else (None, None)


def _cells(predicted: Mapping[str, Any]) -> Iterator[tuple[int, Figure]]:
    for table in (predicted.get("steps") or {}, predicted.get("trees") or {}):
        for key, cell in table.items():
            if found := figure(cell):
                yield int(key.split(",")[0]), found


def _observed(met: Finding) -> Figure:
    low, high = met.interval or (None, None)
    return Figure(value=met.observed, low=low, high=high)


def _timed(now: Figure, steps: int | None, records: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The run of notebook 04's record whose accept length this is, if its baseline is comparable."""
    runs = (records.get("acceptance") or {}).get("runs") or ()
    return next((r for r in runs if r.get("steps") == steps and r.get("comparable") and (r.get("accept_length") or {}).get("value") == now.value), None)


def _speed(run: Mapping[str, Any] | None, after: Figure) -> dict[str, Any]:
    cycle, base, now = (figure((run or {}).get(k)) for k in ("cycle_ms_interval", "baseline_tokens_per_second", "accept_length"))
    if cycle is None or base is None or now is None:
        return {}
    speed = _over(after, cycle)
    return {"tokens_per_second_now": Figure(value=1e3 * now.value / cycle.value), "tokens_per_second_after": speed, "baseline_tokens_per_second": base,
            "break_even": Figure(value=cycle.value * base.value / 1e3, low=cycle.low * base.low / 1e3, high=cycle.high * base.high / 1e3),
            "wins": None if speed.low is None else True if speed.low > base.high else False if speed.high < base.low else None}


def _over(after: Figure, cycle: Figure) -> Figure:
    value = 1e3 * after.value / cycle.value
    return Figure(value=value) if after.low is None or after.high is None else Figure(value=value, low=1e3 * after.low / cycle.high, high=1e3 * after.high / cycle.low)
