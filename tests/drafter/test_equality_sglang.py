"""The self-fed drafter equals SGLang 0.5.23's own draft models, llama type and MLA, called as its draft worker calls them.

`sglang_worker.py` says what of SGLang is real there. SGLang ignores norm_before_residual, its MLA class norm_before_fc too;
on a CPU it refuses MLA without yarn.
"""

from __future__ import annotations

import json
import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from eagle_forensics.drafter.network.arithmetic import rms_norm
from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import build
from eagle_forensics.drafter.network.unroll import chunks, states, unroll
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import tiny

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("oracle")]
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
STANDIN = ROOT / "lib" / "eagle_forensics" / "demo" / "standin"
STEPS, NAMES = 3, ("p0", "p1", "p2")
TOLERANCE = 1e-5
"""Of the largest logit: float32 on both sides; MLA there multiplies in another order (absorbed)."""
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}
COMMON = {"hidden_size": tiny.HIDDEN, "target_hidden_size": tiny.TARGET, "intermediate_size": tiny.FFN, "num_hidden_layers": 1, "num_attention_heads": tiny.HEADS, "hidden_act": "silu",
          "vocab_size": tiny.VOCAB, "draft_vocab_size": tiny.DRAFT_VOCAB, "rms_norm_eps": tiny.EPS, "max_position_embeddings": 1024, "tie_word_embeddings": False}
LLAMA = COMMON | {"model_type": "llama", "num_key_value_heads": tiny.KV, "head_dim": tiny.DIM}
MLA = COMMON | {"model_type": "kimi_k2", "num_key_value_heads": tiny.HEADS, "q_lora_rank": tiny.Q_RANK, "kv_lora_rank": tiny.KV_RANK, "qk_nope_head_dim": tiny.NOPE,
                "qk_rope_head_dim": tiny.TURNED, "v_head_dim": tiny.VALUE}


def rope_keys(theta, scaling):
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})}}


def cases():
    found = {}
    for before, per_plane, output in product((False, True), repeat=3):
        flags = {"norm_before_fc": before, "fc_norm": per_plane, "norm_output": output}
        found["llama " + "".join("01"[v] for v in flags.values())] = {"weights": "llama", "config": LLAMA | flags | rope_keys(10000.0, None)}
        if not before:
            found["mla " + "".join("01"[v] for v in flags.values())] = {"weights": "mla", "config": MLA | flags | rope_keys(10000.0, YARN)}
    off = {"norm_before_fc": False, "fc_norm": False, "norm_output": False}
    found["llama two layers"] = {"weights": "deep", "config": LLAMA | off | rope_keys(500.0, None) | {"num_hidden_layers": 2}}
    found["llama linear"] = {"weights": "llama", "config": LLAMA | off | rope_keys(500.0, {"rope_type": "linear", "factor": 4.0})}
    found["llama llama3"] = {"weights": "llama", "config": LLAMA | off | rope_keys(500.0, {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})}
    found["llama yarn"] = {"weights": "llama", "config": LLAMA | off | rope_keys(500.0, {k: v for k, v in YARN.items() if "mscale" not in k})}
    found["mla no mscale"] = {"weights": "mla", "config": MLA | off | rope_keys(500.0, {k: v for k, v in YARN.items() if "mscale" not in k})}
    return found


def weights_of(kind):
    made = {k: v if k == "d2t" else v.float() for k, v in tiny.weights(60, mla=kind == "mla", layers=2 if kind == "deep" else 1).items()}
    if kind == "deep":  # SGLang norms the upper layer's input by hidden_norm
        made["layers.1.hidden_norm.weight"] = made.pop("layers.1.input_layernorm.weight")
    return made


def names_read(kind, config):
    unread = [n for n, on in (("input_norm.", config["norm_before_fc"]), ("fc_norm.", config["fc_norm"])) if not on]
    return [n for n in weights_of(kind) if not n.startswith(tuple(unread))]


CASES = cases()
ITEM = tiny.sequence(61, 15, 4)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    if not PYTHON.exists():
        pytest.skip("no .venv-sglang here: `make sglang-env` makes it (2.8 GB, 2 minutes)")
    folder = tmp_path_factory.mktemp("sglang")
    rows = next(chunks([ITEM], STEPS)).rows.tolist()
    asked = {name: case | {"steps": STEPS, "rows": rows, "names": names_read(case["weights"], case["config"])} for name, case in CASES.items()}
    tensors = {f"{kind}/{n}": w.contiguous() for kind in ("llama", "mla", "deep") for n, w in weights_of(kind).items()}
    tensors |= {"planes": torch.stack([ITEM.planes[n] for n in NAMES]).float(), "ids": ITEM.input_ids}
    save_file(tensors, folder / "in.safetensors", metadata={"cases": json.dumps(asked)})
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", Path(__file__).with_name("sglang_worker.py"), folder / "in.safetensors", folder / "out.safetensors"], capture_output=True, text=True, timeout=300, cwd=folder,
        env={**keep, "PYTHONPATH": str(STANDIN), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-3000:]
    with safe_open(folder / "out.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def ours(case, **changes):
    """Logits [R, STEPS, Vd] and target ids [R, STEPS] of chains that feed their own tokens."""
    config = case["config"]
    flags = DraftFlags(False, config["norm_before_fc"], config["fc_norm"], config["norm_output"])
    model = build(weights_of(case["weights"]), heads=tiny.HEADS, kv_heads=config["num_key_value_heads"], head_dim=None if case["weights"] == "mla" else tiny.DIM, target_hidden=tiny.TARGET,
                  eps=tiny.EPS, rope=Rope(config["rope_theta"], config["rope_scaling"], 1.0, "test"), flags=flags, max_positions=1024, **changes)
    chunk = next(chunks([ITEM], STEPS))
    hidden = Projections(model, chunk.planes(NAMES)).hidden(NAMES, norm_before_fc=flags.norm_before_fc, fc_norm=flags.fc_norm)
    logits = [rms_norm(h, model.norm, model.eps) @ model.head.T for h in states(model, chunk, hidden, STEPS, own=model.target_ids())]
    return torch.stack(logits, 1), model.target_ids()[unroll(model, chunk, hidden, STEPS, own=model.target_ids())]


def difference(theirs, name, **changes):
    logits, drafts = ours(CASES[name], **changes)
    expected = theirs[f"logits/{name}"]
    assert expected.shape == logits.shape and len(logits) >= 10
    return float((logits - expected).abs().max() / expected.abs().max()), torch.equal(drafts, theirs[f"drafts/{name}"])


@pytest.mark.parametrize("name", CASES)
def test_logits_and_tokens_are_those_of_the_engine(theirs, name):
    error, same_tokens = difference(theirs, name)
    assert error < TOLERANCE and same_tokens


def test_a_wrong_rotary_layout_is_seen(theirs):
    assert difference(theirs, "mla 000", interleaved=False)[0] > 100 * TOLERANCE
