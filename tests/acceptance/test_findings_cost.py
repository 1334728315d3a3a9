"""Findings on cost and steps: what they accuse, what they refuse to accuse, and the rival they name."""

import pandas as pd
import pytest

from eagle_forensics.acceptance import findings_cost as f
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.finding import Status
from tests.acceptance.tables import INCIDENT, ONE_STEP, SWEEP, interval


def test_the_incident_cannot_win_and_a_better_drafter_is_rejected_by_name():
    found = f.ceiling(runs(INCIDENT))
    assert (found.status, found.fault) == (Status.FAIL, "cost.cannot-win")
    assert "no drafter can win" in found.statement and "2.54 [2.45, 2.62]" in found.statement
    assert found.competitor.fault == "data.too-little" and "improve the drafter" in found.competitor.why_rejected
    assert "71.0" in found.competitor.why_rejected and "23 %" in found.competitor.margin
    assert all(any(figure in e.note for e in found.evidence) for figure in ("28.17", "40.69", "32.85", "3.66", "2.96"))


def test_losing_below_the_ceiling_accuses_nobody_without_a_prediction():
    assert f.ceiling(runs(INCIDENT.iloc[[0, 3]])).status is Status.INCONCLUSIVE


@pytest.mark.parametrize(("predicted", "status"), [(3.5, Status.PASS), (2.2, Status.FAIL), (3.0, Status.INCONCLUSIVE)])
def test_a_prediction_decides_between_drafter_and_cost(predicted, status):
    found = f.ceiling(runs(INCIDENT.iloc[[0, 3]]), {"steps": interval(predicted, 0.1, steps=5)})
    assert found.status is status
    assert status is not Status.PASS or "tokens/s" in found.predicted_effect


def test_a_prediction_that_the_live_run_already_beats_is_no_bound():
    run = INCIDENT.iloc[[0, 3]]
    live_length = runs(run)[1].accept_length.value
    assert f.ceiling(runs(run), {"steps": interval(live_length - 0.3, 0.1, steps=5)}).status is Status.INCONCLUSIVE


def test_winning_passes():
    assert f.ceiling(runs(SWEEP)).status is Status.PASS


def test_a_step_count_that_cannot_win_accuses_nobody_where_another_one_wins():
    assert f.ceiling(runs(pd.concat([SWEEP.iloc[:1], ONE_STEP]))).fault == "cost.cannot-win"
    found = f.ceiling(runs(pd.concat([SWEEP, ONE_STEP])))
    assert found.status is Status.PASS and "Speculation wins" in found.statement
    other = pd.concat([SWEEP.assign(temperature=0.0), ONE_STEP.assign(temperature=1.0), SWEEP.iloc[:1].assign(temperature=1.0)])
    assert f.ceiling(runs(other)).fault == "cost.cannot-win", "a win at another temperature acquits nobody"


def test_a_prediction_below_the_break_even_of_one_step_count_is_no_verdict_on_all():
    long = pd.DataFrame([{"label": "K = 15", "speculative": 1, "steps": 15, "topk": 1, "accept_length": 3.6, "tokens_per_second": 100.0}])
    ahead = {"steps": interval(3.7, 0.1, steps=15)}
    assert f.ceiling(runs(pd.concat([SWEEP.iloc[:1], long])), ahead).fault == "cost.cannot-win"
    assert f.ceiling(runs(pd.concat([SWEEP, long])), ahead).status is Status.PASS


def test_missing_evidence_says_what_is_missing():
    found = f.ceiling(runs(INCIDENT.iloc[1:]))
    assert found.status is Status.SKIPPED and "without speculation" in found.statement


def test_steps_configured_for_accept_length_instead_of_speed():
    found = f.steps(runs(SWEEP), configured=7)
    assert (found.status, found.fault, found.observed, found.expected) == (Status.FAIL, "cost.wrong-step-count", 7, 4)
    assert "1.746x" in found.statement and "8.35 + 1.016" in found.statement
    assert found.competitor.fault == "cost.cannot-win"


@pytest.mark.parametrize("configured", [4, 5])
def test_steps_that_cannot_be_told_from_the_best_pass(configured):
    assert f.steps(runs(SWEEP), configured).status is Status.PASS


def test_steps_abstain_on_two_values_on_mixed_runs_and_when_everything_loses():
    assert f.steps(runs(SWEEP.iloc[:3]), 2).status is Status.INCONCLUSIVE
    mixed = f.steps(runs(SWEEP.assign(temperature=[0, 0, 1, 0, 1, 0, 1])), 7)
    assert mixed.status is Status.INCONCLUSIVE and "temperature" in mixed.statement
    assert "not the lever" in f.steps(runs(INCIDENT), 15).statement
    assert f.steps(runs(SWEEP), None).status is Status.SKIPPED
    assert f.steps((), None).status is Status.SKIPPED


def test_a_step_count_that_is_as_fast_as_the_clock_can_tell_is_not_accused():
    flat = pd.DataFrame([{"label": "plain", "speculative": 0, "tokens_per_second": 100.0}, *(
        {"label": str(k), "speculative": 1, "steps": k, "topk": 1, "accept_length": al, "tokens_per_second": speed}
        for k, al, speed in ((1, 1.65, 139.2), (2, 2.06, 163.1), (3, 2.32, 172.9), (4, 2.48, 173.8), (5, 2.59, 170.4)))])
    assert f.steps(runs(flat), 3).status is Status.PASS and f.steps(runs(flat), 1).fault == "cost.wrong-step-count"


def test_many_runs_do_not_make_a_statement_without_end():
    many = pd.DataFrame([{"label": "plain", "speculative": 0, "tokens_per_second": 100.0}, *(
        {"label": f"run {i}", "speculative": 1, "steps": 3, "accept_length": 2.4, "tokens_per_second": 150.0, "temperature": i} for i in range(300))])
    assert len(f.ceiling(runs(many)).statement) < 1500
