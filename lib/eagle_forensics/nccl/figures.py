"""The figures of notebook 05. Each answers one question; the title states the answer. Each returns (figure, alt text, caption)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from eagle_forensics.nccl.belief import Belief
from eagle_forensics.nccl.curves import Curve, crossover
from eagle_forensics.nccl.harness import Measured, statistics
from eagle_forensics.nccl.ranking import Comparison, Ranking
from eagle_forensics.nccl.sizes import MessagePlan, decode_sizes
from eagle_forensics.nccl.tokens import Cost, Round
from eagle_forensics.show import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS, MARKS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY), ("o", "s", "D", "^", "v", "P")


def curves_plot(points: Mapping[str, Mapping[int, float]], curves: Mapping[str, Curve], plan: MessagePlan, belief: Belief | None = None,
                launches: Sequence[Measured] = ()) -> tuple[Figure, str, str]:
    """Time of an all-reduce by size: what was measured, the fitted curves, NCCL's belief, with the sizes of decode marked."""
    theme()
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
    sizes = decode_sizes(plan)
    labelled = {1, 2, 3, 4, 6, 8, 16} if len(sizes) <= 8 else set(sizes.values())
    for size, tokens in sizes.items():
        ax.axvline(size, color="#e5e7eb" if tokens != plan.tokens else "#9ca3af", lw=6, zorder=0)
        if tokens in labelled:
            ax.annotate(f"{tokens}", (size, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8.5, color="#4b5563")
    grid = np.geomspace(min(sizes), max(max(sizes), *(max(p) for p in points.values())), 80)
    for (name, values), colour, mark in zip(points.items(), COLOURS * 9, MARKS * 9, strict=False):
        ax.plot(list(values), list(values.values()), mark, color=colour, ms=5.5, label=name, zorder=4)
        if name in curves:
            c = curves[name]
            ax.plot(grid, [c.at(n) for n in grid], color=colour, lw=1.6, zorder=3)
    said = ["Points: measured. Lines: alpha + beta n, fitted in log space."]
    for m in launches[:1]:
        said.append("Bars: 5 to 95 % of the samples of one launch.")
        for size in m.alone:
            s = statistics(m.alone[size])
            ax.plot([size] * 2, [s["p5"], s["p95"]], color=COLOURS[len(points) - 1], lw=1.1, alpha=0.6, zorder=2)
    if belief is not None and belief.system is not None and not belief.fallback:
        rows = [(r.bytes, r.model.time_us) for r in belief.rows if r.model]
        said.append("Dashed: NCCL's own estimate, a chooser and no clock.")
        ax.plot(*zip(*rows, strict=True), color="black", ls="--", lw=1.4, label="NCCL believes", zorder=3)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("bytes of a message (top: tokens verified)")
    ax.set_ylabel("us an all-reduce")
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1024:.0f} KiB" if v < 2**20 else f"{v / 2**20:.0f} MiB"))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    at = {name: c.at(plan.bytes) for name, c in curves.items()} or {name: v[plan.bytes] for name, v in points.items() if plan.bytes in v}
    span = f"{min(at.values()):.1f}" + (f" to {max(at.values()):.1f}" if len(at) > 1 else "")
    title = f"At {plan.bytes:,} bytes an all-reduce takes {span} us" if at else "No time at verify size"
    ax.set_title(title, pad=24)
    fig.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    alt = title + ". " + " ".join(f"{name}: latency {c.alpha_us.value:.1f} us, {c.bandwidth.value:.1f} GB/s." for name, c in curves.items())
    quick, wide = (min(curves, key=lambda n: curves[n].alpha_us.value), max(curves, key=lambda n: curves[n].bandwidth.value)) if curves else (None, None)
    at_bytes = crossover(curves[quick], curves[wide]) if quick != wide else None
    said.append("Grey bands: sizes of a decode or verify forward.")
    if at_bytes:
        said.append(f"By their fits {wide} is faster than {quick} from {at_bytes / 1e6:.2f} MB on.")
    return fig, alt, " ".join(said)


def ranking_plot(ranking: Ranking, comparison: Comparison | None) -> tuple[Figure, str, str]:
    """Each configuration's launches against the middle of their round."""
    theme()
    import matplotlib.pyplot as plt

    rounds: dict[tuple[int, int], list[float]] = {}
    for x in ranking.launches:
        rounds.setdefault((x.rung, x.round), []).append(x.median_us)
    middle = {k: float(np.median(v)) for k, v in rounds.items()}
    names = [*ranking.order, *(n for n, _ in reversed(ranking.dropped))]
    fig, ax = plt.subplots(figsize=(8.5, 1.6 + 0.34 * len(names)), layout="constrained")
    for y, name in enumerate(reversed(names)):
        values = [100 * (x.median_us / middle[x.rung, x.round] - 1) for x in ranking.launches if x.name == name]
        ax.plot(values, [y] * len(values), "o", ms=4, alpha=0.6, color=RED if name == ranking.default else BLUE)
    ax.axvline(0, color="#9ca3af", lw=1)
    ax.set_yticks(range(len(names)), list(reversed(names)))
    ax.set_xlabel("% against the middle of the round (a dot is one fresh launch)")
    won = comparison is not None and comparison.wins
    title = f"{comparison.best} takes {100 * (1 - comparison.ratio.value):.0f} % less than the default" if won else "No setting beats the default: change nothing"
    ax.set_title(title)
    return fig, f"{title}. Order: {', '.join(ranking.order)}.", f"{ranking.samples} samples in interleaved rounds; the default (red) stays to the end. Half of the settings leave after each rung."


def rounds_plot(rounds: Sequence[Round], cost: Cost) -> tuple[Figure, str, str]:
    """Time of a round by tokens verified, with what plain decode takes and the part no drafter changes."""
    theme()
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(layout="constrained")
    grid = np.linspace(1, max(r.tokens for r in rounds) * 1.05, 60)
    ax.plot(grid, [cost.round_ms(n) for n in grid], color=BLUE, lw=2, label="line through the rounds")
    ax.errorbar([r.tokens for r in rounds], [r.cycle_ms.value for r in rounds],
                yerr=np.array([[r.cycle_ms.value - r.cycle_ms.low, r.cycle_ms.high - r.cycle_ms.value] for r in rounds]).T,
                fmt="o", color="black", capsize=3, label="measured (bars: printing)", zorder=4)
    ax.axhline(cost.baseline_ms, color=RED, ls="--", lw=1.6, label=f"plain decode: {cost.baseline_ms:.1f} ms")
    top = cost.round_ms(1)
    ax.annotate("", (1, top), (1, cost.baseline_ms), arrowprops={"arrowstyle": "<->", "color": ORANGE, "lw": 2})
    ax.annotate(f"{cost.penalty_ms:.1f} ms", (1, (top + cost.baseline_ms) / 2), xytext=(8, 0), textcoords="offset points", va="center", color="#8a5a00", fontsize=10)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("tokens verified")
    ax.set_ylabel("ms a round")
    title = f"A round costs {cost.penalty_ms:.1f} ms more than plain decode before it verifies a second token"
    ax.set_title(title)
    fig.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    unit = f"{cost.experts.per_token} distinct experts of {cost.experts.count}" if cost.experts.count > 1 else "token"
    return fig, title + f". Line: {cost.fixed_ms.value:.2f} ms plus {cost.load_ms.value:.3f} ms per {unit}.", (
        f"Round = {cost.fixed_ms.value:.2f} + {cost.load_ms.value:.3f} ms per {unit}, least squares over {cost.fixed_ms.n} runs; distinct experts as if routing were independent, "
        "which is an upper bound.")
