"""TensorRT-LLM: the speculative_config by generation, and what becomes of a draft's tensors."""

from __future__ import annotations

import json

import pytest

from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.engines.layers import resolve_layers
from eagle_forensics.engines.tensors import loading

BASE = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "draft"}


def asked(version="1.4.0rc4", *flags, **changes):
    spec = {key: value for key, value in (BASE | changes).items() if value is not ...}
    return resolve_args("trtllm", version, ["--max_batch_size", "8", *flags, "--speculative_config", json.dumps(spec)])


def notes(answer):
    return " | ".join(m.text for m in answer.messages)


def test_a_chain_of_three():
    answer = asked(eagle3_layers_to_capture=[26, 1, 14])
    assert answer.error is None and answer.refusal is None and not answer.assumed
    assert {key: answer.effective[key] for key in ("algorithm", "num_steps", "topk", "num_draft_tokens", "max_accept_length", "layers_to_capture", "one_model")} == {
        "algorithm": "EAGLE3", "num_steps": 3, "topk": 1, "num_draft_tokens": 3, "max_accept_length": 4, "layers_to_capture": [1, 14, 26], "one_model": True}
    assert answer.effective["max_running_requests"] == 8 and answer.raw["speculative_config"]["max_draft_len"] == 3
    json.dumps(answer.to_json())


@pytest.mark.parametrize(("version", "changes", "error", "refusal"), [
    ("1.4.0rc4", {"max_draft_len": ...}, "max_draft_len must be > 0", "value"),
    ("1.4.0rc4", {"max_draft_len": 0}, "max_draft_len must be > 0", "value"),
    ("1.0", {"decoding_type": "Eagle", "max_draft_len": ...}, "AssertionError: max_draft_len is required", "value"),
    ("1.4.0rc4", {"max_draft_len": "3"}, "max_draft_len: Input should be a valid integer", "value"),
    ("1.4.0rc4", {"speculative_model": ...}, "Draft model must be provided", "value"),
    ("1.4.0rc4", {"decoding_type": "EAGLE3"}, "Invalid decoding type: EAGLE3", "value"),
    ("1.0", {}, "this generation calls it Eagle", "value"),
    ("1.4.0rc4", {"eagle3_one_model": False}, "eagle3_one_model: Extra inputs are not permitted", "value"),
    ("1.4.0rc1", {"eagle_choices": [[0]]}, "eagle_choices: Extra inputs", "value"),
    ("1.4.0rc4", {"num_eagle_layers": 3}, "num_eagle_layers: Extra inputs", "value"),
    ("1.4.0rc4", {"max_draft_lenn": 3}, "did you mean max_draft_len?", "value"),
    ("1.4.0rc4", {"max_concurrency": 4, "draft_len_schedule": {"4": 3}}, "mutually exclusive", "value"),
    ("1.4.0rc4", {"eagle3_layers_to_capture": ["1"]}, "set of integers", "value"),
    ("1.4.0rc4", {"use_dynamic_tree": True}, "dynamic_tree_max_topK should be provided", "tree"),
    ("1.4.0rc4", {"use_dynamic_tree": True, "dynamic_tree_max_topK": 2, "max_total_draft_tokens": 7}, "must lie between", "tree"),
    ("1.0", {"decoding_type": "Eagle", "use_dynamic_tree": True, "dynamic_tree_max_topK": 2}, "max_total_draft_tokens should be provided", "tree"),
    ("1.3.0rc27", {"eagle_choices": [[0], [0, 0]], "use_dynamic_tree": True, "dynamic_tree_max_topK": 2}, "use_dynamic_tree should be False", "tree"),
    ("1.3.0rc27", {"eagle_choices": [[0], [1, 0]]}, "choice [1, 0] is not connected", "tree"),
])
def test_what_is_refused(version, changes, error, refusal):
    answer = asked(version, **changes)
    assert error in (answer.error or notes(answer)) and answer.error is not None and answer.refusal == refusal


def test_trees():
    dynamic = asked(max_draft_len=6, use_dynamic_tree=True, dynamic_tree_max_topK=10)
    assert (dynamic.effective["num_steps"], dynamic.effective["topk"], dynamic.effective["num_draft_tokens"]) == (6, 10, 60)
    assert "use the default value 60" in notes(dynamic)
    static = asked("1.3.0rc27", eagle_choices=[[0], [1], [0, 0], [0, 0]])
    assert (static.effective["num_steps"], static.effective["num_draft_tokens"], static.effective["max_accept_length"]) == (2, 3, 3)
    assert "max_draft_len becomes 2" in notes(static)


@pytest.mark.parametrize(("version", "topk"), [("1.4.0rc4", 1), ("1.2", 4), ("1.0", 1)])
def test_topk_without_a_tree(version, topk):
    answer = asked(version, dynamic_tree_max_topK=4, decoding_type="Eagle")
    assert answer.error is None and answer.effective["topk"] == topk


def test_what_is_not_known_is_said():
    assert "was not read as a release" in notes(asked("1.2.1")) and asked("1.2.1").assumed
    assert "possible ValidationError" in notes(asked("1.2.1", moe_backend="AUTO"))
    file = resolve_args("trtllm", "1.4.0rc4", ["--config", "extra.yaml"])
    assert file.error is None and "extra.yaml, which is not read here" in notes(file)
    other = asked(decoding_type="MTP")
    assert other.error is None and "not written down" in notes(other)
    assert "are captured" in notes(asked()) and asked(eagle3_model_arch="mistral_large3").effective["layers_to_capture"] == [-1]
    assert asked("1.2", eagle3_one_model=False).effective["one_model"] is False


@pytest.mark.parametrize("text", ["{method: x}", "[1]"])
def test_an_unreadable_config_is_an_unusable_command(text):
    assert resolve_args("trtllm", "1.4.0rc4", ["--speculative_config", text]).refusal == "usage"


def test_a_shallow_target_has_no_default_layers():
    assert "Not enough hidden layers" in resolve_layers("trtllm", "1.2", model_type="llama", layers=5).error
    assert resolve_layers("trtllm", "1.2", model_type="llama", layers=32).boundaries["eager"] == (2, 16, 29)


HEAD = ["fc.weight", "norm.weight", "d2t", "t2d", "lm_head.weight", "embed_tokens.weight", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight",
        "layers.0.post_attention_layernorm.weight", *(f"layers.0.self_attn.{p}_proj.weight" for p in "qkvo"),
        *(f"layers.0.mlp.{p}_proj.weight" for p in ("gate", "up", "down"))]
CONFIG = {"vocab_size": 32000, "draft_vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 1}


def test_tensors_of_a_plain_head():
    answer = loading("trtllm", "1.4.0rc4", HEAD, CONFIG)
    assert answer.missing == () and answer.assumed and answer.error is None
    assert answer.loaded["layers.0.self_attn.q_proj.weight"] == "model.midlayer.self_attn.q_proj.weight"
    assert answer.replaced == {"embed_tokens.weight": "the target's embedding"} and answer.dropped == {"t2d": "t2d is not used"}


def test_tensors_that_fill_nothing():
    answer = loading("trtllm", "1.4.0rc4", [f"model.{name}" for name in HEAD], CONFIG)
    assert "model.fc.weight" in answer.missing and "model.model." in answer.dropped["model.fc.weight"]
    assert "no map is built" in loading("trtllm", "1.4.0rc4", HEAD, CONFIG | {"draft_vocab_size": 32000}).dropped["d2t"]


def test_flags_by_place():
    top = loading("trtllm", "1.4.0rc4", HEAD, CONFIG | {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True})
    assert top.flags == {"norm_before_fc": "ignored: read only inside eagle_config", "norm_output": "honoured",
                         "norm_before_residual": "ignored in the code that was read"}
    inside = loading("trtllm", "1.4.0rc4", HEAD, CONFIG | {"eagle_config": {"norm_before_fc": True}})
    assert inside.flags == {"norm_before_fc": "honoured"} and inside.missing == ("model.input_norm.weight",)
