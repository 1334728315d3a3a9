"""The battery finds the planted wiring, two faults at once, and abstains when it must; the search finds planted boundaries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagle_forensics import stats
from eagle_forensics.drafter.wirings import battery as battery_module
from eagle_forensics.drafter.wirings.battery import investigate, run_battery
from eagle_forensics.drafter.wirings.candidates import pairs, ropes, standard_battery
from eagle_forensics.drafter.wirings.derived import FINAL, UNIT
from eagle_forensics.drafter.wirings.wiring import Wiring
from eagle_forensics.evidence.records import DraftFlags, Rope
from tests.drafter import tiny
from tests.drafter.planted import (
    MODEL,
    NORM,
    PLAIN,
    TRAINED,
    as_named,
    battery,
    investigated,
    plant,
    planted,
    slots,
)

TRUTHS = [
    Wiring(TRAINED), Wiring(slots(1, 0, 2)), Wiring(slots(1, 2, 3)), Wiring(TRAINED, token_shift=0), Wiring(TRAINED, hidden_shift=-1), Wiring(TRAINED).formed(UNIT),
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


TWO = [
    Wiring(slots(2, 0, 1), flags=DraftFlags(norm_before_residual=True)), Wiring(slots(1, 2, 3), token_shift=0), Wiring(slots(1, 0, 2), d2t="ignored"),
    Wiring(TRAINED, hidden_shift=-1, flags=DraftFlags(norm_output=True)), Wiring(slots(0, 1, 3)).formed(FINAL),
]


@pytest.mark.parametrize("truth", TWO, ids=lambda w: w.label)
def test_two_faults_at_once_are_found(truth):
    best, *others = [r for r in investigated(truth) if not r.wiring.leaks]
    assert best.wiring.same_feed(truth), [r.label for r in (best, *others[:3])]
    assert next(r for r in others if r.wiring.name == "trained").difference.high < 0 and len(best.wiring.differences(Wiring(TRAINED))) == 2


def test_what_survived_the_single_departures_is_not_measured_twice():
    truth = Wiring(slots(2, 0, 1), flags=DraftFlags(norm_before_residual=True))
    found = [replace(r.wiring, name="") for r in investigated(truth)]
    assert len(found) == len(set(found))


def test_three_faults_at_once_are_reached_from_two():
    truth = Wiring(slots(1, 0, 2), token_shift=0, flags=DraftFlags(norm_output=True))
    assert investigated(truth)[0].wiring.same_feed(truth)


def test_a_contract_that_explains_everything_ends_the_investigation():
    asked = []
    found = investigate(PLAIN, planted(Wiring(TRAINED), PLAIN, 36), TRAINED, slots(0, 1, 2, 3), 2, norm=NORM, screen_tokens=96, settled=lambda r: asked.append(r.label) or True)
    assert asked == [found[0].label] and len(found) < len(investigated(Wiring(TRAINED))) and investigated(Wiring(TRAINED))[0].wiring.name == "trained"


def test_pairs_hold_what_two_faults_can_be():
    tried = set(pairs(PLAIN, TRAINED, slots(0, 1, 2, 3), norm=NORM))
    assert set(TWO) <= tried and not any(w.leaks for w in tried)
    assert {len(w.differences(Wiring(TRAINED))) for w in tried} <= {1, 2}


def test_rotary_setups_are_tried_where_either_side_gives_a_reason():
    own = MODEL.rope
    assert {r.origin for r in ropes(replace(MODEL, rope=replace(own, theta=5e5)), None)} == {"theta 10000"}
    partial = ropes(MODEL, Rope(own.theta, None, 0.5, "config"))
    assert any(r.partial == 0.5 for r in partial) and len({(r.theta, r.partial) for r in partial}) == len(partial)
    scaled = replace(MODEL, rope=replace(own, scaling={"rope_type": "linear", "factor": 2.0}))
    assert "without scaling" in {r.origin for r in ropes(scaled, None)}


def test_elimination_changes_nothing_but_the_cost():
    wirings = standard_battery(MODEL, TRAINED, slots(0, 1, 2, 3), norm=NORM)
    full = run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2, norm=NORM, screen_tokens=0)
    quick = battery(Wiring(TRAINED))
    assert all(r.complete for r in full) and len(quick) == len(full)
    dropped = [r for r in quick if not r.complete]
    assert len(dropped) > len(wirings) / 2 and all(r.n <= 160 for r in dropped)
    assert quick[0].wiring == full[0].wiring and quick[0].accuracy == full[0].accuracy
    again = run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2, norm=NORM, screen_tokens=160)
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
    results = run_battery(MODEL, items, [Wiring(TRAINED, name="trained"), Wiring(("copy", "slot 1", "slot 2")), Wiring(slots(1, 0, 2))], 2)
    assert results[1].difference.value == 0 and results[1].equal_to_best and not results[2].equal_to_best


def test_columns_of_fc_that_are_equal_make_two_orders_one():
    weights = {**tiny.weights(40)}
    weights["fc.weight"] = weights["fc.weight"].clone()
    weights["fc.weight"][:, :tiny.TARGET] = weights["fc.weight"][:, tiny.TARGET:2 * tiny.TARGET]
    twin = tiny.drafter(weights)
    results = run_battery(twin, planted(Wiring(TRAINED)), [Wiring(TRAINED, name="trained"), Wiring(slots(1, 0, 2)), Wiring(slots(0, 2, 1))], 2)
    assert {r.label: r.equal_to_best for r in results[:2]} == {results[0].label: True, results[1].label: True} and not results[2].equal_to_best


def test_a_flag_without_effect_is_equal():
    """With one step nothing is fed back, so norm_output changes nothing."""
    results = run_battery(MODEL, planted(Wiring(TRAINED)), [Wiring(TRAINED, name="trained"), Wiring(TRAINED, flags=DraftFlags(norm_output=True))], 1)
    assert results[1].equal_to_best


def test_leaks_are_never_best_and_are_named():
    assert Wiring(TRAINED, token_shift=2).leaks and Wiring(TRAINED, hidden_shift=1).leaks
    assert not any(w.leaks for w in (Wiring(TRAINED), Wiring(TRAINED, token_shift=0), Wiring(TRAINED, hidden_shift=-1)))
    truth = Wiring(TRAINED, hidden_shift=1)
    results = battery(truth)
    assert not results[0].wiring.leaks
    assert next(r for r in results if r.wiring.same_feed(truth)).difference.low > 0


def test_nothing_to_evaluate_is_an_error():
    with pytest.raises(ValueError, match="no wiring"):
        run_battery(MODEL, planted(Wiring(TRAINED)), [])


def test_student_interval_of_paired_differences():
    first, second, sizes = [5, 7, 6, 9], [4, 6, 6, 6], [10, 10, 10, 10]
    e = stats.paired_difference_t(first, second, sizes)
    # differences 1, 1, 0, 3 of 10: mean .125, sd .1258, t(3, .975) 3.182
    assert (e.value, round(e.low, 4), round(e.high, 4)) == (0.125, -0.0752, 0.3252)
    assert stats.paired_difference_t(first, second, sizes, level=0.999).low < e.low
    assert stats.paired_difference_t([1], [0], [3]).interval == (-float("inf"), float("inf"))
