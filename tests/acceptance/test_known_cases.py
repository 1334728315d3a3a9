"""Published cases that notebook 04 decides, from their papers alone: table, arguments, log line in; fault and rival out."""

import pandas as pd
import pytest

from eagle_forensics.acceptance import study
from eagle_forensics.acceptance.cost import fit_cycle
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.case import load_case
from eagle_forensics.engines.metrics import counts_to_accept_length
from eagle_forensics.finding import Status
from tests.acceptance.tables import INCIDENT, SWEEP


def examined(tmp_path, frame, log=None, arguments=None):
    """All findings of a case that holds the table (and a server's log), by id."""
    frame.to_csv(tmp_path / "runs.csv", index=False)
    (tmp_path / "case.yaml").write_text("schema: 1\nname: published\nmeasurements: ./runs.csv\n" + ("serving: {log: ./server.log}\n" if log else ""))
    if log:
        (tmp_path / "server.log").write_text(log)
    work = study.begin(load_case(tmp_path / "case.yaml"), predicted=None, layers=None, arguments=arguments)
    return {f.id: f for step in (study.ceiling, study.steps, study.checks) for f in step(work)}, work


def test_a01_the_accept_length_is_one_of_two_not_of_sixteen():
    """1.6 with one step is .6 of one draft, whatever --speculative-num-draft-tokens says."""
    run = runs(INCIDENT)[1]
    assert run.draft_tokens == 16 and run.ceiling == 2 and (run.accept_length.value - 1) / run.steps == pytest.approx(0.6)


def test_a02_no_drafter_wins_at_this_cost(tmp_path):
    found, work = examined(tmp_path, INCIDENT, arguments={"num_steps": 1})
    said = found["acceptance.ceiling"]
    assert (said.status, said.fault) == (Status.FAIL, "cost.cannot-win") and "better drafter" not in (said.remedy or "")
    by_steps = {r["steps"]: r for r in study.record(work)["runs"]}
    assert [round(by_steps[k]["cycle_ms"], 2) for k in (1, 15, 5)] == [28.17, 40.69, 32.85]
    assert [round(by_steps[k]["break_even"], 2) for k in (1, 15, 5)] == [2.54, 3.66, 2.96] and by_steps[1]["ceiling"] == 2


def test_a14_four_steps_not_the_longest_accept_length(tmp_path):
    found, work = examined(tmp_path, SWEEP, arguments={"num_steps": 7})
    assert (found["acceptance.steps"].status, found["acceptance.steps"].fault) == (Status.FAIL, "cost.wrong-step-count")
    assert study.record(work)["recommended"]["steps"] == 4
    fit = fit_cycle([r for r in work.tabled if r.is_speculative])
    assert fit.fixed_ms.value == pytest.approx(8.35, abs=0.01) and fit.step_ms.value == pytest.approx(1.016, abs=0.001)


@pytest.mark.parametrize(("version", "status"), [("0.5.10", Status.PASS), ("0.5.13", Status.FAIL)])
def test_a15_one_log_line_under_two_releases(tmp_path, version, status):
    line = pd.DataFrame([{"label": "log", "engine": "sglang", "engine_version": version, "speculative": 1, "steps": 5, "topk": 1, "draft_tokens": 6,
                          "accept_length": 1.80, "accept_rate": 0.30}])
    said = examined(tmp_path, line)[0]["acceptance.definition"]
    assert said.status is status and (said.fault == "measure.definition") is (status is Status.FAIL)


def test_a15_counters_of_seven_drafts():
    assert counts_to_accept_length(12208, 4816) == pytest.approx(3.535, abs=1e-3) and pytest.approx(0.362, abs=1e-3) == 12208 / 33712


CONTEXTS = pd.DataFrame([{"label": f"{k}k", "speculative": 1, "steps": 3, "topk": 1, "context_length": 1000 * k, "accept_length": al}
                         for k, al in zip(range(2, 22, 2), (2.295, 2.040, 1.863, 1.687, 1.400, 1.289, 1.161, 1.090, 1.092, 1.084), strict=True)])


def test_a17_short_prompts_are_healthy_and_long_ones_are_not(tmp_path):
    said = examined(tmp_path, CONTEXTS)[0]["acceptance.by-context"]
    assert (said.status, said.fault, said.competitor.fault) == (Status.INCONCLUSIVE, "drafter.rope", "data.domain")
    assert "from 8000 tokens on" in said.statement and "short prompts are healthy" in said.statement


def test_a17_more_rounds_find_the_fall_earlier(tmp_path):
    assert "from 4000 tokens on" in examined(tmp_path, CONTEXTS.assign(rounds=4000))[0]["acceptance.by-context"].statement


def test_a_level_accept_length_over_contexts_accuses_nobody(tmp_path):
    said = examined(tmp_path, CONTEXTS.assign(accept_length=[2.29, 2.31, 2.28, 2.30, 2.32, 2.27, 2.30, 2.29, 2.28, 2.30]))[0]
    assert said["acceptance.by-context"].status is Status.PASS and "acceptance.by-concurrency" not in said


def test_a_fall_over_contexts_within_the_intervals_is_neither_shown_nor_excluded(tmp_path):
    said = examined(tmp_path, CONTEXTS.head(2).assign(accept_length=[2.3, 2.1], rounds=100))[0]["acceptance.by-context"]
    assert (said.status, said.fault) == (Status.INCONCLUSIVE, "measure.not-enough-data") and "rounds a run would tell them apart" in said.next_step


NOT_CAPTURED = pd.DataFrame([{"label": f"{n}", "engine": "vllm", "speculative": 1, "steps": 3, "context_length": n, "accept_length": 2.4, "tokens_per_second": speed}
                             for n, speed in ((2000, 75), (30000, 25))])
LINE = "WARNING [gpu_model_runner.py] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend X; setting cudagraph_mode=PIECEWISE\n"


def test_a18_attention_outside_of_the_graphs(tmp_path):
    said = examined(tmp_path, NOT_CAPTURED, log=LINE)[0]["acceptance.speed-by-context"]
    assert (said.status, said.fault, said.competitor.fault) == (Status.FAIL, "cost.no-cuda-graph", "nccl.graph-fallback") and "FULL_AND_PIECEWISE is not supported" in said.evidence[0].note


@pytest.mark.parametrize("log", [None, "INFO cudagraph_mode=FULL_AND_PIECEWISE\n"])
def test_a18_without_the_engines_own_word_nobody_is_accused(tmp_path, log):
    said = examined(tmp_path, NOT_CAPTURED, log=log)[0]["acceptance.speed-by-context"]
    assert said.status is Status.INCONCLUSIVE and said.fault is None and not said.required


def test_a18_a_fall_of_the_accept_length_too_is_another_matter(tmp_path):
    found = examined(tmp_path, NOT_CAPTURED.assign(accept_length=[2.4, 1.2]), log=LINE)[0]
    assert "acceptance.speed-by-context" not in found and found["acceptance.by-context"].fault == "drafter.rope"


def test_a18_a_fall_that_the_accept_length_may_explain_accuses_nobody(tmp_path):
    """2.4 and 2.1 are not told apart over 100 rounds; a fifth of the speed lies within that."""
    found = examined(tmp_path, NOT_CAPTURED.assign(accept_length=[2.4, 2.1], tokens_per_second=[75, 60]), log=LINE)[0]
    assert "acceptance.speed-by-context" not in found


@pytest.mark.parametrize(("high", "rounds", "fault"), [(2.27, None, "measure.not-enough-data"), (2.27, 20000, "runtime.batch-metadata"), (2.52, None, None)])
def test_accept_length_at_two_loads(tmp_path, high, rounds, fault):
    """Batch 2 and 32: 2.41 and 2.27; 2.52 after the fix."""
    frame = pd.DataFrame([{"label": f"{n}", "speculative": 1, "steps": 3, "concurrency": n, "accept_length": al, "rounds": rounds} for n, al in ((2, 2.41), (32, high))])
    said = examined(tmp_path, frame)[0]["acceptance.by-concurrency"]
    assert said.fault == fault and said.status is (Status.INCONCLUSIVE if fault else Status.PASS)
