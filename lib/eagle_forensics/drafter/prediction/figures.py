"""Figures of notebook 02 on the accept length to expect from trees and above temperature 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle_forensics import show
from eagle_forensics.drafter.prediction.sampling import SampledPrediction
from eagle_forensics.drafter.prediction.tree_grid import TreePrediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Picture = tuple[Figure, str, str]

LOOKS = ((show.BLUE, "o", "-"), (show.GREEN, "^", "-."), (show.PURPLE, "D", ":"), (show.RED, "s", "--"))


def tree_figure(grid: Sequence[TreePrediction]) -> Picture | None:
    """Predicted accept length against the draft tokens a round verifies, a line a topk at the most steps; None without a grid."""
    if not grid:
        return None
    import matplotlib.pyplot as plt

    fig, axis = plt.subplots(layout="constrained")
    topks = sorted({p.topk for p in grid})
    steps = max(p.steps for p in grid)
    for (colour, marker, line), topk in zip(LOOKS, topks, strict=False):
        rows = sorted((p for p in grid if p.topk == topk and (topk == 1 or p.steps == steps)), key=lambda p: p.draft_tokens)
        values = [p.accept_length.value for p in rows]
        axis.plot([p.draft_tokens for p in rows], values, color=colour, marker=marker, linestyle=line, linewidth=2, markersize=8,
                  label="chain of 1 to " + str(steps) + " steps" if topk == 1 else f"tree of {steps} steps, topk {topk}")
    axis.set_xlabel("draft tokens verified a round (the root among them)")
    axis.set_ylabel("accept length (tokens a round)")
    axis.legend(frameon=False)
    chain = max((p for p in grid if p.topk == 1), key=lambda p: p.steps)
    best = max((p for p in grid if p.topk > 1), key=lambda p: p.accept_length.value, default=None)
    title = f"A chain of {chain.steps} steps gives {chain.accept_length.value:.2f} tokens a round"
    if best is not None:
        title += f", a tree of {best.draft_tokens} draft tokens {best.accept_length.value:.2f}"
    axis.set_title(title)
    alt = title + ". " + "; ".join(f"steps {p.steps}, topk {p.topk}, draft tokens {p.draft_tokens}: {p.accept_length.value:.3f}" for p in grid) + "."
    return fig, alt, (f"SGLang's dynamic tree, greedy, replayed round by round on {chain.accept_length.clusters} recorded texts. A longer round also costs more: "
                      "notebook 4 weighs the two.")


def temperature_figure(predictions: Sequence[SampledPrediction], greedy: float | None) -> Picture | None:
    """Accept length of the longest chain against the temperature; `greedy`: the walk's at temperature 0. None without predictions."""
    if not predictions:
        return None
    import matplotlib.pyplot as plt

    steps = max(p.steps for p in predictions)
    mine = [p for p in predictions if p.steps == steps]
    fig, axis = plt.subplots(layout="constrained")
    for rule, colour, marker, label in (("target-only", show.BLUE, "o", "greedy draft (bounds)"), ("rejection", show.GREEN, "^", "sampled draft (approximation)")):
        rows = sorted((p for p in mine if p.rule == rule), key=lambda p: p.temperature)
        axis.plot([p.temperature for p in rows], [(p.low.value + p.high.value) / 2 for p in rows], color=colour, marker=marker, linewidth=2, label=label)
        axis.fill_between([p.temperature for p in rows], [p.low.value for p in rows], [p.high.value for p in rows], color=colour, alpha=0.2)
    if greedy is not None:
        axis.plot(0, greedy, color=show.RED, marker="s", markersize=9, linestyle="none", label="greedy, by the walk")
    axis.set_xlabel("temperature")
    axis.set_ylabel("accept length (tokens a round)")
    axis.set_ylim(1, None)
    axis.legend(frameon=False)
    last = max((p for p in mine if p.rule == "target-only"), key=lambda p: p.temperature)
    title = f"With {steps} steps at temperature {last.temperature:g} a greedy draft gives {last.low.value:.2f} to {last.high.value:.2f} tokens a round"
    axis.set_title(title)
    alt = title + ". " + "; ".join(f"temperature {p.temperature:g}, {p.rule}: {p.low.value:.3f} to {p.high.value:.3f}" for p in mine) + "."
    return fig, alt, "Probabilities of the target along the recorded greedy text; rounds start where they do at temperature 0."
