"""Inspection of a 6 GB MLA drafter beside its target: MiB read and seconds, imports and rule tables already warm.

Both checkpoints are sparse files with real headers. Bytes are those of read calls (/proc/self/io) plus every page mapped from a checkpoint.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from eagle_forensics.case import load_case
from tests.evidence.builders import write_sparse

H, F, V, HEADS = 7168, 18432, 163840, 64
MLA = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": 1,
       "num_attention_heads": HEADS, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
       "vocab_size": V, "draft_vocab_size": V, "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
       "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59], "use_aux_hidden_state": True}}
TARGET = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": {
    "model_type": "deepseek_v3", "hidden_size": H, "num_hidden_layers": 61, "num_attention_heads": HEADS, "vocab_size": V, "rope_theta": 50000.0,
    "qk_rope_head_dim": 64, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6}}
ATTENTION = {"q_a_proj": (1536, 2 * H), "q_b_proj": (HEADS * 192, 1536), "kv_a_proj_with_mqa": (576, 2 * H), "kv_b_proj": (HEADS * 256, 512), "o_proj": (H, HEADS * 128)}
LAUNCH = ("--model-path t --tp 8 --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 "
          "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4")


def config() -> dict[str, float]:
    """`config.mib_read` and `config.seconds` of the whole of notebook 01's inspection."""
    with tempfile.TemporaryDirectory() as folder:
        case = load_case(_case(Path(folder)))
        inspect_all(case)  # imports and tables
        before, began = _read_bytes(), time.perf_counter()
        inspect_all(case)
        return {"config.mib_read": (_read_bytes() - before) / 2**20, "config.seconds": time.perf_counter() - began}


figures = config


def inspect_all(case) -> list:
    """Every finding and table of notebook 01."""
    from eagle_forensics.config import (
        checkpoint,
        checks,
        claims,
        frames,
        inspection,
        launching,
        live,
        loading,
        rotary,
        tables,
        tokens,
    )

    found = inspection.inspect(case)
    claims.claims_frame(claims.claims(found))
    for frame in (frames.evidence_frame, frames.notes_frame, frames.tensor_frame, frames.inventory_frame, frames.argument_frame, frames.spelling_frame, rotary.rope_frame):
        frame(found)
    asked = (checks.problem_findings, checks.boundary_findings, checks.argument_findings, launching.launching_findings, live.live_findings, checkpoint.checkpoint_findings,
             loading.loading_findings, tables.table_findings, tokens.tokenizer_findings, rotary.rotary_findings, launching.upgrade_findings)
    return [finding for ask in asked for finding in ask(found)]


def _case(folder: Path) -> Path:
    layer = {f"layers.0.self_attn.{name}.weight": shape for name, shape in ATTENTION.items()}
    layer |= {f"layers.0.{name}.weight": (H,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    layer |= {"layers.0.self_attn.q_a_layernorm.weight": (1536,), "layers.0.self_attn.kv_a_layernorm.weight": (512,), "layers.0.mlp.gate_proj.weight": (F, H),
              "layers.0.mlp.up_proj.weight": (F, H), "layers.0.mlp.down_proj.weight": (H, F)}
    tables = {"embed_tokens.weight": (V, H), "lm_head.weight": (V, H), "norm.weight": (H,)}
    draft, target = {**layer, **tables, "fc.weight": (H, 3 * H)}, {f"language_model.model.{name}": shape for name, shape in tables.items()}
    for name, settings, shapes in (("d", MLA, draft), ("t", TARGET, target)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(settings))
        write_sparse(folder / name / "model.safetensors", {k: ("BF16", s) for k, s in shapes.items()}, {"BF16": 16})
    case = folder / "case.yaml"
    case.write_text(json.dumps({"name": "mla", "target": {"path": "t"}, "drafter": {"path": "d"}, "training": {"trainer": {"name": "speculators", "version": "0.4.0"},
                    "layer_ids": [2, 30, 58, 60]}, "serving": {"engine": "sglang", "version": "0.5.23", "launch": LAUNCH}}))
    return case


def _read_bytes() -> int:
    """Bytes of read calls so far, and of pages of checkpoints mapped now."""
    calls = next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
    return calls + _mapped()


def _mapped() -> int:
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and ":" not in line.split(" ", 1)[0]:
            inside = line.endswith(".safetensors")
        elif inside and line.startswith("Rss:"):
            size += 1024 * int(line.split()[1])
    return size


if __name__ == "__main__":
    print(config())
