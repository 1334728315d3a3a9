"""Tiny real checkpoints in every published layout, and byte surgery for the broken ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

H, HEADS, KV, D, F, V, VD, PLANES = 16, 4, 2, 4, 24, 48, 32, 3
IDS = [1, 4, 7]
EAGLE = {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H, "intermediate_size": F,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "vocab_size": V,
    "draft_vocab_size": VD, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 2048,
}  # fmt: skip
MLA: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": H, "intermediate_size": F,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "q_lora_rank": 6, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2, "v_head_dim": 3, "vocab_size": V, "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 64.0},
}  # fmt: skip


def weights(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Different values in every element, the same on every run."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(dtype)


def head(layer: str = "midlayer.", **without: bool) -> dict[str, torch.Tensor]:
    """The tensors of a Llama-type EAGLE-3 head under a layer prefix."""
    tensors = {
        "fc.weight": weights(H, PLANES * H), "norm.weight": weights(H), "lm_head.weight": weights(VD, H),
        "d2t": torch.arange(VD) // 2, "t2d": torch.arange(V) < VD,
        f"{layer}hidden_norm.weight": weights(H), f"{layer}input_layernorm.weight": weights(H),
        f"{layer}post_attention_layernorm.weight": weights(H), f"{layer}self_attn.q_proj.weight": weights(HEADS * D, 2 * H),
        f"{layer}self_attn.k_proj.weight": weights(KV * D, 2 * H), f"{layer}self_attn.v_proj.weight": weights(KV * D, 2 * H) * 2,
        f"{layer}self_attn.o_proj.weight": weights(H, HEADS * D), f"{layer}mlp.gate_proj.weight": weights(F, H),
        f"{layer}mlp.up_proj.weight": weights(F, H) * 2, f"{layer}mlp.down_proj.weight": weights(H, F),
    }  # fmt: skip
    return tensors


def mla_head() -> dict[str, torch.Tensor]:
    """The tensors of a Kimi-type MLA head."""
    llama = head("layers.0.")
    kept = {k: v for k, v in llama.items() if "self_attn" not in k and k not in ("d2t", "t2d")}
    attention = "layers.0.self_attn."
    return kept | {
        f"{attention}q_a_proj.weight": weights(6, 2 * H), f"{attention}q_a_layernorm.weight": weights(6),
        f"{attention}q_b_proj.weight": weights(HEADS * 5, 6), f"{attention}kv_a_proj_with_mqa.weight": weights(7, 2 * H),
        f"{attention}kv_a_layernorm.weight": weights(5), f"{attention}kv_b_proj.weight": weights(HEADS * 6, 5),
        f"{attention}o_proj.weight": weights(H, HEADS * 3), "lm_head.weight": weights(V, H),
    }  # fmt: skip


def fused_head() -> dict[str, torch.Tensor]:
    """A head whose q/k/v and gate/up are one tensor each."""
    tensors = head("layers.0.")
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    tensors[f"{attention}qkv_proj.weight"] = torch.cat([tensors.pop(f"{attention}{p}_proj.weight") for p in "qkv"])
    tensors[f"{mlp}gate_up_proj.weight"] = torch.cat([tensors.pop(f"{mlp}{p}_proj.weight") for p in ("gate", "up")])
    return tensors


def write_config(folder: Path, config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_draft(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None, **metadata: str) -> Path:
    """config.json and model.safetensors (no weights with None)."""
    write_config(folder, config)
    if tensors is not None:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt", **metadata})
    return folder


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], shards: int = 2) -> Path:
    """model-0000i-of-0000n.safetensors and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {k: tensors[k] for k in sorted(tensors)[i::shards]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with a header written by hand, and a header length that may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_sparse(path: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]], bits: Mapping[str, int]) -> int:
    """A safetensors file with a real header and holes for data; returns its size in bytes."""
    header, position = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = bits[dtype] // 8
        for n in shape:
            size *= n
        header[name] = entry(dtype, list(shape), position, position + size)
        position += size
    write_raw(path, header)
    total = path.stat().st_size + position
    with path.open("r+b") as file:
        file.truncate(total)
    return total
