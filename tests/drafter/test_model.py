"""Loading a drafter from checkpoints, readings of d2t, and the rotary variants against transformers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_forensics.drafter.model import build, load_drafter
from eagle_forensics.drafter.rope import frequencies, rotate, rotation_table
from eagle_forensics.drafter.wiring import Wiring, evaluate
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
    return save(tmp_path / "draft", {k.replace("layers.0.", "midlayer."): v for k, v in weights.items()}, architectures=["LlamaForCausalLMEagle3"], model_type="llama",
                hidden_size=tiny.HIDDEN, target_hidden_size=tiny.TARGET, num_attention_heads=tiny.HEADS, num_key_value_heads=tiny.KV, head_dim=tiny.DIM, num_hidden_layers=1,
                intermediate_size=tiny.FFN, vocab_size=tiny.VOCAB, draft_vocab_size=tiny.DRAFT_VOCAB, rms_norm_eps=tiny.EPS, **more)


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
