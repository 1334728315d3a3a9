"""A whole case on disk around a tiny target: config and weights outside the layers, dump with manifest, bank, drafter config, captures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.states import States, write_states

from .tiny import EPS, HIDDEN, VOCAB, TinyBank, TinyTarget

Planes = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def write_case(folder: Path, target: TinyTarget, ids: Sequence[torch.Tensor], planes: Planes, labels: Sequence[str], *, model_type: str = "llama", drafter_ids: Sequence[int] = (),
               trainer: tuple[str, str] = ("speculators", "0.4.0"), version: str = "0.5.23", captures: Mapping[int, Planes] | None = None) -> Path:
    """The case file. `planes`: of the dump, for token ids; `captures`: rank to the planes it recorded."""
    architecture = {"llama": "LlamaForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}[model_type]
    size = {"hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": VOCAB, "rms_norm_eps": EPS}
    for name in ("target", "drafter", "dump", "captures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "target" / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": model_type, "num_hidden_layers": target.layers, **size}))
    save_file({"model.embed_tokens.weight": target.embed, "model.norm.weight": target.norm}, folder / "target" / "model.safetensors")
    (folder / "drafter" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": VOCAB, **size,
                                                                "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(drafter_ids), "use_aux_hidden_state": True}}))
    for i, s in enumerate(ids):
        torch.save({"hidden_states": [p.bfloat16().clone() for p in planes(s)], "input_ids": s.clone(), "loss_mask": torch.ones(len(s), dtype=torch.bool)}, folder / "dump" / f"data_{i}.pt")
    (folder / "dump" / "manifest.json").write_text(json.dumps({"planes": list(labels)}))
    bank = TinyBank(target, list(ids))
    write_states(States(bank.boundaries, tuple(tuple(s.tolist()) for s in ids), "the tiny target", bank.plane), folder / "bank")
    held = []
    for rank, make in (captures or {}).items():
        torch.save({"fed": torch.stack([p.bfloat16() for p in make(ids[0])], 1), "input_ids": ids[0].clone()}, folder / "captures" / f"rank{rank}.pt")
        held.append(f"  - {{path: ./captures/rank{rank}.pt, path_kind: eager, tp_rank: {rank}}}\n")
    file = folder / "case.yaml"
    file.write_text(f"schema: 1\nname: tiny\ntarget: {{path: ./target}}\ndrafter: {{path: ./drafter}}\ntraining:\n  dump: {{path: ./dump}}\n"
                    f"  trainer: {{name: {trainer[0]}, version: \"{trainer[1]}\"}}\nserving: {{engine: sglang, version: \"{version}\"}}\nreference: {{path: ./bank}}\n"
                    + ("captures:\n" + "".join(held) if held else ""))
    return file
