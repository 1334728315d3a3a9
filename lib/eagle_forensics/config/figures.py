"""The figures of notebook 01: every claim about the layers on one axis of boundaries, and trained against served planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eagle_forensics import show
from eagle_forensics.config.claims import Claim, compatible
from eagle_forensics.config.inspection import Inspection

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


def matrix_figure(found: Inspection, items: list[Claim]) -> tuple[Figure, str, str] | None:
    """Every trained plane against every served one, per execution path, as boundaries apart; None where one side says nothing.

    Right: zeros on the diagonal. A shift: one number on the diagonal. Another order: zeros off the diagonal.
    """
    trained = next((c for c in items if c.about == "trained" and c.means), None)
    paths = {path: b for path, b in (found.served.boundaries.items() if found.served else ()) if b}
    if trained is None or not paths:
        return None
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(paths), figsize=(4.3 * len(paths) + 1, 3.9), squeeze=False)
    said = []
    for axis, (path, served) in zip(axes[0], paths.items(), strict=True):
        _grid(axis, trained, served)
        right = _fits(trained, served)
        axis.set_title(f"{path}: {'every plane fits' if right else 'planes do not fit'}", fontsize=11)
        axis.set_xlabel("served boundary, in the order fc gets it")
        said.append(f"{path} serves {', '.join(map(str, served))}: {'fits' if right else 'does not fit'}")
    axes[0][0].set_ylabel("trained boundary, in the order of fc")
    wrong = [path for path, b in paths.items() if not _fits(trained, b)]
    title = f"On the {' and the '.join(wrong)} path fc gets other states than it was trained on" if wrong else "Each trained plane meets its served one"
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    fig.tight_layout()
    rows = ", ".join("|".join(map(str, sorted(plane))) for plane in trained.means)
    return fig, f"{title}. Trained by {trained.who}: {rows}. {'; '.join(said)}.", (
        f"Numbers are boundaries apart (served - trained, by {trained.who}); only the framed diagonal is what fc mixes. "
        "A label with two readings shows the nearer one, marked ?.")


def _grid(axis: Any, trained: Claim, served: tuple[int, ...]) -> None:
    from matplotlib.patches import Rectangle

    for row, plane in enumerate(trained.means):
        for column, boundary in enumerate(served):
            apart = min((boundary - b for b in plane), key=abs)
            same, diagonal = apart == 0, row == column
            colour = (show.BLUE if same else show.ORANGE) if diagonal else "#ffffff"
            axis.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, alpha=0.35 if diagonal else 1, edgecolor="#e5e7eb"))
            if diagonal:
                axis.add_patch(Rectangle((column + 0.04, row + 0.04), 0.92, 0.92, fill=False, edgecolor=show.BLUE if same else show.RED, linewidth=2))
            text = ("0" if same else f"{apart:+d}") + ("?" if len(plane) > 1 else "")
            axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontweight="bold" if diagonal else "normal",
                      color="black" if diagonal else show.GREY)
    axis.set_xlim(0, len(served))
    axis.set_ylim(len(trained.means), 0)
    axis.set_xticks([i + 0.5 for i in range(len(served))], [str(b) for b in served])
    axis.set_yticks([i + 0.5 for i in range(len(trained.means))], ["|".join(map(str, sorted(plane))) for plane in trained.means])
    axis.grid(visible=False)
    axis.set_aspect("equal")


def _fits(trained: Claim, served: tuple[int, ...]) -> bool:
    return len(served) == len(trained.means) and all(b in plane for b, plane in zip(served, trained.means, strict=True))


def _answer(drawn: list[Claim]) -> str:
    trained, served = [c for c in drawn if c.about == "trained"], [c for c in drawn if c.about == "served"]
    if not trained or not served:
        return "Only one side speaks: nothing to compare yet"
    if any(compatible(t, s) is False for t in trained for s in served):
        return "Trained and served states are not the same"
    if all(t.boundaries is None for t in trained):
        return "The labels allow what is served; labels prove nothing"
    return "Trained and served states agree, by the claims"
