"""Robust figures: the sink does not decide, unusable rows are counted, medians carry intervals over sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle_forensics import stats
from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.match import match
from eagle_forensics.fingerprint.rows import Reference, Weights, collect

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences


def test_errors_and_cosines_by_hand():
    h = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    errors = measure.token_errors(x, h)
    assert errors.tolist() == pytest.approx([0.0, 2**0.5, 0.0, np.inf])
    cosines = measure.token_cosines(errors[:2], measure.token_norms(x)[:2], measure.token_norms(h)[:2])
    assert cosines.tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_errors_out_of_inner_products():
    products, x, h = np.array([[6.0, 0.0, 0.0, np.inf]]), np.array([2.0, 0.0, 0.0, np.inf]), np.array([[3.0, 2.0, 0.0, 3.0]])
    np.testing.assert_array_equal(measure.errors_from(products, x, h), np.float32([[1 / 3, 1, 0, np.inf]]))


def test_usable_rows_are_those_of_health():
    x = torch.randn(9, 8)
    x[1], x[2], x[3, 5], x[4, 2], x[5], x[6, 0] = 0, 3, torch.nan, torch.inf, 1e38, x[6, -1]
    x[7, :2] = torch.tensor([torch.inf, -torch.inf])
    assert measure.usable(x).tolist() == measure.health(x).usable.tolist() == [True, False, False, False, False, False, True, False, True]


def test_sinks_are_few_and_far_out():
    norms = np.full((2, 100), 10.0)
    norms[1, 0] = 900.0
    assert np.flatnonzero(measure.sinks(norms)).tolist() == [0]
    norms[0, :40] = 900.0
    assert measure.sinks(norms).sum() == 1, "40 % of the rows are another distribution, not sinks"


def test_a_sink_hides_the_layer_from_the_whole_tensor_but_not_from_the_median():
    target, ids = TinyTarget(sink=2000.0), sequences(4)
    rows = collect(samples(lambda s: [target.run(s)[0][4]], ids))
    table = match(Reference(TinyBank(target, ids), rows, Weights(), LAYERS))
    columns = [table.boundaries.index(Boundary(b)) for b in (4, 5)]
    assert table.errors[0, columns[1]] > 0.3
    assert table.global_errors[0, columns[1]] < 0.05, "the case is only a trap if the whole-tensor error is small"
    assert table.sinks.sum() == len(ids)
    assert table.matches[0].sink_error == 0.0


def test_median_over_groups_covers_and_is_wider_for_few_sequences():
    rng = np.random.default_rng(0)
    shift = rng.normal(size=40)
    many = stats.median_over_groups([rng.normal(s, 0.1, 50) for s in shift])
    few = stats.median_over_groups([rng.normal(s, 0.1, 50) for s in shift[:5]])
    assert many.low < 0 < many.high
    assert many.high - many.low < few.high - few.low
    assert (many.n, many.clusters) == (2000, 40)
    assert stats.median_over_groups([np.array([1.0, 2.0, 9.0])]).interval == (-np.inf, np.inf)
    with pytest.raises(ValueError, match="at least one"):
        stats.median_over_groups([])


def test_median_over_groups_draws_sequences_not_tokens():
    estimate = stats.median_over_groups([np.zeros(1000), np.ones(1000), np.full(1000, 2.0)])
    assert (estimate.value, estimate.low, estimate.high) == (1.0, 0.0, 2.0)


def test_health_counts_each_kind():
    x = torch.randn(10, 4)
    x[0, 1], x[1], x[2], x[:, 3] = float("inf"), 0.0, 1.0, 0.0
    x[2, 3] = 1.0
    h = measure.health(x)
    assert (h.non_finite, h.zero, h.constant, h.usable.sum()) == (1, 1, 1, 7)


def test_the_glance_shows_the_same_ordinary_token_in_every_slot():
    target, ids = TinyTarget(sink=2000.0), sequences(2)
    glances = measure.glance(collect(samples(lambda s: [target.run(s)[0][b] for b in (1, 5)], ids)))
    assert [g.row for g in glances] == [1, 1], "row 0 is a sink in slot 1"
    assert glances[0].first_values == pytest.approx(target.run(ids[0])[0][1][1, :5].tolist())
    assert (glances[0].sink_norm, glances[1].sinks) == (None, 2)


def test_rows_without_tokens_cannot_be_found_in_a_bank():
    ids = sequences(2)
    from dataclasses import replace

    rows = replace(collect(samples(lambda s: [TinyTarget().run(s)[0][1]], ids)), tokens=None)
    with pytest.raises(EvidenceError, match="no token ids"):
        Reference(TinyBank(TinyTarget(), ids), rows, Weights())


def test_the_budget_limits_what_is_held():
    ids = sequences(6)
    rows = collect(samples(lambda s: [TinyTarget().run(s)[0][1]], ids), budget=4 * 64 * 120)
    assert (len(rows.samples), len(rows)) == (3, 96), "a block of each as long as there is room"
    assert "further samples not read" in rows.notes[0]
