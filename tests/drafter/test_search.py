"""The search over every boundary ends where an exhaustive one does, says what it cannot tell apart, and believes no claim."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest

from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.contract import boundaries_finding
from eagle_forensics.drafter.wirings.search import boundaries_of, search_boundaries
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.finding import Status
from tests.drafter.planted import PLAIN, plant

BOUNDARIES = tuple(range(8))
ANY = Wiring(("b=0", "b=1", "b=2"))


@cache
def planted_at(truth: tuple[int, ...], seed: int = 0, keep: float = 0.85) -> tuple[Recorded, ...]:
    """Texts on which PLAIN is right most of the time when fed the states `truth`, in that order, of eight."""
    items = plant(PLAIN, Wiring(tuple(f"p{b}" for b in truth)), sequences=12, length=24, planes=len(BOUNDARIES), keep=keep, seed=seed)
    return tuple(replace(i, planes={n.replace("slot ", "b="): p for n, p in i.planes.items()}) for i in items)


@pytest.mark.parametrize("truth", [(6, 0, 3), (2, 7, 5)])
def test_the_search_ends_where_the_exhaustive_one_does(truth):
    items = planted_at(truth)
    found = search_boundaries(PLAIN, items, BOUNDARIES, 2, like=ANY)
    every = [Wiring(tuple(f"b={b}" for b in o)) for o in permutations(BOUNDARIES, 3)]
    best = max(zip(every, evaluate_all(PLAIN, items, every, 2), strict=True), key=lambda x: sum(x[1].run_sums()))[0]
    assert found.best == boundaries_of(best) == truth
    assert found.tried < len(every)
    assert any(boundaries_of(r.wiring) == tuple(b + 1 if b < 7 else b for b in truth) for r in found.results) or 7 in truth, "neighbours are compared"


def test_boundaries_of_the_dump_that_fit_best_pass():
    found = search_boundaries(PLAIN, planted_at((1, 4, 6)), BOUNDARIES, 2, like=ANY, known=[(1, 4, 6)])
    finding = boundaries_finding(found, (1, 4, 6))
    assert finding.status is Status.PASS and "{1, 4, 6}" in finding.statement and "fit best of" in finding.statement
    assert all(r.wiring.states[1:] == ("b=4", "b=6") for r in found.like_best), "the blocks that matter are settled"


def test_from_a_known_choice_only_its_surroundings_are_searched():
    near = search_boundaries(PLAIN, planted_at((6, 0, 3)), BOUNDARIES, 2, like=ANY, start=(6, 1, 3))
    assert near.best == (6, 0, 3) and near.tried < 60
    assert (6, 1, 3) in [boundaries_of(r.wiring) for r in near.results]


def test_a_dump_at_other_boundaries_is_put_in_doubt_not_accused():
    found = search_boundaries(PLAIN, planted_at((1, 4, 6)), BOUNDARIES, 2, like=ANY, known=[(0, 3, 5)])
    finding = boundaries_finding(found, (0, 3, 5))
    assert (finding.status, finding.fault, finding.required) == (Status.INCONCLUSIVE, "wiring.layer-offset", True)
    assert "{1, 4, 6}" in finding.statement and "may not be what the drafter was trained on" in finding.statement


def test_equal_states_are_listed_as_candidates_with_no_number_of_tokens():
    items = [i.with_planes({"b=5": i.planes["b=4"]}) for i in planted_at((1, 4, 6))]
    found = search_boundaries(PLAIN, items, BOUNDARIES, 2, like=ANY)
    finding = boundaries_finding(found, None)
    assert finding.status is Status.INCONCLUSIVE and "block 2 of fc: 4, 5" in finding.statement and "no number of tokens" in finding.next_step
    assert boundaries_finding(found, found.best).status is Status.PASS


def test_two_short_texts_settle_nothing():
    items = planted_at((1, 4, 6))[:2]
    finding = boundaries_finding(search_boundaries(PLAIN, items, BOUNDARIES, 2, like=ANY), None)
    assert finding.status is Status.INCONCLUSIVE and "2 sequences are too few" in finding.next_step


def test_a_shift_found_by_the_battery_is_kept_while_boundaries_are_searched():
    truth = Wiring(("p1", "p4", "p6"), token_shift=0)
    items = [replace(i, planes={n.replace("slot ", "b="): p for n, p in i.planes.items()}) for i in plant(PLAIN, truth, sequences=12, length=24, planes=8)]
    assert search_boundaries(PLAIN, items, BOUNDARIES, 2, like=replace(ANY, token_shift=0)).best == (1, 4, 6)
