"""fc by blocks equals fc of the concatenation; the battery finds the planted wiring, two faults at once, and abstains when it must."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from eagle_forensics import stats
from eagle_forensics.drafter import battery as battery_module
from eagle_forensics.drafter.battery import run_battery
from eagle_forensics.drafter.fuse import Projections
from eagle_forensics.drafter.wiring import (
    Wiring,
    candidate_sets,
    evaluate,
    evaluate_all,
    flag_sets,
    plane_orders,
    standard_battery,
    variations,
)
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import tiny
from tests.drafter.planted import MODEL, TRAINED, WEIGHTS, as_named, battery, plant, planted, slots


@pytest.mark.parametrize("before_fc,per_plane,normed", list(product((False, True), repeat=3)))
@pytest.mark.parametrize("names", [slots(0, 1, 2), slots(3, 0, 3), ("slot 1", "zero", "slot 2")])
def test_products_by_block_equal_fc_of_the_concatenation(before_fc, per_plane, normed, names):
    rng = torch.Generator().manual_seed(1)
    planes = {f"slot {i}": torch.randn(9, tiny.TARGET, generator=rng, dtype=torch.float64) * 3 ** i for i in range(4)} | {"zero": torch.zeros(9, tiny.TARGET, dtype=torch.float64)}

    def rms(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + tiny.EPS) * w

    parts = [rms(planes[n], 1.0) if normed else planes[n] for n in names]
    if before_fc:
        parts = list(rms(torch.cat(parts, -1), WEIGHTS["input_norm.weight"]).chunk(3, -1))
    if per_plane:
        parts = [rms(p, WEIGHTS[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)]
    direct = torch.cat(parts, -1) @ WEIGHTS["fc.weight"].T
    found = Projections(MODEL, planes).hidden(names, norm_before_fc=before_fc, fc_norm=per_plane, normed=normed)
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
               Wiring(TRAINED, rope=Rope(100.0, None, 1.0, "test")), Wiring(TRAINED, normed=True), Wiring(("zero",) * 3)]
    together = evaluate_all(MODEL, items, wirings)
    for wiring, found in zip(wirings, together, strict=True):
        alone = evaluate(MODEL, items, wiring)
        assert all((a.predicted == b.predicted).all() for a, b in zip(found.sequences, alone.sequences, strict=True)), wiring.label
    same = [all((a.predicted == b.predicted).all() for a, b in zip(together[2].sequences, c.sequences, strict=True)) for c in together]
    assert same == [False, False, True, True, False, False, False, False]


TRUTHS = [
    Wiring(TRAINED), Wiring(slots(1, 0, 2)), Wiring(slots(1, 2, 3)), Wiring(TRAINED, token_shift=0), Wiring(TRAINED, hidden_shift=-1), Wiring(TRAINED, normed=True),
    Wiring(TRAINED, flags=DraftFlags(norm_before_residual=True)), Wiring(TRAINED, flags=DraftFlags(norm_output=True)), Wiring(TRAINED, flags=DraftFlags(fc_norm=True)),
    Wiring(TRAINED, d2t="ignored"),
]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda w: w.label)
def test_the_planted_wiring_comes_first_with_a_margin(truth):
    results = battery(truth)
    honest = [r for r in results if not r.wiring.leaks]
    assert honest[0].wiring.same_feed(truth), [r.label for r in honest[:3]]
    assert honest[1].difference.high < 0
    assert honest[0].complete and honest[0].accuracy[0].value > 0.4


def test_two_faults_at_once_are_found_by_the_deep_battery():
    truth = Wiring(slots(2, 0, 1), flags=DraftFlags(norm_before_residual=True))
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2), deep=True)
    results = run_battery(MODEL, planted(truth), wirings, 2, screen_tokens=160)
    best = next(r for r in results if not r.wiring.leaks)
    assert best.wiring.same_feed(truth)
    assert best.wiring.differences(wirings[0]) == ("planes", "flags")


def test_elimination_changes_nothing_but_the_cost():
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2, 3))
    full = run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2, screen_tokens=0)
    quick = battery(Wiring(TRAINED))
    assert all(r.complete for r in full) and len(quick) == len(full)
    dropped = [r for r in quick if not r.complete]
    assert len(dropped) > len(wirings) / 2 and all(r.n <= 160 for r in dropped)
    assert quick[0].wiring == full[0].wiring and quick[0].accuracy == full[0].accuracy
    again = run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2, screen_tokens=160)
    assert [(r.wiring, r.accuracy, r.difference) for r in again] == [(r.wiring, r.accuracy, r.difference) for r in quick]


def test_kept_wirings_are_never_dropped():
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2, 3))
    keep = [Wiring(slots(3, 2, 1))]
    results = run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2, screen_tokens=160, keep=keep)
    assert next(r for r in results if r.wiring.same_feed(keep[0])).complete


def test_the_best_survives_screening_on_other_draws(monkeypatch):
    """Nine noisy draws with a small screening: the planted wiring is dropped in none."""
    monkeypatch.setattr(battery_module, "SCREEN_SEQUENCES", 8)
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2))
    for seed in range(1, 4):
        items = plant(MODEL, as_named(Wiring(TRAINED)), sequences=12, length=30, planes=3, keep=0.5, seed=seed)
        assert run_battery(MODEL, items, wirings, 2, screen_tokens=64)[0].wiring.name == "trained"


def test_equivalent_wirings_cannot_be_told_apart():
    items = [replace(i, planes={**i.planes, "copy": i.planes["slot 0"]}) for i in planted(Wiring(TRAINED))]
    results = run_battery(MODEL, items, [Wiring(TRAINED, name="trained"), Wiring(("copy", "slot 1", "slot 2"))], 2)
    assert results[1].difference.value == 0 and not results[1].difference.excludes(0)


def test_leaks_are_never_best_and_are_named():
    assert Wiring(TRAINED, token_shift=2).leaks and Wiring(TRAINED, hidden_shift=1).leaks
    assert not any(w.leaks for w in (Wiring(TRAINED), Wiring(TRAINED, token_shift=0), Wiring(TRAINED, hidden_shift=-1)))
    truth = Wiring(TRAINED, hidden_shift=1)
    results = battery(truth)
    assert not results[0].wiring.leaks
    assert next(r for r in results if r.wiring.same_feed(truth)).difference.low > 0


@pytest.mark.parametrize("wiring,message", [
    (Wiring(slots(0, 1)), "fc reads 3 planes"), (Wiring(("slot 0", "slot 1", "b=7")), "no plane 'b=7'; at hand"), (Wiring(TRAINED, d2t="upside"), "known: offset"),
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
    with pytest.raises(ValueError, match="no wiring"):
        run_battery(MODEL, planted(Wiring(TRAINED)), [])


def test_student_interval_of_paired_differences():
    first, second, sizes = [5, 7, 6, 9], [4, 6, 6, 6], [10, 10, 10, 10]
    e = stats.paired_difference_t(first, second, sizes)
    # differences 1, 1, 0, 3 of 10: mean .125, sd .1258, t(3, .975) 3.182
    assert (e.value, round(e.low, 4), round(e.high, 4)) == (0.125, -0.0752, 0.3252)
    assert stats.paired_difference_t(first, second, sizes, level=0.999).low < e.low
    assert stats.paired_difference_t([1], [0], [3]).interval == (-float("inf"), float("inf"))
