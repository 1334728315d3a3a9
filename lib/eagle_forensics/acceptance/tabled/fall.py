"""Does the accept length fall from one run of the table to another that differs in one thing: shown, not told apart, or none worth a name?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

from eagle_forensics.acceptance.ceiling import measured_accept_length
from eagle_forensics.acceptance.confounds import ESSENTIAL, compare
from eagle_forensics.acceptance.estimators import DESIGN, FEW_ROUNDS, SMALLEST
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import spread
from eagle_forensics.finding import Evidence
from eagle_forensics.stats import Estimate

UNIT = "tokens per verify round"
MOST_STEPS = 16
"""Taken for a run whose steps are not recorded: more than the published sweeps draft, and the more steps, the wider its interval."""
TOLD = (f"intervals of 95 % that do not meet (by chance in 0.6 % of comparisons), {DESIGN:g} times the variance of independent rounds (measured: rounds of one "
        "response resemble each other), and a loss of 5 % or more: the smallest published as an engine's fault")


@dataclass(frozen=True)
class Fall:
    """Accept length of two runs, the second suspected."""

    first: Run
    second: Run
    before: Estimate
    after: Estimate
    same_text: bool
    """Both answered with the same tokens: then no sampling enters, the rounds are a function of the drafter alone."""

    @property
    def lost(self) -> float:
        """Tokens a round."""
        return self.before.value - self.after.value

    @property
    def kind(self) -> Literal["shown", "open", "none"]:
        """`none` is a loss below SMALLEST or a gain; `open` one that is as large and lies within the intervals."""
        if self.lost < SMALLEST * self.before.value:
            return "none"
        return "shown" if self.after.high < self.before.low else "open"

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Essential settings that one side or both do not record: that they are equal is an assumption."""
        return tuple(name for name in ESSENTIAL if getattr(self.first, name) is None or getattr(self.second, name) is None)

    @property
    def needed(self) -> int:
        """Rounds a run after which intervals as wide as these two would part."""
        half = max(e.high - e.low for e in (self.before, self.after)) / 2
        rounds = min(r.rounds or FEW_ROUNDS for r in (self.first, self.second))
        return ceil(rounds * (2 * half / self.lost) ** 2) if self.lost > 0 else rounds

    @property
    def advice(self) -> str:
        """What would tell two runs apart whose intervals meet."""
        return f"About {self.needed} rounds a run would tell them apart{'' if self.first.rounds and self.second.rounds else ', written into `rounds`'}."

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Both runs, and what was taken for rounds that are not recorded."""
        return (Evidence(note=f"{self.first.label}: {spread(self.before)}; {self.second.label}: {spread(self.after)}"),
                *([Evidence(note="both answered with the same tokens (outputs_hash): the intervals are the printing of the figures")] if self.same_text else rounds_note((self.first, self.second))))

    @property
    def shown(self) -> dict[str, Any]:
        """Fields of a finding."""
        return {"observed": self.after.value, "expected": self.before.value, "interval": self.after.bounded, "evidence": self.evidence,
                "n": min(self.first.rounds, self.second.rounds) if self.first.rounds and self.second.rounds else None}

    @property
    def judged(self) -> dict[str, Any]:
        """Threshold of a finding that accuses: the accept length above which a difference is too small for a name."""
        return {"threshold": (1 - SMALLEST) * self.before.value, "threshold_why": TOLD}

    def excludes(self, lost: float) -> bool:
        """Whether the intervals leave no room for a loss of so many tokens a round."""
        return self.before.high - self.after.low < lost

    @property
    def margin(self) -> str:
        return f"at least {self.before.low - self.after.high:.2f} tokens a round between the intervals"


def fall(first: Run, second: Run) -> Fall:
    """Both runs must have an accept length."""
    same = first.outputs_hash is not None and first.outputs_hash == second.outputs_hash and not first.temperature and not second.temperature
    al = (lambda run: run.accept_length) if same else accept_length
    return Fall(first, second, al(first), al(second), same)


def accept_length(run: Run) -> Estimate:
    """With printing and sampling error of rounds that come in responses; unrecorded rounds are taken for few, so that no interval is too narrow."""
    return measured_accept_length(replace(run, rounds=run.rounds or FEW_ROUNDS, steps=run.steps or (None if run.ceiling else MOST_STEPS)), DESIGN)


def rounds_note(runs: Sequence[Run]) -> tuple[Evidence, ...]:
    """What stands for rounds that are not recorded; nothing where all are."""
    return (Evidence(note=f"rounds are not recorded: taken as {FEW_ROUNDS} a run"),) if any(not r.rounds for r in runs) else ()


def series(runs: Sequence[Run], field: str, among: frozenset[str] = frozenset()) -> Iterator[dict[Any, list[Run]]]:
    """Speculative runs with an accept length that are equal in every setting but `field` (and `among`), by the value of `field`; only where there are two values or more."""
    groups: dict[tuple, dict[Any, list[Run]]] = {}
    for run in runs:
        value = getattr(run, field)
        if run.is_speculative and value is not None and run.accept_length is not None:
            groups.setdefault(replace(run, label="", **dict.fromkeys(among | {field})).settings, {}).setdefault(value, []).append(run)
    yield from (g for g in groups.values() if len(g) > 1)


def nearest(before: Sequence[Run], after: Sequence[Run]) -> Fall:
    """Of repeats the two runs that lie nearest: a fall must hold for them too."""
    return fall(min(before, key=lambda r: r.accept_length.value), max(after, key=lambda r: r.accept_length.value))


def differing(first: Run, second: Run, under_test: frozenset[str]) -> tuple[str, ...]:
    """Settings outside `under_test` that are recorded on both sides and differ."""
    return tuple(name for name, _, _ in compare(first, second, under_test).differ)
