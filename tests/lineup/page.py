"""The HTML page of a line-up: the score, what was taken for what, the change against the last result, every case."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from markupsafe import Markup

from eagle_forensics import show, stats
from eagle_forensics.suite.page import render
from tests.lineup.score import NONE

NAMES = {"single_first": "Single faults: the planted one first", "double_all_named": "Double faults: both named", "healthy_passed": "Healthy cases: passed",
         "abstained": "Too little evidence: abstained", "right": "All cases: right in everything"}


def page(result: dict[str, Any]) -> str:
    """One self-contained page from the content of `lineup.json`."""
    got, of = result["counts"]["right"]
    accused, healthy = result["counts"]["healthy_accused"]
    return render(Path(__file__).with_name("page.html.j2"), result=result, headline=f"{got} of {of} cases right; {accused} of {healthy} healthy cases accused",
                  score=Markup(show.table_html(_score(result), "Score by kind, with the 95 % interval of the share", formats={"share": ".1%"})),
                  picture=Markup(_picture(result["confusion"])), cases=result["cases"], missed=[r for r in result["cases"] if not r["right"]])


def _score(result: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for key, name in NAMES.items():
        got, of = result["counts"][key]
        if of:
            share, target = stats.wilson(got, of), result["targets"].get(key)
            rows.append({"kind": name, "right": got, "n": of, "share": share.value, "95 % interval": f"{share.low:.1%} – {share.high:.1%}",
                         "target": f"{target:.0%}" if target else "", "reached": "" if not target else "yes" if got >= target * of else "no"})
    return pd.DataFrame(rows)


def _picture(confusion: dict[str, dict[str, int]]) -> str:
    """The confusion matrix: planted fault by row, named fault by column."""
    named = sorted({slug for row in confusion.values() for slug in row} | set(confusion), key=lambda s: (s == NONE, s))
    planted = [slug for slug in named if slug in confusion]
    grid = pd.DataFrame([[confusion[row].get(column, 0) for column in named] for row in planted], index=planted, columns=named)
    off = sum(n for row in planted for column, n in confusion[row].items() if column != row)
    show.theme()
    fig, ax = plt.subplots(figsize=(4 + 0.2 * len(named), 2.5 + 0.2 * len(planted)))
    sns.heatmap(grid, mask=grid == 0, annot=grid, fmt="d", cmap="crest", cbar=False, linewidths=0.4, linecolor="#e5e7eb", ax=ax, annot_kws={"size": 7})
    title = "every planted fault is named as itself" if not off else f"{off} of {int(grid.to_numpy().sum())} are off the diagonal"
    ax.grid(visible=False)
    ax.set(title=f"Planted (rows) against named (columns): {title}", xlabel="", ylabel="")
    ax.set_xticks([i + 0.5 for i in range(len(named))], named, rotation=90, fontsize=7)
    ax.set_yticks([i + 0.5 for i in range(len(planted))], planted, rotation=0, fontsize=7)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", bbox_inches="tight", dpi=130)
    plt.close(fig)
    return (f'<figure class="ef-figure"><img alt="Confusion matrix of {len(planted)} planted faults; {show.safe(title)}" '
            f'src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"></figure>')
