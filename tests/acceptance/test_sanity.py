"""Gates on real and on broken text, and where two answers part."""

import asyncio
from itertools import cycle, islice

import pytest

from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Answer, Choice
from eagle_forensics.acceptance.live import sanity
from eagle_forensics.demo.stage import sequences


def repeated(pattern, n=120):
    return list(islice(cycle(pattern), n))


@pytest.mark.parametrize("ids, text, why", [
    (repeated([7]), "x", "1 distinct tokens"), (repeated(range(9)), "x", "cycle of 9 tokens fills 100%"), (repeated([1, 2]), "x", "distinct bigrams"),
    ([*range(50), *repeated(range(100, 120), 70)], "x", "cycle of 20 tokens fills 58%"), ([1], "Well !!!!!!!!!!!!!!!!!!!!", "one character repeated 20 times (!!!!)")])
def test_a_gate_names_what_is_wrong(ids, text, why):
    assert any(why in reason for reason in sanity.gates(ids, text))


@pytest.mark.parametrize("ids, text", [
    (list(range(120)), "fine"), ([5, 5, 5], "No. No. No."), ([*range(80), *repeated([1, 2, 3], 20)], "fine"), (None, "=" * 60), ([1], "Title\n-----------------------------\n")])
def test_normal_text_passes(ids, text):
    assert sanity.gates(ids, text) == ()


def test_five_in_a_hundred_real_greedy_answers_of_a_small_model_are_loops():
    rows = [*sequences("train"), *sequences("test")]
    behind = [r for r in rows if sanity.gates(r.gen_ids, "")]
    assert len(rows) == 982 and len(behind) == 49


@pytest.mark.parametrize("found, steps, where", [
    (Acceptance(50, 0, 150), 3, "1.00"), (Acceptance(50, 150, 150), 3, "its ceiling 4"), (Acceptance(50, 149, 150), 3, None), (Acceptance(50, 150), None, None)])
def test_pinned(found, steps, where):
    assert sanity.pinned(found, steps) == where


def test_first_difference():
    assert sanity.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert sanity.first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert sanity.first_difference([1, 2], [1, 2, 3]) == 2


def test_divergences_pair_what_both_answered():
    first = [Answer("a", "d", output_ids=(1, 2, 3)), Answer("b", "d", output_ids=(4,)), Answer("c", "d", error="x"), Answer("e", "d", output_ids=(5, 6))]
    second = [Answer("e", "d", output_ids=(5,)), Answer("a", "d", output_ids=(1, 7, 3)), Answer("b", "d", output_ids=(4,)), Answer("c", "d", output_ids=(1,))]
    pairs, found = sanity.divergences(first, second)
    assert pairs == 3 and [(d.prompt, d.position, d.first, d.second) for d in found] == [("a", 1, 2, 7), ("e", 1, 6, None)]


class Asked:
    async def choices(self, ids, n):
        assert ids == (9, 1)
        return (Choice(7, -0.5), Choice(2, -0.75))


def test_the_gap_is_asked_of_the_second_server():
    found = asyncio.run(sanity.gap(Asked(), [9, 1], sanity.Divergence("a", 1, 2, 7)))
    assert found.gap == 0.25
    assert asyncio.run(sanity.gap(Asked(), [9, 1], sanity.Divergence("a", 1, 3, 7))).gap is None
