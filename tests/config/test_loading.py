"""What the draft's own config does to its tensors: each planted fault by name, the healthy head by none."""

import pytest
import torch

from eagle_forensics.config.checkpoint import checkpoint_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.loading import loading_findings
from eagle_forensics.finding import Status
from tests.config.papers import GOOD_LAUNCH, LLAMA_TARGET, papers
from tests.evidence import builders

HEAD = builders.head() | {"d2t": torch.zeros(builders.VD, dtype=torch.int64)}


def findings(folder, weights=None, **papers_of):
    found = inspect(papers(folder, weights=HEAD if weights is None else weights, **papers_of))
    return {f.id: f for f in (*loading_findings(found), *checkpoint_findings(found))}


def test_a_healthy_head_is_not_accused(tmp_path):
    items = findings(tmp_path, launch=GOOD_LAUNCH + " --dtype bfloat16")
    assert {i: f.status for i, f in items.items() if f.status is not Status.PASS} == {}


def test_the_targets_class_is_no_drafter_class(tmp_path):
    """Known case A12: the tensors are there, the class is not theirs."""
    items = findings(tmp_path, draft={"architectures": ["Qwen3ForCausalLM"]})
    item = items["config.architecture"]
    assert item.fault == "load.architecture" and "Qwen3ForCausalLM" in item.statement
    assert item.competitor.fault == "load.tensor-inventory" and item.competitor.margin.startswith("10 tensors")
    assert "config.inventory" not in items, "one fault, one accusation"


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3Speculator", "LlamaForCausalLMEagle3"])
def test_vllm_wraps_the_class_itself(tmp_path, name):
    assert findings(tmp_path, engine="vllm", version="0.33.0", launch=None, draft={"architectures": [name]})["config.architecture"].status is Status.PASS


def test_a_layer_count_copied_from_the_target(tmp_path):
    items = findings(tmp_path, draft={"num_hidden_layers": 30})
    item = items["config.layer-count"]
    assert item.fault == "load.tensor-inventory" and "29 of them random" in item.statement and "copied from the target" in item.statement
    assert (item.edits[0].key, item.edits[0].value) == ("num_hidden_layers", 1)
    old = findings(tmp_path / "old", draft={"num_hidden_layers": 30}, version="0.5.9")["config.architecture"]
    assert old.fault == "load.architecture" and "only supports 1 layer" in old.statement


def test_a_head_of_two_layers_before_the_release_that_builds_them(tmp_path):
    two = HEAD | {k.replace("midlayer.", "layers.1."): v.clone() for k, v in HEAD.items() if k.startswith("midlayer.")}
    old = findings(tmp_path / "old", weights=two, draft={"num_hidden_layers": 2}, version="0.5.11")
    item = old["config.architecture"]
    assert item.fault == "drafter.extra-layers" and "2 layers" in item.statement and item.competitor.fault == "drafter.residual" and "config.layer-count" not in old
    new = findings(tmp_path / "new", weights=two, draft={"num_hidden_layers": 2}, version="0.5.12")
    assert new["config.architecture"].status is Status.PASS and new["config.layer-count"].status is Status.PASS


def test_the_count_is_suspected_without_weights(tmp_path):
    found = inspect(papers(tmp_path, draft={"num_hidden_layers": 30}))
    assert {f.id: f.status for f in loading_findings(found)}["config.layer-count"] is Status.INCONCLUSIVE
    assert not any(f.id == "config.layer-count" for f in loading_findings(inspect(papers(tmp_path / "one"))))


def test_a_null_target_width_stops_sglang_not_vllm(tmp_path):
    item = findings(tmp_path / "s", draft={"target_hidden_size": None})["config.architecture"]
    assert item.fault == "load.architecture" and (item.edits[0].key, item.edits[0].value) == ("target_hidden_size", LLAMA_TARGET["hidden_size"])
    assert findings(tmp_path / "v", draft={"target_hidden_size": None}, engine="vllm", version="0.33.0", launch=None)["config.architecture"].status is Status.PASS


def test_heads_that_do_not_fit(tmp_path):
    item = findings(tmp_path, draft={"head_dim": 8})["config.head-dims"]
    assert item.fault == "load.tensor-inventory" and "q_proj.weight has 16 where the config gives 32" in item.statement


def test_latent_attention_is_measured_by_its_ranks(tmp_path):
    mla = builders.MLA | {"head_dim": ..., "num_key_value_heads": ..., "draft_vocab_size": ...}
    assert findings(tmp_path / "ok", builders.mla_head(), draft=mla)["config.head-dims"].status is Status.PASS
    assert findings(tmp_path / "bad", builders.mla_head(), draft=mla | {"v_head_dim": 4})["config.head-dims"].fault == "load.tensor-inventory"


def test_a_bias_that_vllm_has_no_place_for_is_asked_about(tmp_path):
    item = findings(tmp_path, HEAD | {"fc.bias": torch.ones(builders.H).bfloat16()}, engine="vllm", version="0.33.0", launch=None)["config.fc-bias"]
    assert (item.status, item.fault, item.required) == (Status.INCONCLUSIVE, "drafter.bias", True), "a pass would hide it"


@pytest.mark.parametrize(("bias", "config", "status"), [
    (torch.ones(builders.H), {}, Status.FAIL), (torch.ones(builders.H), {"bias": True}, Status.PASS), (torch.zeros(builders.H), {}, Status.PASS)])
def test_a_bias_without_its_flag(tmp_path, bias, config, status):
    item = findings(tmp_path, HEAD | {"fc.bias": bias.bfloat16()}, draft=config)["config.fc-bias"]
    assert item.status is status
    assert status is Status.PASS or (item.fault, item.edits[0].key) == ("drafter.bias", "bias")


def test_inherited_quantization(tmp_path):
    """Known case A11; the log line is quoted, and the trap (a corrupt checkpoint) is the rival."""
    (tmp_path / "server.log").write_text("[2026-01-01] ValueError: Cannot find the config file for awq\n")
    item = findings(tmp_path, version="0.5.9", launch=GOOD_LAUNCH + " --quantization awq", serving={"log": "server.log"})["config.draft-quantization"]
    assert item.fault == "load.draft-quantization" and item.observed == "awq" and "Cannot find the config file for awq" in item.statement
    assert item.competitor.fault == "a corrupt checkpoint" and "unquant" in item.remedy


@pytest.mark.parametrize(("flags", "draft", "status"), [
    ("--quantization awq --speculative-draft-model-quantization unquant", {}, Status.PASS), ("--quantization awq", {"quantization_config": {"quant_method": "awq"}}, Status.PASS),
    ("--quantization fp8", {}, Status.INCONCLUSIVE), ("", {}, Status.PASS)])
def test_quantization_that_is_no_leak(tmp_path, flags, draft, status):
    assert findings(tmp_path, launch=f"{GOOD_LAUNCH} {flags}", draft=draft)["config.draft-quantization"].status is status


@pytest.mark.parametrize(("flags", "dtype", "runs", "status"), [
    ("", "float32", "float16", Status.INCONCLUSIVE), ("", ..., "float16", Status.INCONCLUSIVE), ("", "bfloat16", "bfloat16", Status.PASS), ("--dtype bfloat16", "float32", "bfloat16", Status.PASS),
    ("--dtype half", "bfloat16", "float16", Status.INCONCLUSIVE)])
def test_the_dtype_it_runs_in(tmp_path, flags, dtype, runs, status):
    item = findings(tmp_path, launch=f"{GOOD_LAUNCH} {flags}", draft={"torch_dtype": dtype})["config.dtype"]
    assert (item.observed, item.status) == (runs, status)
    assert status is Status.PASS or (item.fault == "load.dtype" and not item.required)


def test_two_faults_of_one_config_are_both_found(tmp_path):
    """Known case A06: ids [24, 30, 36] on 36 layers and norm_before_fc, gpt_oss below 0.5.17."""
    from eagle_forensics.config.checks import boundary_findings

    target = LLAMA_TARGET | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 36}
    weights = HEAD | {"input_norm.weight": builders.weights(3 * builders.H)}
    case = papers(tmp_path, target=target, ids=[24, 30, 36], version="0.5.16", layer_ids=None, weights=weights, draft={"norm_before_fc": True})
    found = inspect(case)
    faults = {f.fault for f in (*boundary_findings(found), *checkpoint_findings(found)) if f.status is Status.FAIL}
    assert faults == {"wiring.plane-count", "drafter.norm-flags"}
    assert found.served.reached["eager"] == (25, 31)
    later = inspect(papers(tmp_path / "later", target=target, ids=[24, 30, 36], version="0.5.17", layer_ids=None, weights=weights, draft={"norm_before_fc": True}))
    assert not [f for f in (*boundary_findings(later), *checkpoint_findings(later)) if f.status is Status.FAIL]


VLLM_LINE = """--speculative-config '{"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}'"""


def on_vllm(tmp_path, version="0.33.0", flags="", draft=None, target=None):
    return findings(tmp_path, engine="vllm", version=version, launch=f"{VLLM_LINE} {flags}", ids=(2, 15, 27), place="top", draft=draft or {},
                    target=LLAMA_TARGET | (target or {}))


@pytest.mark.parametrize(("target", "flags", "runs", "status"), [
    ("bfloat16", "", "bfloat16", Status.PASS), ("float16", "", "float16", Status.INCONCLUSIVE), ("float32", "", "bfloat16", Status.PASS),
    ("float16", "--dtype bfloat16", "bfloat16", Status.PASS), (None, "", None, Status.SKIPPED)])
def test_vllm_runs_the_draft_in_the_dtype_of_the_target(tmp_path, target, flags, runs, status):
    item = on_vllm(tmp_path, flags=flags, draft={"torch_dtype": "float32"}, target={"torch_dtype": target} if target else {})["config.dtype"]
    assert item.status is status and item.observed == runs


@pytest.mark.parametrize(("version", "draft", "target", "flags", "status", "observed"), [
    ("0.33.0", {}, {}, "--quantization fp8", Status.PASS, "none"),
    ("0.11.1", {}, {"quantization_config": {"quant_method": "awq"}}, "", Status.PASS, "none"),
    ("0.11.0", {}, {"quantization_config": {"quant_method": "awq"}}, "", Status.INCONCLUSIVE, "awq"),
    ("0.11.0", {}, {}, "--quantization fp8", Status.INCONCLUSIVE, "fp8"),
    ("0.11.0", {}, {}, "", Status.PASS, "none"),
    ("0.10.2", {"quantization_config": {"quant_method": "fp8"}}, {}, "", Status.INCONCLUSIVE, "none"),
    ("0.33.0", {"quantization_config": {"quant_method": "fp8"}}, {}, "", Status.PASS, "fp8"),
])
def test_vllm_quantization_of_the_draft_by_release(tmp_path, version, draft, target, flags, status, observed):
    item = on_vllm(tmp_path, version, flags, draft, target)["config.draft-quantization"]
    assert item.status is status and item.observed == observed
    assert status is Status.PASS or item.fault == "load.draft-quantization"


@pytest.mark.parametrize(("target", "draft", "flags", "status"), [
    ("bfloat16", None, "", Status.FAIL), ("bfloat16", "float16", "", Status.FAIL), ("bfloat16", None, " --dtype bfloat16", Status.PASS), ("bfloat16", "bfloat16", "", Status.PASS),
    (None, "bfloat16", "", Status.PASS), ("float16", None, "", Status.INCONCLUSIVE)])
def test_two_dtypes_meet_in_fc(tmp_path, target, draft, flags, status):
    item = findings(tmp_path, target=LLAMA_TARGET | ({"torch_dtype": target} if target else {}), draft={"torch_dtype": draft} if draft else {}, launch=GOOD_LAUNCH + flags)["config.dtype"]
    assert item.status is status
    if status is Status.FAIL:
        assert item.fault == "load.dtype" and item.competitor.fault == "load.draft-quantization" and [(e.key, e.value) for e in item.edits] == [("torch_dtype", "bfloat16")]
