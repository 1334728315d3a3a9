"""Where the observed values fall in the measured distributions, norm states, and the ranks side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eagle_forensics import show
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.fingerprint.calibration import THRESHOLDS, measured
from eagle_forensics.fingerprint.figures import Picture
from eagle_forensics.fingerprint.identify import Identification
from eagle_forensics.fingerprint.ranks import Agreement, RankResult

if TYPE_CHECKING:
    from eagle_forensics.fingerprint.study import Work

SMALLEST = 3e-4
"""Errors below are drawn here: an exact match has no place on a logarithmic axis."""


def calibration_figure(found: Identification | None) -> Picture | None:
    """Relative error of each slot among those of right, noisy and damaged planes of the calibration. None without a bank."""
    table = found.table if found else None
    if table is None or not any(table.matches):
        return None
    import matplotlib.pyplot as plt

    show.theme()
    kinds = [(name, group, row["error"]) for group, colour in GROUPS.items() for name, row in measured()["measured"][group].items() if "error" in row]
    fig, ax = plt.subplots(figsize=(9.5, 0.3 * len(kinds) + 1.9), layout="constrained")
    for place, (_, group, values) in enumerate(kinds):
        low, high = np.clip([min(values), max(values)], SMALLEST, None)
        ax.plot([low, high], [place, place], lw=7, marker="s", ms=5, color=GROUPS[group], solid_capstyle="butt", alpha=0.75)
    ax.axvline(THRESHOLDS["clean_error"], color="#111827", lw=1.2, ls="--")
    ax.annotate(f"clean: below {THRESHOLDS['clean_error']}", (THRESHOLDS["clean_error"], len(kinds) - 0.3), xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=9)
    top = -1.2
    for slot in found.slots:
        if slot.match:
            ax.plot(max(slot.match.error.value, SMALLEST), top, "D", ms=7, color=show.RED, zorder=3)
            ax.plot(max(slot.match.second_error, SMALLEST), top, "D", ms=6, mfc="white", mec=show.RED, zorder=3)
    ax.set(xscale="log", ylim=(len(kinds) - 0.2, top - 0.7), xlim=(SMALLEST * 0.8, 8), xlabel="relative error to the nearest state, median over tokens")
    ax.set_yticks([top, *range(len(kinds))], ["these slots: best (full), second (open)", *(name for name, _, _ in kinds)], fontsize=8.5)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    best = [s.match.error.value for s in found.slots if s.match]
    inside = sum(b <= THRESHOLDS["clean_error"] for b in best)
    title = f"{inside} of {len(best)} slots lie where right planes were measured"
    ax.set_title(title)
    alt = (f"{title}. Ranges of relative errors of {len(kinds)} kinds of planes measured on {measured()['measured']['target'].split(',')[0]}, and the errors of these slots: "
           + ", ".join(f"slot {s.slot} {s.match.error.value:.4f}, next {s.match.second_error:.3f}" for s in found.slots if s.match) + ".")
    caption = ("Bars: smallest to largest error over all boundaries of the calibration model (blue: right planes; orange: right planes of a quantised target; grey: wrong or damaged planes). "
               f"Diamonds: the slots of this dump. Values below {SMALLEST:g} are drawn there. The bars are of one small model; on yours the neighbours (open diamonds) show the scale.")
    return Picture(fig, alt, caption)


def decisions_figure(found: Identification | None) -> Picture | None:
    """What the other thresholds rest on: undirected noise, parts of a layer, what the head reads; with the slots where it was asked. None without a bank or head."""
    if found is None or not (found.table or any(s.teacher for s in found.slots)):
        return None
    import matplotlib.pyplot as plt

    show.theme()
    held, (noisy, parts) = measured()["measured"], ("right planes, too noisy to be sure", "inside a layer, by the closure of its MLP")
    fig, axes = plt.subplots(1, 3, figsize=(12.5, 3.9), layout="constrained", width_ratios=[1, 1, 0.9])
    shares = [(name, group, row["share"]) for group in (noisy, "damaged planes") for name, row in held[group].items() if "share" in row]
    closures = [(name, "right planes", row["closure, 90 % of tokens"]) for name, row in held[parts].items()]
    closures += [("nearest other part", "damaged planes", [min(r["nearest closure of another part"][0] for r in held[parts].values()), max(r["nearest closure of another part"][1] for r in held[parts].values())])]
    asked = [f for s in found.slots if (f := s.form)]
    _ranges(axes[0], shares, THRESHOLDS["noise_share"], [f.share for f in asked if f.share is not None], "share of the difference that\nneighbouring layers explain")
    _ranges(axes[1], closures, THRESHOLDS["increment_error"], [f.error for f in asked if str(f.state) in INNER], "MLP(m) - (h - m), relative")
    head = held["head"]["all sequences together"]
    inner = [(int(name[2:]), row["agreement"]) for name, row in head.items() if name.startswith("b=") and name != "b=L"]
    axes[2].plot(*zip(*inner, strict=True), color=show.GREY, lw=1.8)
    axes[2].plot(inner[-1][0], head["b=L"]["agreement"], "o", color=show.BLUE, ms=7, label="last state")
    for s in found.slots:
        if s.teacher:
            axes[2].axhline(s.teacher.best, color=show.RED, lw=1, alpha=0.7)
    axes[2].axhline(THRESHOLDS["teacher_agreement"], color="#111827", lw=1.2, ls="--")
    axes[2].set(ylim=(0, 1), xlabel="boundary", ylabel="next tokens that the head reads")
    axes[2].legend(frameon=False, loc="upper left")
    for ax, title in zip(axes, ("Noise has no direction", "A part of a layer closes its MLP", "The head reads the last state best"), strict=True):
        ax.set_title(title, fontsize=10.5)
    spans = {name: f"{low:.2f} to {high:.2f}" for name, _, (low, high) in shares}
    alt = (f"Measured on {held['target'].split(',')[0]}. Share of the difference along neighbouring layers: " + ", ".join(f"{name} {text}" for name, text in spans.items())
           + f". The head reads {head['b=L']['agreement']:.0%} of the next tokens off the last state, {inner[-2][1]:.0%} off the one before.")
    caption = ("Dashed: the thresholds. Bars: smallest to largest over all layers of the calibration model (orange: whole states under int4 weights; blue: the right explanation; grey: damaged "
               "planes and wrong explanations: the ones that reach left of a threshold are excluded by their errors, votes or the next best). Red: slots of this dump that had to be asked; most need none of these tests.")
    return Picture(fig, alt, caption)


def _ranges(ax, rows: list[tuple[str, str, list[float]]], limit: float, observed: list[float], label: str) -> None:
    for place, (_, group, (low, high)) in enumerate(rows):
        ax.plot([low, high], [place, place], lw=6, marker="s", ms=4, color=GROUPS[group], solid_capstyle="butt", alpha=0.75)
    ax.plot(observed, [-1] * len(observed), "D", color=show.RED, ms=6)
    ax.axvline(limit, color="#111827", lw=1.2, ls="--")
    ax.set(xlim=(-0.02, 1.1), ylim=(len(rows) - 0.4, -1.6), xlabel=label)
    ax.set_yticks([-1, *range(len(rows))], ["these slots" if observed else "(no slot asked)", *(name for name, _, _ in rows)], fontsize=8)


INNER = ("half a layer early", "one rank's partial sum", "reduced more than once", "without the residual")

GROUPS = {"right planes": show.BLUE, "right planes, too noisy to be sure": show.ORANGE, "damaged planes": show.GREY}


def norm_frame(found: Identification | None) -> pd.DataFrame:
    """Norm state of every slot: what the norm's weight, the identity and, without a bank, the head say; and the order of depth."""
    if found is None:
        return pd.DataFrame()
    depth = {slot: place for place, slot in enumerate(found.depth_order)}
    names = {"pre": "un-normed", "post": "normed", "twice": "normed twice"}
    rows = []
    for s in found.slots:
        by_weight = {True: "normed", False: "un-normed"}.get(s.norm.holds, "not decided")
        identity = "not sure" if not s.sure or s.boundary is None else "normed" if s.boundary.normed else str(s.state) if s.state not in WHOLE else "un-normed"
        rows.append({"slot": s.slot, "label": s.label, "by the norm's weight": by_weight, "|rms(x/w) - 1|": s.norm.value, "by its identity": identity,
                     "by the head": names.get(s.teacher.state, "not decided") if s.teacher else "not asked",
                     **({f"head, {name}": share for name, share in zip(names.values(), s.teacher.agreement, strict=True)} if s.teacher else {}),
                     "place by depth": depth[s.slot] + 1})
    return pd.DataFrame(rows)


WHOLE = ("complete", "whole, under noise without direction")


def ranks_frame(work: Work) -> pd.DataFrame:
    """The ranks of the captures side by side; empty where fewer than two ranks recorded the same tokens."""
    rows = [{"captures": kind, "slot": r.slot, "ranks": len(r.ranks), "hold": str(r.agreement), "together": str(r.boundary) if r.boundary else None, "largest difference": r.spread,
             "error together": r.error, "next": r.second, "median norms": ", ".join(f"{n:.1f}" for n in r.norms[:8]) + (", ..." if len(r.norms) > 8 else ""), "rows": r.n}
            for kind, results in _compared(work) for r in results]
    return pd.DataFrame(rows)


def ranks_figure(work: Work) -> Picture | None:
    """How far each rank's rows lie from rank 0's, slot by slot. None without ranks."""
    groups = _compared(work)
    if not groups:
        return None
    import matplotlib.pyplot as plt

    show.theme()
    results = [(kind, r) for kind, found in groups for r in found]
    fig, ax = plt.subplots(figsize=(9.5, 0.62 * len(results) + 1.4), layout="constrained")
    for place, (_, r) in enumerate(results):
        colour, known = show.BLUE if r.agreement is Agreement.EQUAL else show.RED, r.spread == r.spread
        value = max(r.spread, SMALLEST) if known else 1
        ax.plot([SMALLEST * 0.7, value], [place, place], color=colour, lw=2.2, alpha=0.6)
        ax.plot(value, place, "o", ms=8, color=colour, mfc=colour if known else "white")
    limit = THRESHOLDS["clean_error"]
    ax.axvline(limit, color="#111827", lw=1.2, ls="--")
    ax.annotate(f"rounding: below {limit}", (limit, -0.55), xytext=(-4, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
    ax.set(xscale="log", xlim=(SMALLEST * 0.7, max([4, *(2 * r.spread for _, r in results if r.spread == r.spread)])), ylim=(len(results) - 0.5, -0.8),
           xlabel="largest relative difference between a rank and rank 0, median over tokens (open: other widths)")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_yticks(range(len(results)), [f"{kind}, slot {r.slot}:\n{r.agreement}" + (f", {r.boundary}" if r.boundary else "") for kind, r in results], fontsize=9)
    odd = sum(r.agreement is not Agreement.EQUAL for _, r in results)
    title = f"The ranks disagree in {odd} of {len(results)} slots" if odd else f"All ranks hold the same {len(results)} slots"
    ax.set_title(title)
    return Picture(fig, f"{title}: " + "; ".join(f"{kind} slot {r.slot}: {r.text}" for kind, r in results) + ".",
                   "Every rank feeds its own copy of the drafter, so all must hold the same rows; the dashed line is the limit of rounding. Equal copies are drawn at the left edge.")


def _compared(work: Work) -> list[tuple[str, tuple[RankResult, ...]]]:
    return [(kind, results) for kind, results in work.ranks if not isinstance(results, EvidenceError)]
