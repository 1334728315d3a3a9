"""All-reduce fusion: exposed only where class, release, GPU and ranks all say so."""

import pytest

from eagle_forensics.engines.fusion import fusion

KIMI, DEEPSEEK, GPT_OSS, GLM = "KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "Glm4MoeForCausalLM"
DSA, MISTRAL, QWEN_VL, MIMO = "GlmMoeDsaForCausalLM", "MistralLarge3ForCausalLM", "Qwen3VLMoeForConditionalGeneration", "MiMoV2FlashForCausalLM"


@pytest.mark.parametrize(("version", "architecture", "capability", "tp", "exposed"), [
    ("0.5.9", KIMI, "9.0", 8, True), ("0.5.8", KIMI, "9.0", 8, False), ("0.5.13", KIMI, "10.0", 8, True), ("0.5.14", KIMI, "10.0", 8, False),
    ("0.5.10", KIMI, "12.0", 8, False), ("0.5.10", KIMI, "9.0", 1, False), ("0.5.10", KIMI, None, 8, None),
    ("0.5.5", DEEPSEEK, "9.0", 8, False), ("0.5.5", DEEPSEEK, "10.0", 8, True), ("0.5.5", GPT_OSS, "12.0", 4, True), ("0.5.8", GPT_OSS, "12.0", 4, False),
    ("0.5.20", GPT_OSS, "9.0", 4, True), ("0.5.21", GPT_OSS, "9.0", 4, False), ("0.5.7", GLM, "12.0", 4, True), ("0.5.23", "LlamaForCausalLM", "9.0", 8, False),
    ("0.5.13", "Qwen3MoeForCausalLM", "9.0", 8, False), ("0.5.12", "Qwen3NextForCausalLM", "9.0", 8, False),
    ("0.5.3.post2", DEEPSEEK, "10.0", 8, True), ("0.5.3", DEEPSEEK, "10.0", 8, False), ("0.5.4", GPT_OSS, "12.0", 4, False), ("0.5.1", GPT_OSS, "10.0", 4, True),
    ("0.5.10", DSA, "9.0", 8, False), ("0.5.11", DSA, "9.0", 8, True), ("0.5.14", DSA, "9.0", 8, False),
    ("0.5.6.post1", MISTRAL, "10.0", 8, True), ("0.5.7", MISTRAL, "10.0", 8, False), ("0.5.13", MISTRAL, "10.0", 8, True),
    ("0.5.13", QWEN_VL, "9.0", 8, False), ("0.5.14", QWEN_VL, "9.0", 8, None), ("0.5.17", "DeepseekV4ForCausalLM", "9.0", 8, False),
    ("0.5.18", "DeepseekV4ForCausalLM", "9.0", 8, None), ("0.5.22", MIMO, "10.0", 8, False), ("0.5.23", MIMO, "10.0", 8, None), ("0.5.23", MIMO, "9.0", 8, False),
])
def test_exposure(version, architecture, capability, tp, exposed):
    assert fusion(version, architecture=architecture, capability=capability, tp=tp, arguments={}).exposed is exposed


def test_flags_decide():
    on = {"architecture": KIMI, "capability": "12.0", "tp": 8}
    assert fusion("0.5.10", **on, arguments={"enable_flashinfer_allreduce_fusion": True}).exposed is True
    off = fusion("0.5.10", **on | {"capability": "9.0"}, arguments={"enforce_disable_flashinfer_allreduce_fusion": True})
    assert off.exposed is False and off.switch_off and fusion("0.5.9", **on, arguments={}).switch_off is None
    assert fusion("0.5.10", **on | {"capability": "9.0"}, arguments={"enable_dp_attention": True}).exposed is False


@pytest.mark.parametrize(("version", "capability", "arguments", "exposed"), [
    ("0.5.20", "9.0", {"nnodes": 2}, False), ("0.5.20", "10.0", {"nnodes": 2}, True), ("0.5.13", "10.0", {"nnodes": 2}, False),
    ("0.5.20", "9.0", {"moe_a2a_backend": "deepep"}, False), ("0.5.20", "9.0", {"moe_a2a_backend": "none"}, True),
    ("0.5.20", "9.0", {"enable_deterministic_inference": True}, False), ("0.5.11", "9.0", {"enable_deterministic_inference": True}, True),
    ("0.5.20", "12.0", {"flashinfer_allreduce_fusion_backend": "auto"}, True), ("0.5.13", "12.0", {"flashinfer_allreduce_fusion_backend": "auto"}, False),
])
def test_what_else_keeps_it_off_or_on(version, capability, arguments, exposed):
    assert fusion(version, architecture=GPT_OSS, capability=capability, tp=4, arguments=arguments).exposed is exposed
