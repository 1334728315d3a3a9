"""The steps of notebook 04 on a case with live servers, with a table, and with neither."""

import json
from dataclasses import replace

import pytest

from eagle_forensics.acceptance import study
from eagle_forensics.acceptance.live import study as live_study
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.case import Case
from eagle_forensics.evidence.transport import Patience
from eagle_forensics.finding import Status
from tests.acceptance.pretend import pretending
from tests.acceptance.tables import SWEEP, interval

FAST = Patience(connect_s=5, silence_s=10, total_s=20, busy_tries=2, busy_wait_s=0.01)
PREDICTED = {"steps": interval(1.91, 0.05), "wirings": {"embedding first": interval(1.1, 0.02)}}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "own.jsonl").write_text("".join(json.dumps({"id": f"p{i}", "domain": "chat", "input_ids": [i, i * i % 31, 3]}) + "\n" for i in range(16)))
    with pretending() as (a, _), pretending(speculative=False) as (b, _):
        case = Case.model_validate({"name": "x", "serving": {"engine": "sglang", "version": "0.5.23", "url": a, "baseline_url": b}})
        live = live_study.begin(case, folder / "live", prompts=folder / "own.jsonl", half_width=0, max_tokens=50, patience=FAST)
    return study.begin(case, predicted=PREDICTED, layers=None, arguments={"num_steps": 3}, live=live)


def test_prediction_comes_first_and_is_met(work):
    (said,) = study.predicted_against_measured(work)
    assert (said.id, said.status) == ("acceptance.live-prediction", Status.PASS) and work.opening == ()


def test_a_live_run_is_judged_like_a_tabled_one(work):
    spec, base = work.runs
    assert spec.is_speculative and base.is_baseline and spec.accept_length.clusters == 16
    cycle = spec.cycle_ms
    assert cycle.value == pytest.approx(1e3 * spec.accept_length.value / spec.tokens_per_second.value, rel=0.2), "a round takes what accept length over speed says"
    assert study.ceiling(work)[0].id == "acceptance.ceiling" and study.ceiling(work)[0].status is not Status.SKIPPED
    assert study.speed_picture(work) is not None and study.ceiling_picture(work) is not None
    assert study.recommendation(work) is None and study.checks(work) == [], "one step count fixes no line; the table's checks are the table's"


def test_tables_of_a_live_server(work):
    positions = study.positions_table(work)
    assert list(positions.position) == [1, 2, 3] and (positions.low <= positions.survival).all() and (positions.survival <= positions.high).all()
    assert list(study.domains_table(work).domain) == ["chat"] and len(study.servers_table(work)) == 2
    assert study.record(work)["live"]["speculation"]["accept_length"]["value"] == work.live.speculation.accept_length.value


def test_nothing_is_contacted_or_said_without_a_url():
    case = Case(name="x")
    work = study.begin(case, predicted=None, layers=None, arguments=None, live=live_study.begin(case, None))
    assert [f.status for f in work.opening] == [Status.SKIPPED] and "serving.url" in work.opening[0].next_step
    for step in (study.measured_live, study.predicted_against_measured, study.told_apart, study.reconciled, study.ceiling, study.steps, study.checks):
        assert step(work) == []
    for picture in (study.servers_table, study.table, study.positions_table, study.domains_table, study.definitions_table, study.recommendation, study.speed_picture, study.prediction_picture):
        assert picture(work) is None
    assert study.record(work) == {"runs": []}


def test_one_live_run_does_not_spoil_the_tables_sweep(work):
    both = replace(work, tabled=runs(SWEEP), configured_steps=4)
    (said,) = study.steps(both)
    assert said.status is Status.PASS and said.observed == 4 and "num-steps 4" not in said.statement
    assert study.recommendation(both).write[0] == "4 draft steps", "the table names no engine"
    assert len(study.predicted_against_measured(both)) == 2


def test_a_table_without_speeds_leaves_the_steps_to_the_live_run(work):
    (said,) = study.steps(replace(work, tabled=tuple(replace(r, tokens_per_second=None, cycle_ms=None) for r in runs(SWEEP))))
    assert said.status is Status.INCONCLUSIVE and "Runs at 1 step count (3)" in said.statement
