"""Trees: verify rounds of a real decode loop with SGLang's tree, chains as their topk 1, budgets in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle_forensics.drafter.prediction.tree import ABSENT, grow_trees, nodes
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.records import DraftFlags
from tests.drafter import tiny
from tests.drafter.loops import decode_with_trees, greedy_text, grow

PLANES = ("p0", "p1", "p2")
VOCAB = 6


def pair(seed: int, draft_vocab: int = VOCAB) -> tuple[dict, tiny.TinyTarget, DraftFlags]:
    return tiny.weights(60 + seed, vocab=VOCAB, draft_vocab=draft_vocab), tiny.TinyTarget(seed, VOCAB), DraftFlags(bool(seed & 1), False, False, bool(seed & 2))


def recorded(target: tiny.TinyTarget, ids: list[int], prompt: int, name: str = "loop") -> Recorded:
    return Recorded(dict(zip(PLANES, map(torch.from_numpy, target.states(ids)), strict=True)), torch.tensor(ids), torch.arange(len(ids)) >= prompt, name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("steps", "topk", "draft_tokens"), [(3, 4, 8), (2, 2, 3), (4, 3, 14), (1, 4, 4)])
def test_rounds_equal_a_real_decode_loop_with_trees(seed, steps, topk, draft_tokens):
    weights, target, flags = pair(seed, VOCAB - (seed == 3))
    prompt = [seed % VOCAB, 1, 2]
    ids, accepted = decode_with_trees(target, tiny.Dense(weights, flags), prompt, 24, steps, topk, draft_tokens)
    assert ids == greedy_text(target, prompt, 24)
    trees = grow_trees(tiny.drafter(weights, flags), [recorded(target, ids, 3)], PLANES, 4, topk)
    assert list(trees.rounds(steps, draft_tokens)[0].lengths) == accepted


@pytest.mark.parametrize("seed", range(4))
def test_every_rank_equals_the_node_by_node_tree(seed):
    """Sharper than rounds: the keys a slot keeps, its scores and the beam decide the ranks of all positions."""
    weights, target, flags = pair(seed, VOCAB - (seed == 3))
    ids, dense = greedy_text(target, [seed, 1, 2], 24), tiny.Dense(weights, flags)
    found = grow_trees(tiny.drafter(weights, flags), [recorded(target, ids, 3)], PLANES, 4, 4).sequences[0]
    planes = target.states(ids)
    for row, t in enumerate(found.positions):
        if t + 6 > len(ids):
            break
        for steps in (1, 3, 4):
            pool = {path: score for score, path in grow(dense, ids[:t + 2], [p[:t + 1] for p in planes], steps, 4)}
            paths = [tuple(ids[t + 2:t + 3 + j]) for j in range(steps)]
            expected = [sum(score > pool[p] for score in pool.values()) if p in pool else ABSENT for p in paths]
            assert found.ranks[row, steps - 1, :steps].tolist() == expected


def test_the_loops_accept_more_than_one_level_and_less_than_all():
    """Guards the test above: budgets must cut, and trees must gain over chains."""
    lengths = []
    for seed in range(4):
        weights, target, flags = pair(seed)
        lengths += decode_with_trees(target, tiny.Dense(weights, flags), [seed % VOCAB, 1, 2], 24, 3, 4, 8)[1]
    assert {0, 1, 2} <= set(lengths)


def test_topk_1_is_the_chain():
    weights, target, flags = pair(1)
    model, items = tiny.drafter(weights, flags), [recorded(target, greedy_text(target, [s, 1], 30), 2, f"s{s}") for s in range(5)]
    trees, chain = grow_trees(model, items, PLANES, 3, 1), evaluate(model, items, Wiring(PLANES), 3)
    for steps in (1, 2, 3):
        assert [r.lengths for r in trees.rounds(steps, steps + 1)] == [s.rounds(steps).lengths for s in chain.sequences]
        assert trees.accept_length(steps, steps + 1).value == chain.accept_length(steps).value


def test_more_draft_tokens_never_accept_less_from_a_position():
    weights, target, flags = pair(2)
    items = [recorded(target, greedy_text(target, [s, 1], 30), 2) for s in range(3)]
    trees = grow_trees(tiny.drafter(weights, flags), items, PLANES, 3, 3)
    for s in trees.sequences:
        lengths = np.stack([s.lengths(3, n) for n in range(2, nodes(3, 3) + 2)])
        assert (np.diff(lengths, axis=0) >= 0).all() and (lengths <= s.room).all()
    assert nodes(3, 3) == 21


def test_what_the_engine_refuses_is_refused():
    weights, target, flags = pair(0)
    model, item = tiny.drafter(weights, flags), recorded(target, greedy_text(target, [0, 1], 12), 2)
    with pytest.raises(ValueError, match="steps \\+ 1 draft tokens"):
        grow_trees(model, [item], PLANES, 3, 1).rounds(3, 3)
    with pytest.raises(ValueError, match="2 to 7 draft tokens"):
        grow_trees(model, [item], PLANES, 2, 2).rounds(2, 8)
    with pytest.raises(ValueError, match="hold 1 to 2 steps"):
        grow_trees(model, [item], PLANES, 2, 2).rounds(3, 4)
    with pytest.raises(ValueError, match="draft vocabulary"):
        grow_trees(model, [item], PLANES, 2, VOCAB + 1)
