"""Every kind of healthy and damaged dump: none is wrongly identified, the damage is named where the evidence settles it."""

from __future__ import annotations

import re

import pytest
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify

from .tiny import HIDDEN, LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences()
PLAIN = TinyTarget()
SINK = TinyTarget(sink=400.0)
FINAL = Boundary(LAYERS, True)


def look(planes_of, target=PLAIN, *, bank=True, weights=True, boundaries=None, ids=IDS):
    return identify(samples(planes_of, ids), bank=TinyBank(target, ids, boundaries) if bank else None,
                    weights=target.weights() if weights else None, layers=LAYERS)


def stored(target, boundaries, dtype=torch.bfloat16):
    return lambda ids: [target.run(ids)[0][b].to(dtype) for b in boundaries]


def held(found):
    return [s.equals.index if s.equals and not s.equals.normed else s.equals for s in found.slots]


@pytest.mark.parametrize("target", [PLAIN, SINK], ids=["plain", "sink"])
@pytest.mark.parametrize("boundaries, dtype", [((1, 3, 5, 6), torch.bfloat16), ((2, 4, 6), torch.float32), ((5, 1, 3, 6), torch.bfloat16),
                                               ((0, 1, 3, 6), torch.float16), ((6, 5, 4, 3, 2, 1, 0), torch.bfloat16)], ids=str)
def test_whole_states_are_identified_in_any_order_and_storage(target, boundaries, dtype):
    assert held(look(stored(target, boundaries, dtype), target)) == list(boundaries)


def test_post_norm_final_state():
    found = look(lambda ids: [PLAIN.run(ids)[0][3], PLAIN.final(PLAIN.run(ids)[0][LAYERS]).bfloat16()])
    assert held(found) == [3, FINAL]
    assert [s.norm.holds for s in found.slots] == [False, True]


def test_post_norm_final_state_when_the_bank_has_only_the_state_before_it():
    found = look(lambda ids: [PLAIN.final(PLAIN.run(ids)[0][LAYERS])], boundaries=[Boundary(b) for b in range(LAYERS + 1)])
    assert held(found) == [FINAL]


DAMAGED = {
    "normed twice": (lambda t, i: t.final(t.final(t.run(i)[0][LAYERS])), State.NORMED_TWICE, LAYERS),
    "inner state normed": (lambda t, i: t.final(t.run(i)[0][3]), State.NORMED, 3),
    "slice of rank 2 of 4": (lambda t, i: t.run(i)[0][3][:, 32:48], State.SLICE, 3),
    "slice padded with zeros": (lambda t, i: torch.cat([t.run(i)[0][3][:, :32], torch.zeros(len(i), 32)], 1), State.SLICE, 3),
    "no residual": (lambda t, i: t.run(i)[0][4] - t.run(i)[0][3], State.NO_RESIDUAL, 4),
    "doubled": (lambda t, i: 2 * t.run(i)[0][3], State.SCALED, 3),
    "one token late": (lambda t, i: t.run(i)[0][3].roll(1, 0), State.SHIFTED, 3),
    "one token early": (lambda t, i: t.run(i)[0][3].roll(-1, 0), State.SHIFTED, 3),
    "rotated": (lambda t, i: t.run(i)[0][3] @ rotation(5), State.ROTATED, 3),
}


@pytest.mark.parametrize("target", [PLAIN, SINK], ids=["plain", "sink"])
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_forms_are_named(name, target):
    make, state, boundary = DAMAGED[name]
    slot = look(lambda ids: [make(target, ids).to(torch.bfloat16)], target).slots[0]
    assert (slot.sure, slot.state, slot.boundary) == (True, state, Boundary(boundary)), slot.sentence
    assert slot.equals is None, "a damaged state is never passed off as the state itself"


def rotation(seed):
    return torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(seed)))[0]


@pytest.mark.parametrize("target", [PLAIN, SINK], ids=["plain", "sink"])
@pytest.mark.parametrize("seeds, told", [((5, 5, 5), "One and the same rotation explains slots 0, 1, 2"), ((5, 5, 6), "Slots 0, 1, 2 are not rotated alike"), ((5,), None)])
def test_a_rotated_target_is_told_from_slots_rotated_each_in_its_way(seeds, told, target):
    found = look(lambda ids: [(target.run(ids)[0][b] @ rotation(seed)).to(torch.bfloat16) for b, seed in zip((1, 3, 5), seeds, strict=False)], target)
    assert [(s.state, s.boundary.index) for s in found.slots] == [(State.ROTATED, b) for b in (1, 3, 5)[: len(seeds)]]
    assert all((told in s.sentence) if told else ("rotation explains" not in s.sentence) for s in found.slots)


def test_the_token_offset_says_in_which_direction():
    later = look(lambda ids: [PLAIN.run(ids)[0][3].roll(-1, 0)]).slots[0]
    earlier = look(lambda ids: [PLAIN.run(ids)[0][3].roll(2, 0)]).slots[0]
    assert "1 token later" in later.sentence
    assert "2 tokens earlier" in earlier.sentence


@pytest.mark.parametrize("boundary", range(1, LAYERS + 1))
@pytest.mark.parametrize("ranks", [2, 8])
def test_partial_sums_are_suspected_never_taken_for_a_layer(ranks, boundary):
    def partial(ids):
        _, middle, active = PLAIN.run(ids)
        width = active[0].shape[1] // ranks
        return [middle[boundary - 1] + active[boundary - 1][:, :width] @ PLAIN.down[boundary - 1][:width]]

    slot = look(partial).slots[0]
    assert not slot.sure, slot.sentence
    assert slot.suspects == ("feature.partial-sum",), slot.sentence
    assert Boundary(boundary) in slot.candidates or Boundary(boundary - 1) in slot.candidates


def test_noise_that_could_hide_a_neighbour_is_not_sure():
    g = torch.Generator().manual_seed(3)

    def noisy(ids):
        h = PLAIN.run(ids)[0][3]
        return [h + 0.3 * h.norm(dim=-1, keepdim=True) / HIDDEN**0.5 * torch.randn(h.shape, generator=g)]

    slot = look(noisy).slots[0]
    assert not slot.sure
    assert slot.candidates[0] == Boundary(3)


def test_another_model_is_not_identified():
    other = TinyTarget(seed=9)
    found = look(stored(other, (1, 3, 6)))
    assert [s.sure for s in found.slots] == [False] * 3


def test_equal_slots_are_seen():
    found = look(stored(PLAIN, (3, 5, 3)))
    assert [s.twin_slot for s in found.slots] == [None, None, 0]


def test_a_bank_without_the_neighbours_does_not_settle_a_noisy_state():
    g = torch.Generator().manual_seed(4)

    def noisy(ids):
        h = PLAIN.run(ids)[0][3]
        return [h + 0.05 * h.norm(dim=-1, keepdim=True) / HIDDEN**0.5 * torch.randn(h.shape, generator=g)]

    whole = look(noisy).slots[0]
    sparse = look(noisy, boundaries=[Boundary(0), Boundary(3), Boundary(6)]).slots[0]
    assert whole.equals == Boundary(3)
    assert sparse.equals is None
    assert "lacks its neighbours" in sparse.sentence


def test_a_bank_that_lacks_the_state_does_not_call_it_the_nearest_one():
    slot = look(stored(PLAIN, (3,)), boundaries=[Boundary(b) for b in (0, 2, 4, 6)]).slots[0]
    assert not slot.sure


def test_half_the_rows_from_another_layer_is_not_sure():
    def mixed(ids):
        states = PLAIN.run(ids)[0]
        cut = len(ids) * 6 // 10
        return [torch.cat([states[3][:cut], states[4][cut:]])]

    slot = look(mixed).slots[0]
    assert not slot.sure
    assert "% of the tokens are nearest" in slot.sentence


@pytest.mark.parametrize("value, fault", [(float("nan"), "feature.non-finite"), (0.0, "feature.missing-stage")])
def test_broken_rows(value, fault):
    def broken(ids):
        x = PLAIN.run(ids)[0][3].clone()
        x[: len(ids) * 3 // 4] = value
        return [x]

    slot = look(broken).slots[0]
    assert (slot.state, slot.suspects) == (State.BROKEN, (fault,))


def test_a_few_broken_rows_do_not_hide_the_state():
    def scratched(ids):
        x = PLAIN.run(ids)[0][3].clone()
        x[5], x[6], x[7] = float("nan"), 0.0, 1.0
        return [x]

    slot = look(scratched).slots[0]
    assert slot.equals == Boundary(3)
    assert (slot.health.non_finite, slot.health.zero, slot.health.constant) == (6, 6, 6)


def test_without_bank_and_weights_equal_tokens_prove_the_embedding():
    found = look(stored(PLAIN, (0, 1, 4)), bank=False, weights=False)
    assert held(found) == [0, None, None]
    assert found.slots[1].twins.holds is False
    assert "no bank" in found.slots[1].sentence


def test_one_row_for_all_tokens_is_no_embedding():
    row = torch.arange(64.0)
    found = look(lambda ids: [row.expand(len(ids), 64)], bank=False, weights=False)
    assert found.slots[0].boundary is None and "different tokens" in found.slots[0].twins.text


def test_weights_alone_settle_embedding_and_norm_state():
    found = look(lambda ids: [*stored(PLAIN, (0, 2, 6))(ids), PLAIN.final(PLAIN.run(ids)[0][6]).bfloat16()], bank=False)
    assert held(found) == [0, None, None, None]
    assert [s.norm.holds for s in found.slots] == [False, False, False, True]
    assert found.slots[3].candidates == (FINAL,)


def test_an_embedding_factor_is_found():
    from dataclasses import replace

    weights = replace(PLAIN.weights(), embedding_factor=8.0)
    found = identify(samples(lambda ids: [8 * PLAIN.embed[ids]], IDS), weights=weights, layers=LAYERS)
    assert found.slots[0].equals == Boundary(0)
    assert "x 8" in found.slots[0].sentence


def test_bank_of_other_tokens_is_a_note_and_the_rest_goes_on():
    other = sequences(seed=77)
    found = identify(samples(stored(PLAIN, (0, 3)), IDS), bank=TinyBank(PLAIN, other), weights=PLAIN.weights(), layers=LAYERS)
    assert found.table is None
    assert any("Make the bank from the tokens" in n for n in found.notes)
    assert held(found) == [0, None]


def test_a_sample_longer_than_its_bank_sequence_is_compared_on_the_common_start():
    bank = TinyBank(PLAIN, [s[:20] for s in IDS])
    found = identify(samples(stored(PLAIN, (3, 5)), IDS), bank=bank, layers=LAYERS)
    assert held(found) == [3, 5]
    assert found.slots[0].match.error.n == 20 * len(IDS)


def test_odd_samples_are_named_and_the_rest_goes_on():
    good = samples(stored(PLAIN, (3, 5)), IDS)
    odd = samples(stored(PLAIN, (3,)), IDS[:1])
    found = identify([*good, *odd], bank=TinyBank(PLAIN, IDS), layers=LAYERS)
    assert held(found) == [3, 5]
    assert any("left out" in n for n in found.notes)
    with pytest.raises(EvidenceError, match="none was given"):
        identify([])


def test_the_sentence_carries_numbers_and_rival():
    found = identify(samples(stored(PLAIN, (1, 5)), IDS), bank=TinyBank(PLAIN, IDS), weights=PLAIN.weights(), layers=LAYERS, labels=["embed", "final"])
    sentence = found.slots[0].sentence
    assert sentence.startswith("file slot 0, called `embed`, is the output of layer 0 (b=1): relative error 0.00")
    assert "next best" in sentence
    assert re.search(r"; it is not the embedding: rows of equal tokens differ by 0\.\d\d \(\d+ pairs\), its rows differ from embed_tokens\[ids\] by \d\.\d\d\.$", sentence)


def test_a_form_of_most_rows_is_not_the_form_of_the_slot():
    def mostly(ids):
        states = PLAIN.run(ids)[0]
        x, cut = states[3].roll(1, 0), len(ids) * 7 // 10
        return [torch.cat([x[:cut], states[6][cut:]])]

    assert not look(mostly).slots[0].sure
