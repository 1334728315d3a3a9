"""How the findings and tables of notebook 02 put figures into words, and the fields that all of them carry."""

from __future__ import annotations

import math
from typing import Any

from eagle_forensics import stats
from eagle_forensics.finding import Finding, Status

NOTEBOOK = "02_drafter_accuracy"
SERVED_TEXT = {"id": "acceptance.served-text", "notebook": "04_accept_length",
               "question": "Under which wiring does the drafter take the server's own verify rounds on the text it served?"}
"""Fields of the finding on served text: the drafter is walked here, the answers come from notebook 04."""
WHY_ZERO = "the paired interval of the difference on the same tokens excludes 0 (sequences resampled)"

FEWEST = 8
"""Sequences below which the t quantile, not the spread of the texts, makes the interval: for a battery of 250 wirings it is 3,183 at 2 and 7 at 8."""


def common_fields(id: str, question: str, estimate: stats.Estimate, unit: str) -> dict[str, Any]:
    return {"id": id, "question": question, "notebook": NOTEBOOK, "observed": round(estimate.value, 4), "unit": unit, "n": estimate.n,
            "interval": interval(estimate)}


def skipped(id: str, question: str, why: str, next_step: str) -> Finding:
    return Finding(id=id, question=question, notebook=NOTEBOOK, status=Status.SKIPPED, statement=why, next_step=next_step)


def interval(e: stats.Estimate) -> tuple[float, float] | None:
    return (e.low, e.high) if math.isfinite(e.low) and math.isfinite(e.high) else None


def interval_text(e: stats.Estimate) -> str:
    return f"{e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]" if interval(e) else f"{e.value:+.3f} (no interval)"


def percent(e: stats.Estimate) -> str:
    return f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]" if interval(e) else f"{100 * e.value:.1f} %"


def accept_text(e: stats.Estimate) -> str:
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" if interval(e) else f"{e.value:.3f} (no interval)"


def interval_cell(e: stats.Estimate) -> str:
    """`0.605 [0.581, 0.629]` with spaces that do not break."""
    return f"{e.value:.3f}" if e.bounded is None else f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]".replace(" ", "\u00a0")


def signed_cell(e: stats.Estimate) -> str:
    """`+0.005 [-0.021, +0.031]` with spaces that do not break."""
    return f"{e.value:+.3f}" if e.bounded is None else f"{e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]".replace(" ", "\u00a0")


def tokens_needed(e: stats.Estimate) -> str:
    """How many tokens would settle a difference as large as the one measured."""
    if not interval(e):
        return "at least two sequences are needed for an interval"
    if e.value == 0:
        return f"the difference is 0 on {e.n} tokens: no number of tokens settles it"
    if e.clusters < FEWEST:
        return f"{e.clusters} sequences are too few to say how many tokens would settle it; give at least {FEWEST}"
    half = (e.high - e.low) / 2
    return f"about {max(e.n + 1, math.ceil(e.n * (half / e.value) ** 2))} tokens of like text would settle a difference of {e.value:+.3f} ({e.n} were at hand)"
