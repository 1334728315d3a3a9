"""The argument lists put to SGLang's own ServerArgs, and the config.json files they need."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

BASE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "vocab_size": 49152, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "bos_token_id": 0, "eos_token_id": 1}
MLA = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
       "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1,
       "moe_intermediate_size": 2048, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.8,
       "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "vocab_size": 163840, "rope_theta": 50000.0}
DEEPSEEK = {**BASE, **MLA, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
TARGETS: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen3": {**BASE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "gemma3_text": {**BASE, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 512, "query_pre_attn_scalar": 64},
    "gpt_oss": {**BASE, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 32, "num_experts_per_tok": 4,
                "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 15},
    "glm4_moe": {**BASE, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 128, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "deepseek_v3": DEEPSEEK,
    "kimi_k25": {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "torch_dtype": "bfloat16",
                 "text_config": {**DEEPSEEK, "model_type": "kimi_k2"}, "vision_config": {}, "media_placeholder_token_id": 163605},
}
DRAFT = {**BASE, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 4096,
         "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26], "use_aux_hidden_state": True}}
CUDA8 = ("--device", "cuda", "--tp", "8")


def triple(steps: int | None = None, topk: int | None = None, tokens: int | None = None) -> tuple[str, ...]:
    """The three numbers of a chain or tree, those that are set."""
    pairs = (("--speculative-num-steps", steps), ("--speculative-eagle-topk", topk), ("--speculative-num-draft-tokens", tokens))
    return tuple(word for flag, value in pairs if value is not None for word in (flag, str(value)))


def cases() -> dict[str, tuple[str, tuple[str, ...]]]:
    """name -> (target family, arguments beside the model, the algorithm and the draft)."""
    out: dict[str, tuple[str, tuple[str, ...]]] = {}
    for family in TARGETS:
        machine = CUDA8 if family in ("deepseek_v3", "kimi_k25") else ("--device", "cuda")
        for name, extra in (("nothing", ()), ("trap", triple(1, 1, 16)), ("chain", triple(5, 1)), ("tree", triple(3, 4, 16))):
            out[f"{family} {name}"] = (family, (*machine, *extra))
    for steps, topk, tokens in itertools.product((None, 1, 3), (None, 1, 4), (None, 2, 16)):
        out[f"llama {steps} {topk} {tokens}"] = ("llama", ("--device", "cuda", *triple(steps, topk, tokens)))
    for backend, topk in itertools.product(("flashinfer", "fa3", "triton"), (1, 4)):  # trtllm_mha asks for a GPU first
        out[f"qwen3 {backend} topk {topk} page 64"] = (
            "qwen3", ("--device", "cuda", "--attention-backend", backend, "--page-size", "64", *triple(3, topk, 16)))
    one = {
        "cpu": ("--device", "cpu", *triple(3, 1, 4)), "mixed chunk": ("--device", "cuda", "--enable-mixed-chunk", *triple(3, 1, 4)),
        "running": ("--device", "cuda", "--max-running-requests", "7", *triple(3, 1, 4)),
        "synchronous": ("--device", "cuda", "--disable-overlap-schedule", *triple(3, 1, 4)),
        "adaptive": ("--device", "cuda", "--speculative-adaptive"), "adaptive 3": ("--device", "cuda", "--speculative-adaptive", *triple(3)),
        "adaptive 4": ("--device", "cuda", "--speculative-adaptive", *triple(4)),
        "adaptive tree": ("--device", "cuda", "--speculative-adaptive", *triple(3, 4, 8)),
        "adaptive, layers": ("--device", "cuda", "--speculative-adaptive", "--enable-multi-layer-eagle", *triple(3, 1, 4)),
        "adaptive, attention DP": ("--device", "cuda", "--tp", "2", "--dp", "2", "--enable-dp-attention", "--speculative-adaptive", *triple(3, 1, 4)),
        "pipeline": ("--device", "cuda", "--pp-size", "2", *triple(3, 1, 4)), "pipeline, short": ("--device", "cuda", "--pp", "2", *triple(3, 1, 4)),
        "mla pages": ("--device", "cuda", "--attention-backend", "flashmla", *triple(3, 1, 4)),
        "rejection": ("--device", "cuda", "--speculative-use-rejection-sampling", *triple(3, 1, 4)),
        "rejection tree": ("--device", "cuda", "--speculative-use-rejection-sampling", *triple(3, 4, 8)),
        "rejection threshold": ("--device", "cuda", "--speculative-use-rejection-sampling", "--speculative-accept-threshold-single", "0.9", *triple(3, 1, 4)),
        "fp8": ("--device", "cuda", "--quantization", "fp8", *triple(3, 1, 4)),
        "fp8, draft not": ("--device", "cuda", "--quantization", "fp8", "--speculative-draft-model-quantization", "unquant", *triple(3, 1, 4)),
        "two GPUs": ("--device", "cuda", "--tp-size", "2", "--dtype", "bfloat16", "--context-length", "4096", *triple(3, 1, 4)),
        "not a number": ("--device", "cuda", "--speculative-num-steps", "three"),
    }
    return out | {f"llama {name}": ("llama", extra) for name, extra in one.items()}


def write(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Writes the config files; name -> (argument list, target architecture)."""
    for name, config in {**TARGETS, "draft": DRAFT}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    out = {}
    for name, (family, extra) in cases().items():
        argv = ["--model-path", str(folder / family), "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(folder / "draft"), *extra]
        out[name] = (argv, TARGETS[family]["architectures"][0])
    target, draft = str(folder / "llama"), str(folder / "draft")
    for algorithm in ("eagle3", "EAGLE", "NEXTN", "STANDALONE"):
        out[f"llama {algorithm}"] = (
            ["--model-path", target, "--device", "cuda", "--speculative-algorithm", algorithm, "--speculative-draft-model-path", draft], "LlamaForCausalLM")
    out["llama no speculation"] = (["--model-path", target, "--device", "cuda"], "LlamaForCausalLM")
    out["deepseek_v3 no draft path"] = (["--model-path", str(folder / "deepseek_v3"), *CUDA8, "--speculative-algorithm", "EAGLE"], "DeepseekV3ForCausalLM")
    return out
