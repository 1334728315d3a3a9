"""What the fix brings, whether speculation then pays, and what it leaves unexplained."""

import pytest

from eagle_forensics.finding import Finding
from tests.diagnosis.builders import LOSS, OFFSET, cell, finding, met, of, prediction, timed, told


def test_without_a_measurement_both_figures_are_predictions():
    gain = of(OFFSET, LOSS, prediction=prediction(2.0, 1.1), arguments={"num_steps": 3}).effect
    assert (gain.steps, gain.accept_length_now.value, gain.accept_length_after.value, gain.measured) == (3, 1.1, 2.0, False)
    assert gain.unexplained is None and gain.tokens_per_second_after is None and gain.wins is None
    assert gain.findings == ("layers.served", "drafter.served-wiring")


@pytest.mark.parametrize(("base", "wins", "words"), [(40.0, True, "speculation then pays"), (100.0, False, "speculation loses even then"), (66.0, None, "is open")])
def test_speed_after_the_fix_is_accept_length_over_the_time_of_a_round(base, wins, words):
    result = of(OFFSET, LOSS, met(1.1), prediction=prediction(2.0, 1.1), acceptance={"runs": [timed(1.1, cycle=30.0, base=base)]})
    gain = result.effect
    assert gain.tokens_per_second_now.value == pytest.approx(1.1 / 0.030) and gain.tokens_per_second_after.value == pytest.approx(2.0 / 0.030)
    assert gain.tokens_per_second_after.low == pytest.approx(1.95 / 0.0305) and gain.tokens_per_second_after.high == pytest.approx(2.05 / 0.0295)
    assert gain.break_even.value == pytest.approx(base * 0.030) and gain.wins is wins
    assert words in result.story[0].text and "acceptance.ceiling" in gain.findings


def test_a_run_without_an_interval_gives_no_speed():
    runs = [timed() | {"accept_length": {"value": 1.1, "low": None, "high": None}}]
    assert of(OFFSET, met(1.1), prediction=prediction(), acceptance={"runs": runs}).effect.tokens_per_second_after is None
    assert "A round takes" not in of(finding("acceptance.ceiling", "fail", "cost.cannot-win"), acceptance={"runs": runs}).story[0].text


def test_a_run_whose_baseline_is_another_gives_no_speed():
    assert of(OFFSET, met(1.1), prediction=prediction(), acceptance={"runs": [timed(comparable=False)]}).effect.tokens_per_second_after is None
    assert of(OFFSET, met(1.1), prediction=prediction(), acceptance={"runs": [timed(measured=1.3)]}).effect.tokens_per_second_after is None, "another run's accept length"


def test_a_loss_that_the_served_states_explain_leaves_nothing():
    result = of(OFFSET, met(1.1), prediction=prediction(2.0, 1.12))
    u = result.effect.unexplained
    assert u.value == pytest.approx(0.02) and u.low == pytest.approx(1.07 - 1.15) and u.high == pytest.approx(1.17 - 1.05)
    assert "no sign of a second fault" in result.faults[0].if_fixed.text


def test_a_loss_larger_than_the_served_states_cost_is_a_second_fault_in_tokens():
    result = of(OFFSET, met(1.2), finding("drafter.metric"), prediction=prediction(2.0, 1.6))
    assert "0.80 tokens a round are lost, and 0.40 [0.30, 0.50] of them stay unexplained" in result.faults[0].if_fixed.text
    assert "acceptance.prediction" in result.faults[0].if_fixed.findings
    assert result.elimination.remains and "wiring.layer-offset" not in result.elimination.remains, "what is proven is not looked for again"
    assert {link.name: link.state for link in result.chain}["engine"] == "undecided"


def test_a_smaller_loss_than_the_states_should_cost_is_said():
    assert "easier than the recorded one" in of(OFFSET, met(1.5), prediction=prediction(2.0, 1.1)).faults[0].if_fixed.text


def test_states_that_explain_the_loss_let_the_engine_link_hold():
    result = of(OFFSET, met(1.1), finding("drafter.metric"), prediction=prediction(2.0, 1.12))
    assert {link.name: link.state for link in result.chain}["engine"] == "holds" and result.elimination.remains == ()


def test_the_prediction_of_a_tree_is_not_mixed_with_the_chains():
    record = prediction(2.0, 1.1) | {"trees": {"3,4,16": cell(2.6)}}
    gain = of(OFFSET, met(1.3, trained=2.6), prediction=record).effect
    assert gain.accept_length_after.value == 2.6 and gain.steps == 3 and gain.unexplained is None


def test_a_prediction_that_no_record_holds_has_no_interval():
    gain = of(OFFSET, met(1.3, trained=2.345), prediction=prediction()).effect
    assert gain.steps is None and gain.accept_length_after.low is None and gain.unexplained is None


def test_only_faults_of_the_states_have_this_effect():
    assert of(finding("acceptance.ceiling", "fail", "cost.cannot-win"), prediction=prediction()).effect is None
    assert of(OFFSET, prediction={}).effect is None


def test_the_live_measurement_counts_before_the_table():
    live = met(1.1, id="acceptance.live-prediction")
    assert of(OFFSET, met(1.9), live, prediction=prediction()).effect.accept_length_now.value == 1.1


def test_a_budget_alone_does_not_pay_where_longer_drafts_lose_too():
    budget = finding("config.draft-budget", "fail", "args.draft-budget-overridden")
    runs = [timed(1.6, steps=1, cycle=28.0, base=90.0), timed(1.9, steps=15, cycle=40.0, base=90.0)]
    text = of(budget, acceptance={"runs": runs}, arguments={"num_steps": 1}).faults[0].if_fixed.text
    assert "15 draft steps give 1.90 tokens a round of 3.60 needed" in text
    won = [timed(1.6, steps=1), timed(4.5, steps=15, cycle=40.0, base=90.0)]
    assert "does not pay" not in of(budget, acceptance={"runs": won}, arguments={"num_steps": 1}).faults[0].if_fixed.text


def test_the_opening_gives_the_cost_in_plain_numbers():
    result = of(finding("acceptance.ceiling", "fail", "cost.cannot-win"), acceptance={"runs": [timed(1.6, steps=1, cycle=28.2, base=90.0)]})
    assert "A round takes 28.2 ms" in result.story[0].text and "2.54 tokens; it gives 1.60, and with its 1 draft token it can give 2 at most" in result.story[0].text
    assert isinstance(OFFSET, Finding) and "2.54" not in told(of(OFFSET))
