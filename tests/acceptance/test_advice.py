"""What to serve with: the steps that pay, and an adaptive configuration without those that do not."""

import json

import pytest

from eagle_forensics.acceptance import advice
from eagle_forensics.acceptance.runs import runs
from tests.acceptance.tables import INCIDENT, SWEEP


def test_the_best_steps_as_flags_and_as_candidates():
    found = advice.advise(runs(SWEEP), "sglang", "0.5.23")
    assert found.steps == 4 and found.arguments == "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    assert 4 in found.adaptive["1"]["candidate_steps"] and 7 not in found.adaptive["1"]["candidate_steps"] and 0 not in found.adaptive["1"]["candidate_steps"]


@pytest.mark.parametrize("engine, version", [("sglang", "0.5.10"), ("vllm", "0.32.0"), (None, None)])
def test_no_adaptive_configuration_for_an_engine_that_has_none(engine, version):
    assert advice.advise(runs(SWEEP), engine, version).adaptive is None


def test_where_every_step_count_loses_nothing_is_drafted():
    slow = SWEEP.assign(tokens_per_second=[x if not s else x / 3 for x, s in zip(SWEEP.tokens_per_second, SWEEP.speculative, strict=True)])
    found = advice.advise(runs(slow), "sglang", "0.5.23")
    assert (found.steps, found.arguments, found.adaptive) == (0, "no speculative arguments", {"1": {"candidate_steps": [0]}})


def test_a_sweep_at_each_load():
    loaded = SWEEP.assign(concurrency=8, tokens_per_second=[x if not s else x / 3 for x, s in zip(SWEEP.tokens_per_second, SWEEP.speculative, strict=True)])
    both = (*runs(SWEEP.assign(concurrency=1)), *runs(loaded))
    found = advice.advise(both, "sglang", "0.5.23")
    assert list(found.adaptive) == ["1", "8"] and found.adaptive["8"] == {"candidate_steps": [0]} and found.steps == 4


def test_vllm_is_told_its_own_key():
    assert json.loads(advice.launch_arguments("vllm", 2).split("'")[1]) == {"num_speculative_tokens": 2}


def test_no_advice_without_a_line():
    assert advice.advise(runs(SWEEP.iloc[:3]), "sglang", "0.5.23") is None and advice.advise(runs(INCIDENT.iloc[:1]), "sglang", "0.5.9") is None
    assert advice.sweep_of(runs(SWEEP.assign(temperature=[0, 0, 1, 0, 1, 0, 1]))) is None
