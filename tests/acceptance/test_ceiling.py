"""The ceiling test on the incident's figures, and how far their printing carries it."""

from dataclasses import replace

import pandas as pd
import pytest

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import Outcome, ceilings, impossible, measured_accept_length
from eagle_forensics.acceptance.runs import runs
from tests.acceptance.tables import INCIDENT, live


def by_steps(frame):
    return {c.run.steps: c for c in ceilings(runs(frame))}


@pytest.mark.parametrize(("steps", "cycle", "even", "ceiling", "best"), [(1, 28.17, 2.54, 2, 71), (15, 40.69, 3.66, 16, 393), (5, 32.85, 2.96, 6, 183)])
def test_the_incident(steps, cycle, even, ceiling, best):
    test = by_steps(INCIDENT)[steps]
    assert round(test.cycle_ms.value, 2) == cycle
    assert round(test.break_even.value, 2) == even
    assert test.ceiling == ceiling
    assert round(test.best_tokens_per_second.value) == best


def test_one_decimal_of_accept_length_is_carried_to_cycle_and_break_even():
    test = by_steps(INCIDENT)[1]
    assert test.cycle_ms.interval == pytest.approx((1e3 * 1.55 / 56.85, 1e3 * 1.65 / 56.75))
    assert test.break_even.interval == pytest.approx((1.55 / 56.85 * 89.95, 1.65 / 56.75 * 90.05))


def test_only_the_run_with_one_step_is_impossible():
    tests = ceilings(runs(INCIDENT))
    assert [c.run.label for c in impossible(tests)] == ["steps 1 of 16"]
    assert {c.run.steps: c.outcome for c in tests} == {1: Outcome.CANNOT_WIN, 5: Outcome.LOSES, 15: Outcome.LOSES}


@pytest.mark.parametrize(("baseline", "outcome"), [(75.5, Outcome.CANNOT_WIN), (75.0, Outcome.UNDECIDED), (69.0, Outcome.UNDECIDED), (50.0, Outcome.WINS)])
def test_cannot_win_needs_the_lower_end_above_the_ceiling(baseline, outcome):
    table = INCIDENT.assign(tokens_per_second=[baseline, 56.8, 46.7, 54.8])
    assert by_steps(table)[1].outcome is outcome


def test_a_repeat_that_could_win_acquits():
    again = pd.concat([INCIDENT, INCIDENT.iloc[[1]].assign(label="repeat", tokens_per_second=80.0)])
    assert impossible(ceilings(runs(again))) == ()


def test_a_baseline_under_another_environment_is_not_used_to_condemn():
    table = INCIDENT.assign(env_hash=["old", "tuned", "tuned", "tuned"])
    tests = ceilings(runs(table))
    assert impossible(tests) == () and all(c.differs == ("env_hash",) for c in tests)


def test_the_nearest_baseline_is_taken_and_repeats_widen():
    extra = pd.DataFrame([{"label": "tuned base", "speculative": 0, "tokens_per_second": 118.0, "env_hash": "tuned"},
                          {"label": "old base again", "speculative": 0, "tokens_per_second": 88.8, "env_hash": "old"}])
    table = pd.concat([INCIDENT.assign(env_hash="old"), extra])
    test = by_steps(table)[1]
    assert test.baselines == ("no speculation", "old base again")
    assert test.baseline_tokens_per_second.interval == pytest.approx((88.75, 90.05))


def test_without_baseline_or_tokens_per_second_there_is_no_test():
    assert ceilings(runs(INCIDENT.iloc[1:])) == ()
    assert ceilings(runs(INCIDENT.drop(columns="tokens_per_second"))) == ()


def test_sampling_error_enters_the_accept_length_only_where_rounds_are_known():
    known = measured_accept_length(runs(live(2.019, rounds=915, accepted_per_position="0.544;0.303;0.172"))[0])
    sparse = measured_accept_length(runs(live(2.019, rounds=915))[0])
    unknown = measured_accept_length(runs(live(2.019, rounds=None))[0])
    assert known.high - known.low == pytest.approx(0.001 + 2 * 1.96 * 1.129 / 915**0.5, rel=0.01)
    assert sparse.high - sparse.low > known.high - known.low > unknown.high - unknown.low
    assert "unknown" in unknown.method


def test_a_round_whose_interval_reaches_zero_bounds_no_speed():
    spec, base = runs(INCIDENT)[1], runs(INCIDENT)[0]
    (test,) = ceilings((base, replace(spec, cycle_ms=stats.Estimate(2.0, 0.0, 4.0, 100, 3, "t over 3 sequences"))))
    assert test.best_tokens_per_second.high == float("inf") and test.break_even.low == 0
