"""Scales of a quantized KV cache: what a checkpoint promises, what it holds, what the engine says."""

import pytest
import torch

from eagle_forensics.config.cache_scales import scale_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import GOOD_LAUNCH, LLAMA_TARGET, papers
from tests.evidence import builders

FP8 = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}}
MODELOPT = {"quantization_config": {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}}
LINE = "WARNING [kv_cache.py:123] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify the checkpoint.\n"
PLAIN = {"model.layers.0.self_attn.o_proj.weight": builders.weights(4, 4)}
SCALED = PLAIN | {"model.layers.0.self_attn.k_scale": torch.tensor(0.1), "model.layers.0.self_attn.v_scale": torch.tensor(0.1)}


def found(folder, log=None, **papers_of):
    if log:
        (folder / "server.log").write_text(log)
        papers_of["serving"] = {"log": "server.log"}
    items = scale_findings(inspect(papers(folder, **papers_of)))
    return items[0] if items else None


@pytest.mark.parametrize(("target", "tensors", "status"), [
    (FP8, PLAIN, Status.FAIL), (MODELOPT, PLAIN, Status.FAIL), (FP8, SCALED, Status.PASS), (FP8, None, Status.PASS), (MODELOPT, SCALED, Status.PASS),
    (FP8, PLAIN | {"model.layers.0.self_attn.k_proj.output_scale": torch.tensor(0.1)}, Status.PASS), (FP8, PLAIN | {"model.layers.0.self_attn.kv_scale": torch.tensor(0.1)}, Status.PASS)])
def test_what_the_target_promises_it_must_hold(tmp_path, target, tensors, status):
    item = found(tmp_path, target=LLAMA_TARGET | target, target_weights=tensors)
    assert item.status is status and (status is Status.PASS or (item.fault == "load.kv-scales" and item.competitor.fault == "feature.rotated-basis"))


def test_weight_scales_are_no_cache_scales(tmp_path):
    assert found(tmp_path, target=LLAMA_TARGET | FP8, target_weights=PLAIN | {"model.layers.0.self_attn.k_proj.weight_scale": torch.tensor(0.1)}).status is Status.FAIL


def test_the_drafter_too(tmp_path):
    assert "the drafter" in found(tmp_path, draft=FP8, weights=builders.head()).statement


@pytest.mark.parametrize("config", [{"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "dynamic": True}}}, {"quantization_config": {"kv_cache_scheme": None}}, {"quantization_config": "fp8"},
                                    {"quantization_config": {"quantization": {"kv_cache_quant_algo": None}}}])
def test_what_promises_nothing_is_no_question(tmp_path, config):
    assert found(tmp_path, target=LLAMA_TARGET | config, target_weights=PLAIN) is None


@pytest.mark.parametrize(("target", "draft", "status"), [(SCALED, True, Status.FAIL), (SCALED, False, Status.INCONCLUSIVE), (PLAIN, False, Status.PASS)])
def test_the_engines_own_line(tmp_path, target, draft, status):
    scales = {"midlayer.self_attn.k_scale": torch.tensor(0.1)} if draft else {}
    item = found(tmp_path, LINE, launch=f"{GOOD_LAUNCH} --kv-cache-dtype fp8_e4m3", target_weights=target, weights=builders.head() | scales)
    assert item.status is status and item.required and "scaling factor 1.0" in item.statement


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "fp8_e5m2"])
def test_a_cache_without_scales_is_no_question(tmp_path, dtype):
    assert found(tmp_path, launch=f"{GOOD_LAUNCH} --kv-cache-dtype {dtype}") is None


@pytest.mark.parametrize(("dtype", "asked"), [("bfloat16", False), ("fp8_e5m2", False), ("auto", True), ("fp8_e4m3", True)])
def test_a_promise_is_no_question_where_the_launch_line_asks_for_a_cache_without_scales(tmp_path, dtype, asked):
    assert (found(tmp_path, target=LLAMA_TARGET | FP8, target_weights=PLAIN, launch=f"{GOOD_LAUNCH} --kv-cache-dtype {dtype}") is not None) is asked
