"""A launch command at other step counts, in every spelling that the engines accept."""

import json
import shlex

import pytest

from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.engines.steps import speculating_engine, steps_of, with_steps

SGLANG = "python -W ignore -m sglang.launch_server --model-path t --tp 8 --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
CHAIN = f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16 --port 1"
VLLM = "vllm serve t --dtype float32 --speculative-config"


def rewritten(line, steps):
    return shlex.join(with_steps(shlex.split(line), steps))


def config(line, steps):
    words = with_steps(shlex.split(line), steps)
    return json.loads(words[words.index("--speculative-config") + 1])


def test_a_chain_verifies_one_more_than_its_steps():
    assert rewritten(CHAIN, 5) == f"{SGLANG} --port 1 --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6"
    assert steps_of(shlex.split(CHAIN)) == 3


def test_nothing_of_speculation_is_left_at_zero():
    counted = f"{VLLM} '{{\"num_speculative_tokens\": 3}}' --per-request-spec-decode-metrics detailed"
    assert rewritten(counted, 0) == "vllm serve t --dtype float32", "vLLM refuses to count what it does not do"
    assert "--per-request-spec-decode-metrics detailed" in rewritten(counted, 2)
    assert rewritten(CHAIN, 0) == "python -W ignore -m sglang.launch_server --model-path t --tp 8 --port 1"
    assert rewritten(f"{VLLM} '{{\"num_speculative_tokens\": 3}}' --port 2", 0) == "vllm serve t --dtype float32 --port 2"


@pytest.mark.parametrize(("steps", "tokens"), [(1, 5), (2, 8), (3, 8)])
def test_a_tree_keeps_its_tokens_up_to_its_nodes(steps, tokens):
    line = f"{SGLANG} --speculative-num-steps=3 --speculative-eagle-topk 4 --speculative-num-draft-tokens=8"
    words = with_steps(shlex.split(line), steps)
    answer = resolve_args("sglang", "0.5.23", words[5:], architecture="LlamaForCausalLM")
    assert answer.error is None and (answer.effective["num_steps"], answer.effective["topk"], answer.effective["num_draft_tokens"]) == (steps, 4, tokens)


def test_a_tree_without_its_tokens_is_refused():
    with pytest.raises(ValueError, match="without --speculative-num-draft-tokens"):
        rewritten(f"{SGLANG} --speculative-eagle-topk 4", 2)


def test_steps_that_move_by_themselves_are_left_out():
    assert "adaptive" not in rewritten(f"{CHAIN} --speculative-adaptive --speculative-adaptive-config f.json", 2)
    line = f"""{VLLM} '{{"method": "eagle3", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 4, 3]]}}'"""
    assert config(line, 2) == {"method": "eagle3", "num_speculative_tokens": 2}


def test_a_budget_that_is_left_to_the_engine_is_written_out():
    assert rewritten(SGLANG, 2).endswith("--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3")
    assert steps_of(shlex.split(SGLANG)) is None


def test_a_shortened_flag_is_replaced_too():
    assert rewritten(f"{SGLANG} --speculative-num-st 3", 2).count("num-st") == 1


@pytest.mark.parametrize("spelled", ["-sc '{0}'", "--speculative-config='{0}'", "--speculative_config '{0}'",
                                     "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3"])
def test_every_spelling_of_vllms_config(spelled):
    line = "vllm serve t " + spelled.replace("{0}", '{"method": "eagle3", "num_speculative_tokens": 3}')
    assert config(line, 5) == {"method": "eagle3", "num_speculative_tokens": 5} and steps_of(shlex.split(line)) == 3
    assert rewritten(line, 0) == "vllm serve t" and speculating_engine(shlex.split(line)) == "vllm"


@pytest.mark.parametrize(("line", "steps", "message"), [
    ("python -m sglang.launch_server --model-path t", 3, "does not speculate"), (f"{VLLM} nonsense", 3, "not JSON"), (f"{VLLM} '[3]'", 3, "JSON object"),
    (CHAIN, -1, "0 or more"), (f"{SGLANG} --speculative-eagle-topk four", 2, "whole number")])
def test_what_cannot_be_rewritten_is_refused(line, steps, message):
    with pytest.raises(ValueError, match=message):
        rewritten(line, steps)
