"""Runs: absent figures stay absent, and a figure carries no more precision than it was printed with."""

import numpy as np
import pandas as pd
import pytest

from eagle_forensics.acceptance.runs import runs
from eagle_forensics.evidence.measurements import read_measurements


def one(**cells):
    return runs(pd.DataFrame([{"label": "r", **cells}]))[0]


def test_any_column_but_label_may_be_missing():
    run = one(steps=np.nan, accept_length=None, engine=float("nan"))
    assert (run.steps, run.accept_length, run.engine, run.tokens_per_second) == (None, None, None, None)


def test_a_row_without_label_is_named_by_its_place():
    assert runs(pd.DataFrame([{"label": None}, {"label": np.nan}]))[1].label == "row 2"


@pytest.mark.parametrize(("cell", "half"), [(1.6, 0.05), (1.62, 0.005), ("1.60", 0.005), ("2", 0.5)])
def test_precision_is_what_was_printed(cell, half):
    al = one(accept_length=cell).accept_length
    assert (al.high - al.low) / 2 == pytest.approx(half)


def test_a_whole_number_takes_the_coarsest_precision_of_its_column():
    table = pd.DataFrame({"label": list("abc"), "accept_length": [2.0, 1.62, 1.6]})
    assert runs(table)[0].accept_length.low == pytest.approx(1.95)


def test_survival_is_read_from_text():
    assert one(accepted_per_position="0.6;0.4;0.2").survival == (0.6, 0.4, 0.2)


@pytest.mark.parametrize(("cells", "word"), [
    ({"accept_length": "fast"}, "accept_length"), ({"steps": 1.5}, "whole number"), ({"accepted_per_position": "0.6;1.4"}, "shares"),
    ({"accept_length": float("inf")}, "expected a number"),
])
def test_a_cell_that_cannot_be_is_refused_by_name(cells, word):
    with pytest.raises(ValueError, match=word):
        one(**cells)


@pytest.mark.parametrize(("settings", "ceiling"), [
    ({"steps": 1, "topk": 1, "draft_tokens": 16}, 2), ({"steps": 3, "topk": 4, "draft_tokens": 8}, 4),
    ({"steps": 5, "topk": 4, "draft_tokens": 3}, 4), ({"draft_tokens": 4}, 5), ({}, None),
])
def test_ceiling_is_the_largest_possible_accept_length(settings, ceiling):
    assert one(**settings).ceiling == ceiling


def test_baseline_is_the_run_that_does_not_speculate():
    assert one(speculative=0).is_baseline and one(steps=0).is_baseline
    assert not one(speculative=1, steps=0).is_baseline and not one(tokens_per_second=1.0).is_baseline


def test_the_table_of_the_reader_is_understood(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("label,speculative,steps,accept_length,accepted_per_position,tokens_per_second,cuda_graph\n"
                    "base,0,,,,90.0,\nspec,1,3,1.60,0.4;0.15;0.05,56.8,1\n")
    base, spec = runs(read_measurements(file))
    assert base.is_baseline and (base.steps, base.accept_length, base.survival, base.cuda_graph) == (None, None, None, None)
    assert (spec.steps, spec.survival, spec.cuda_graph, spec.ceiling) == (3, (0.4, 0.15, 0.05), True, 4)


def test_a_run_that_produced_nothing_has_no_speed():
    assert one(tokens_per_second=0).tokens_per_second is None
