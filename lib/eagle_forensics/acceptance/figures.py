"""The figures of notebook 04. Each answers one question; the title states the answer. Each returns (figure, alt text, caption)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import (
    Ceiling,
    Outcome,
    impossible,
    pays_otherwise,
)
from eagle_forensics.acceptance.cost import Sweep
from eagle_forensics.acceptance.prediction import TRAINED, Match
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import plural
from eagle_forensics.show import BLUE, GREEN, GREY, ORANGE, RED, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_WIDTH = 34
FAR = 2.5
"""A ceiling further right than this many times the break-even is written beside the axis instead of stretching it."""

WORDS = {Outcome.CANNOT_WIN: "cannot win", Outcome.LOSES: "loses", Outcome.WINS: "wins", Outcome.UNDECIDED: "undecided"}


def ceiling_plot(tests: Sequence[Ceiling]) -> tuple[Figure, str, str]:
    """Measured accept length, break-even and ceiling of each run. Raises ValueError without one."""
    if not tests:
        raise ValueError("the ceiling plot needs a run with speculation and a baseline")
    theme()
    import matplotlib.pyplot as plt

    tests = sorted(tests, key=lambda c: (c.run.steps or 0, c.run.label), reverse=True)
    fig, ax = plt.subplots(figsize=(8.5, 1.9 + 0.62 * len(tests)), layout="constrained")
    right = max(max(c.break_even.high, c.accept_length.high) for c in tests)
    limit = 1 + (right - 1) * FAR
    edge = max([right, *(c.ceiling for c in tests if c.ceiling is not None and c.ceiling <= limit)])
    for y, c in enumerate(tests):
        lost = c.outcome is Outcome.CANNOT_WIN
        top = edge if c.ceiling is None else min(c.ceiling, edge)
        ax.barh(y, top - 1, left=1, height=0.5, color="#e5e7eb", zorder=1)
        if c.ceiling is not None and c.ceiling <= edge:
            ax.plot([c.ceiling] * 2, [y - 0.3, y + 0.3], color="#374151", lw=2.5, zorder=3)
        else:
            text = "ceiling unknown" if c.ceiling is None else f"ceiling {c.ceiling} →"
            ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center", ha="left", fontsize=9, color="#374151")
        _mark(ax, c.accept_length, y, BLUE, "o")
        _mark(ax, c.break_even, y, RED if lost else ORANGE, "D")
        for e, colour in ((c.accept_length, BLUE), (c.break_even, RED if lost else "#8a5a00")):
            ax.annotate(f"{e.value:.2f}", (e.value, y + 0.33), ha="center", va="bottom", fontsize=9, color=colour)
    names = [f"{_short(c.run.label)}\n{_steps(c.run)} – {WORDS[c.outcome]}" for c in tests]
    ax.set_yticks(range(len(tests)), names)
    ax.set_ylim(-0.6, len(tests) - 0.25)
    ax.set_xlim(0.95, 1 + (edge - 1) * 1.06)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("tokens per verify round (bonus token included)")
    handles = [plt.Line2D([], [], marker="o", ls="", color=BLUE), plt.Line2D([], [], marker="D", ls="", color=ORANGE),
               plt.Line2D([], [], marker="|", ms=14, mew=2.5, ls="", color="#374151")]
    labels = ["measured accept length", "break-even (red: above the ceiling)", "ceiling"]
    fig.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    lost = impossible(tests)
    if lost:
        worst = max(lost, key=lambda c: c.break_even.value / c.ceiling)
        title = f"With {_steps(worst.run)} no drafter can win:\nbreak-even {worst.break_even.value:.2f} is above the ceiling {worst.ceiling}"
    else:
        wins = sum(c.outcome is Outcome.WINS for c in tests)
        beyond = sum(c.outcome is Outcome.CANNOT_WIN and pays_otherwise(c, tests) for c in tests)
        title = f"{wins} of {len(tests)} runs beat the baseline; {f'at the steps of {beyond} no drafter could' if beyond else 'none is impossible'}"
    ax.set_title(title)
    alt = title.replace("\n", " ") + ". " + " ".join(
        f"{c.run.label}, {_steps(c.run)}: measured {c.accept_length.value:.2f}, break-even {c.break_even.value:.2f}, ceiling {c.ceiling}."
        for c in reversed(tests))
    base = sorted({f"{c.baseline_tokens_per_second.value:.1f}" for c in tests})
    return fig, alt, ("Grey: accept lengths that the settings allow. Break-even = accept length / (tokens/s) x baseline tokens/s "
                      f"({', '.join(base)}). Bars: the figures as they were printed, and sampling where rounds are recorded.")


def steps_plot(sweep: Sweep, *, ahead: Sweep | None = None, fresh: Run | None = None) -> tuple[Figure, str, str]:
    """Tokens/s against steps on the cost line, with the band of no speculation and the ceiling of a perfect drafter.

    `ahead`: the accept lengths predicted for right wiring on the same cost; `fresh`: the run that confirmed the recommendation.
    """
    theme()
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(8.5, 4.8), layout="constrained")
    ks = [c.steps for c in sweep.choices]
    values = [c.tokens_per_second.value for c in sweep.choices]
    ax.fill_between(ks, [c.tokens_per_second.low for c in sweep.choices], [c.tokens_per_second.high for c in sweep.choices],
                    color=BLUE, alpha=0.15, lw=0, label="95 % of plausible cost lines")
    ax.plot(ks, values, color=BLUE, lw=2, label="on the cost line")
    al = {c.steps: c.accept_length for c in sweep.choices}
    measured = [(k, 1e3 * al[k] / t) for k, t in zip(sweep.fit.steps, sweep.fit.cycles_ms, strict=True) if k in al]
    ax.scatter(*zip(*measured, strict=True), color="black", s=26, zorder=4, label="measured")
    best = sweep.best
    ax.scatter([best.steps], [best.tokens_per_second.value], marker="D", s=90, facecolor="none", edgecolor=GREEN, lw=2.5, zorder=5,
               label=f"most on the line: {best.steps}")
    ceilings = [sweep.fit.tokens_per_second(k, k + 1) for k in ks]
    ax.plot(ks, ceilings, color="#374151", lw=1.2, ls=":", label="ceiling: every draft accepted")
    if ahead is not None:
        ax.plot([c.steps for c in ahead.choices], [c.tokens_per_second.value for c in ahead.choices], color=ORANGE, lw=1.5, ls="-.", label="as predicted for the trained wiring")
    if fresh is not None:
        speed = fresh.tokens_per_second
        ax.errorbar([fresh.steps + 0.02 * (ks[-1] - ks[0])], [speed.value], yerr=[[speed.value - speed.low], [speed.high - speed.value]], fmt="s", color=GREEN, ms=6, capsize=4, zorder=6,
                    label="fresh server, other prompts")
    if sweep.baseline is not None:
        _no_speculation(ax, sweep.baseline)
    top = max([*values, *(c.tokens_per_second.high for c in sweep.choices), sweep.baseline.high if sweep.baseline else 0, ceilings[0]])
    ax.set_xticks(ks)
    ax.set_ylim(0, min(1.08 * max([top, *ceilings]), FAR * top))
    ax.set_xlabel("draft steps")
    ax.set_ylabel("tokens/s")
    beaten = sweep.baseline is not None and best.tokens_per_second.value < sweep.baseline.value
    title = (f"No step count reaches the baseline of {sweep.baseline.value:.1f} tokens/s" if beaten else
             f"{best.steps} draft {'step serves' if best.steps == 1 else 'steps serve'} best: {best.tokens_per_second.value:.0f} tokens/s")
    ax.set_title(title)
    fig.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    alt = f"{title}. " + " ".join(f"{plural(c.steps, 'step')}: {c.tokens_per_second.value:.1f}." for c in sweep.choices)
    fit = sweep.fit
    return fig, alt, f"{fit.text().capitalize()}, least squares over {len(fit.steps)} runs; tokens/s = accept length / cycle."


def speed_plot(tests: Sequence[Ceiling]) -> tuple[Figure, str, str]:
    """Tokens/s against steps as measured, where no cost line can be drawn: with the band of no speculation and each run's ceiling. ValueError without a run of known steps."""
    tests = sorted((c for c in tests if c.run.steps is not None), key=lambda c: c.run.steps)
    if not tests:
        raise ValueError("tokens/s against steps needs a run of known steps with a baseline")
    theme()
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(layout="constrained")
    base = tests[0].baseline_tokens_per_second
    _no_speculation(ax, base)
    for i, c in enumerate(tests):
        speed = c.run.tokens_per_second
        ax.errorbar([c.run.steps], [speed.value], yerr=[[speed.value - speed.low], [speed.high - speed.value]], fmt="o", color=BLUE, ms=7, capsize=4, zorder=4,
                    label="measured" if i == 0 else None)
        ax.plot([c.run.steps], [c.best_tokens_per_second.value], marker="_", ms=26, mew=2.5, color="#374151", ls="", label="ceiling: every draft accepted" if i == 0 else None)
    top = max(max(c.run.tokens_per_second.high for c in tests), base.high)
    ax.set_ylim(0, min(1.08 * max(top, *(c.best_tokens_per_second.value for c in tests)), FAR * top))
    ks = sorted({c.run.steps for c in tests})
    ax.set_xticks(ks)
    ax.set_xlim(min(ks) - 1, max(ks) + 1)
    ax.set_xlabel("draft steps")
    ax.set_ylabel("tokens/s")
    best = max(tests, key=lambda c: c.speedup)
    title = f"{_steps(best.run)}: {best.speedup:.2f} times the tokens/s without speculation ({WORDS[best.outcome]})"
    ax.set_title(title)
    ax.legend(loc="best", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9)
    alt = f"{title}. " + " ".join(f"{_steps(c.run)}: {c.run.tokens_per_second.value:.1f}, ceiling {c.best_tokens_per_second.value:.1f}." for c in tests)
    return fig, alt, "Bars and band: intervals of the figures. A cost line needs three step counts; with fewer the best step count is not known."


def _no_speculation(ax: Axes, baseline: stats.Estimate) -> None:
    ax.axhspan(baseline.low, baseline.high, color=RED, alpha=0.12, lw=0)
    ax.axhline(baseline.value, color=RED, ls="--", lw=1.8, label=f"no speculation: {baseline.value:.1f}")


def prediction_plot(match: Match, most: int = 10) -> tuple[Figure, str, str]:
    """The measured accept length against the prediction of every wiring, nearest first; the trained wiring is always shown."""
    theme()
    import matplotlib.pyplot as plt

    shown = list(match.hypotheses[:most])
    shown += [h for h in match.hypotheses if h.name == TRAINED and h not in shown]
    shown.sort(key=lambda h: h.predicted.value)
    rows = [f"{_short(h.name)}{' ✓' if h.distance == 0 else ''}" for h in shown]
    fig, ax = plt.subplots(figsize=(8.5, 1.7 + 0.36 * len(shown) + 0.2 * sum("\n" in n for n in rows)), layout="constrained")
    ax.axvspan(match.measured.low, match.measured.high, color=BLUE, alpha=0.18, lw=0)
    ax.axvline(match.measured.value, color=BLUE, lw=2)
    for y, h in enumerate(shown):
        _mark(ax, h.predicted, y, GREEN if h.distance == 0 else GREY, "o" if h.distance == 0 else "x")
    ax.set_yticks(range(len(shown)), rows)
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"tokens per verify round at {_steps(match.run)}")
    names = match.candidates
    gap = f"{match.shortfall:.2f} below" if match.shortfall else f"{match.excess:.2f} above" if match.excess else "on"
    title = f"Live {match.measured.value:.2f} is {gap} the prediction; " + (
        f"it fits {names[0]}" if len(names) == 1 else f"{len(names)} wirings fit" if names else "no wiring fits")
    ax.set_title(title)
    handles = [plt.Line2D([], [], color=BLUE, lw=2), plt.Line2D([], [], marker="o", ls="", color=GREEN), plt.Line2D([], [], marker="x", ls="", color=GREY)]
    fig.legend(handles, ["measured live", "predicted, fits (✓)", "predicted, does not fit"], loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    alt = f"{title}. Measured {match.measured.text(2)}. " + " ".join(f"{h.name}: {h.predicted.value:.2f}." for h in shown)
    return fig, alt, f"Run {match.run.label}. Bars: 95 % intervals of the predictions; band: printing and sampling of the measured figure."


def _mark(ax: Axes, e: stats.Estimate, y: float, colour: str, marker: str) -> None:
    ax.plot([e.low, e.high], [y, y], color=colour, lw=3, solid_capstyle="butt", zorder=4)
    ax.plot([e.value], [y], marker=marker, ms=7, color=colour, mew=2 if marker == "x" else 1, zorder=5)


def _short(text: str) -> str:
    return "\n".join(textwrap.wrap(text, LABEL_WIDTH, max_lines=2, placeholder="…"))


def _steps(run: Run) -> str:
    return "unknown steps" if run.steps is None else f"{run.steps} step" + ("" if run.steps == 1 else "s")

