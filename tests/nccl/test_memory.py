"""Experts of one token from first principles: the published figure of a 384-expert model, and silence where something is unknown."""

import pytest

from eagle_forensics.nccl.memory import expert_read

KIMI = {"text_config": {"num_experts_per_tok": 8, "n_routed_experts": 384, "hidden_size": 7168, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 1,
                        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}}}
GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def changed(**more):
    return {"text_config": {**KIMI["text_config"], **more}}


def test_the_published_figure():
    found = expert_read(KIMI, GPU, 8)
    assert (found.gigabytes, found.peak_ms, found.ms) == (pytest.approx(1.486, abs=0.001), pytest.approx(0.829, abs=0.001), pytest.approx(1.037, abs=0.001))


@pytest.mark.parametrize(("quantization", "dtype", "share"), [
    (None, "bfloat16", 2.0), ({"quant_method": "fp8"}, "bfloat16", 1.0), ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "bfloat16", 0.515625),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": -1}, None, 0.5),
])
def test_bytes_of_a_weight(quantization, dtype, share):
    found = expert_read(changed(quantization_config=quantization, dtype=dtype), GPU, 8)
    assert found.gigabytes == pytest.approx(1.486 * share / 0.5625, rel=0.001)


@pytest.mark.parametrize(("config", "gpu", "gpus"), [
    (None, GPU, 8), (KIMI, "a board", 8), (KIMI, None, 8), (KIMI, GPU, None), (changed(moe_intermediate_size=None), GPU, 8), (changed(quantization_config={"quant_method": "new"}), GPU, 8),
    ({"hidden_size": 576, "num_hidden_layers": 30}, GPU, 8), (changed(quantization_config={"config_groups": [1]}), GPU, 8), (KIMI, "H100", 8),
])
def test_what_is_not_known_is_not_guessed(config, gpu, gpus):
    assert expert_read(config, gpu, gpus) is None
