"""Draft checkpoints: what loads, what is dropped, what stays random, which flags are honoured."""

from __future__ import annotations

import pytest

from eagle_forensics.engines.tensors import loading
from eagle_forensics.evidence.records import DraftFlags

LAYER = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
         "mlp.up_proj.weight", "mlp.down_proj.weight", "hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")
SHARED = ("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d")
SPECFORGE = (*(f"midlayer.{part}" for part in LAYER), *SHARED)
SPECULATORS = (*(f"layers.0.{part}" for part in LAYER), *SHARED, "embed_tokens.weight")
MLA_LAYER = ("self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_b_proj.weight", "self_attn.kv_b_proj.weight",
             "self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight", *LAYER[3:])


@pytest.mark.parametrize("version", ["0.4.6.post5", "0.5.9", "0.5.11", "0.5.12", "0.5.23"])
def test_midlayer_names_load_in_every_release(version):
    answer = loading("sglang", version, SPECFORGE)
    assert answer.error is None and not answer.missing
    assert set(answer.dropped) == {"t2d"}


def test_layers_0_names_are_dropped_silently_before_0_5_12():
    old, new = loading("sglang", "0.5.11", SPECULATORS), loading("sglang", "0.5.12", SPECULATORS)
    assert {name for name in old.dropped if name.startswith("layers.0.")} == {f"layers.0.{part}" for part in LAYER}
    assert "model.midlayer.self_attn.qkv_proj.weight" in old.missing
    assert not new.missing and set(new.dropped) == {"t2d"}


def test_the_embedding_is_replaced_by_the_targets():
    assert loading("sglang", "0.5.23", SPECULATORS).replaced == {"embed_tokens.weight": "the target's embedding"}
    wide = {"hidden_size": 1024, "target_hidden_size": 2048}
    assert "embed_tokens.weight" in loading("sglang", "0.5.23", SPECULATORS, wide).loaded
    notes = " ".join(loading("vllm", "0.33.0", SPECULATORS).notes)
    assert "kept as the draft's own" in notes
    assert "no embed_tokens: the target's is shared" in loading("vllm", "0.33.0", SPECFORGE).notes


def test_a_misspelled_fc_stays_random():
    names = [name.replace("fc.weight", "fc_layer.weight") for name in SPECFORGE]
    answer = loading("sglang", "0.5.23", names)
    assert answer.missing == ("model.fc.weight",) and "fc_layer.weight" in answer.dropped


def test_a_copied_layer_count_builds_random_layers():
    answer = loading("sglang", "0.5.23", SPECULATORS, {"num_hidden_layers": 36})
    assert len([name for name in answer.missing if ".self_attn.qkv_proj." in name]) == 35
    assert "only supports 1 layer" in loading("sglang", "0.5.11", SPECULATORS, {"num_hidden_layers": 36}).error


@pytest.mark.parametrize(("version", "flag", "honoured"), [
    ("0.5.16", "norm_before_fc", False), ("0.5.17", "norm_before_fc", True), ("0.5.11", "fc_norm", False), ("0.5.12", "fc_norm", True),
    ("0.5.11", "norm_output", False), ("0.5.23", "norm_output", True), ("0.5.23", "norm_before_residual", False), ("0.5.23", "use_last_layernorm", False),
])
def test_sglang_flags(version, flag, honoured):
    assert (loading("sglang", version, SPECFORGE, {flag: True}).flags[flag] == "honoured") is honoured


def test_input_norm_of_gpt_oss_heads():
    names, config = (*SPECFORGE, "input_norm.weight"), {"norm_before_fc": True}
    assert "input_norm.weight" in loading("sglang", "0.5.16", names, config).dropped
    assert loading("sglang", "0.5.17", names, config).loaded["input_norm.weight"] == "model.input_norm.weight"


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
@pytest.mark.parametrize(("top", "nested", "taken"), [(False, True, True), (True, False, False), (True, None, False)])
def test_norm_before_fc_in_eagle_config_wins(engine, version, top, nested, taken):
    """sglang 0.5.23 llama_eagle3.py:173 and vllm 0.32.0 llama_eagle3.py:184: eagle_config.get(key, the one at the top), then bool()."""
    config = {"norm_before_fc": top, "eagle_config": {"norm_before_fc": nested}}
    answer = loading(engine, version, (*SPECFORGE, "input_norm.weight"), config)
    assert engine == "vllm" or ("input_norm.weight" in answer.loaded) is taken
    assert answer.flags["norm_before_fc"] == "honoured"


def test_a_layer_count_without_end_is_an_error_not_a_list():
    answer = loading("sglang", "0.5.23", SPECULATORS, {"num_hidden_layers": 10**9})
    assert "no drafter has so many layers" in answer.error and len(answer.missing) < 20


def test_legacy_aux_norms_are_renamed():
    names = (*SPECFORGE, *(f"aux_norm_{part}.weight" for part in ("low", "mid", "high")))
    assert loading("sglang", "0.5.12", names, {"use_aux_norm": True}).loaded["aux_norm_mid.weight"] == "model.fc_norm.1.weight"
    assert "aux_norm_mid.weight" in loading("sglang", "0.5.12", names).dropped


def test_mla_drafts():
    names = (*(f"layers.0.{part}" for part in MLA_LAYER), *SHARED)
    answer = loading("sglang", "0.5.23", names, draft_architecture="Eagle3DeepseekV2ForCausalLM")
    assert answer.error is None and not answer.missing
    assert "no MLA EAGLE-3 draft class" in loading("sglang", "0.5.11", names).error
    prefixed = loading("sglang", "0.5.23", [f"model.{name}" for name in names])
    assert "model.layers.0.self_attn.kv_b_proj.weight" in prefixed.dropped


@pytest.mark.parametrize(("version", "config", "flag", "text"), [
    ("0.33.0", {}, "norm_before_residual", "default assumed: False"),
    ("0.33.0", {"speculators_model_type": "eagle3"}, "norm_before_residual", "default assumed: True"),
    ("0.24.0", {"norm_output": True}, "norm_output", "honoured"),
    ("0.24.0", {"norm_output": True, "speculators_model_type": "eagle3"}, "norm_output", "ignored before vllm 0.26.0"),
    ("0.20.2", {"fc_norm": True}, "fc_norm", "ignored before vllm 0.22.0"),
])
def test_vllm_flags(version, config, flag, text):
    assert loading("vllm", version, SPECFORGE, config).flags[flag].startswith(text)


def test_a_missing_map_and_a_null_width():
    names = [name for name in SPECFORGE if name != "d2t"]
    config = {"draft_vocab_size": 32000, "vocab_size": 128256}
    assert any("no d2t" in note for note in loading("sglang", "0.5.23", names, config).notes)
    assert any("no d2t" in note for note in loading("vllm", "0.33.0", names, config).notes)
    assert "target_hidden_size is null" in loading("sglang", "0.5.23", SPECFORGE, {"target_hidden_size": None}).error


def test_a_class_that_is_not_a_draft():
    assert "not an EAGLE-3 draft class" in loading("sglang", "0.5.23", SPECFORGE, draft_architecture="Qwen3ForCausalLM").error


def test_flags_may_come_as_a_record():
    assert loading("sglang", "0.5.17", SPECFORGE, DraftFlags(norm_before_fc=True)).flags["norm_before_fc"] == "honoured"
    with pytest.raises(ValueError, match="flags must be"):
        loading("sglang", "0.5.17", SPECFORGE, 3)
