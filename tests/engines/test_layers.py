"""Layer ids to boundaries: every worked example with its right value, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_forensics.engines import sglang, vllm
from eagle_forensics.engines.layers import resolve_layers, write_ids
from eagle_forensics.evidence.records import ClaimedIds

CRASH = None

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
    (61, "v1", "0.21.0", "nested", (1, 29, 57), (2, 30, 58)),
    (61, "v1", "0.22.0", "nested", (1, 29, 57), (1, 29, 57)),
    (61, "v2", "0.17.0", "top_level", (1, 29, 57), (1, 29, 57)),
    (61, "v2", "0.27.0", "nested_layer_ids", (3, 31, 59), (3, 31, 59)),
    (30, "v1", "0.17.1", "top_level", (0, 2, 15), CRASH),
    (30, "v1", "0.18.0", "top_level", (0, 2, 15), (0, 2, 15)),
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
    ("0.25.0", (24, 30, 61), (24, 30, 61), None),
    ("0.17.1", (2, 30, 58), CRASH, "does not support EAGLE3"),
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


def test_one_config_three_versions():
    """ids [2,30,58] of a drafter trained on {3,31,59}: right, half right and wrong, by release."""
    trained = (3, 31, 59)
    old, new = (resolve_layers("sglang", version, model_type="deepseek_v3", layers=61, ids=(2, 30, 58)) for version in ("0.5.8", "0.5.13"))
    assert old.boundaries == {"eager": trained, "graph": (2, 30, 58)}
    assert any("CUDA-graph decode ignores the ids" in note for note in old.notes)
    assert any("upgrade hazard: from sglang 0.5.13 on" in note and "[2, 30, 58] instead of [3, 31, 59]" in note for note in old.notes)
    assert old.write_as["sglang 0.5.13"] == old.write_as["sglang 0.5.23"] == [3, 31, 59]
    assert old.write_as["sglang 0.5.12.post1"] == [2, 30, 58]
    assert old.write_as["vllm 0.33.0"] == [3, 31, 59]
    assert new.boundaries == {"eager": (2, 30, 58), "graph": (2, 30, 58)}


def test_the_id_minus_one():
    old, new = (resolve_layers("sglang", version, model_type="deepseek_v3", layers=61, ids=(-1, 2, 30)) for version in ("0.5.8", "0.5.13"))
    assert old.values["eager"] == old.reached["eager"] == (0, 3, 31)
    assert "TypeError" in old.error and old.error.startswith("eager path:")
    assert new.values["eager"] == (-1, 2, 30) and new.reached["eager"] == (2, 30)
    assert "2 planes captured (2 x H) for an fc built for 3" in new.error and "never captured: [-1]" in new.error


def test_a_missing_plane_is_the_packers_error_from_0_5_17():
    answer = resolve_layers("sglang", "0.5.23", model_type="deepseek_v3", layers=61, ids=(24, 30, 61))
    assert answer.error == "RuntimeError: captured 2 of 3 aux hidden states; never captured: [61]"


def test_gpt_oss_ids_that_end_in_the_last_boundary():
    answer = resolve_layers("sglang", "0.5.16", model_type="gpt_oss", layers=36, ids=(24, 30, 36))
    assert answer.values["eager"] == (25, 31, 37) and answer.reached["eager"] == (25, 31)
    assert resolve_layers("sglang", "0.5.17", model_type="gpt_oss", layers=36, ids=(24, 30, 36)).boundaries["graph"] == (24, 30, 36)


def test_a_class_without_a_setter_says_what_a_patched_engine_would_do():
    answer = resolve_layers("sglang", "0.5.9", model_type="kimi_k25", layers=61, ids=(2, 30, 58))
    assert answer.values == {"eager": (3, 31, 59), "graph": (2, 30, 58)}
    assert answer.error.startswith("AttributeError")
    newest = resolve_layers("sglang", "0.5.23", model_type="x", architecture="Glm4MoeLiteForCausalLM", layers=47, ids=(1, 22, 43))
    assert newest.boundaries["eager"] == (2, 23, 44)


def test_flag_based_classes_flag_the_last_layer_for_minus_one():
    answer = resolve_layers("sglang", "0.5.23", model_type="qwen3_moe", layers=48, ids=(-2, 1, 20))
    assert answer.reached["eager"] == (2, 21, 47)
    assert "IndexError" in resolve_layers("sglang", "0.5.23", model_type="qwen3_moe", layers=48, ids=(1, 20, 47)).error


@pytest.mark.parametrize(("engine", "version", "runner"), [("sglang", "0.5.9", None), ("sglang", "0.5.23", None), ("vllm", "0.33.0", "v1")])
@pytest.mark.parametrize(("ids", "text"), [
    (("1", 14, 26), "must be integers"), ((1.5, 14, 26), "must be integers"), ((None, 1, 2), "must be integers"), (([1], 2, 3), "must be integers"),
    ((True, 14, 26), "must be integers"), ((1, 1, 14), "planes captured"), ((-9, 14, 26), "planes captured"), ((1, 14, 99), "planes captured"),
])
def test_bad_ids_become_an_error_text(engine, version, runner, ids, text):
    answer = resolve_layers(engine, version, model_type="llama", layers=30, ids=ids, runner=runner)
    assert text in answer.error and answer.boundaries["eager"] is None
    json.dumps(answer.to_json())


def test_the_order_of_the_list_is_ignored_and_said():
    answer = resolve_layers("sglang", "0.5.23", model_type="llama", layers=30, ids=(26, 14, 1))
    assert answer.boundaries["eager"] == (2, 15, 27)
    assert any("order of the list is ignored" in note for note in answer.notes)


@pytest.mark.parametrize(("claimed", "read_from", "note"), [
    (ClaimedIds(top_level=(3, 31, 59)), "default", "top-level eagle_aux_hidden_state_layer_ids are ignored"),
    (ClaimedIds(eagle_config="malformed"), "default", "eagle_config is not an object"),
    (ClaimedIds(eagle_config="null"), "default", "eagle_config holds no layer ids"),
    (ClaimedIds(nested_layer_ids=(3, 31, 59), eagle_config="object"), "default", "eagle_config.layer_ids is not read"),
    (ClaimedIds(nested=(1, 29, 57), top_level=(3, 31, 59), eagle_config="object"), "nested", "every id is raised by one"),
])
def test_where_sglang_reads_ids(claimed, read_from, note):
    answer = resolve_layers("sglang", "0.5.9", model_type="deepseek_v3", layers=61, claimed=claimed)
    assert answer.read_from == read_from and answer.boundaries["eager"] == (2, 30, 58)
    assert any(note in text for text in answer.notes)


def test_use_aux_hidden_state_false_captures_nothing():
    claimed = ClaimedIds(nested=(2, 30, 58), eagle_config="object", use_aux_hidden_state=False)
    assert resolve_layers("sglang", "0.5.23", model_type="kimi_k2", layers=61, claimed=claimed).boundaries["eager"] == ()
    assert resolve_layers("sglang", "0.5.7", model_type="kimi_k2", layers=61, claimed=claimed).boundaries["eager"] == (3, 31, 59)
    assert resolve_layers("vllm", "0.33.0", model_type="kimi_k2", layers=61, claimed=claimed).boundaries["eager"] == ()


def test_vllm_default_runner_and_the_note_on_the_other_one():
    nested = ClaimedIds(nested=(1, 29, 57), eagle_config="object")
    old, new = (resolve_layers("vllm", version, model_type="kimi_k25", layers=61, claimed=nested) for version in ("0.28.0", "0.29.0"))
    assert (old.runner, old.boundaries["eager"]) == ("v1", (1, 29, 57))
    assert (new.runner, new.boundaries["eager"]) == ("v2", (2, 30, 58))
    assert any("V1 runner would read [1, 29, 57]" in note for note in new.notes)
    assert any("upgrade hazard: from vllm 0.29.0 on" in note for note in old.notes)


@pytest.mark.parametrize(("version", "model_type", "runner"), [
    ("0.21.0", "qwen3", "v1"), ("0.22.0", "qwen3", "v2"), ("0.22.1", "llama", "v1"), ("0.23.0", "llama", "v2"), ("0.24.0", "qwen2", "v1"),
    ("0.25.0", "qwen2", "v2"), ("0.28.0", "qwen3_moe", "v1"), ("0.29.0", "qwen3_moe", "v2"),
])
def test_vllm_default_runner_by_release(version, model_type, runner):
    assert vllm.default_runner(version, model_type)[0] == runner


@pytest.mark.parametrize(("version", "model_type", "able"), [
    ("0.10.0", "llama", True), ("0.10.0", "qwen3", False), ("0.10.1", "qwen3", True), ("0.10.2", "qwen2", True), ("0.10.2", "gpt_oss", False),
    ("0.11.0", "gpt_oss", True), ("0.11.1", "qwen3_moe", True), ("0.17.1", "arcee", False), ("0.18.0", "arcee", True),
])
def test_vllm_classes_that_can_capture(version, model_type, able):
    answer = resolve_layers("vllm", version, model_type=model_type, layers=36)
    assert (answer.error is None) == able


def test_no_cuda_graph_means_no_graph_path():
    answer = resolve_layers("sglang", "0.5.9", model_type="llama", layers=30, ids=(2, 15, 27), cuda_graph=False)
    assert answer.boundaries == {"eager": (3, 16, 28), "graph": None} and answer.error is None


def test_trtllm_minus_one_is_the_last_layer_after_the_norm():
    answer = resolve_layers("trtllm", "1.0", model_type="llama", layers=30, ids=(-1, 14, 1))
    assert answer.boundaries["eager"] == (2, 15, 30) and answer.post_norm == (30,) and answer.assumed
    assert resolve_layers("tensorrt-llm", "1.0", model_type="llama", layers=30, ids=(1, 14, 77)).error


@pytest.mark.parametrize(("engine", "version", "model_type"), [("sglang", "0.5.24", "llama"), ("sglang", "0.5.23", "nonesuch"), ("vllm", "0.15.0", "llama")])
def test_what_was_not_read_is_marked(engine, version, model_type):
    answer = resolve_layers(engine, version, model_type=model_type, layers=30, ids=(1, 14, 26))
    assert answer.assumed and answer.boundaries["eager"] is not None


@pytest.mark.parametrize("call", [
    lambda: resolve_layers("sglan", "0.5.9", model_type="llama", layers=30),
    lambda: resolve_layers("sglang", "main", model_type="llama", layers=30),
    lambda: resolve_layers("sglang", "0.5.9", model_type="llama", layers=0),
    lambda: resolve_layers("sglang", "0.5.9", model_type="llama", layers=30, ids=(1, 2, 3), place="beside"),
    lambda: resolve_layers("sglang", "0.5.9", model_type="llama", layers=30, ids="1,2,3"),
    lambda: resolve_layers("vllm", "0.33.0", model_type="llama", layers=30, runner="v3"),
    lambda: write_ids("sglang", "latest", model_type="llama", layers=30, boundaries=(2, 15, 27)),
])
def test_a_wrong_question_is_a_value_error(call):
    with pytest.raises(ValueError):
        call()


WRITTEN = [
    ("sglang", "0.5.23", "llama", 30, (2, 15, 27), (1, 14, 26), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.23", "llama", 30, (0, 2, 15), (-1, 1, 14), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.12.post1", "kimi_k25", 61, (3, 31, 59), (2, 30, 58), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.13", "kimi_k25", 61, (3, 31, 59), (3, 31, 59), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.13", "kimi_k2", 61, (1, 29, 57), (29, 57, 1), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.17", "gpt_oss", 36, (24, 30, 36), (24, 30, 36), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("sglang", "0.5.17", "gpt_oss", 36, (2, 18, 33), (1, 17, 32), "eagle_config.eagle_aux_hidden_state_layer_ids"),
    ("vllm", "0.33.0", "llama", 30, (2, 15, 27), (2, 15, 27), "eagle_aux_hidden_state_layer_ids"),
    ("trtllm", "1.0", "llama", 30, (2, 15, 27), (1, 14, 26), "eagle3_layers_to_capture"),
]


@pytest.mark.parametrize(("engine", "version", "model_type", "layers", "boundaries", "ids", "key"), WRITTEN)
def test_what_to_write(engine, version, model_type, layers, boundaries, ids, key):
    answer = write_ids(engine, version, model_type=model_type, layers=layers, boundaries=boundaries)
    assert (answer.ids, answer.key, answer.error) == (ids, key, None)


@pytest.mark.parametrize(("engine", "version", "model_type", "boundaries", "text"), [
    ("sglang", "0.5.21", "llama", (0, 2, 15), "TypeError"), ("sglang", "0.5.23", "llama", (2, 15, 30), "never captured"),
    ("sglang", "0.4.6.post5", "llama", (3, 15, 27), "never reads layer ids"), ("sglang", "0.5.9", "kimi_k25", (2, 15, 27), "cannot capture layers before"),
    ("vllm", "0.10.0", "llama", (3, 15, 27), "never reads layer ids"), ("trtllm", "1.0", "llama", (0, 2, 15), "embedding"),
    ("sglang", "0.5.23", "llama", (2, 2, 15), "distinct integers"), ("sglang", "0.5.23", "llama", (2, 31), "distinct integers"),
])
def test_what_cannot_be_written(engine, version, model_type, boundaries, text):
    answer = write_ids(engine, version, model_type=model_type, layers=30, boundaries=boundaries)
    assert answer.ids is None and text in answer.error


MODEL_TYPES = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3", "kimi_k25", "glm4_moe_lite", "gemma3", "minimax_m3_vl", "nonesuch")
PLACES = st.one_of(
    st.tuples(st.just("sglang"), st.sampled_from(sglang.releases())), st.tuples(st.just("vllm"), st.sampled_from(vllm.releases())))


@given(place=PLACES, model_type=st.sampled_from(MODEL_TYPES), layers=st.integers(6, 70), data=st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_written_is_what_is_captured(place, model_type, layers, data):
    engine, version = place
    wanted = tuple(sorted(data.draw(st.sets(st.integers(0, layers), min_size=1, max_size=4))))
    runner = data.draw(st.sampled_from(("v1", "v2"))) if engine == "vllm" else None
    written = write_ids(engine, version, model_type=model_type, layers=layers, boundaries=wanted, runner=runner)
    if written.error is None:
        answer = resolve_layers(engine, version, model_type=model_type, layers=layers, ids=written.ids, runner=runner)
        assert answer.boundaries["eager"] == wanted
    else:
        assert written.ids is None


@given(place=PLACES, model_type=st.sampled_from(MODEL_TYPES), layers=st.integers(1, 70),
       ids=st.lists(st.one_of(st.integers(-80, 80), st.floats(), st.text(max_size=3), st.none(), st.booleans()), max_size=5),
       where=st.sampled_from(("auto", "nested", "top_level", "nested_layer_ids")))
@settings(max_examples=300, deadline=None)
def test_no_list_makes_the_resolver_fail(place, model_type, layers, ids, where):
    answer = resolve_layers(*place, model_type=model_type, layers=layers, ids=ids, place=where)
    for path, captured in answer.boundaries.items():
        if captured is None:
            assert answer.error is not None
        else:
            assert list(captured) == sorted(set(captured)) and all(0 <= b <= layers for b in captured), path
    json.dumps(answer.to_json())
