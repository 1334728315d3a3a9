"""The walk: bounds, conservation, and the verify rounds of a real decode loop."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_forensics.drafter.prediction.predict import predict_accept_length, round_views
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.walk import runs, walk
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.records import DraftFlags
from tests.drafter import tiny

PLANES = ("p0", "p1", "p2")
VOCAB = 4


@st.composite
def correctness(draw):
    rows, steps = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    table = np.array(cells).reshape(rows, steps)
    return table & (np.arange(rows)[:, None] + np.arange(steps) < rows)


@given(correctness())
def test_tokens_are_conserved_and_bounded(table):
    rounds, steps = walk(table), table.shape[1]
    assert rounds.tokens == len(table)
    assert rounds.starts == tuple(np.cumsum([0, *(length + 1 for length in rounds.lengths[:-1])]))
    assert 1 <= rounds.accept_length <= steps + 1
    assert sum(rounds.accepted_per_position) == sum(rounds.lengths)
    assert list(rounds.accepted_per_position) == sorted(rounds.accepted_per_position, reverse=True)
    assert rounds.rounds + sum(rounds.lengths) - rounds.tokens in (0, 1)  # the last bonus token may fall off the end


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 5))
def test_longer_chains_never_need_more_rounds_where_a_token_is_right_from_everywhere(easy, steps):
    table = np.array([[at + k < len(easy) and easy[at + k] for k in range(6)] for at in range(len(easy))])
    assert walk(table, steps + 1).rounds <= walk(table, steps).rounds
    harder = table & (np.arange(len(easy)) != len(easy) // 2)[np.minimum(np.arange(len(easy))[:, None] + np.arange(6), len(easy) - 1)]
    assert walk(harder, steps).rounds >= walk(table, steps).rounds


def test_known_walks():
    table = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    rounds = walk(table)
    assert (rounds.rounds, rounds.starts, rounds.lengths, rounds.accepted_per_position) == (2, (0, 3), (2, 3), (2, 2, 1))
    assert rounds.accept_length == 3.5
    assert walk(table, 1).starts == (0, 2, 3, 5)
    assert runs(table).tolist() == [2, 1, 0, 3, 2, 1, 0]
    everything = np.arange(8)[:, None] + np.arange(3) < 8
    assert walk(everything).accept_length == 4 and walk(np.zeros((8, 3), bool)).accept_length == 1


@pytest.mark.parametrize("bad", [np.zeros((0, 3)), np.zeros(4), np.zeros((4, 0))])
def test_nothing_to_walk_is_an_error(bad):
    with pytest.raises(ValueError, match="positions, steps"):
        walk(bad)


@pytest.mark.parametrize("steps", [0, 4])
def test_steps_must_have_been_unrolled(steps):
    with pytest.raises(ValueError, match="holds 1 to 3"):
        walk(np.zeros((4, 3)), steps)


def decode(target: tiny.TinyTarget, dense: tiny.Dense, prompt: list[int], length: int, steps: int) -> tuple[list[int], list[int]]:
    """Speculative decoding as a server does it: the text, and the accepted drafts of each verify round."""
    ids, accepted = [*prompt, target.next_token(prompt)], []
    while len(ids) < length:
        _, drafts = dense.chain(ids, target.states(ids[:-1]), len(ids) - 2, steps, own_tokens=True)
        kept = 0
        for draft in drafts:
            if dense.target_id(draft) != target.next_token(ids) or len(ids) >= length:
                break
            ids.append(dense.target_id(draft))
            kept += 1
        accepted.append(kept)
        if len(ids) < length:
            ids.append(target.next_token(ids))
    return ids, accepted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [1, 3])
def test_equals_a_real_decode_loop_round_by_round(seed, steps):
    flags = DraftFlags(bool(seed & 1), False, False, bool(seed & 2))
    weights = tiny.weights(20 + seed, vocab=VOCAB, draft_vocab=VOCAB - (seed == 3))
    target, dense, prompt = tiny.TinyTarget(seed, VOCAB), tiny.Dense(weights, flags), [seed % VOCAB, 1, 2]
    ids, accepted = decode(target, dense, prompt, 26, steps)
    greedy = list(prompt)
    while len(greedy) < 26:
        greedy.append(target.next_token(greedy))
    assert ids == greedy
    states = dict(zip(PLANES, map(torch.from_numpy, target.states(ids)), strict=True))
    item = Recorded(states, torch.tensor(ids), torch.arange(len(ids)) >= len(prompt), "loop")
    result = evaluate(tiny.drafter(weights, flags), [item], Wiring(PLANES), steps)
    assert list(result.rounds().lengths) == accepted
    assert [v.accepted for v in round_views(result.sequences[0])] == accepted
    texts = [[*v.drafted[:v.accepted], *([v.bonus] if v.bonus is not None else [])] for v in round_views(result.sequences[0])]
    assert functools.reduce(operator.iadd, texts, []) == ids[len(prompt) + 1:]


def test_some_decode_loops_accept_several_drafts():
    """Guards the test above: it would be empty if nothing were ever accepted."""
    lengths = set()
    for seed in range(4):
        weights = tiny.weights(20 + seed, vocab=VOCAB, draft_vocab=VOCAB)
        lengths |= set(decode(tiny.TinyTarget(seed, VOCAB), tiny.Dense(weights, DraftFlags(False, False, False, False)), [0, 1, 2], 20, 3)[1])
    assert {0, 1} < lengths and max(lengths) > 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_prediction_rows_agree_with_the_walk(seed):
    rng = np.random.default_rng(seed)
    model = tiny.drafter(tiny.weights(int(rng.integers(50)), vocab=VOCAB, draft_vocab=3))
    result = evaluate(model, [tiny.sequence(int(rng.integers(1000)), 20, 3, vocab=VOCAB), tiny.sequence(int(rng.integers(1000)), 15, 2, vocab=VOCAB)], Wiring(PLANES), 3)
    for row in predict_accept_length(result):
        rounds = result.rounds(row.steps)
        assert row.accept_length.value == pytest.approx(rounds.tokens / rounds.rounds)
        assert row.accept_length.n == rounds.rounds
        assert row.ceiling >= row.accept_length.value and row.vocabulary_bound <= row.ceiling
        assert len(row.survival) == row.steps


def test_product_formula_is_one_plus_the_products():
    result = evaluate(tiny.drafter(tiny.weights(31, vocab=VOCAB, draft_vocab=VOCAB)), [tiny.sequence(s, 30, 3, vocab=VOCAB) for s in range(4)], Wiring(PLANES), 3)
    a, b, c = (result.accuracy(k).value for k in range(3))
    assert predict_accept_length(result)[2].product_formula == pytest.approx(1 + a + a * b + a * b * c)
