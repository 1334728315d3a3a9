"""Are two measured runs comparable: which settings differ, and which cannot be compared because one side is not recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle_forensics.acceptance.runs import Run

FIELDS = ("engine", "engine_version", "speculative", "steps", "topk", "draft_tokens", "temperature", "concurrency",
          "context_length", "dataset", "prompts_hash", "cuda_graph", "env_hash", "drafter", "prefix_cache", "dp_attention", "grammar", "images")
SPECULATION = frozenset({"speculative", "steps", "topk", "draft_tokens"})
"""One variable: a run without speculation has none of them."""
HEAD = frozenset({"drafter"})
"""Of a run without speculation it says nothing."""
ESSENTIAL = ("engine_version", "temperature", "concurrency", "prompts_hash", "env_hash")
"""Fields that must be recorded on both sides before "nothing else differs" can be said: each is known to move tokens/s."""


@dataclass(frozen=True)
class Comparison:
    """Two runs held against each other, apart from what is under test."""

    first: str
    second: str
    under_test: frozenset[str]
    differ: tuple[tuple[str, Any, Any], ...]
    """(field, value of the first, value of the second) of every other field that differs."""
    unrecorded: tuple[str, ...]
    """Essential fields that at least one side does not record."""

    @property
    def confounded(self) -> bool:
        """More than the thing under test differs."""
        return bool(self.differ)

    def text(self) -> str:
        """`env_hash (old, tuned), temperature (0, 1)`."""
        return ", ".join(f"{name} ({a}, {b})" for name, a, b in self.differ)


def compare(first: Run, second: Run, under_test: frozenset[str] | None = None) -> Comparison:
    """Differences between two runs outside `under_test`.

    By default speculation is under test when exactly one side speculates, otherwise the number of steps. draft_tokens
    follows steps while topk is 1, so it counts as its own field only in a tree.
    """
    if under_test is None:
        if first.is_baseline != second.is_baseline:
            under_test = SPECULATION | HEAD
        else:
            tree = any(r.topk is not None and r.topk > 1 for r in (first, second))
            under_test = frozenset({"steps"} if tree else {"steps", "draft_tokens"})
    differ, unrecorded = [], []
    for name in FIELDS:
        if name in under_test:
            continue
        a, b = getattr(first, name), getattr(second, name)
        if a is None or b is None:
            if name in ESSENTIAL:
                unrecorded.append(name)
        elif a != b and not (name == "dataset" and a.casefold() == b.casefold()):
            differ.append((name, a, b))
    return Comparison(first.label, second.label, under_test, tuple(differ), tuple(unrecorded))


def baseline_for(run: Run, candidates: tuple[Run, ...]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The runs without speculation that fit `run` best, and the fields in which even those differ from it.

    The fewest differing fields win; ties are repeats and are all returned. Empty without any baseline that has tokens/s.
    """
    measured = [b for b in candidates if b.is_baseline and b.tokens_per_second is not None]
    if not measured:
        return (), ()
    differences = [(b, compare(run, b)) for b in measured]
    fewest = min(len(c.differ) for _, c in differences)
    best = [(b, c) for b, c in differences if len(c.differ) == fewest]
    fields = sorted({name for _, c in best for name, _, _ in c.differ})
    return tuple(b for b, _ in best), tuple(fields)
