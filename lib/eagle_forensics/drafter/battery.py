"""The battery: many wirings on the same tokens, ranked, with intervals; the clearly dead are dropped early.

Score of a wiring: mean run, the draft tokens right in a row from a position, averaged over response positions (the sum of
survivals). It moves with every step, so a fault that only shows from step 2 on counts too, and it is paired token by token.

Successive elimination: all wirings meet a small sample first; one whose paired interval against the best stays below zero is
dropped and keeps the estimate of that sample (`complete` False). The intervals of all comparisons of all stages hold together
at 95 % (Bonferroni, Student's t over sequences), so the best is dropped in fewer than one battery in twenty.
The sample is the beginning of responses: a fault that only shows late in long text is not for the screening to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.model import Drafter
from eagle_forensics.drafter.recorded import Recorded, spans
from eagle_forensics.drafter.wiring import Wiring, evaluate_all

SCREEN_SEQUENCES = 16
"""Sequences of the first screening: the t quantile at the level needed is 4 at 16 sequences, 6 at 8."""
GROWTH = 4
"""Each screening is this many times larger than the last."""


@dataclass(frozen=True, eq=False)
class WiringResult:
    """One wiring, measured."""

    wiring: Wiring
    accuracy: tuple[stats.Estimate, ...]
    """Per step, teacher-forced, a token outside the draft vocabulary is a miss."""
    accept_length: stats.Estimate
    """By the walk, with as many steps as `accuracy` holds."""
    mean_run: float
    difference: stats.Estimate
    """Mean run minus that of the best on the same tokens; simultaneous level over the battery."""
    n: int
    """Response positions."""
    complete: bool
    """False: dropped at a screening, figures from its sample."""
    correctness: Correctness

    @property
    def label(self) -> str:
        return self.wiring.label


def run_battery(
    drafter: Drafter, sequences: Sequence[Recorded], wirings: Sequence[Wiring], steps: int = 3, *, screen_tokens: int = 400,
    keep: Sequence[Wiring] = (), progress: Callable[[str], None] | None = None,
) -> list[WiringResult]:
    """Measure the wirings, best first; dropped ones follow, those of the latest screening first. Deterministic.

    `keep`: wirings that are never dropped. `screen_tokens`: response positions of the first screening; 0 evaluates all in full.
    """
    if not wirings:
        raise ValueError("no wiring to try")
    alive, dropped = list(wirings), []
    sizes = _stages(sequences, screen_tokens)
    level = stats.simultaneous_level(len(wirings) * (len(sizes) + 1))
    for stage, (count, rows) in enumerate(sizes):
        if len(alive) <= max(2, len(keep) + 1):
            break
        sample = _sample(sequences, count, rows)
        if progress:
            progress(f"screening {len(alive)} wirings on {count} sequences, {count * rows} positions at most")
        results = _ranked(alive, evaluate_all(drafter, sample, alive, steps), level, complete=False)
        gone = [r for r in results if r.difference.high < 0 and not any(r.wiring.same_feed(k) for k in keep)]
        dropped.append((stage, gone))
        lost = {id(r.wiring) for r in gone}
        alive = [w for w in alive if id(w) not in lost]
    if progress:
        progress(f"evaluating {len(alive)} wiring(s) on all {len(sequences)} sequences")
    final = _ranked(alive, evaluate_all(drafter, sequences, alive, steps), level, complete=True)
    return final + [r for _, gone in reversed(dropped) for r in gone]


def _stages(sequences: Sequence[Recorded], screen_tokens: int) -> list[tuple[int, int]]:
    """(sequences, positions of each) of every screening that is smaller than a third of the whole."""
    total = sum(s.stop - s.first for item in sequences for s in spans(item.loss_mask))
    found, tokens, count = [], screen_tokens, SCREEN_SEQUENCES
    while tokens and len(sequences) >= SCREEN_SEQUENCES and 3 * tokens < total:
        count = min(count, len(sequences))
        found.append((count, max(1, tokens // count)))
        tokens, count = tokens * GROWTH, count * 2
    return found


def _sample(sequences: Sequence[Recorded], count: int, rows: int) -> list[Recorded]:
    """`count` sequences spread over the whole, each cut after `rows` positions of its first response."""
    picked = [sequences[i * len(sequences) // count] for i in range(count)]
    return [item.cut(spans(item.loss_mask)[0].first + rows + 2) for item in picked]


def _ranked(wirings: Sequence[Wiring], found: Sequence[Correctness], level: float, *, complete: bool) -> list[WiringResult]:
    honest = [c for w, c in zip(wirings, found, strict=True) if not w.leaks] or list(found)
    best = max(honest, key=lambda c: sum(c.run_sums()))
    results = [
        WiringResult(
            wiring=w, accuracy=tuple(c.accuracy(k) for k in range(c.steps) if any(s.valid[:, k].any() for s in c.sequences)),
            accept_length=c.accept_length(), mean_run=sum(c.run_sums()) / c.n,
            difference=stats.paired_difference_t(c.run_sums(), best.run_sums(), c.sizes(), level=level), n=c.n, complete=complete, correctness=c)
        for w, c in zip(wirings, found, strict=True)]
    return sorted(results, key=lambda r: (r.wiring.leaks, -r.mean_run))
