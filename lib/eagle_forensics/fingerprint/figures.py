"""Figures and tables of notebook 03: the slots x boundaries heatmap, what the attention sink hides, first values and norms.

Every figure is returned with its alt text and caption; its title is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from eagle_forensics import show
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.identify import Identification, SlotIdentity, format_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eagle_forensics.fingerprint.sampling import Ballot
    from eagle_forensics.fingerprint.study import Work

FLOOR, CEILING = 1e-3, 1.0
"""Ends of the colour scale: below the floor is rounding, above the ceiling the two states have nothing in common."""


class Picture(NamedTuple):
    """A figure with its text alternative, as `show.figure(*picture)` takes it."""

    figure: Figure
    alt: str
    caption: str


def match_heatmap(found: Identification | None) -> Picture | None:
    """Slots x boundaries: per-token median relative errors, the nearest boundary of each slot outlined. None without a bank."""
    table = found.table if found else None
    if table is None:
        return None
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    show.theme()
    slots, boundaries = table.errors.shape
    fig, ax = plt.subplots(figsize=(max(7.5, 0.33 * boundaries + 2.6), 0.72 * slots + 1.6))
    shown = np.clip(table.errors, FLOOR, CEILING)
    image = ax.imshow(shown, norm=LogNorm(FLOOR, CEILING), cmap="Blues_r", aspect="auto", interpolation="nearest")
    ax.set_facecolor("#f3f4f6")
    for slot in found.slots:
        m = slot.match
        if m is None:
            ax.text(boundaries / 2 - 0.5, slot.slot, f"not compared: {slot.health.share:.0%} usable rows of width {found.glances[slot.slot].width}",
                    ha="center", va="center", fontsize=9, color="#374151")
            continue
        settled = slot.sure and slot.equals == m.best
        column = table.boundaries.index(m.best)
        ax.add_patch(Rectangle((column - 0.5, slot.slot - 0.5), 1, 1, fill=False, lw=2.2, ec=show.RED, ls="-" if settled else ":", zorder=3, clip_on=False))
        for boundary, error, text in ((m.best, m.error.value, ("0" if m.error.value == 0 else f"{m.error.value:.3f}") + ("" if settled else " ?")), (m.second, m.second_error, f"{m.second_error:.2f}")):
            ax.text(table.boundaries.index(boundary), slot.slot, text, rotation=90, ha="center", va="center", fontsize=9.5, zorder=4,
                    fontweight="bold" if boundary == m.best else "normal", color="white" if error < 0.2 else "#111827")
    step = 1 if boundaries <= 34 else -(-boundaries // 34)
    ticks = [i for i in range(boundaries) if i % step == 0 or table.boundaries[i].normed]
    ax.set_xticks(ticks, ["norm" if table.boundaries[i].normed else str(table.boundaries[i].index) for i in ticks], fontsize=8)
    ax.set_yticks(range(slots), [f"slot {s.slot}" + (f"\n“{s.label[:18]}”" if s.label else "") for s in found.slots])
    ax.set_xlabel("boundary of the target (0: embedding, j: after layer j-1, norm: after the final norm)")
    ax.grid(False)
    ax.set_xticks(np.arange(boundaries + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(slots + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="#d1d5db", lw=0.5)
    ax.tick_params(which="minor", length=0)
    bar = fig.colorbar(image, ax=ax, pad=0.015, extend="both")
    bar.set_label("relative error, median over tokens")
    bar.ax.axhline(THRESHOLDS["clean_error"], color=show.RED, lw=1.8)
    bar.set_ticks([0.001, 0.01, 0.1, 1], labels=["0.001", "0.01", "0.1", "1"])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    title, answer = _heatmap_title(found), "; ".join(_cell(s) for s in found.slots)
    ax.set_title(title)
    alt = f"Heatmap of {slots} slots against {boundaries} boundaries. {title}. {answer}."
    caption = (f"Relative error |x - h| / |h| per token, median over {table.n} ordinary tokens of {found.samples} samples"
               + (f" ({int(table.sinks.sum())} attention-sink tokens left out)" if table.sinks.any() else "")
               + f"; logarithmic colours, dark is near. Outlined: the nearest boundary of each slot (dotted and with a question mark where it is not "
               f"certain); the other number is the second nearest. Red line on the scale: {THRESHOLDS['clean_error']}, the limit of a clean match. Names in quotes are the file's labels: claims.")
    return Picture(fig, alt, caption)


def _heatmap_title(found: Identification) -> str:
    known = [str(s.equals).removeprefix("b=") if s.equals else "?" for s in found.slots]
    if "?" not in known:
        return f"The slots hold boundaries {', '.join(known)}"
    return f"{len(known) - known.count('?')} of {len(known)} slots are whole states: {', '.join(known)}" if set(known) != {"?"} else "No slot is a whole, known state of this target"


def _cell(s: SlotIdentity) -> str:
    if s.match is None:
        return f"slot {s.slot} not compared"
    return f"slot {s.slot}: {s.match.best} at {s.match.error.value:.3f}, next {s.match.second} at {s.match.second_error:.3f}"


def sink_figure(found: Identification | None, slot: int | None = None) -> Picture | None:
    """Why errors are per token: the norm of every token, and what a whole-tensor error would have said. None without a bank.

    `slot`: by default the one whose whole-tensor errors mislead most.
    """
    table = found.table if found else None
    if table is None or not any(table.matches):
        return None
    import matplotlib.pyplot as plt

    show.theme()
    slot = _most_misled(found) if slot is None else slot
    m, glance = table.matches[slot], found.glances[slot]
    first = found.sequence == found.sequence[0]
    first &= np.isfinite(glance.norms)
    position, norms = found.position[first], glance.norms[first]
    sink = norms > THRESHOLDS["sink_norm_ratio"] * glance.median_norm
    limit = THRESHOLDS["clean_error"]
    plain = [i for i, b in enumerate(table.boundaries) if not b.normed]
    x, robust, naive = [table.boundaries[i].index for i in plain], table.errors[slot, plain], table.global_errors[slot, plain]
    fooled, true = int((naive < limit).sum()), int((robust < limit).sum())

    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=[1, 1.3], layout="constrained")
    left.plot(position[~sink], norms[~sink], ".", ms=4, color=show.BLUE)
    left.axhline(glance.median_norm, color=show.GREY, lw=1, ls="--")
    left.annotate(f"median {glance.median_norm:,.0f}", (position[-1], norms[~sink].max()), xytext=(0, 6), textcoords="offset points", ha="right",
                  color="#374151", fontsize=9.5)
    if sink.any():
        left.plot(position[sink], norms[sink], "D", ms=7, color=show.RED)
        left.annotate(f"token {position[sink][0]}: {norms[sink][0]:,.0f}", (position[sink][0], norms[sink][0]), xytext=(11, -4),
                      textcoords="offset points", color=show.RED, fontweight="bold", fontsize=10)
    left.set(yscale="log", ylim=(norms.min() / 2, norms.max() * 2.5), xlabel="position in the first sample", ylabel="norm of the row")
    left.set_title(f"Norms of slot {slot}", fontsize=10.5, fontweight="normal")
    right.plot(x, np.clip(naive, FLOOR, None), "s--", ms=4, lw=1.2, color=show.ORANGE, label="whole tensor")
    right.plot(x, np.clip(robust, FLOOR, None), "o-", ms=4.5, lw=1.6, color=show.BLUE, label="per-token median")
    right.axhspan(FLOOR / 2, limit, color=show.GREEN, alpha=0.1, lw=0)
    right.annotate(f"clean match: below {limit}", (x[0], limit), xytext=(2, -13), textcoords="offset points", color="#065f46", fontsize=9.5)
    right.set(yscale="log", ylim=(max(FLOOR, min(naive.min(), robust.min(), 0.01)) / 2, max(naive.max(), robust.max()) * 2), xlabel="boundary of the target", ylabel="relative error")
    right.legend(frameon=False, loc="upper right")
    right.set_title(f"Error of slot {slot} to every boundary", fontsize=10.5, fontweight="normal")
    for ax in (left, right):
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    misled = fooled != true
    fig.suptitle(f"A whole-tensor error accepts {_count(fooled)} for slot {slot}, the per-token median {true if misled else 'as well'}", x=0.01, ha="left",
                 fontsize=12, fontweight="bold")
    alt = (f"Left: norms of the rows of slot {slot}, median {glance.median_norm:.0f}, largest {norms.max():.0f}. Right: relative error of slot {slot} to every boundary: "
           f"below {limit} are {_count(true)} by the per-token median and {_count(fooled)} by the whole-tensor error; nearest is {m.best} with {m.error.value:.3f} per token.")
    caption = (f"A relative error over a whole tensor is the error of its largest rows. Attention sinks (norm above {THRESHOLDS['sink_norm_ratio']:.0f} x the median, diamonds) "
               "make many boundaries look alike; the median over the other tokens tells them apart. Values below 0.001 are drawn at 0.001.")
    return Picture(fig, alt, caption)


def _most_misled(found: Identification) -> int:
    limit, table = THRESHOLDS["clean_error"], found.table
    return max((i for i, m in enumerate(table.matches) if m), key=lambda i: int(np.nansum(table.global_errors[i] < limit)))


def _count(n: int) -> str:
    return f"{n} boundar{'y' if n == 1 else 'ies'}"


def sampling_frame(work: Work) -> pd.DataFrame:
    """Per slot what the samples that were drawn say, and whether that settles it; empty without a bank."""
    if work.sources is None:
        return pd.DataFrame()
    labels, sampling = work.sources.rows.labels, work.sources.sampling
    of = f"{sampling.population}" + (" that the bank holds" if sampling.population < sampling.existing else "")
    return pd.DataFrame([{"slot": b.slot, "label": labels[b.slot], "most samples say": b.leading or "no clean state", "of samples": f"{b.hits} of {len(b.votes)}",
                          "settled": "yes" if b.settled else "no", f"chance that most of the {of} say otherwise": _chance(b)} for b in sampling.ballots])


def _chance(ballot: Ballot) -> str:
    """Two answers may come close to half of the dump, hence 2 / evidence."""
    return "none: more than half was read" if np.isinf(ballot.evidence) else f"at most {min(1.0, 2 / ballot.evidence):.1g}"


def first_values_frame(found: Identification | None) -> pd.DataFrame:
    """The human check: first five values of one ordinary token, and the norms, slot by slot."""
    if found is None:
        return pd.DataFrame()
    return pd.DataFrame([{"slot": g.slot, "label": g.label, "width": g.width, **{f"x[{i}]": v for i, v in enumerate(g.first_values)},
                          "median norm": g.median_norm, "10 to 90 %": f"{g.quantiles[0]:.1f} to {g.quantiles[1]:.1f}".replace(" ", "\u00a0"),
                          "sink norm": g.sink_norm, "sinks": g.sinks} for g in found.glances])


def match_frame(found: Identification | None) -> pd.DataFrame:
    """Best and second best boundary of every slot, with everything that decides and what only looks as if it did."""
    if found is None:
        return pd.DataFrame()
    rows = []
    for s in found.slots:
        m = s.match
        rows.append({"slot": s.slot, "label": s.label, "is": str(s.boundary) if s.boundary else "not sure", "state": str(s.state),
                     "best": f"{m.best}: {_digits(m.error.value)}".replace(" ", "\u00a0") if m else None,
                     "95 %": f"{_digits(m.error.low)} to {_digits(m.error.high)}".replace(" ", "\u00a0") if m and np.isfinite(m.error.low) else None,
                     "second": f"{m.second}: {m.second_error:.3f}".replace(" ", "\u00a0") if m else None,
                     "ratio": format_ratio(m.ratio).replace(" ", "\u00a0") if m else None,
                     "votes": f"{m.votes:.0%}" if m else None, "cosine": m.cosine if m else None, "whole-tensor error": m.global_error if m else None,
                     "tokens": m.error.n if m else None})
    return pd.DataFrame(rows)


def _digits(error: float) -> str:
    return "0" if error == 0 else f"{error:.4f}" if error >= 0.0001 else f"{error:.0e}"


def tests_frame(found: Identification | None) -> pd.DataFrame:
    """Outcome of the tests that need no bank: embedding, equal tokens, norm state."""
    if found is None:
        return pd.DataFrame()
    return pd.DataFrame([{"slot": s.slot, "label": s.label, "embedding": s.embedding.text, "equal tokens": s.twins.text, "norm state": s.norm.text} for s in found.slots])


def sources_frame(work: Work) -> pd.DataFrame:
    """What is compared with what, and the remarks of reading it."""
    sources = work.sources
    if sources is None:
        return pd.DataFrame()
    rows = [("dump", f"{sources.info.path.name}: {sources.info.format}, {len(sources.info.files)} samples"),
            ("samples", sources.sampling.text()),
            ("labels", ", ".join(sources.info.labels) if sources.info.labels else "none"),
            ("target", "absent" if sources.target is None else f"{sources.target.model_type}, {sources.target.layers} layers, hidden {sources.target.hidden}"),
            *(("bank", note) for note in sources.notes), *(("dump", note) for note in sources.info.notes), *(("unreadable", p) for p in sources.problems)]
    return pd.DataFrame(rows, columns=["what", "value"])
