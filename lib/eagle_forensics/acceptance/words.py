"""How the findings of notebook 04 say figures in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics import stats

NOTEBOOK = "04_accept_length"


def spread(e: stats.Estimate) -> str:
    """`2.54 [2.45, 2.62]`."""
    return f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]"


def plural(n: int | None, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def listed(items: Sequence[Any]) -> str:
    return ", ".join(str(i) for i in items)


MOST_PARTS = 8


def few(parts: Sequence[str]) -> str:
    """`a; b; c`; of more than `MOST_PARTS` the first ones and how many more there are."""
    return "; ".join([*parts[:MOST_PARTS], *([f"and {len(parts) - MOST_PARTS} more"] if len(parts) > MOST_PARTS else [])])
