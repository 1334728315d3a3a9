"""Above temperature 0: the walk on sampled text equals a real loop, the bounds on greedy text hold the exact expectation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle_forensics.drafter.prediction.sampling import sampled_predictions
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.teacher import Head
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.records import DraftFlags
from tests.drafter import tiny
from tests.drafter.loops import greedy_text

PLANES, VOCAB, PROMPT, FLAGS = ("p0", "p1", "p2"), 5, [0, 1, 2], DraftFlags(False, False, False, False)


def distribution(target: tiny.TinyTarget, ids: list[int], temperature: float) -> np.ndarray:
    logits = target.read @ last_states(target, ids)[-1] / temperature
    p = np.exp(logits - logits.max())
    return p / p.sum()


def last_states(target: tiny.TinyTarget, ids: list[int]) -> np.ndarray:
    h, rows = np.zeros(tiny.TARGET), []
    for token in ids:
        h = np.tanh(target.mix @ h + target.embed[token])
        rows.append(h)
    return np.stack(rows)


def recorded(target: tiny.TinyTarget, ids: list[int], name: str = "a") -> Recorded:
    planes = dict(zip(PLANES, map(torch.from_numpy, target.states(ids)), strict=True)) | {"last": torch.from_numpy(last_states(target, ids))}
    return Recorded(planes, torch.tensor(ids), torch.arange(len(ids)) >= len(PROMPT), name)


def head(target: tiny.TinyTarget) -> Head:
    return Head(torch.ones(tiny.TARGET), torch.from_numpy(target.read), 1e-6)


def drafts(dense: tiny.Dense, target: tiny.TinyTarget, ids: list[int], steps: int) -> list[int]:
    return [dense.target_id(d) for d in dense.chain(ids, target.states(ids[:-1]), len(ids) - 2, steps, own_tokens=True)[1]]


@pytest.mark.parametrize("seed", range(4))
def test_on_text_the_target_sampled_the_walk_equals_a_real_loop(seed):
    """Target-only: accept a draft with the target's probability of it, else draw from the rest."""
    rng, target = np.random.default_rng(seed), tiny.TinyTarget(seed, VOCAB)
    weights = tiny.weights(80 + seed, vocab=VOCAB, draft_vocab=VOCAB)
    dense = tiny.Dense(weights, FLAGS)
    ids, accepted = [*PROMPT, int(rng.choice(VOCAB, p=distribution(target, PROMPT, 0.8)))], []
    while len(ids) < 40:
        kept = 0
        for draft in drafts(dense, target, ids, 3):
            p = distribution(target, ids, 0.8)
            if len(ids) >= 40 or rng.random() > p[draft]:
                break
            ids.append(draft)
            kept += 1
        accepted.append(kept)
        if len(ids) < 40:
            rest = distribution(target, ids, 0.8)
            if kept < 3:
                rest[draft] = 0
            ids.append(int(rng.choice(VOCAB, p=rest / rest.sum())))
    assert list(evaluate(tiny.drafter(weights, FLAGS), [recorded(target, ids)], Wiring(PLANES), 3).rounds().lengths) == accepted
    assert len(set(accepted)) > 1


@pytest.mark.parametrize("temperature", [0.4, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_the_exact_expectation_of_every_round(seed, temperature):
    """A greedy draft has one path, so its expectation is the sum of products of the target's probabilities along it."""
    target, weights = tiny.TinyTarget(seed, VOCAB), tiny.weights(90 + seed, vocab=VOCAB, draft_vocab=VOCAB)
    dense, ids = tiny.Dense(weights, FLAGS), greedy_text(target, PROMPT, 26)
    item = recorded(target, ids)
    starts = evaluate(tiny.drafter(weights, FLAGS), [item], Wiring(PLANES), 3).rounds().starts
    exact = 0.0
    for row in starts:
        at = len(PROMPT) + 1 + row
        prefix, reach = ids[:at], 1.0
        for draft in drafts(dense, target, prefix, 3)[:len(ids) - at]:
            reach *= distribution(target, prefix, temperature)[draft]
            exact += reach
            prefix = [*prefix, draft]
    found = {(p.rule, p.steps): p for p in sampled_predictions(tiny.drafter(weights, FLAGS), head(target), [item], PLANES, "last", normed=True,
                                                                temperatures=[temperature], steps=3)}
    bounds = found["target-only", 3]
    assert bounds.low.value - 1e-6 <= 1 + exact / len(starts) <= bounds.high.value + 1e-6
    assert bounds.low.value < bounds.high.value


def test_rejection_accepts_the_overlap_of_both_distributions():
    """One step: sum of min(p, q) at the round's own prefix, exactly."""
    target, weights = tiny.TinyTarget(2, VOCAB), tiny.weights(92, vocab=VOCAB, draft_vocab=4)
    dense, ids = tiny.Dense(weights, FLAGS), greedy_text(target, PROMPT, 20)
    model, item = tiny.drafter(weights, FLAGS), recorded(target, ids)
    starts, exact = evaluate(model, [item], Wiring(PLANES), 1).rounds().starts, 0.0
    for row in starts:
        prefix = ids[:len(PROMPT) + 1 + row]
        h = dense.chain(prefix, target.states(prefix[:-1]), len(prefix) - 2, 1, own_tokens=True)[0][0]
        logits = dense.w["lm_head.weight"] @ dense._rms(h, "norm.weight") / 0.7
        q = np.exp(logits - logits.max())
        p = distribution(target, prefix, 0.7)[[dense.target_id(d) for d in range(4)]]
        exact += np.minimum(p, q / q.sum()).sum()
    found = sampled_predictions(model, head(target), [item], PLANES, "last", normed=True, temperatures=[0.7], steps=1)
    assert found[1].rule == "rejection" and found[1].low.value == pytest.approx(1 + exact / len(starts), abs=1e-6)


def test_near_temperature_0_it_is_the_walk_and_0_itself_is_refused():
    target, weights = tiny.TinyTarget(1, VOCAB), tiny.weights(91, vocab=VOCAB, draft_vocab=VOCAB)
    items = [recorded(target, greedy_text(target, [s, 1, 2], 24), f"s{s}") for s in range(3)]
    model = tiny.drafter(weights, FLAGS)
    walked = evaluate(model, items, Wiring(PLANES), 3)
    for p in sampled_predictions(model, head(target), items, PLANES, "last", normed=True, temperatures=[1e-4], steps=3)[:3]:
        rounds = walked.rounds(p.steps)
        assert p.low.value == pytest.approx(1 + sum(rounds.lengths) / rounds.rounds, abs=1e-3) == p.high.value
    with pytest.raises(ValueError, match="above 0"):
        sampled_predictions(model, head(target), items, PLANES, "last", normed=True, temperatures=[0.6, 0.0], steps=3)
