"""Loading a drafter from checkpoints, readings of d2t, and the rotary variants against transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_forensics.drafter.network import arithmetic
from eagle_forensics.drafter.network.arithmetic import choose_device, largest
from eagle_forensics.drafter.network.attention import Latent
from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import build, load_drafter
from eagle_forensics.drafter.network.rope import frequencies, rotate, rotation_table
from eagle_forensics.drafter.network.unroll import Chains, chunks, draft_ids
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.records import DraftFlags, Rope
from eagle_forensics.evidence.targets import read_target
from tests.drafter import tiny

PLANES = ("p0", "p1", "p2")


def save(folder, weights, **config):
    folder.mkdir()
    save_file({k: v.contiguous() if v.dtype == torch.int64 else v.float().contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def drafter_folder(tmp_path, weights, **more):
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": tiny.HIDDEN, "target_hidden_size": tiny.TARGET, "num_attention_heads": tiny.HEADS,
              "num_key_value_heads": tiny.KV, "head_dim": tiny.DIM, "num_hidden_layers": 1, "intermediate_size": tiny.FFN, "vocab_size": tiny.VOCAB,
              "draft_vocab_size": tiny.DRAFT_VOCAB, "rms_norm_eps": tiny.EPS}
    return save(tmp_path / "draft", {k.replace("layers.0.", "midlayer."): v for k, v in weights.items()}, **(config | more))


def target_folder(tmp_path, weights, tied=True):
    tensors = {"model.embed_tokens.weight": weights["embed_tokens.weight"], "model.norm.weight": weights["norm.weight"]}
    if not tied:
        tensors["lm_head.weight"] = weights["embed_tokens.weight"] * 2
    return save(tmp_path / "target", tensors, architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=tiny.HIDDEN, num_hidden_layers=2, vocab_size=tiny.VOCAB,
                num_attention_heads=4, rms_norm_eps=tiny.EPS, tie_word_embeddings=tied)


def same_predictions(a, b):
    items = [tiny.sequence(s) for s in range(4)]
    return all((x.predicted == y.predicted).all() for x, y in zip(evaluate(a, items, Wiring(PLANES)).sequences, evaluate(b, items, Wiring(PLANES)).sequences, strict=True))


def test_a_checkpoint_is_the_model_of_its_weights(tmp_path):
    weights = tiny.weights(50, norms=False)
    loaded = load_drafter(read_draft(drafter_folder(tmp_path, weights)), dtype=torch.float64)
    assert same_predictions(loaded, tiny.drafter(weights))
    assert loaded.n_aux == 3 and loaded.target_hidden == tiny.TARGET and loaded.vocab == tiny.VOCAB


def test_embedding_and_head_come_from_the_target_where_the_draft_has_none(tmp_path):
    weights = tiny.weights(51, norms=False)
    bare = {k: v for k, v in weights.items() if k not in ("embed_tokens.weight", "lm_head.weight", "d2t")}
    draft, target = read_draft(drafter_folder(tmp_path, bare)), read_target(target_folder(tmp_path, weights))
    with pytest.raises(ValueError, match=r"2 tensor\(s\) missing: lm_head.weight, embed_tokens.weight"):
        load_drafter(draft)
    loaded = load_drafter(draft, target, dtype=torch.float64)
    assert same_predictions(loaded, tiny.drafter(bare | {"embed_tokens.weight": weights["embed_tokens.weight"], "lm_head.weight": weights["embed_tokens.weight"]}))
    assert len(loaded.notes) == 2


def test_the_engine_may_replace_the_embedding(tmp_path):
    weights = tiny.weights(52, norms=False)
    other = weights | {"embed_tokens.weight": weights["embed_tokens.weight"].flip(0)}
    draft, target = read_draft(drafter_folder(tmp_path, weights)), read_target(target_folder(tmp_path, other))
    assert same_predictions(load_drafter(draft, target, dtype=torch.float64), tiny.drafter(weights))
    replaced = load_drafter(draft, target, dtype=torch.float64, embedding_from="target")
    assert same_predictions(replaced, tiny.drafter(other)) and not same_predictions(replaced, tiny.drafter(weights))


def test_flags_default_to_the_weights_and_can_be_overridden(tmp_path):
    draft = read_draft(drafter_folder(tmp_path, tiny.weights(53), norm_output=True))
    flags = load_drafter(draft).flags
    assert flags == DraftFlags(norm_before_residual=False, norm_before_fc=True, fc_norm=True, norm_output=True)
    assert load_drafter(draft, flags=DraftFlags(norm_output=False, norm_before_residual=True)).flags == DraftFlags(True, True, True, False)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "layers.0.hidden_norm.weight", "layers.0.self_attn.k_proj.weight", "layers.0.mlp.down_proj.weight"])
def test_missing_tensors_are_named(name):
    weights = {k: v for k, v in tiny.weights(54).items() if k != name}
    with pytest.raises(ValueError, match=f"1 tensor.s. missing: {name}"):
        tiny.drafter(weights)


@pytest.mark.parametrize("name,shape,message", [
    ("layers.0.self_attn.q_proj.weight", (24, 16), "q_proj.weight is"), ("lm_head.weight", (7, 9), "lm_head.weight is"), ("d2t", (3,), "d2t has 3 entries"),
    ("fc.weight", (16, 37), "no multiple of 3 planes"),
])
def test_shapes_that_do_not_fit_are_named(name, shape, message):
    with pytest.raises(ValueError, match=message):
        build(tiny.weights(55) | {name: torch.zeros(shape)}, heads=tiny.HEADS, kv_heads=tiny.KV, head_dim=tiny.DIM, n_aux=3)


def test_weights_that_are_no_numbers_are_named(tmp_path):
    weights = tiny.weights(58)
    weights["fc.weight"][3, 5] = float("nan")
    with pytest.raises(ValueError, match=r"fc\.weight hold NaN"):
        load_drafter(read_draft(drafter_folder(tmp_path, weights)))


def mla_folder(tmp_path, weights, **more):
    return drafter_folder(tmp_path, weights, **({"model_type": "kimi_k2", "head_dim": None, "q_lora_rank": tiny.Q_RANK, "kv_lora_rank": tiny.KV_RANK, "qk_nope_head_dim": tiny.NOPE,
                                                 "qk_rope_head_dim": tiny.TURNED, "v_head_dim": tiny.VALUE} | more))


@pytest.mark.parametrize("fused", [False, True])
def test_an_mla_checkpoint_is_the_model_of_its_weights(tmp_path, fused):
    weights = tiny.weights(59, norms=False, mla=True)
    held, parts = dict(weights), [f"layers.0.self_attn.{n}.weight" for n in ("q_a_proj", "kv_a_proj_with_mqa")]
    if fused:
        held["layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"] = torch.cat([held.pop(n) for n in parts])
    loaded = load_drafter(read_draft(mla_folder(tmp_path, held)), dtype=torch.float64)
    assert same_predictions(loaded, tiny.drafter({k: v if k == "d2t" else v.float().double() for k, v in weights.items()}))
    assert isinstance(loaded.layers[0].attention, Latent) and loaded.layers[0].attention.interleaved


def test_the_config_may_say_that_mla_is_not_interleaved(tmp_path):
    assert not load_drafter(read_draft(mla_folder(tmp_path, tiny.weights(59, mla=True), rope_interleave=False))).layers[0].attention.interleaved


def test_weights_stay_in_their_file(tmp_path):
    """Large ones as stored, whatever dtype is asked for; a float32 copy of a bf16 checkpoint would double it."""
    folder = drafter_folder(tmp_path, tiny.weights(62))
    save_file({k: v if v.dtype == torch.int64 else v.bfloat16().contiguous() for k, v in load_file(folder / "model.safetensors").items()}, folder / "model.safetensors")
    model = load_drafter(read_draft(folder))
    layer = model.layers[0]
    assert {w.dtype for w in (model.fc, model.head, model.embedding, layer.down, layer.attention.q.weight)} == {torch.bfloat16}
    assert model.dtype == layer.post_norm.dtype == torch.float32
    mapped = [line for line in Path("/proc/self/smaps").read_text().splitlines() if str(folder) in line]
    assert len(mapped) >= len([w for w in read_draft(folder).tensors if w.endswith("proj.weight")])


@pytest.mark.parametrize("change,message", [({"hidden_act": "gelu"}, "hidden_act 'gelu'"), ({"num_attention_heads": None}, "no num_attention_heads")])
def test_what_the_forward_cannot_compute_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_drafter(read_draft(drafter_folder(tmp_path, tiny.weights(63), **change)))


def test_quantised_weights_are_refused(tmp_path):
    folder = drafter_folder(tmp_path, tiny.weights(64))
    held = load_file(folder / "model.safetensors")
    held["fc.weight"] = held["fc.weight"].to(torch.float8_e4m3fn)
    save_file(held, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"fc\.weight .torch\.float8_e4m3fn. are quantised"):
        load_drafter(read_draft(folder))


def test_devices_by_name(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="known: auto, cpu, cuda"):
        choose_device("gpu", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", 1).type == "cpu"
    with pytest.raises(ValueError, match="torch sees no GPU"):
        load_drafter(read_draft(drafter_folder(tmp_path, tiny.weights(65))), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
    assert (choose_device("auto", 400).type, choose_device("auto", 600).type, choose_device("cuda", 600).type) == ("cuda", "cpu", "cuda")


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_drafter_elsewhere_moves_what_it_needs(mla, own):
    """On torch's `meta` device, which refuses most operations on tensors of two devices: states stay there, tokens and rows stay here.

    Shapes and places only: a GPU's numbers are not tested on a machine without one.
    """
    weights = tiny.weights(66, mla=mla)
    model = build(weights, heads=tiny.HEADS, kv_heads=tiny.KV, head_dim=None if mla else tiny.DIM, target_hidden=tiny.TARGET, device="meta")
    chunk = next(chunks([tiny.sequence(1), tiny.sequence(2)], 3))
    assert model.embedding.device.type == "cpu" and model.fc.device.type == "meta"
    hidden = Projections(model, chunk.planes(PLANES)).hidden(PLANES, norm_before_fc=True, fc_norm=True)
    chains = Chains(model, chunk, hidden, 3, chunk.text(model, torch.arange(len(chunk.tokens)), 1))
    for step in (1, 2):
        if own:
            chains.step(tokens=torch.zeros(len(chunk.rows), dtype=torch.long))
        else:
            chains.step(shares=chunk.text(model, chunk.rows, 1 + step))
    assert chains.state.device.type == "meta" and chains.state.shape == (len(chunk.rows), tiny.HIDDEN)
    assert draft_ids(model, chains.state, 3).shape == (len(chunk.rows), 3)


def test_a_family_that_is_not_run_is_refused(tmp_path):
    draft = replace(read_draft(drafter_folder(tmp_path, tiny.weights(56))), family="eagle1")
    with pytest.raises(ValueError, match="eagle1"):
        load_drafter(draft)


def test_d2t_is_an_offset_table():
    model = tiny.drafter(tiny.weights(57))
    assert torch.equal(model.target_ids(), model.d2t + torch.arange(tiny.DRAFT_VOCAB))
    assert model.target_ids().tolist() == sorted(set(model.target_ids().tolist())) and int(model.target_ids()[-1]) < tiny.VOCAB
    assert torch.equal(model.target_ids("absolute"), model.d2t)
    assert model.target_ids("ignored").tolist() == list(range(tiny.DRAFT_VOCAB))
    even = build({k: v for k, v in tiny.weights(57).items() if k != "d2t"} | {"d2t": torch.arange(7)}, heads=4, kv_heads=2, head_dim=6, target_hidden=12)
    assert even.target_ids().tolist() == [0, 2, 4, 6, 8, 10, 12]  # arange is a valid table where every second id is in the vocabulary


SCALINGS = [
    None, {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 0.9},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "default" if s is None else s["rope_type"])
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_frequencies_equal_transformers(scaling, partial):
    theta, dim = 50000.0, 64
    parameters = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial} | (scaling or {})
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=dim, max_position_embeddings=8192, rope_parameters=parameters)
    mine, factor = frequencies(Rope(theta, scaling, partial, "test"), dim, 8192)
    if scaling is None:
        rotated = int(dim * partial)
        expected, expected_factor = theta ** -(torch.arange(0, rotated, 2) / rotated), 1.0
    else:
        expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    assert len(mine) == int(dim * partial) // 2
    torch.testing.assert_close(mine.float(), expected.float(), rtol=2e-5, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_partial_rotation_leaves_the_rest_alone():
    x = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    inverse, factor = frequencies(Rope(10000.0, None, 0.5, "test"), 8)
    turned = rotate(x, *rotation_table(inverse, factor, 5, torch.float32))
    assert torch.equal(turned[..., 4:], x[..., 4:]) and torch.equal(turned[0], x[0]) and not torch.allclose(turned[1, :, :4], x[1, :, :4])


@pytest.mark.parametrize("rope,message", [
    (Rope(1e4, {"rope_type": "longrope"}, 1.0, ""), "longrope.*known: default"), (Rope(1e4, {"rope_type": "linear"}, 1.0, ""), "lacks 'factor'"),
    (Rope(1e4, None, 0.0, ""), "rotates 0 dimensions"), (Rope(1e4, {"type": "yarn", "factor": 2}, 1.0, ""), "original_max_position"),
])
def test_unknown_rotary_setups_are_refused_in_words(rope, message):
    with pytest.raises(ValueError, match=message):
        frequencies(rope, 8)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("stored", [torch.float64, torch.bfloat16])
def test_the_largest_logits_over_a_head_in_blocks(monkeypatch, count, stored):
    rng = torch.Generator().manual_seed(3)
    x, head, bias = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((9, 5), (50, 5), (50,)))
    head = head.to(stored)
    expected = (x @ head.double().T + bias).topk(count)
    monkeypatch.setattr(arithmetic, "SCORE_ELEMENTS", 9 * 7)
    monkeypatch.setattr(arithmetic, "BLOCK_VALUES", 5 * 3)
    values, ids = largest(x, head, bias, count)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(values, expected.values)
