"""Layer ids to boundaries: every worked example with its right value, and the way back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eagle_forensics.engines.layers import resolve_layers

CRASH = None
DEEPSEEK, OLD_DEEPSEEK = "deepseek_v3", "0.5.9"

# model type, L, version, ids, eager, graph
SGLANG = [
    # L = 61, DeepSeek-V3 and Kimi
    ("deepseek_v3", 61, "0.5.9", None, (2, 30, 58), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.9", (2, 30, 58), (3, 31, 59), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.10.post1", (2, 30, 58), (3, 31, 59), (2, 30, 58)),
    ("kimi_k25", 61, "0.5.10", (2, 30, 58), (3, 31, 59), (2, 30, 58)),
    ("kimi_k25", 61, "0.5.9", (2, 30, 58), CRASH, CRASH),
    ("deepseek_v3", 61, "0.5.11", (2, 30, 58), (3, 31, 59), (3, 31, 59)),
    ("kimi_k25", 61, "0.5.12.post1", (2, 30, 58), (3, 31, 59), (3, 31, 59)),
    ("kimi_k2", 61, "0.5.13", (2, 30, 58), (2, 30, 58), (2, 30, 58)),
    ("kimi_k25", 61, "0.5.23", (2, 30, 58), (2, 30, 58), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.9", (1, 29, 57), (2, 30, 58), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.12.post1", (1, 29, 57), (2, 30, 58), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.13", (1, 29, 57), (2, 30, 58), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.23", (1, 30, 58), (2, 31, 59), (2, 31, 59)),
    ("deepseek_v3", 61, "0.5.9", (3, 31, 59), (4, 32, 60), (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.11", (3, 31, 59), (4, 32, 60), (4, 32, 60)),
    ("deepseek_v3", 61, "0.5.13", (3, 31, 59), (3, 31, 59), (3, 31, 59)),
    ("deepseek_v3", 61, "0.5.9", (-1, 2, 30), CRASH, (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.11", (-1, 2, 30), CRASH, CRASH),
    ("deepseek_v3", 61, "0.5.13", (-1, 2, 30), CRASH, CRASH),
    ("deepseek_v3", 61, "0.5.9", (2, 30, 60), CRASH, (2, 30, 58)),
    ("deepseek_v3", 61, "0.5.13", (2, 30, 60), (2, 30, 60), (2, 30, 60)),
    ("deepseek_v3", 61, "0.5.23", (24, 30, 61), CRASH, CRASH),
    # L = 32, Llama-3.1-8B
    ("llama", 32, "0.5.9", None, (2, 16, 29), (2, 16, 29)),
    ("llama", 32, "0.5.9", (1, 15, 28), (2, 16, 29), (2, 16, 29)),
    ("llama", 32, "0.5.10.post1", (2, 16, 29), (3, 17, 30), (2, 16, 29)),
    ("llama", 32, "0.5.23", (2, 16, 29), (3, 17, 30), (3, 17, 30)),
    ("llama", 32, "0.5.23", (3, 17, 30), (4, 18, 31), (4, 18, 31)),
    ("llama", 32, "0.4.6.post5", (3, 17, 30), (2, 16, 29), (2, 16, 29)),
    # L = 36, Qwen3-8B and gpt-oss-120b
    ("qwen3", 36, "0.5.23", None, (2, 18, 33), (2, 18, 33)),
    ("qwen3", 36, "0.5.23", (1, 17, 32), (2, 18, 33), (2, 18, 33)),
    ("gpt_oss", 36, "0.5.17", (1, 17, 33), (2, 18, 34), (2, 18, 34)),
    ("gpt_oss", 36, "0.5.16", (2, 18, 33), (3, 19, 34), (3, 19, 34)),
    ("gpt_oss", 36, "0.5.17", (24, 30, 36), (24, 30, 36), (24, 30, 36)),
    ("gpt_oss", 36, "0.5.16", (24, 30, 36), CRASH, CRASH),
    ("qwen3", 36, "0.5.23", (24, 30, 36), CRASH, CRASH),
    # the demo's target, L = 30: the embedding is served where the mechanism has it
    ("llama", 30, "0.5.23", (1, 14, 26), (2, 15, 27), (2, 15, 27)),
    ("llama", 30, "0.5.23", (-1, 1, 14), (0, 2, 15), (0, 2, 15)),
    ("llama", 30, "0.5.21", (-1, 1, 14), CRASH, CRASH),
    ("qwen3", 36, "0.5.9", (-1, 1, 14), (0, 2, 15), (2, 18, 33)),
    # the one family whose default is raised too; depths of other published heads
    ("minimax_m3_vl", 61, "0.5.23", None, (3, 31, 59), (3, 31, 59)),
    ("qwen3_moe", 94, "0.5.8", (1, 46, 90), (2, 47, 91), (2, 47, 91)),
    ("llama4", 48, "0.5.23", (1, 23, 44), (2, 24, 45), (2, 24, 45)),
]


@pytest.mark.parametrize(("model_type", "layers", "version", "ids", "eager", "graph"), SGLANG)
def test_sglang_captures(model_type, layers, version, ids, eager, graph):
    answer = resolve_layers("sglang", version, model_type=model_type, layers=layers, ids=ids)
    assert answer.boundaries == {"eager": eager, "graph": graph}
    assert (answer.error is None) == (eager is not CRASH and graph is not CRASH)
    assert not answer.assumed


# L, runner, version, place, ids, boundaries
VLLM = [
    (61, "v1", "0.10.0", "top_level", (1, 29, 57), (2, 30, 58)),
    (61, "v1", "0.20.2", "top_level", (1, 29, 57), (1, 29, 57)),
    (61, "v1", "0.20.2", "nested", (1, 29, 57), (2, 30, 58)),
    (61, "v1", "0.22.1", "nested", (1, 29, 57), (1, 29, 57)),
    (61, "v1", "0.33.0", "nested", (3, 31, 59), (3, 31, 59)),
    (61, "v2", "0.33.0", "nested", (3, 31, 59), (2, 30, 58)),
    (61, "v2", "0.33.0", "top_level", (3, 31, 59), (3, 31, 59)),
    (61, "v2", "0.26.0", "nested_layer_ids", (3, 31, 59), (2, 30, 58)),
    (61, "v2", "0.28.0", "nested_layer_ids", (3, 31, 59), (3, 31, 59)),
    (61, "v1", "0.28.0", "nested_layer_ids", (3, 31, 59), (2, 30, 58)),
    (61, "v1", "0.33.0", "nested", (-1, 2, 30), CRASH),
    (61, "v2", "0.33.0", "nested", (-1, 2, 30), (2, 30, 58)),
    (61, "v2", "0.33.0", "top_level", (-1, 2, 30), CRASH),
    (32, "v2", "0.33.0", "top_level", (2, 16, 29), (2, 16, 29)),
    (32, "v1", "0.33.0", "nested", (1, 15, 28), (1, 15, 28)),
    (32, "v1", "0.33.0", "top_level", None, (2, 16, 29)),
    (30, "v1", "0.32.0", "nested", (1, 14, 26), (1, 14, 26)),
    (30, "v2", "0.32.0", "nested", (1, 14, 26), (2, 15, 27)),
    (30, "v1", "0.32.0", "top_level", (0, 2, 30), (0, 2, 30)),
    (30, "v1", "0.16.0", "top_level", (0, 2, 15), CRASH),
    (30, "v1", "0.16.0", "top_level", (2, 15, 30), CRASH),
]


@pytest.mark.parametrize(("layers", "runner", "version", "place", "ids", "boundaries"), VLLM)
def test_vllm_captures(layers, runner, version, place, ids, boundaries):
    answer = resolve_layers("vllm", version, model_type="llama", layers=layers, ids=ids, place=place, runner=runner)
    assert answer.boundaries["eager"] == answer.boundaries["graph"] == boundaries
    assert (answer.error is None) == (boundaries is not CRASH)


@pytest.mark.parametrize(("version", "ids", "boundaries", "error"), [
    ("0.33.0", (0, 30, 58), CRASH, "TypeError"),
    ("0.24.0", (24, 30, 61), CRASH, "never captured: [61]"),
    ("0.26.0", (24, 30, 61), (24, 30, 61), None),
    ("0.16.0", (2, 30, 58), CRASH, "does not support EAGLE3"),
])
def test_vllm_deepseek_targets_differ(version, ids, boundaries, error):
    answer = resolve_layers("vllm", version, model_type="deepseek_v3", layers=61, ids=ids, runner="v1")
    assert answer.boundaries["eager"] == boundaries
    assert (error is None and answer.error is None) or error in answer.error


def test_importing_the_resolver_stays_light():
    code = (
        "import sys, eagle_forensics.engines.layers\n"
        "heavy = {'torch', 'pandas', 'pydantic', 'numpy', 'yaml'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
