"""fc by blocks equals fc of the concatenation; the battery finds the planted wiring, two faults at once, and abstains when it must."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.wirings.candidates import (
    candidate_sets,
    flag_sets,
    plane_orders,
    standard_battery,
    variations,
)
from eagle_forensics.drafter.wirings.derived import FINAL, INCREMENT, UNIT
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate, evaluate_all
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import tiny
from tests.drafter.planted import MODEL, NORM, TRAINED, WEIGHTS, planted, slots


@pytest.mark.parametrize("before_fc,per_plane", list(product((False, True), repeat=2)))
@pytest.mark.parametrize("names", [slots(0, 1, 2), slots(3, 0, 3), ("slot 1", "zero", "slot 2")])
def test_products_by_block_equal_fc_of_the_concatenation(before_fc, per_plane, names):
    rng = torch.Generator().manual_seed(1)
    planes = {f"slot {i}": torch.randn(9, tiny.TARGET, generator=rng, dtype=torch.float64) * 3 ** i for i in range(4)} | {"zero": torch.zeros(9, tiny.TARGET, dtype=torch.float64)}

    def rms(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + tiny.EPS) * w

    parts = [planes[n] for n in names]
    if before_fc:
        parts = list(rms(torch.cat(parts, -1), WEIGHTS["input_norm.weight"]).chunk(3, -1))
    if per_plane:
        parts = [rms(p, WEIGHTS[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)]
    direct = torch.cat(parts, -1) @ WEIGHTS["fc.weight"].T
    found = Projections(MODEL, planes).hidden(names, norm_before_fc=before_fc, fc_norm=per_plane)
    torch.testing.assert_close(found, direct, rtol=1e-9, atol=1e-9)


def test_all_orders_share_twelve_products():
    shared = Projections(MODEL, {f"slot {i}": torch.ones(2, tiny.TARGET, dtype=torch.float64) for i in range(4)})
    for order in plane_orders([f"slot {i}" for i in range(4)], 3):
        shared.hidden(order)
    assert shared.products == 12


def test_orders_candidates_and_flags():
    assert len(plane_orders("abcd", 3)) == 24 and len(plane_orders("abcde", 3)) == 60
    many = plane_orders("abcdefgh", 3)
    assert len(many) == len(set(many)) < 100 and tuple("cab") in many and tuple("bdh") in many and tuple("dba") not in many
    assert len(plane_orders(range(32), 31)) == 2, "31 planes of a drafter of all layers have no table of orders"
    assert (2, 30, 58) in candidate_sets(61) and (3, 31, 59) in candidate_sets(61) and (0, 3, 31) in candidate_sets(61)
    assert all(0 <= b <= 4 for ids in candidate_sets(4) for b in ids)
    assert len(flag_sets(MODEL)) == 15 and len(flag_sets(tiny.drafter(tiny.weights(1, norms=False)))) == 3
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2, 3))
    assert wirings[0].name == "trained" and len(wirings) == len({replace(w, name="") for w in wirings})
    assert all(not w.same_feed(wirings[0]) for w in variations(MODEL, wirings[0]))


def test_together_equals_one_by_one():
    items = [tiny.sequence(s, 20, 4) for s in range(3)]
    items = [replace(i, planes={**{n.replace("p", "slot "): p for n, p in i.planes.items()}, "slot 3": i.planes["p0"]}) for i in items]
    wirings = [Wiring(slots(2, 0, 1)), Wiring(TRAINED, d2t="absolute"), Wiring(TRAINED), Wiring(slots(3, 1, 2)), Wiring(TRAINED, flags=DraftFlags(norm_output=True)),
               Wiring(TRAINED, rope=Rope(100.0, None, 1.0, "test")), Wiring(TRAINED).formed(UNIT), Wiring(("zero",) * 3)]
    together = evaluate_all(MODEL, items, wirings)
    for wiring, found in zip(wirings, together, strict=True):
        alone = evaluate(MODEL, items, wiring)
        assert all((a.predicted == b.predicted).all() for a, b in zip(found.sequences, alone.sequences, strict=True)), wiring.label
    same = [all((a.predicted == b.predicted).all() for a, b in zip(together[2].sequences, c.sequences, strict=True)) for c in together]
    assert same == [False, False, True, True, False, False, False, False]


FORMS = [("final norm of p1", lambda p: NORM(p)), ("final norm of final norm of p1", lambda p: NORM(NORM(p))), ("1/4 share of p1", lambda p: p / 4),
         ("1/3 slice of p1", lambda p: torch.cat([p[:, :4], torch.zeros_like(p[:, 4:])], 1)), ("unit rms of p1", lambda p: p / (p.square().mean(1, keepdim=True) + tiny.EPS).sqrt())]


@pytest.mark.parametrize("name,made", FORMS, ids=[n for n, _ in FORMS])
def test_a_form_is_the_state_it_says(name, made):
    items = [tiny.sequence(s, 20, 4) for s in range(2)]
    by_hand = [i.with_planes({"made": made(i.planes["p1"])}) for i in items]
    a, b = (evaluate(MODEL, by_hand, Wiring(("p0", n, "p2")), 2, norm=NORM) for n in (name, "made"))
    assert all((x.predicted == y.predicted).all() for x, y in zip(a.sequences, b.sequences, strict=True))
    plain = evaluate(MODEL, items, Wiring(("p0", "p1", "p2")), 2)
    assert any((x.predicted != y.predicted).any() for x, y in zip(a.sequences, plain.sequences, strict=True))


def test_an_increment_is_the_state_without_its_residual():
    item = tiny.sequence(1, 20, 4)
    item = item.with_planes({"b=3": item.planes["p0"], "b=4": item.planes["p0"] + item.planes["p1"], "made": item.planes["p1"]})
    a, b = (evaluate(MODEL, [item], Wiring((n, "p1", "p2")), 2) for n in ("increment of b=4", "made"))
    assert (a.sequences[0].predicted == b.sequences[0].predicted).all()


def test_a_wiring_says_in_what_it_departs():
    own = Wiring(TRAINED)
    assert own.formed(FINAL).differences(own) == ("forms",) and Wiring(slots(1, 0, 2)).formed(UNIT).differences(own) == ("states", "forms")
    assert own.formed(FINAL).label == "slot 0, slot 1, slot 2, each final norm" and Wiring(("slot 0", "zero", "final norm of slot 3")).states == ("slot 0", "zero", "slot 3")
    assert Wiring(TRAINED, rope=Rope(5.0, {"type": "yarn"}, 1.0, "as the target")) != own, "a scaling is a mapping: it must not stand in the way of a set"


@pytest.mark.parametrize("wiring,message", [
    (Wiring(slots(0, 1)), "fc reads 3 planes"), (Wiring(("slot 0", "slot 1", "b=7")), "no plane 'b=7'; at hand"), (Wiring(TRAINED, d2t="upside"), "known: offset"),
    (Wiring(TRAINED).formed(FINAL), "norm.weight is not at hand"), (Wiring(TRAINED).formed("smoothed"), "no form 'smoothed'"), (Wiring(TRAINED).formed(INCREMENT), "has no state before it"),
])
def test_impossible_wirings_are_refused_in_words(wiring, message):
    with pytest.raises(ValueError, match=message):
        evaluate(MODEL, planted(Wiring(TRAINED)), wiring, 1)


def test_flags_without_their_weights_are_refused():
    with pytest.raises(ValueError, match="input_norm"):
        tiny.drafter(tiny.weights(1, norms=False)).with_flags(DraftFlags(norm_before_fc=True))


def test_nothing_to_evaluate_is_an_error():
    with pytest.raises(ValueError, match="no sequence"):
        evaluate(MODEL, [], Wiring(TRAINED))
