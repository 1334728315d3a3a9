"""Which rows of a long sample are compared, and that the bank is read at exactly these."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.rows import BLOCK, ROWS, collect, cut, picked

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

TARGET = TinyTarget()
LONG = sequences(2, length=900)


@pytest.mark.parametrize("length", [1, BLOCK, ROWS, ROWS + 1, 1000, 100_000])
def test_rows_are_distinct_in_order_and_begin_with_the_first(length):
    position = picked(length, ROWS)
    assert position[0] == 0
    assert len(position) == min(length, ROWS)
    assert (np.diff(position) > 0).all()
    assert position[-1] < length
    assert (picked(length, ROWS) == position).all()


def test_rows_of_a_long_sample_are_spread_over_it():
    position = picked(100_000, ROWS)
    assert len(np.unique(position // BLOCK)) == ROWS // BLOCK
    assert position[-1] > 50_000


def test_a_long_sample_is_compared_at_its_own_positions():
    found = identify(samples(lambda s: [TARGET.run(s)[0][4], TARGET.run(s)[0][2].roll(1, 0)], LONG), bank=TinyBank(TARGET, LONG),
                     weights=TARGET.weights(), layers=LAYERS)
    assert found.rows == 2 * ROWS
    assert found.slots[0].equals == Boundary(4)
    assert found.slots[0].match.error.value == 0
    assert (found.slots[1].boundary, found.slots[1].state) == (Boundary(2), State.SHIFTED)


def test_a_bank_that_ends_before_the_sample_is_compared_as_far_as_it_goes():
    found = identify(samples(lambda s: [TARGET.run(s)[0][4]], LONG[:1]), bank=TinyBank(TARGET, [LONG[0][:500]]), weights=TARGET.weights(), layers=LAYERS)
    assert found.slots[0].equals == Boundary(4)
    assert found.table.n == (picked(900, ROWS) < 500).sum()


def test_a_budget_of_wide_states_takes_fewer_rows_of_more_samples():
    sample = samples(lambda s: [TARGET.run(s)[0][4]], LONG)[0]
    assert len(cut(sample, budget=16 * 4 * 64 * 100)) == 96
    assert len(cut(sample, reach=100)) == 100
    rows = collect(samples(lambda s: [TARGET.run(s)[0][4]], LONG), budget=16 * 4 * 64 * BLOCK)
    assert [int((rows.sequence == i).sum()) for i in range(2)] == [BLOCK, BLOCK]
    assert [len(t) for t in rows.texts] == [BLOCK, BLOCK]
