"""One dataset rendered in two ways: the template is accused only where nothing else can be the cause."""

import pandas as pd
import pytest

from eagle_forensics.acceptance.rendering import rendering
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.acceptance.study import begin, checks
from eagle_forensics.case import load_case
from eagle_forensics.finding import Status

RUN = {"engine": "sglang", "engine_version": "0.5.23", "speculative": 1, "steps": 3, "topk": 1, "draft_tokens": 4, "temperature": 0.0, "concurrency": 1, "dataset": "mt-bench",
       "env_hash": "e", "rounds": 2000}
THINKING = {**RUN, "label": "thinking", "prompts_hash": "a41", "accept_rate": 0.25, "accept_length": 1.75}
PLAIN = {**RUN, "label": "thinking off", "prompts_hash": "b77", "accept_rate": 0.60, "accept_length": 2.80}


def judge(*rows):
    return rendering(runs(pd.DataFrame(rows)))


def test_two_renderings_of_one_dataset_25_and_60_percent(tmp_path):
    """Known case A13, from the table itself; the trap (drafter quality) is the rival and is rejected."""
    pd.DataFrame([THINKING, PLAIN]).to_csv(tmp_path / "runs.csv", index=False)
    (tmp_path / "case.yaml").write_text("name: thinking\nmeasurements: runs.csv\n")
    found = {f.id: f for f in checks(begin(load_case(tmp_path), predicted=None, layers=None, arguments=None))}
    item = found["acceptance.rendering"]
    assert (item.status, item.fault, item.competitor.fault) == (Status.FAIL, "data.template", "data.too-little")
    assert "25.0%" in item.statement and "60.0%" in item.statement and "a41" in item.statement and "b77" in item.statement
    assert not [f.id for f in found.values() if f.status is Status.FAIL and f.id != item.id]


@pytest.mark.parametrize("gone", ["accept_length", "accept_rate", "rounds"])
def test_one_figure_of_acceptance_is_enough(gone):
    assert judge({**THINKING, gone: None}, {**PLAIN, gone: None}).fault == "data.template"


def test_the_same_hash_clears_the_template():
    """The healthy control of A13: 25 % against 60 % on equal prompts is something else."""
    item = judge(THINKING, {**PLAIN, "prompts_hash": "a41"})
    assert item.status is Status.PASS and item.fault is None


@pytest.mark.parametrize(("changes", "status"), [
    ({"dataset": "gsm8k"}, Status.PASS), ({"temperature": 1.0}, Status.PASS), ({"engine_version": "0.5.9"}, Status.PASS), ({"steps": 5}, Status.PASS),
    ({"accept_length": 1.77, "accept_rate": 0.26}, Status.PASS), ({"prompts_hash": None}, Status.SKIPPED)])
def test_whatever_else_differs_nobody_accuses_the_template(changes, status):
    item = judge(THINKING, {**PLAIN, **changes})
    assert (item.status, item.fault) == (status, None), item.statement


@pytest.mark.parametrize("gone", ["dataset", "temperature", "env_hash"])
def test_what_is_not_recorded_is_a_possible_cause(gone):
    item = judge({**THINKING, gone: None}, {**PLAIN, gone: None})
    assert item.status is Status.INCONCLUSIVE and gone in item.statement


def test_a_small_difference_without_rounds_proves_nothing():
    assert judge({**THINKING, "rounds": None}, {**PLAIN, "rounds": None, "accept_length": 2.0, "accept_rate": 0.33}).status is Status.PASS


def test_repeats_must_agree():
    assert judge(THINKING, PLAIN, {**PLAIN, "label": "again", "accept_length": 1.76, "accept_rate": 0.25}).status is Status.PASS


def test_prompts_drawn_anew_for_every_run_are_no_template():
    many = [{**THINKING, "label": str(i), "prompts_hash": str(i), "accept_length": 1.5 + 0.1 * i, "accept_rate": None} for i in range(12)]
    assert judge(*many).fault is None


@pytest.mark.parametrize(("length", "rounds", "status"), [(2.70, 2000000, Status.PASS), (2.60, 2000000, Status.FAIL), (2.60, 3000, Status.PASS)])
def test_a_difference_must_be_as_large_as_a_fault_and_outside_of_what_responses_differ_by(length, rounds, status):
    assert judge({**PLAIN, "rounds": rounds}, {**PLAIN, "rounds": rounds, "prompts_hash": "a41", "accept_length": length, "accept_rate": None}).status is status
