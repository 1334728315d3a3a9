"""The vocabulary map, widths and inventory: valid maps pass however they look, broken ones are named."""

from dataclasses import replace

import pytest
import torch

from eagle_forensics.config.checkpoint import checkpoint_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import papers
from tests.evidence import builders


def findings(folder, **changed):
    weights = builders.head() | {k: v for k, v in changed.items() if v is not None}
    for gone in [k for k, v in changed.items() if v is None]:
        weights.pop(gone)
    return {f.id: f for f in checkpoint_findings(inspect(papers(folder, weights=weights)))}


def mapped(image: list[int], vocab: int = builders.V) -> dict[str, torch.Tensor]:
    image = torch.tensor(image)
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[image] = True
    return {"d2t": image - torch.arange(len(image)), "t2d": t2d}


def test_a_map_onto_every_second_token_is_valid_although_d2t_is_arange(tmp_path):
    """Known case A08, first file: judge by the identity, not by the look."""
    maps = {"d2t": torch.arange(24), "t2d": torch.arange(48) % 2 == 0, "lm_head.weight": builders.weights(24, builders.H)}
    item = findings(tmp_path, **maps)["config.vocabulary"]
    assert item.status is Status.PASS, item.statement


def test_the_same_map_with_another_t2d_is_wrong(tmp_path):
    """Known case A08, second file."""
    maps = {"d2t": torch.arange(24), "t2d": torch.arange(48) < 24, "lm_head.weight": builders.weights(24, builders.H)}
    assert findings(tmp_path, **maps)["config.vocabulary"].fault == "vocab.map-semantics"


def test_absolute_ids_are_recognised(tmp_path):
    image = list(range(5, 5 + builders.VD))
    item = findings(tmp_path, **(mapped(image) | {"d2t": torch.tensor(image)}))["config.vocabulary"]
    assert item.fault == "vocab.map-semantics" and "absolute" in item.statement and "target_id - i" in item.remedy


@pytest.mark.parametrize(("rows", "status"), [(151643, Status.INCONCLUSIVE), (100000, Status.FAIL)])
def test_padding_is_no_missing_map_though_the_config_states_it(tmp_path, rows, status):
    found = inspect(papers(tmp_path, weights={n: w for n, w in builders.head().items() if n not in ("d2t", "t2d")}))
    head = replace(found.draft.tensors["lm_head.weight"], shape=(rows, builders.H))
    draft = replace(found.draft, vocab=152064, config=found.draft.config | {"draft_vocab_size": rows}, tensors=found.draft.tensors | {"lm_head.weight": head})
    item = next(f for f in checkpoint_findings(replace(found, draft=draft)) if f.id == "config.vocabulary")
    assert item.status is status


def test_a_missing_map_is_named(tmp_path):
    """Known case A07."""
    item = findings(tmp_path, d2t=None, t2d=None)["config.vocabulary"]
    assert item.fault == "vocab.map-missing" and (item.observed, item.expected) == (builders.VD, builders.V)


@pytest.mark.parametrize("image", [list(range(builders.VD)), list(range(10, 10 + builders.VD))])
def test_healthy_maps_pass(tmp_path, image):
    assert findings(tmp_path, **mapped(image))["config.vocabulary"].status is Status.PASS


def test_fc_of_another_width_than_the_captured_planes(tmp_path):
    item = findings(tmp_path, **mapped(list(range(builders.VD))), **{"fc.weight": builders.weights(builders.H, 2 * builders.H)})["config.fc-width"]
    assert item.fault == "wiring.plane-count" and "2 planes" in item.statement


def test_fc_over_all_layers(tmp_path):
    item = findings(tmp_path, **{"fc.weight": builders.weights(builders.H, 31 * builders.H)})["config.fc-width"]
    assert item.fault == "wiring.all-layers"


def test_layers_0_is_dropped_by_old_releases(tmp_path):
    weights = {**builders.head("layers.0."), **mapped(list(range(builders.VD)))}
    old = {f.id: f for f in checkpoint_findings(inspect(papers(tmp_path / "old", weights=weights, version="0.5.9")))}
    new = {f.id: f for f in checkpoint_findings(inspect(papers(tmp_path / "new", weights=weights, version="0.5.23")))}
    assert old["config.inventory"].fault == "load.tensor-inventory"
    assert new["config.inventory"].status is Status.PASS


PARTS = sorted(set(builders.head()) - {"d2t", "t2d", "lm_head.weight", "embed_tokens.weight"})


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.9"), ("sglang", "0.5.23"), ("vllm", "0.32.0")])
@pytest.mark.parametrize("gone", PARTS)
def test_every_tensor_of_a_head_is_needed(tmp_path, gone, engine, version):
    """Also a third of a fused module: q_proj fills rows of qkv_proj that nothing else fills."""
    weights = {k: v for k, v in builders.head().items() if k != gone}
    item = {f.id: f for f in checkpoint_findings(inspect(papers(tmp_path, weights=weights, engine=engine, version=version)))}["config.inventory"]
    assert item.status is Status.FAIL and item.fault == "load.tensor-inventory" and version in item.statement
    assert len(item.observed) == 1 and gone.removesuffix(".weight").rpartition(".")[2] in item.observed[0]


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.32.0")])
@pytest.mark.parametrize("gone", ["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj", "kv_a_layernorm", "up_proj", None])
def test_every_tensor_of_a_latent_head_is_needed(tmp_path, gone, engine, version):
    weights = {k: v for k, v in builders.mla_head().items() if gone is None or f".{gone}." not in k}
    case = papers(tmp_path, weights=weights, engine=engine, version=version, draft=builders.MLA | {"model_type": "kimi_k2"})
    item = {f.id: f for f in checkpoint_findings(inspect(case))}["config.inventory"]
    assert item.status is (Status.PASS if gone is None else Status.FAIL), item.statement
    assert gone is None or any(gone in name for name in item.observed)


@pytest.mark.parametrize("gone", [None, "q_proj"])
def test_the_parts_of_a_quantized_head_count_as_their_modules(tmp_path, gone):
    """A quantized export names qweight and scales where the plain one names weight."""
    weights = {}
    for name, tensor in builders.head().items():
        quantized = name.endswith("_proj.weight")
        weights |= {name.removesuffix("weight") + part: tensor.clone() for part in ("qweight", "scales")} if quantized else {name: tensor}
    weights = {k: v for k, v in weights.items() if gone is None or f".{gone}." not in k}
    item = {f.id: f for f in checkpoint_findings(inspect(papers(tmp_path, weights=weights, draft={"quantization_config": {"quant_method": "awq"}})))}["config.inventory"]
    assert item.status is (Status.FAIL if gone else Status.PASS), item.statement


def test_names_of_another_world_are_an_inventory_of_nothing(tmp_path):
    item = {f.id: f for f in checkpoint_findings(inspect(papers(tmp_path, weights={"transformer.wte": builders.weights(4, 4)})))}["config.inventory"]
    assert item.status is Status.FAIL and "model.fc.weight" in item.observed


def test_no_weights_no_verdict(tmp_path):
    assert [f.status for f in checkpoint_findings(inspect(papers(tmp_path)))] == [Status.SKIPPED]


@pytest.mark.parametrize(("taken", "status"), [("i + d2t[i]", Status.PASS), ("d2t[i]", Status.FAIL), ("i", Status.FAIL), ("none", Status.PASS)])
def test_rows_of_the_head_tell_how_the_map_was_meant(tmp_path, taken, status):
    """A pruned head whose rows were taken at d2t instead of i + d2t passes every check of the map alone; an own head fits none and is no fault."""
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(builders.V, builders.H, generator=draw)
    image = torch.arange(2, 2 + builders.VD) + (torch.arange(builders.VD) > 9) * 7
    ids = {"i + d2t[i]": image, "d2t[i]": image - torch.arange(builders.VD), "i": torch.arange(builders.VD)}.get(taken)
    head = torch.randn(builders.VD, builders.H, generator=draw) if ids is None else table[ids] + 0.1 * torch.randn(builders.VD, builders.H, generator=draw)
    weights = builders.head() | mapped(image.tolist()) | {"lm_head.weight": head.bfloat16()}
    found = inspect(papers(tmp_path, weights=weights, target_weights={"lm_head.weight": table.bfloat16()}))
    item = {f.id: f for f in checkpoint_findings(found)}["config.vocabulary"]
    assert item.status is status, item.statement
    assert status is Status.PASS or (item.fault == "vocab.map-semantics" and f"at {taken}" in item.statement)


def test_a_head_of_a_padded_vocabulary_is_not_accused(tmp_path):
    """Qwen's vocabularies are padded: 151,936 rows for 152,064. Fewer rows without a stated draft vocabulary are no missing map."""
    rows = builders.V - 2
    weights = builders.head() | {"lm_head.weight": builders.weights(rows, builders.H)}
    weights.pop("d2t"), weights.pop("t2d")
    found = inspect(papers(tmp_path, weights=weights, draft={"draft_vocab_size": None}))
    item = next(f for f in checkpoint_findings(found) if f.id == "config.vocabulary")
    assert item.status is Status.INCONCLUSIVE and not item.required
