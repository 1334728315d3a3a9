"""Class, quantization, dtype and cache scales: what notebook 01 must say of how a head is loaded, and of the dump it was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.evidence import builders
from tests.lineup import papers as p
from tests.lineup.outcome import abstains, healthy, planted

CLASS, QUANTIZED, DTYPE, SCALES, DRIFT = "load.architecture", "load.draft-quantization", "load.dtype", "load.kv-scales", "data.extractor-drift"
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
FP8 = {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}}
NO_FILE = "[2026-05-05 06:16:47 TP0] ValueError: Cannot find the config file for awq\n"
UNSCALED = ("WARNING 05-01 16:51:12 [kv_cache.py:123] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify that k/v_scale scaling factors "
            "are properly set in the checkpoint.\n")


def logged(papers: p.Papers, text: str) -> p.Papers:
    """With the server's log."""
    serving = {"engine": papers.engine, "version": papers.version, "launch": papers.launch, "log": "./server.log"}
    return papers.but(files={**(papers.files or {}), "server.log": text}, case={**(papers.case or {}), "serving": {k: v for k, v in serving.items() if v}})


def layers_of_target(scaled: bool) -> dict[str, torch.Tensor]:
    """Attention of two target layers, with the scales of their cache or without."""
    tensors = {f"model.layers.{i}.self_attn.{part}_proj.weight": builders.weights(builders.H, builders.H) for i in range(2) for part in "qo"}
    scales = {f"model.layers.{i}.self_attn.{part}_scale": torch.tensor(0.03) for i in range(2) for part in "kv"}
    return tensors | (scales if scaled else {})


def with_scales() -> dict[str, torch.Tensor]:
    return p.head(**{"midlayer.self_attn.k_scale": torch.tensor(0.03), "midlayer.self_attn.v_scale": torch.tensor(0.02)})


def dumped(papers: p.Papers, content: Callable[[], object], ids: Sequence[int] | None, suffix: str = "pt") -> Callable[[Path], None]:
    """The papers with a dump of two samples and, where given, the record its extractor left of its ids."""
    def make(folder: Path) -> None:
        papers.but(case={"training": {"dump": {"path": "./dump"}, "trainer": dict(zip(("name", "version"), papers.trainer, strict=True)), "layer_ids": list(papers.trained)}})(folder)
        (folder / "dump").mkdir()
        for i in range(2):
            if suffix == "pt":
                torch.save(content(), folder / "dump" / f"data_{i}.pt")
            else:
                p.save_file(content(), folder / "dump" / f"hs_{i}.safetensors")
        if ids is not None:
            (folder / "dump" / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": list(ids)}}))
    return make


def sample() -> dict[str, object]:
    """speculators v1: a list of planes, the last one the teacher's."""
    return {"input_ids": torch.arange(8), "loss_mask": torch.ones(8, dtype=torch.long), "hidden_states": [builders.weights(8, builders.H) * (i + 1) for i in range(4)]}


def extracted() -> dict[str, torch.Tensor]:
    """What vLLM's own extraction writes."""
    return {"hidden_states": builders.weights(8, 4, builders.H), "token_ids": torch.arange(8)}


SPECULATORS = p.VLLM.but(trainer=("speculators", "0.5.0"), trained=(2, 16, 29, 32))
OLD_SPECULATORS = p.LLAMA.but(trainer=("speculators", "0.4.0"), trained=(1, 15, 28, 31))
PLANTED = (
    planted("the official head's class on SGLang", p.LLAMA.but(tensors=p.head, draft={"architectures": ["LlamaForCausalLM"], "rope_theta": None}, trainer=("eagle", None), trained=None, ids=None), CLASS,
            rival="load.tensor-inventory"),
    planted("a speculators class on SGLang", p.LLAMA.but(tensors=lambda: p.renamed("midlayer.", "layers.0."), draft={"architectures": ["Eagle3Speculator"]}), CLASS),
    planted("a Mistral backbone's class on vLLM", p.VLLM.but(tensors=lambda: p.renamed("midlayer.", "layers.0."), draft={"architectures": ["MistralForCausalLM"]}), CLASS),
    planted("target_hidden_size null on SGLang", p.LLAMA.but(tensors=p.head, draft={"target_hidden_size": None}), CLASS),
    planted("a latent-attention head on 0.5.11", p.KIMI.but(version="0.5.11", ids=(2, 30, 58), tensors=builders.mla_head, draft=builders.MLA | {"draft_vocab_size": builders.V}), CLASS),
    planted("--quantization awq reaches the draft", p.LLAMA.but(target=AWQ, launch=p.sglang_launch(more="--quantization awq"), tensors=p.head), QUANTIZED),
    planted("--quantization gptq_marlin reaches the draft on 0.5.6", p.LLAMA.but(version="0.5.6", launch=p.sglang_launch(more="--quantization gptq_marlin")), QUANTIZED),
    planted("--quantization awq, and what the log says of it", logged(p.LLAMA.but(target=AWQ, launch=p.sglang_launch(more="--quantization awq"), tensors=p.head), NO_FILE), QUANTIZED),
    planted("a bf16 target, a head whose config names no dtype", p.LLAMA.but(target={"torch_dtype": "bfloat16"}, tensors=p.head), DTYPE, rival=QUANTIZED),
    planted("a bf16 target, a head that asks for float16", p.QWEN.but(target={"torch_dtype": "bfloat16"}, draft={"torch_dtype": "float16"}, tensors=p.head), DTYPE, rival=QUANTIZED),
    planted("a target that names cache scales and holds none", p.LLAMA.but(target=FP8, target_tensors=lambda: layers_of_target(False)), SCALES, rival="feature.rotated-basis"),
    planted("a head that names cache scales and holds none", p.VLLM.but(draft=FP8, tensors=p.head, launch=p.VLLM_LAUNCH + " --kv-cache-dtype fp8"), SCALES, rival="feature.rotated-basis"),
    planted("scales on both sides, 1.0 in the log", logged(p.VLLM.but(
        target=FP8, target_tensors=lambda: layers_of_target(True), tensors=with_scales, launch=p.VLLM_LAUNCH + " --kv-cache-dtype fp8_e4m3"), UNSCALED), SCALES),
    planted("dump of the older extractor read by boundary ids, a stamped head", dumped(SPECULATORS.but(draft={"speculators_version": "0.5.0"}), sample, (2, 16, 29, 31)), DRIFT,
            rival="load.architecture"),
    planted("dump of the older extractor, its default ids, read by another list, a stamped head", dumped(SPECULATORS.but(
        version="0.28.0", ids=(3, 17, 30), trained=(3, 17, 30, 32), trainer=("speculators", "0.7.0"), draft={"speculators_version": "0.7.0"}), sample, (1, 15, 28, 31)), DRIFT),
)
HEALTHY = (
    healthy("AWQ target, the draft asked for unquantized", p.LLAMA.but(target=AWQ, launch=p.sglang_launch(more="--quantization awq --speculative-draft-model-quantization unquant"), tensors=p.head)),
    healthy("AWQ target recognised by itself", p.LLAMA.but(target=AWQ, tensors=p.head)),
    healthy("AWQ target on vLLM", p.VLLM.but(target=AWQ, launch=p.VLLM_LAUNCH + " --quantization awq", tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("a Llama class on vLLM, which wraps it", p.VLLM.but(tensors=lambda: p.renamed("midlayer.", "layers.0."), draft={"architectures": ["LlamaForCausalLM"]})),
    healthy("a latent-attention head on 0.5.12", p.KIMI.but(version="0.5.12", ids=(2, 30, 58), tensors=builders.mla_head, draft=builders.MLA | {"draft_vocab_size": builders.V, "head_dim": None})),
    healthy("bf16 asked for on the launch line", p.LLAMA.but(launch=p.sglang_launch(more="--dtype bfloat16"), tensors=p.head)),
    healthy("bf16 on both sides", p.LLAMA.but(target={"torch_dtype": "bfloat16"}, draft={"torch_dtype": "bfloat16"}, tensors=p.head)),
    healthy("a bf16 target and a head without a dtype on vLLM, which gives it the target's", p.VLLM.but(target={"torch_dtype": "bfloat16"}, tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("bf16 for both by the launch line, the head's config silent", p.LLAMA.but(target={"torch_dtype": "bfloat16"}, launch=p.sglang_launch(more="--dtype bfloat16"), tensors=p.head)),
    healthy("an fp8 cache without scales, 1.0 in the log", logged(p.VLLM.but(launch=p.VLLM_LAUNCH + " --kv-cache-dtype fp8", tensors=p.head, target_tensors=lambda: layers_of_target(False)), UNSCALED)),
    healthy("cache scales where they are named", p.LLAMA.but(target=FP8, target_tensors=lambda: layers_of_target(True))),
    healthy("cache scales named, the weights not at hand", p.LLAMA.but(target=FP8)),
    healthy("scales that are made while serving", p.LLAMA.but(target={"quantization_config": FP8["quantization_config"] | {"kv_cache_scheme": {"num_bits": 8, "dynamic": True}}},
                                                              target_tensors=lambda: layers_of_target(False))),
    healthy("dump and trainer of one generation", dumped(OLD_SPECULATORS, sample, (1, 15, 28, 31))),
    healthy("dump and trainer of the newer generation", dumped(SPECULATORS, extracted, None, "safetensors")),
    healthy("the older dump, read by ids that mean the same", dumped(SPECULATORS, sample, (1, 15, 28, 31))),
)
ABSTAIN = (
    abstains("--quantization fp8 reaches the draft", p.LLAMA.but(launch=p.sglang_launch(more="--quantization fp8"), tensors=p.head)),
    abstains("vLLM 0.11.0 takes the target's quantization for the draft", p.VLLM.but(version="0.11.0", target=AWQ, tensors=p.head)),
    abstains("cache scales in the target, none in the draft", logged(p.VLLM.but(
        target=FP8, target_tensors=lambda: layers_of_target(True), tensors=p.head, launch=p.VLLM_LAUNCH + " --kv-cache-dtype fp8_e4m3"), UNSCALED)),
    abstains("dump of the older extractor, the newer version in the case file alone", dumped(SPECULATORS, sample, (2, 16, 29, 31)), suspects=(DRIFT,)),
    abstains("dump of the older extractor, a head stamped as old as the dump", dumped(SPECULATORS.but(draft={"speculators_version": "0.4.0"}), sample, (2, 16, 29, 31)), suspects=(DRIFT,)),
    abstains("the older dump without a record of its ids", dumped(SPECULATORS, sample, None)),
    abstains("a newer dump in the name of an older trainer", dumped(OLD_SPECULATORS, extracted, None, "safetensors")),
)
CASES = p.alone(*PLANTED, *HEALTHY, *ABSTAIN)
