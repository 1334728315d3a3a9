"""Figures of notebook 02: the ranked wirings, accuracy by step, the predicted accept length, one text token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from eagle_forensics import show
from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness
from eagle_forensics.drafter.prediction.predict import predict_accept_length, round_views
from eagle_forensics.drafter.wirings.battery import WiringResult
from eagle_forensics.drafter.wirings.derived import EMBEDDING

LOOKS = [(show.BLUE, "o", "-"), (show.RED, "s", "--"), (show.GREEN, "^", "-."), (show.PURPLE, "D", ":")]
"""Colour, marker and line of each curve: never the colour alone."""

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Picture = tuple[Figure, str, str]


def ranking_figure(results: Sequence[WiringResult], most: int = 16) -> Picture | None:
    """How much shorter every wiring's runs of right tokens are than the best one's, on the same tokens; None without results."""
    if not results:
        return None
    import matplotlib.pyplot as plt

    honest = [r for r in results if not r.wiring.leaks]
    shown = list(honest[:most]) + [r for r in honest[most:] if r.wiring.name]
    best, rival = honest[0], max((r for r in honest[1:] if EMBEDDING not in r.wiring.states), key=lambda r: r.difference.value, default=None)
    fig, axis = plt.subplots(figsize=(9, 1.4 + 0.34 * len(shown)), layout="constrained")
    for row, r in enumerate(shown):
        d, named = r.difference, bool(r.wiring.name)
        colour = show.BLUE if named else show.GREY
        if d.bounded:
            axis.plot([d.low, d.high], [row, row], color=colour, linewidth=2.5, alpha=0.55, solid_capstyle="round")
        axis.plot(d.value, row, marker="D" if named else "o", color=colour, markersize=8 if named else 6, markerfacecolor=colour if r.complete else "white")
    axis.axvline(0, color="#9ca3af", linewidth=1, zorder=0)
    axis.set_yticks(range(len(shown)), [r.label for r in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.set_xlabel("right draft tokens in a row, less than with the best wiring on the same tokens")
    axis.grid(axis="y", visible=False)
    title = f"Best: {best.label} ({best.accuracy[0].value:.1%} of first draft tokens right)"
    if rival is not None:
        title += "; every other use of its planes is worse" if rival.difference.high < 0 else "; the next cannot be told apart"
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    alt = title + ". " + "; ".join(f"{r.label}: {r.difference.value:+.3f}" for r in shown) + "."
    return fig, alt, (f"{len(shown)} of {len(results)} wirings tried. Bars hold together at 95 % over all comparisons (sequences, paired). Diamonds: wirings "
                      "named by the case. Hollow: dropped at a screening, figures from its smaller sample.")


def step_figure(curves: Mapping[str, Correctness]) -> Picture | None:
    """Accuracy by step of the feeds worth a look; None without any."""
    rising = [n for n, c in curves.items() if c.steps > 1 and c.accuracy(1).low > c.accuracy(0).high]
    return _steps(curves, f"{rising[0]}: accuracy rises from step 1 to step 2, the mark of a bad input state" if rising
                  else "Accuracy falls from step to step, as with a healthy input state",
                  "Teacher-forced accuracy of each draft step; bands: 95 % interval over sequences. At step 2 the drafter reads its own state, so a bad input state hurts step 1 most.")


def flag_figure(curves: Mapping[str, Correctness]) -> Picture | None:
    """Accuracy by step under the head's flags: the checkpoint's own, then the best of the others; None without any."""
    if not curves:
        return None
    own, *others = curves.items()
    others = sorted(others, key=lambda item: -sum(item[1].run_sums()))[:len(LOOKS) - 1]
    best = max(curves, key=lambda n: sum(curves[n].run_sums()))
    title = "The flags of the checkpoint fit best" if best == own[0] else f"Better than as configured: {best}"
    return _steps(dict([own, *others]), title, f"The best wiring under {len(curves)} combinations of head flags, {own[1].n} tokens; bands: 95 % interval over sequences. "
                  "norm_output changes only what the drafter feeds itself, so it shows from step 2 on.")


def _steps(curves: Mapping[str, Correctness], title: str, caption: str) -> Picture | None:
    if not curves:
        return None
    import matplotlib.pyplot as plt

    fig, axis = plt.subplots(layout="constrained")
    for (name, c), (colour, marker, style) in zip(curves.items(), LOOKS, strict=False):
        points = [c.accuracy(k) for k in range(c.steps)]
        steps = range(1, c.steps + 1)
        axis.plot(steps, [p.value for p in points], color=colour, marker=marker, linestyle=style, label=name, linewidth=2, markersize=8)
        axis.fill_between(steps, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.15)
    axis.set_xticks(range(1, next(iter(curves.values())).steps + 1))
    axis.set_ylim(0, None)
    axis.set_xlabel("draft step")
    axis.set_ylabel("accuracy (share of response tokens)")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    axis.set_title(title)
    alt = title + ". " + "; ".join(f"{n}: " + ", ".join(f"{c.accuracy(k).value:.3f}" for k in range(c.steps)) for n, c in curves.items()) + "."
    return fig, alt, caption


def length_figure(trained: Correctness | None, served: Correctness | None) -> Picture | None:
    """Predicted accept length against the number of draft steps; None without a trained wiring."""
    if trained is None:
        return None
    import matplotlib.pyplot as plt

    fig, axis = plt.subplots(layout="constrained")
    ours, theirs = predict_accept_length(trained), predict_accept_length(served) if served else ()
    steps = [p.steps for p in ours]
    axis.plot(steps, [p.product_formula for p in ours], color=show.GREY, linestyle=":", marker="x", label="product of accuracies (too high)")
    for name, rows, colour, marker in (("trained states, by the walk", ours, show.BLUE, "o"), ("served states, by the walk", theirs, show.RED, "s")):
        if rows:
            values = [p.accept_length for p in rows]
            axis.errorbar(steps, [v.value for v in values], yerr=[[v.value - v.low for v in values], [v.high - v.value for v in values]],
                          color=colour, marker=marker, capsize=4, linewidth=2, label=name)
    axis.axhline(1, color="#9ca3af", linewidth=1)
    axis.set_xticks(steps)
    axis.set_ylim(0.95, None)
    axis.set_xlabel("draft steps a round (topk 1)")
    axis.set_ylabel("accept length (tokens a round)")
    axis.legend(frameon=False)
    last = ours[-1]
    title = f"With {last.steps} steps the trained states give {last.accept_length.value:.2f} tokens a round" + (
        f", the served ones {theirs[-1].accept_length.value:.2f}" if theirs else "")
    axis.set_title(title)
    alt = title + ". By steps: " + "; ".join(f"{p.steps}: {p.accept_length.value:.3f}" for p in ours) + "."
    return fig, alt, "The walk replays verify rounds on recorded text; bars: 95 % interval over sequences. 1 would be no gain at all."


def text_view(sequence: SequenceCorrectness, decode: Callable[[int], str], steps: int, rounds: int = 40) -> str:
    """One text as HTML, round by round: accepted draft tokens, the token the target put instead, what had been drafted there."""
    parts = []
    for view in round_views(sequence, steps)[:rounds]:
        accepted = "".join(f'<span class="ef-accepted">{show.safe(decode(t))}</span>' for t in view.drafted[:view.accepted])
        bonus = "" if view.bonus is None else f'<span class="ef-bonus">{show.safe(decode(view.bonus))}</span>'
        missed = view.drafted[view.accepted] if view.accepted < len(view.drafted) else None
        rejected = "" if missed is None else f'<del class="ef-rejected">{show.safe(decode(missed))}</del>'
        parts.append(f'<span class="ef-round">{accepted}{rejected}{bonus}</span>')
    return ('<div class="ef-text"><p class="ef-legend"><span class="ef-accepted">accepted draft token</span> '
            '<del class="ef-rejected">rejected draft token</del> <span class="ef-bonus">the target\'s own token</span> – one box a verify round</p>'
            f'<p>{"".join(parts)}</p></div>')
