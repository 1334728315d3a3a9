"""Layer conventions, table by table: one list of ids in every engine, release and runner, and the lists of every producer.

Each row is one id list, each column one way of serving it; a pair is (eager, graph). None: the server crashes or the planes do not fit.
"""

from __future__ import annotations

import itertools

import pytest

from eagle_forensics.engines.layers import resolve_layers, write_ids
from eagle_forensics.engines.trainers import trained_boundaries

OLD, MIDDLE, NEW = ("0.4.9.post6", "0.5.10.post1"), ("0.5.11", "0.5.12.post1"), ("0.5.13", "0.5.23")
VLLM_V1, VLLM_V2, VLLM = ("0.22.0", "0.33.0"), ("0.18.1", "0.33.0"), ("0.25.0", "0.33.0")
D61, D32, D36 = (2, 30, 58), (2, 16, 29), (2, 18, 33)


def served(engine, version, model_type, layers, ids, **where):
    answer = resolve_layers(engine, version, model_type=model_type, layers=layers, ids=ids, **where)
    assert (answer.error is None) == (None not in answer.boundaries.values())
    return answer.boundaries["eager"], answer.boundaries["graph"]


# L = 61, DeepSeek-V3 and Kimi: ids, SGLang to 0.5.10.post1 (eager, graph), 0.5.11 to 0.5.12.post1, from 0.5.13, vLLM V1 nested, V2 nested, top level
L61 = [
    (None, (D61, D61), D61, D61, D61, D61, D61),
    ((2, 30, 58), ((3, 31, 59), D61), (3, 31, 59), D61, D61, D61, D61),
    ((1, 29, 57), (D61, D61), D61, D61, (1, 29, 57), D61, (1, 29, 57)),
    ((3, 31, 59), ((4, 32, 60), D61), (4, 32, 60), (3, 31, 59), (3, 31, 59), D61, (3, 31, 59)),
    ((-1, 2, 30), (None, D61), None, None, None, D61, None),
    ((2, 30, 60), (None, D61), None, (2, 30, 60), (2, 30, 60), D61, (2, 30, 60)),
    ((24, 30, 61), (None, D61), None, None, (24, 30, 61), D61, (24, 30, 61)),
]


@pytest.mark.parametrize(("ids", "old", "middle", "new", "v1", "v2", "top"), L61)
def test_61_layers_deepseek(ids, old, middle, new, v1, v2, top):
    def both(item):
        return item, item

    for version in ("0.5.4.post3", "0.5.9", "0.5.10.post1"):  # the class can capture from 0.5.4.post2 on
        assert served("sglang", version, "deepseek_v3", 61, ids) == old, version
    for version, expected in ((*itertools.product(MIDDLE, [middle]), *itertools.product(NEW, [new]))):
        for model_type in ("deepseek_v3", "kimi_k2", "kimi_k25"):
            assert served("sglang", version, model_type, 61, ids) == both(expected), (version, model_type)
    for version in VLLM:
        assert served("vllm", version, "deepseek_v3", 61, ids, place="nested", runner="v1") == both(v1), version
        assert served("vllm", version, "deepseek_v3", 61, ids, place="top_level", runner="v1") == both(top), version
        assert served("vllm", version, "deepseek_v3", 61, ids, place="top_level", runner="v2") == both(top), version
    for version in VLLM_V2:
        assert served("vllm", version, "deepseek_v3", 61, ids, place="nested", runner="v2") == both(v2), version


# L = 32, Llama-3.1-8B: ids, SGLang eager (graph: default to 0.5.10.post1, then as eager), vLLM top level and V1 nested, V2 nested
L32 = [
    (None, D32, D32, D32), ((1, 15, 28), D32, (1, 15, 28), D32), ((2, 16, 29), (3, 17, 30), D32, D32), ((3, 17, 30), (4, 18, 31), (3, 17, 30), D32)]


@pytest.mark.parametrize(("ids", "sglang", "read", "unread"), L32)
def test_32_layers_llama(ids, sglang, read, unread):
    for version in OLD:
        assert served("sglang", version, "llama", 32, ids) == (sglang, D32), version
    for version in (*MIDDLE, *NEW):
        assert served("sglang", version, "llama", 32, ids) == (sglang, sglang), version
    _vllm("llama", 32, ids, read, unread)


# L = 36: ids, SGLang qwen3 (eager), gpt-oss from 0.5.17, gpt-oss before, vLLM top level and V1 nested, V2 nested
L36 = [
    (None, D36, D36, D36, D36, D36),
    ((1, 17, 32), D36, D36, D36, (1, 17, 32), D36),
    ((1, 17, 33), (2, 18, 34), (2, 18, 34), (2, 18, 34), (1, 17, 33), D36),
    ((2, 18, 33), (3, 19, 34), (3, 19, 34), (3, 19, 34), D36, D36),
    ((24, 30, 36), None, (24, 30, 36), None, (24, 30, 36), D36),
]


@pytest.mark.parametrize(("ids", "qwen3", "gpt_oss", "gpt_oss_before", "read", "unread"), L36)
def test_36_layers_qwen3_and_gpt_oss(ids, qwen3, gpt_oss, gpt_oss_before, read, unread):
    for version in OLD:
        assert served("sglang", version, "qwen3", 36, ids) == (qwen3, D36), version
    for version in (*MIDDLE, *NEW):
        assert served("sglang", version, "qwen3", 36, ids) == (qwen3, qwen3), version
    for version, expected in (("0.5.11", gpt_oss_before), ("0.5.16", gpt_oss_before), ("0.5.17", gpt_oss), ("0.5.23", gpt_oss)):
        assert served("sglang", version, "gpt_oss", 36, ids) == (expected, expected), version
    for model_type in ("qwen3", "gpt_oss"):
        _vllm(model_type, 36, ids, read, unread)


def _vllm(model_type, layers, ids, read, unread):
    for version in VLLM_V1:
        assert served("vllm", version, model_type, layers, ids, place="nested", runner="v1") == (read, read), version
        assert served("vllm", version, model_type, layers, ids, place="top_level", runner="v1") == (read, read), version
    for version in VLLM_V2:
        assert served("vllm", version, model_type, layers, ids, place="top_level", runner="v2") == (read, read), version
        assert served("vllm", version, model_type, layers, ids, place="nested", runner="v2") == (unread, unread), version


@pytest.mark.parametrize("version", ["0.4.9", "0.5.9", "0.5.23"])
def test_top_level_ids_never_reach_sglang(version):
    assert served("sglang", version, "llama", 32, (1, 15, 28), place="top_level")[0] == D32


def test_the_first_sglang_with_eagle3_reads_no_ids():
    assert served("sglang", "0.4.6.post5", "llama", 32, (1, 15, 28)) == (D32, D32)


@pytest.mark.parametrize(("version", "ids", "graph_too"), [
    ("0.5.9", (2, 30, 58), False), ("0.5.10.post1", (2, 30, 58), False), ("0.5.11", (2, 30, 58), True), ("0.5.12.post1", (2, 30, 58), True),
    ("0.5.13", (3, 31, 59), True), ("0.5.23", (3, 31, 59), True)])
def test_serving_a_drafter_trained_on_3_31_59_with_sglang(version, ids, graph_too):
    trained = (3, 31, 59)
    written = write_ids("sglang", version, model_type="deepseek_v3", layers=61, boundaries=trained)
    assert written.ids == ids and written.key == "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert any("--disable-cuda-graph" in note for note in written.notes) is not graph_too
    assert served("sglang", version, "deepseek_v3", 61, ids) == (trained, trained if graph_too else D61)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_serving_a_drafter_trained_on_3_31_59_with_vllm(runner):
    written = write_ids("vllm", "0.33.0", model_type="deepseek_v3", layers=61, boundaries=(3, 31, 59), runner=runner)
    assert written.ids == (3, 31, 59) and written.key == "eagle_aux_hidden_state_layer_ids"


def test_no_single_list_is_right_everywhere():
    lists = {write_ids(*where, model_type="deepseek_v3", layers=61, boundaries=(3, 31, 59)).ids for where in (("sglang", "0.5.12"), ("sglang", "0.5.13"), ("vllm", "0.33.0"))}
    assert lists == {(2, 30, 58), (3, 31, 59)}


# producer, version, L, ids, aux boundaries, last plane (index, after the norm)
PRODUCERS = [
    ("eagle", None, 61, None, D61, None), ("specforge", None, 61, (1, 29, 57), D61, (61, True)), ("modelopt", None, 61, (1, 29, 57), D61, (61, True)),
    ("torchspec", None, 61, (1, 29, 57), D61, (61, True)), ("angelslim", None, 61, (1, 29, 57), D61, (61, True)),
    ("speculators", "0.4.0", 61, (2, 30, 58, 60), (3, 31, 59), (61, False)), ("speculators", "0.5.0", 61, (2, 30, 58, 61), D61, (61, False)),
    ("modelopt-vllm", None, 61, (2, 30, 58), D61, (61, False)), ("modelopt-vllm", None, 61, None, (1, 29, 57), (61, False)),
    ("speculators", "0.4.0", 32, (2, 16, 29, 31), (3, 17, 30), (32, False)), ("speculators", "0.4.0", 36, (2, 18, 33, 35), (3, 19, 34), (36, False)),
    ("speculators", "0.4.0", 80, None, (3, 41, 78), (80, False)), ("speculators", "0.5.0", 80, None, (2, 40, 77), (80, False)),
    ("specforge", None, 94, (1, 46, 90), (2, 47, 91), (94, True)), ("modelopt", None, 48, (1, 23, 44), (2, 24, 45), (48, True)),
    ("trtllm", None, 61, None, D61, (61, True)), ("nemo", None, 61, (1, 29, 57), D61, None),
]


@pytest.mark.parametrize(("trainer", "version", "layers", "ids", "boundaries", "last"), PRODUCERS)
def test_producers(trainer, version, layers, ids, boundaries, last):
    answer = trained_boundaries(trainer, version, ids=ids, layers=layers)
    assert answer.boundaries == boundaries
    assert (None if answer.last is None else (answer.last.index, answer.last.normed)) == last


def test_the_incident_in_one_coordinate():
    """Trained on {3, 31, 59}; ids [2, 30, 58] near 0.5.8 are right in prefill and one layer early in every decode step."""
    assert served("sglang", "0.5.9", "deepseek_v3", 61, (2, 30, 58)) == ((3, 31, 59), D61)
    patched = resolve_layers("sglang", "0.5.9", model_type="deepseek_v3", layers=61, ids=(-1, 2, 30))
    assert patched.values["eager"] == (0, 3, 31) and "TypeError" in patched.error


def test_maverick_is_served_as_its_producer_meant_it():
    trained = trained_boundaries("modelopt", ids=(1, 23, 44), layers=48).boundaries
    assert served("sglang", "0.5.23", "llama4", 48, (1, 23, 44))[0] == trained
    assert write_ids("vllm", "0.33.0", model_type="llama4", layers=48, boundaries=trained).ids == (2, 24, 45)
