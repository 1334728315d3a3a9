"""Case folders made of configs and, where needed, tiny weights: the evidence of notebook 01."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from eagle_forensics.case import Case, load_case
from tests.evidence import builders

LLAMA_TARGET = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 30, "hidden_size": builders.H,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": builders.V, "rms_norm_eps": 1e-5, "rope_theta": 100000.0}
DEEPSEEK_TARGET = LLAMA_TARGET | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61}
GOOD_LAUNCH = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


def papers(folder: Path, *, target: dict[str, Any] = LLAMA_TARGET, ids: list[int] | None = (1, 14, 26), place: str = "nested", engine: str = "sglang",
           version: str = "0.5.23", launch: str | None = GOOD_LAUNCH, env: dict[str, str] | None = None, trainer: tuple[str, str] | None = ("speculators", "0.4.0"),
           layer_ids: list[int] | None = (1, 14, 26, 29), weights: dict[str, torch.Tensor] | None = None, draft: dict[str, Any] | None = None,
           target_weights: dict[str, torch.Tensor] | None = None, serving: dict[str, Any] | None = None, measurements: str | None = None) -> Case:
    """Write the configs and return the case. `serving` adds keys, `measurements` is the text of a CSV; a draft key set to ... is left out."""
    config = builders.LLAMA | (draft or {})
    if ids is not None:
        config = config | ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}} if place == "nested"
                           else {"eagle_aux_hidden_state_layer_ids": list(ids)})
    config = {k: v for k, v in config.items() if v is not ...}
    for name, content in (("target", target), ("drafter", config)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(content))
    if weights is not None:
        save_file({k: v.contiguous() for k, v in weights.items()}, folder / "drafter" / "model.safetensors")
    if target_weights is not None:
        save_file({k: v.contiguous() for k, v in target_weights.items()}, folder / "target" / "model.safetensors")
    training: dict[str, Any] = {}
    if trainer:
        training["trainer"] = {"name": trainer[0], "version": trainer[1]}
    if layer_ids is not None:
        training["layer_ids"] = list(layer_ids)
    serving = {"engine": engine, "version": version, "launch": launch, "env": env, **(serving or {})}
    raw = {"name": "papers", "target": {"path": "target"}, "drafter": {"path": "drafter"}, "training": training,
           "serving": {k: v for k, v in serving.items() if v is not None}}
    if measurements is not None:
        (folder / "runs.csv").write_text(measurements)
        raw["measurements"] = "runs.csv"
    (folder / "case.yaml").write_text(yaml.safe_dump(raw))
    return load_case(folder)
