"""The measured accept length against the prediction: whom a match accuses, and when it only abstains."""

from dataclasses import replace

import pytest

from eagle_forensics import stats
from eagle_forensics.acceptance import findings_prediction as f
from eagle_forensics.acceptance.clients.records import Server
from eagle_forensics.acceptance.live.verification import verification
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.finding import Status
from tests.acceptance.tables import PREDICTED, live


def test_live_below_prediction_and_on_the_served_wiring_is_the_proof():
    found = f.prediction(runs(live(1.098)), PREDICTED, served="embedding first", wiring_faults={"embedding first": "wiring.layer-offset"})
    assert (found.status, found.fault) == (Status.FAIL, "wiring.layer-offset")
    assert "meets embedding first" in found.statement and "2.06" in found.predicted_effect
    assert "notebooks 01 to 03" in found.remedy
    assert f.prediction(runs(live(1.098)), PREDICTED).status is Status.INCONCLUSIVE, "a match alone accuses nobody"


def test_a_met_prediction_passes_and_says_what_it_cannot_exclude():
    clear = f.prediction(runs(live(2.09)), PREDICTED)
    assert clear.status is Status.PASS and "exclude" not in clear.statement
    near = f.prediction(runs(live(2.02)), PREDICTED)
    assert near.status is Status.PASS and "does not exclude one boundary down" in near.statement
    assert f.prediction(runs(live(2.02)), PREDICTED, served="one boundary down").status is Status.INCONCLUSIVE


def test_several_matching_wirings_are_a_candidate_set_unless_the_served_one_is_known():
    either = runs(live(1.95))
    assert f.prediction(either, PREDICTED).status is Status.INCONCLUSIVE
    known = f.prediction(either, PREDICTED, served="one boundary down")
    assert known.status is Status.FAIL and known.competitor.fault == "b and a swapped" and "does not reject" in known.competitor.why_rejected
    assert f.prediction(either, PREDICTED, served="embedding first").status is Status.INCONCLUSIVE


def test_no_matching_wiring_and_a_better_figure_accuse_nobody():
    between = f.prediction(runs(live(1.5)), PREDICTED)
    assert between.status is Status.INCONCLUSIVE and "nearest: embedding first, missed by" in between.statement
    better = f.prediction(runs(live(2.6)), PREDICTED)
    assert better.status is Status.INCONCLUSIVE and not better.required


def test_prediction_is_skipped_without_record_or_run():
    assert f.prediction(runs(live(2.0)), None).status is Status.SKIPPED
    assert f.prediction(runs(live(2.0, steps=7)), PREDICTED).status is Status.SKIPPED


def test_a_record_of_another_form_is_refused_by_name():
    with pytest.raises(ValueError, match=r"steps\.3"):
        f.prediction(runs(live(2.0)), {"steps": {"3": 2.0}})


def test_a_live_measurement_is_held_against_what_was_predicted_before():
    contained = f.prediction(measured_live(2.06), PREDICTED, live=True)
    assert (contained.id, contained.status) == ("acceptance.live-prediction", Status.PASS) and "the prediction contains the measured value" in contained.statement
    assert any("predicted before the measurement" in e.note and "p24" in e.note for e in contained.evidence)
    assert "the intervals of prediction and measurement meet" in f.prediction(measured_live(2.12), PREDICTED, live=True).statement
    short = f.prediction(measured_live(1.1), PREDICTED, served="embedding first", live=True)
    assert (short.status, short.fault) == (Status.FAIL, "wiring.layer-offset")


def measured_live(value):
    """As `live_frames.as_run` makes it: with its sampling interval, which is not widened again."""
    return (replace(runs(live(value))[0], accept_length=stats.Estimate(value, value - 0.05, value + 0.05, 700, 24, "bootstrap"), dataset="own", prompts_hash="p24"),)


BOUNDS = {"low": {"value": 1.7, "low": 1.65, "high": 1.75}, "high": {"value": 1.85, "low": 1.8, "high": 1.9}}
OWN = PREDICTED | {"trees": {"3,4,8": {"value": 2.45, "low": 2.4, "high": 2.5}},
                   "temperatures": {"0.6": {"target-only": {"3": BOUNDS}, "rejection": {"3": {end: {"value": 1.5, "low": 1.45, "high": 1.55} for end in ("low", "high")}}}}}


def at(value, **more):
    return (replace(measured_live(value)[0], **more),)


def test_a_run_above_temperature_0_is_held_against_the_prediction_at_its_temperature():
    met = f.prediction(at(1.78, temperature=0.6, verification="target-only"), OWN, live=True)
    assert met.status is Status.PASS and "at temperature 0.6 under greedy drafts accepted" in met.statement and met.expected == pytest.approx(1.775)
    assert f.prediction(at(1.5, temperature=0.6, verification="rejection"), OWN, live=True).status is Status.PASS
    assert "which is assumed" in f.prediction(at(1.78, temperature=0.6), OWN).statement
    short = f.prediction(at(1.1, temperature=0.6, verification="target-only"), OWN, served="embedding first", live=True)
    assert short.status is Status.INCONCLUSIVE, "no other wiring is predicted there, so none is accused"


def test_without_a_prediction_at_its_setting_a_run_is_not_held_against_the_chains():
    for runs_, words in ((at(2.06, temperature=0.9, verification="target-only"), "temperature 0.9 (predicted: 0.6)"), (at(2.06, topk=4, draft_tokens=16), "3,4,16"),
                         (at(2.06, topk=4, draft_tokens=8, temperature=0.6), "trees above temperature 0")):
        found = f.prediction(runs_, OWN, live=True)
        assert found.status is Status.SKIPPED and words in found.statement


def test_an_engine_that_verifies_greedily_is_held_against_temperature_0_and_it_is_said():
    found = f.prediction(at(2.06, temperature=0.6, verification="greedy"), OWN, live=True)
    assert found.status is Status.PASS and "verifies greedily on this platform, whatever the temperature (0.6 asked)" in found.statement


def test_a_tree_is_held_against_the_tree():
    assert f.prediction(at(2.44, topk=4, draft_tokens=8), OWN, live=True).status is Status.PASS
    assert "tree of topk 4 and 8 draft tokens" in f.prediction(at(2.06, topk=4, draft_tokens=8), OWN, live=True).statement


@pytest.mark.parametrize(("engine", "arguments", "rule"), [
    ("sglang", {"device": "cpu"}, "greedy"), ("sglang", {"device": "cuda"}, "target-only"), ("sglang", {"device": "cuda", "speculative_use_rejection_sampling": True}, "rejection"),
    ("vllm", {"speculative_config": {"draft_sample_method": "greedy"}}, "target-only"), ("vllm", {"speculative_config": {"draft_sample_method": "probabilistic"}}, "rejection"), ("vllm", {}, None)])
def test_the_rule_of_verification_follows_the_servers_own_arguments(engine, arguments, rule):
    assert verification(Server("http://x", engine, "1", arguments, True, 3, 1, 4, "i")) == rule
