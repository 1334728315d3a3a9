"""The fast drafter equals training-time test written out densely, for both families, under every flag; and the layouts of the trainers agree."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import Drafter, build
from eagle_forensics.drafter.network.unroll import chunks, draft_ids, states, unroll
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import reference, tiny

PLAIN = Rope(10000.0, None, 1.0, "test")
ALL_FLAGS = [DraftFlags(*values) for values in product((False, True), repeat=4)]
NAMES = ("p0", "p1", "p2")
EXACT = 1e-12
STEPS = 4


def flag_id(flags: DraftFlags) -> str:
    return "".join("01"[bool(v)] for v in vars(flags).values())


def ours(model: Drafter, items: list, steps: int = STEPS, names=NAMES) -> tuple:
    chunk = next(chunks(items, steps, 10**6))
    hidden = Projections(model, chunk.planes(names)).hidden(names, norm_before_fc=model.flags.norm_before_fc, fc_norm=model.flags.fc_norm)
    return chunk, torch.stack(list(states(model, chunk, hidden, steps)), 1)


def largest_error(weights, flags, *, rope=PLAIN, interleaved=True, items=None, names=NAMES, first_position=0) -> float:
    """Over all sequences, rows and steps whose tokens the text holds, relative to the largest state."""
    items = items or [tiny.sequence(1), tiny.sequence(2, 19, 7)]
    model = build(weights, heads=tiny.HEADS, kv_heads=tiny.KV, head_dim=None if "layers.0.self_attn.kv_b_proj.weight" in weights else tiny.DIM,
                  target_hidden=tiny.TARGET, flags=flags, rope=rope, interleaved=interleaved, dtype=torch.float64)
    chunk, found = ours(model, items, names=names)
    worst, compared = 0.0, 0
    for item, (start, stop), (first, _) in zip(items, chunk.row_bounds, chunk.bounds, strict=True):
        planes = torch.stack([item.planes[n] for n in names])
        dense = torch.stack(reference.training_time_test(weights, flags, planes, item.input_ids, STEPS, tiny.HEADS, rope, first_position), 1)
        at = chunk.rows[start:stop] - first
        worst = max(worst, float((found[start:stop] - dense[at]).abs().max() / dense.abs().max()))
        compared += stop - start
    assert compared > 10
    return worst


@pytest.mark.parametrize("family", ["llama", "mla"])
@pytest.mark.parametrize("flags", ALL_FLAGS, ids=flag_id)
def test_every_flag_combination_of_both_families(family, flags):
    assert largest_error(tiny.weights(1, mla=family == "mla"), flags) < EXACT


@pytest.mark.parametrize("family", ["llama", "mla"])
@pytest.mark.parametrize("layers", [2, 3])
def test_more_layers_and_biases(family, layers):
    assert largest_error(tiny.weights(2, layers=layers, bias=True, mla=family == "mla"), DraftFlags(True, True, True, True)) < EXACT


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_planes(count):
    items = [tiny.sequence(3, 15, 5, planes=count)]
    assert largest_error(tiny.weights(3, n_aux=count), DraftFlags(False, True, True, False), items=items, names=tuple(f"p{i}" for i in range(count))) < EXACT


@pytest.mark.parametrize("rope", [
    Rope(500.0, None, 1.0, "test"), Rope(10000.0, {"rope_type": "linear", "factor": 4.0}, 1.0, "test"), Rope(10000.0, None, 2 / 3, "test")], ids=["theta", "linear", "partial"])
def test_rotary_setups(rope):
    weights = tiny.weights(4)
    weights |= {f"layers.0.self_attn.{n}_norm.weight": torch.rand(tiny.DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) + 0.5 for i, n in enumerate("qk")}
    assert largest_error(weights, DraftFlags(False, False, False, False), rope=rope) < EXACT


def test_yarn_sharpens_the_scores_of_mla_alone():
    """With mscale equal to mscale_all_dim cos and sin keep their size; a beta of nothing leaves the frequencies alone."""
    scaling = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1e-30, "beta_slow": 1e-31}
    flags, yarn = DraftFlags(False, False, False, False), Rope(10000.0, scaling, 1.0, "test")
    weights = tiny.weights(5, mla=True)
    assert largest_error(weights, flags, rope=yarn) < EXACT
    models = [build(weights, heads=tiny.HEADS, kv_heads=tiny.KV, target_hidden=tiny.TARGET, flags=flags, rope=r, dtype=torch.float64) for r in (yarn, PLAIN)]
    gains = [m.layers[0].attention.scale(m.rope) for m in models]
    assert gains[0] / gains[1] == pytest.approx((1 + 0.1 * 4.1588830833596715) ** 2)


def test_the_rotary_layout_of_mla_matters():
    flags = DraftFlags(False, False, False, False)
    assert largest_error(tiny.weights(6, mla=True), flags, interleaved=False) > 1e-3


@pytest.mark.parametrize("family", ["llama", "mla"])
def test_a_first_position_of_one_is_the_same_function(family):
    """speculators counts positions from 1."""
    assert largest_error(tiny.weights(7, mla=family == "mla"), DraftFlags(False, False, False, True), first_position=1) < EXACT


@pytest.mark.parametrize("family", ["llama", "mla"])
@pytest.mark.parametrize("flags", [ALL_FLAGS[0], ALL_FLAGS[-1]], ids=flag_id)
def test_the_layout_of_modelopt_is_the_same_function(family, flags):
    weights, item = tiny.weights(8, mla=family == "mla"), tiny.sequence(4, 17, 5)
    planes = torch.stack([item.planes[n] for n in NAMES])
    eagle, modelopt = (f(weights, flags, planes, item.input_ids, STEPS, tiny.HEADS, PLAIN) for f in (reference.training_time_test, reference.modelopt))
    for k in range(STEPS):
        torch.testing.assert_close(modelopt[k][k:-1], eagle[k][:len(item) - 1 - k], rtol=0, atol=EXACT * float(eagle[k].abs().max()))


@pytest.mark.parametrize("family", ["llama", "mla"])
def test_a_chain_on_its_own_tokens_is_the_chain_on_a_text_of_them(family):
    """Self-unrolled: row t equals the teacher-forced row of a text whose tokens after t + 1 are the drafter's own."""
    weights = tiny.weights(9, mla=family == "mla")
    flags = DraftFlags(False, False, False, True)
    model = build(weights, heads=tiny.HEADS, kv_heads=tiny.KV, head_dim=None if family == "mla" else tiny.DIM, target_hidden=tiny.TARGET, flags=flags, dtype=torch.float64)
    item = tiny.sequence(5, 16, 5)
    chunk = next(chunks([item], STEPS))
    hidden = Projections(model, chunk.planes(NAMES)).hidden(NAMES, norm_before_fc=False, fc_norm=False)
    own = unroll(model, chunk, hidden, STEPS, own=model.target_ids())
    planes = torch.stack([item.planes[n] for n in NAMES])
    off_text = 0
    for row, t in enumerate(chunk.rows.tolist()):
        ids = torch.cat((item.input_ids[:t + 2], torch.zeros(STEPS, dtype=torch.long)))
        padded = torch.cat((planes, torch.zeros(len(NAMES), STEPS, tiny.TARGET, dtype=planes.dtype)), 1)[:, :len(ids)]
        for k in range(STEPS):
            dense = reference.training_time_test(weights, flags, padded, ids, k + 1, tiny.HEADS, PLAIN)[k][t]
            draft = int(draft_ids(model, dense[None])[0, 0])
            assert draft == int(own[row, k])
            ids[t + 2 + k] = model.target_ids()[draft]
            off_text += t + 2 + k < len(item) and int(ids[t + 2 + k]) != int(item.input_ids[t + 2 + k])
    assert off_text > 10  # the chains did leave the text


def test_a_mapped_half_precision_checkpoint_is_evaluated_in_the_precision_asked_for():
    """Weights stay bf16; sums run in float64: exactly the drafter of the rounded weights."""
    weights = {k: v if k == "d2t" else v.bfloat16() for k, v in tiny.weights(10).items()}
    rounded = {k: v if k == "d2t" else v.double() for k, v in weights.items()}
    models = [build(w, heads=tiny.HEADS, kv_heads=tiny.KV, head_dim=tiny.DIM, target_hidden=tiny.TARGET, dtype=torch.float64) for w in (weights, rounded)]
    assert models[0].layers[0].down.data_ptr() == weights["layers.0.mlp.down_proj.weight"].data_ptr()
    a, b = (ours(m, [tiny.sequence(6)])[1] for m in models)
    torch.testing.assert_close(a, b, rtol=0, atol=EXACT * float(b.abs().max()))
