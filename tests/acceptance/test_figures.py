"""Figures: the title states the answer, the alt text carries the figures."""

import matplotlib
import pandas as pd
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eagle_forensics.acceptance import cost, figures, prediction
from eagle_forensics.acceptance.ceiling import ceilings
from eagle_forensics.acceptance.runs import runs
from tests.acceptance.tables import INCIDENT, ONE_STEP, PREDICTED, SWEEP, live


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def swept(frame):
    table = runs(frame)
    return cost.sweep(cost.fit_cycle(table), cost.accept_lengths(table), table[0].tokens_per_second)


@pytest.mark.parametrize(("made", "title"), [
    (lambda: figures.ceiling_plot(ceilings(runs(INCIDENT))), "With 1 step no drafter can win:\nbreak-even 2.54 is above the ceiling 2"),
    (lambda: figures.ceiling_plot(ceilings(runs(SWEEP))), "6 of 6 runs beat the baseline; none is impossible"),
    (lambda: figures.ceiling_plot(ceilings(runs(pd.concat([SWEEP, ONE_STEP])))), "6 of 7 runs beat the baseline; at the steps of 1 no drafter could"),
    (lambda: figures.steps_plot(swept(SWEEP)), "4 draft steps serve best: 248 tokens/s"),
    (lambda: figures.steps_plot(swept(INCIDENT)), "No step count reaches the baseline of 90.0 tokens/s"),
    (lambda: figures.prediction_plot(prediction.match(runs(live(1.098))[0], PREDICTED)),
     "Live 1.10 is 0.92 below the prediction; it fits embedding first"),
    (lambda: figures.speed_plot(ceilings(runs(INCIDENT.iloc[:2]))), "1 step: 0.63 times the tokens/s without speculation (cannot win)"),
])
def test_title_states_the_answer(made, title):
    fig, alt, caption = made()
    assert fig.axes[0].get_title(loc="left") == title
    assert alt.startswith(title.replace("\n", " ")) and any(c.isdigit() for c in alt) and caption
    assert fig.axes[0].get_xlabel()


def test_nothing_to_plot_is_refused():
    with pytest.raises(ValueError, match="baseline"):
        figures.ceiling_plot(())
    with pytest.raises(ValueError, match="known steps"):
        figures.speed_plot(())
