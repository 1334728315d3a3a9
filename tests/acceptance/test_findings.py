"""The findings of notebook 04: what they accuse, what they refuse to accuse, and the rival they name."""

import pandas as pd
import pytest

from eagle_forensics.acceptance import findings as f
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.finding import Status
from tests.acceptance.tables import INCIDENT, PREDICTED, SWEEP, interval, live


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


LOG = live(1.80, steps=5, accept_rate=0.30, engine="sglang")


@pytest.mark.parametrize(("version", "status"), [("0.5.10", Status.PASS), ("0.5.13", Status.FAIL)])
def test_one_log_line_is_right_in_one_version_and_wrong_in_the_next(version, status):
    found = f.definition(runs(LOG.assign(engine_version=version)))
    assert found.status is status
    assert "share of accepted drafts is 0.16" in found.statement
    assert status is Status.PASS or (found.fault == "measure.definition" and "would print 0.16" in found.statement)


def test_without_a_stated_definition_a_known_one_suffices():
    assert f.definition(runs(LOG)).status is Status.PASS
    assert f.definition(runs(live(1.80, steps=5, accept_rate=0.55))).status is Status.FAIL


def test_the_prefill_token_in_one_of_two_figures_is_no_contradiction():
    """2.153 with and 2.130 without it, on one run; a rate of another definition still is one."""
    assert f.definition(runs(live(2.153, steps=3, accept_rate=0.377))).status is Status.PASS
    assert f.definition(runs(live(2.153, steps=3, accept_rate=0.441))).status is Status.FAIL


def test_accept_length_above_the_ceiling_is_a_definition_fault():
    found = f.definition(runs(live(4.6)))
    assert found.fault == "measure.definition" and "above the ceiling 4" in found.statement


def test_rows_that_the_reader_left_out_do_not_vanish():
    found = f.evaluate(runs(SWEEP), problems=["line 3: accept_length is 4.6"])
    assert next(x for x in found if x.id == "acceptance.definition").status is Status.INCONCLUSIVE


def full(label, **more):
    return {"label": label, "engine": "sglang", "engine_version": "0.5.9", "temperature": 0.0, "concurrency": 1, "prompts_hash": "p",
            "env_hash": "e", "tokens_per_second": 90.0, **more}


def test_the_last_gain_of_the_incident_is_confounded_by_its_environment():
    table = [full("base", speculative=0), full("tuned", speculative=1, steps=2, accept_length=2.06, tokens_per_second=94.0, env_hash="tuned")]
    found = f.confounded(runs(pd.DataFrame(table)))
    assert (found.status, found.fault, found.observed) == (Status.FAIL, "measure.confounded", ["env_hash"])
    assert f.ceiling(runs(pd.DataFrame(table))).status is Status.INCONCLUSIVE


def test_comparable_runs_pass_and_unrecorded_settings_do_not():
    table = pd.DataFrame([full("base", speculative=0), full("spec", speculative=1, steps=2, accept_length=2.06)])
    assert f.confounded(runs(table)).status is Status.PASS
    unknown = f.confounded(runs(table.drop(columns="env_hash")))
    assert unknown.status is Status.INCONCLUSIVE and not unknown.required and unknown.observed == ["env_hash"]


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
    assert f.prediction(runs(live(1.5)), PREDICTED).status is Status.INCONCLUSIVE
    better = f.prediction(runs(live(2.6)), PREDICTED)
    assert better.status is Status.INCONCLUSIVE and not better.required


def test_prediction_is_skipped_without_record_or_run():
    assert f.prediction(runs(live(2.0)), None).status is Status.SKIPPED
    assert f.prediction(runs(live(2.0, steps=7)), PREDICTED).status is Status.SKIPPED


def test_a_record_of_another_form_is_refused_by_name():
    with pytest.raises(ValueError, match=r"steps\.3"):
        f.prediction(runs(live(2.0)), {"steps": {"3": 2.0}})


@pytest.mark.parametrize(("cells", "status"), [
    ({"distinct_output_tokens": 2}, Status.FAIL), ({"distinct_output_tokens": 900}, Status.PASS), ({}, Status.SKIPPED)])
def test_sanity(cells, status):
    assert f.sanity(runs(live(2.0, **cells))).status is status


@pytest.mark.parametrize("pinned", [1.0, 4.0])
def test_a_pinned_accept_length_is_not_believed(pinned):
    assert f.sanity(runs(live(pinned, distinct_output_tokens=900))).status is Status.INCONCLUSIVE


def test_evaluate_gives_each_finding_once_even_of_nothing():
    found = f.evaluate(())
    assert len({x.id for x in found}) == 6
    assert {x.status for x in found} == {Status.SKIPPED}
    assert all(x.next_step for x in found)
