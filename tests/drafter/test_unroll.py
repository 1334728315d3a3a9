"""The fast unroll equals the dense drafter, position by position, under every flag."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from eagle_forensics.drafter.network import arithmetic, attention
from eagle_forensics.drafter.network import unroll as unrolling
from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.unroll import chunks, states, unroll
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate, evaluate_all
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import tiny

PLANES = ("p0", "p1", "p2")
ALL_FLAGS = [DraftFlags(*values) for values in product((False, True), repeat=4)]


def fast_states(model, sequences, steps, names=PLANES, shift=1):
    chunk = next(chunks(sequences, steps, 10**6))
    hidden = Projections(model, chunk.planes(names)).hidden(names, norm_before_fc=model.flags.norm_before_fc, fc_norm=model.flags.fc_norm)
    return chunk, torch.stack(list(states(model, chunk, hidden, steps, token_shift=shift)), 1)


def assert_equal_to_dense(weights, flags, model, sequences, steps=3, tolerance=1e-9):
    dense = tiny.Dense(weights, flags)
    chunk, found = fast_states(model, sequences, steps)
    compared = 0
    for item, (start, stop), (first, _) in zip(sequences, chunk.row_bounds, chunk.bounds, strict=True):
        for row in range(start, stop):
            t = int(chunk.rows[row]) - first
            expected, _ = dense.chain(item.input_ids.tolist(), [item.planes[n].numpy() for n in PLANES], t, steps)
            for k, state in enumerate(expected):
                np.testing.assert_allclose(found[row, k].numpy(), state, rtol=0, atol=tolerance * (1 + np.abs(state).max()))
                compared += 1
    assert compared >= 20 * len(sequences)


@pytest.mark.parametrize("flags", ALL_FLAGS, ids=lambda f: "".join("01"[bool(v)] for v in vars(f).values()))
def test_equals_the_dense_drafter_under_every_flag_combination(flags):
    weights = tiny.weights(1)
    assert_equal_to_dense(weights, flags, tiny.drafter(weights, flags), [tiny.sequence(1), tiny.sequence(2, 10, 2)])


def test_float32_stays_within_1e_5():
    weights = tiny.weights(2)
    assert_equal_to_dense(weights, DraftFlags(False, False, False, False), tiny.drafter(weights, dtype=torch.float32), [tiny.sequence(3)], tolerance=1e-5)


@pytest.mark.parametrize("layers", [2, 3])
def test_more_layers_and_biases(layers):
    weights = tiny.weights(3, layers=layers, bias=True)
    flags = DraftFlags(True, False, True, True)
    assert_equal_to_dense(weights, flags, tiny.drafter(weights, flags), [tiny.sequence(4), tiny.sequence(5, 9, 3)])


def test_every_flag_matters():
    weights, item = tiny.weights(4), [tiny.sequence(6)]
    tensors = [fast_states(tiny.drafter(weights, flags), item, 3)[1] for flags in ALL_FLAGS]
    for i, a in enumerate(tensors):
        assert all(not torch.allclose(a, b, atol=1e-3) for b in tensors[:i])


def test_sequences_do_not_see_each_other():
    weights = tiny.weights(5)
    items = [tiny.sequence(7), tiny.sequence(8, 17, 6), tiny.sequence(9, 8, 1)]
    model = tiny.drafter(weights)
    chunk, together = fast_states(model, items, 3)
    for item, (start, stop) in zip(items, chunk.row_bounds, strict=True):
        torch.testing.assert_close(together[start:stop], fast_states(model, [item], 3)[1], rtol=0, atol=1e-10)


def test_results_do_not_depend_on_chunks_or_score_blocks(monkeypatch):
    model, items = tiny.drafter(tiny.weights(6)), [tiny.sequence(s, 12 + s, 4) for s in range(6)]
    whole = evaluate(model, items, Wiring(PLANES))
    monkeypatch.setattr(attention, "SCORE_ELEMENTS", 64)
    monkeypatch.setattr(arithmetic, "SCORE_ELEMENTS", 64)
    monkeypatch.setattr(unrolling.chunks, "__defaults__", (14,))
    pieces = evaluate(model, items, Wiring(PLANES))
    for a, b in zip(whole.sequences, pieces.sequences, strict=True):
        np.testing.assert_array_equal(a.predicted, b.predicted)


def test_a_constant_position_offset_is_harmless_but_theta_is_not():
    weights, item = tiny.weights(7), [tiny.sequence(10)]
    model = tiny.drafter(weights)
    base = fast_states(model, item, 3)[1]
    chunk = next(chunks(item, 3))
    moved = replace(chunk, position=chunk.position + 5)
    hidden = Projections(model, chunk.planes(PLANES)).hidden(PLANES)
    torch.testing.assert_close(torch.stack(list(states(model, moved, hidden, 3)), 1), base, rtol=0, atol=1e-9)
    other = model.with_rope(Rope(theta=50.0, scaling=None, partial=1.0, origin="test"))
    assert not torch.allclose(fast_states(other, item, 3)[1], base, atol=1e-3)


def test_token_shift_reads_another_token():
    weights, item = tiny.weights(8), tiny.sequence(11)
    model, flags = tiny.drafter(weights), DraftFlags(False, False, False, False)
    chunk, found = fast_states(model, [item], 1, shift=0)
    early = item.input_ids.roll(1)  # the dense drafter takes ids[t + 1]: shifted by one it takes the token at t
    dense = tiny.Dense(weights, flags)
    for row, t in enumerate(chunk.rows.tolist()):
        expected, _ = dense.chain(early.tolist(), [item.planes[n].numpy() for n in PLANES], t, 1)
        np.testing.assert_allclose(found[row, 0].numpy(), expected[0], atol=1e-9)


def test_hidden_shift_moves_the_states_inside_their_sequence():
    model, items = tiny.drafter(tiny.weights(9)), [tiny.sequence(12), tiny.sequence(13)]
    moved = [replace(i, planes={n: torch.cat((p[:1], p[:-1])) for n, p in i.planes.items()}) for i in items]
    late, plain, expected = (evaluate_all(model, s, [w])[0] for s, w in ((items, Wiring(PLANES, hidden_shift=-1)), (items, Wiring(PLANES)), (moved, Wiring(PLANES))))
    same = [np.array_equal(a.predicted, b.predicted) for a, b in zip(late.sequences, expected.sequences, strict=True)]
    assert all(same)
    assert any(not np.array_equal(a.predicted, b.predicted) for a, b in zip(late.sequences, plain.sequences, strict=True))


def test_runs_do_not_depend_on_whose_tokens_are_fed():
    """Teacher-forced and self-fed chains agree through the first wrong step: accepted runs are the same."""
    flags = DraftFlags(False, False, False, True)
    weights = tiny.weights(10, vocab=4, draft_vocab=4)
    item = tiny.sequence(14, 40, 4, vocab=4)
    ids, planes = item.input_ids.tolist(), [item.planes[n].numpy() for n in PLANES]
    dense, steps = tiny.Dense(weights, flags), 3
    result = evaluate(tiny.drafter(weights, flags), [item], Wiring(PLANES), steps).sequences[0]
    lengths = set()
    for row, t in enumerate(result.positions):
        _, drafts = dense.chain(ids, planes, int(t), steps, own_tokens=True)
        truth = ids[t + 2:t + 2 + steps]
        own = 0
        while own < len(truth) and dense.target_id(drafts[own]) == truth[own]:
            own += 1
        if result.valid[row, 0]:
            assert int(np.cumprod(result.correct[row]).sum()) == own
            lengths.add(own)
    assert len(lengths) >= 3


def test_large_vocabularies_go_through_the_head_in_parts(monkeypatch):
    model, item = tiny.drafter(tiny.weights(11)), [tiny.sequence(15, 30, 4)]
    chunk = next(chunks(item, 2))
    hidden = Projections(model, chunk.planes(PLANES)).hidden(PLANES)
    whole = unroll(model, chunk, hidden, 2)
    monkeypatch.setattr(arithmetic, "SCORE_ELEMENTS", 3 * len(chunk.rows))
    assert torch.equal(unroll(model, chunk, hidden, 2), whole)
