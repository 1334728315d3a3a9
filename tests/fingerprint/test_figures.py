"""Figures and tables: they answer in title and alt text, also for slots that could not be compared."""

from __future__ import annotations

import matplotlib
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from eagle_forensics.fingerprint.figures import (
    first_values_frame,
    match_frame,
    match_heatmap,
    sink_figure,
    tests_frame,
)
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.pictures import calibration_figure, decisions_figure

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences(3)
TARGET = TinyTarget(sink=2000.0)
outcomes_frame = tests_frame
del tests_frame  # not a test


@pytest.fixture
def found():
    return identify(samples(lambda s: [TARGET.run(s)[0][1], TARGET.run(s)[0][4], TARGET.run(s)[0][4][:, :16]], IDS), bank=TinyBank(TARGET, IDS),
                    weights=TARGET.weights(), layers=LAYERS, labels=["embed", "<b>x</b>", "final"])


def test_the_heatmap_names_the_boundaries(found):
    picture = match_heatmap(found)
    axes = picture.figure.axes[0]
    assert axes.get_title(loc="left") == "2 of 3 slots are whole states: 1, 4, ?"
    assert "slot 1: b=4 at 0.000" in picture.alt
    assert "slot 2 not compared" in picture.alt
    assert f"{found.table.n} ordinary tokens" in picture.caption
    outlined = [p for p in axes.patches if not p.get_fill()]
    assert [p.get_x() + 0.5 for p in outlined] == [1, 4]
    picture.figure.canvas.draw()
    plt.close(picture.figure)


def test_the_sink_figure_counts_what_each_measure_accepts(found):
    picture = sink_figure(found, 1)
    assert picture.figure.get_suptitle() == "A whole-tensor error accepts 4 boundaries for slot 1, the per-token median 1"
    picture.figure.canvas.draw()
    plt.close(picture.figure)


def test_without_a_bank_there_is_no_figure_but_the_tables_stand(found):
    bare = identify(samples(lambda s: [TARGET.run(s)[0][1]], IDS))
    assert match_heatmap(bare) is None
    assert sink_figure(bare) is None
    assert len(first_values_frame(bare)) == len(match_frame(bare)) == len(outcomes_frame(bare)) == 1


def test_tables_carry_best_second_and_first_values(found):
    frame = match_frame(found)
    assert frame["is"].tolist() == ["b=1", "b=4", "b=4"]
    assert frame["state"].tolist()[2] == "slice of the hidden dimension"
    assert [text.split(":")[0] for text in frame["best"].tolist()[:2]] == ["b=1", "b=4"]
    assert {"x[0]", "x[4]", "median norm", "sinks"} <= set(first_values_frame(found).columns)


def test_the_figures_of_the_calibration_show_where_the_slots_fall(found):
    errors, decisions = calibration_figure(found), decisions_figure(found)
    assert "2 of 2 slots lie where right planes were measured" in errors.alt
    assert "int4 weights, groups of 64 0.01 to 0.06" in decisions.alt and "72% of the next tokens" in decisions.alt
    for picture in (errors, decisions):
        picture.figure.canvas.draw()
        plt.close(picture.figure)
    assert decisions_figure(identify(samples(lambda s: [TARGET.run(s)[0][1]], IDS))) is None
