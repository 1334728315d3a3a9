"""The figure of notebook 01: every claim about the layers on one axis of boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle_forensics import show
from eagle_forensics.config.claims import Claim, compatible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def claims_figure(items: list[Claim], layers: int) -> tuple[Figure, str, str]:
    """Boundaries claimed as trained (circles) and served (squares) along the residual stream; returns figure, alt text, caption."""
    import matplotlib.pyplot as plt

    drawn = [c for c in items if c.means]
    title = _answer(drawn)
    layers = max([layers, *(b for c in drawn for plane in c.means for b in plane)])
    fig, axis = plt.subplots(figsize=(9, 1.5 + 0.55 * max(1, len(drawn))))
    for row, claim in enumerate(drawn):
        served = claim.about == "served"
        colour, marker = (show.ORANGE, "s") if served else (show.BLUE, "o")
        axis.axhline(row, color="#e5e7eb", linewidth=6, zorder=0, solid_capstyle="round")
        for plane in claim.means:
            several = len(plane) > 1
            axis.plot(sorted(plane), [row] * len(plane), marker=marker, color=colour, markersize=11, linewidth=2, linestyle="-",
                      markerfacecolor="white" if several else colour, markeredgewidth=2)
            axis.annotate("|".join(map(str, sorted(plane))), (sum(plane) / len(plane), row), xytext=(0, 10), textcoords="offset points",
                          ha="center", fontsize=9)
    axis.set_yticks(range(len(drawn)), [f"{c.about}: {c.who}" for c in drawn])
    axis.set_ylim(len(drawn) - 0.4, -0.7)
    axis.set_xlim(-0.03 * layers - 0.6, layers * 1.03 + 0.6)
    axis.set_xlabel(f"boundary of the residual stream (0 = embedding output, {layers} = before the final norm)")
    axis.grid(axis="y", visible=False)
    axis.set_title(title)
    alt = title + ". " + "; ".join(f"{c.about} by {c.who}: " + ", ".join("|".join(map(str, sorted(p))) for p in c.means) for c in drawn) + "."
    return fig, alt, "Circles: what was trained on, squares: what is served. A hollow mark is a label with two possible readings."


def _answer(drawn: list[Claim]) -> str:
    trained, served = [c for c in drawn if c.about == "trained"], [c for c in drawn if c.about == "served"]
    if not trained or not served:
        return "Only one side speaks: nothing to compare yet"
    if any(compatible(t, s) is False for t in trained for s in served):
        return "Trained and served states are not the same"
    if all(t.boundaries is None for t in trained):
        return "The labels allow what is served; labels prove nothing"
    return "Trained and served states agree, by the claims"
