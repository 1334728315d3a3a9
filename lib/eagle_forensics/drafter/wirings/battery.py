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
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import Recorded, spans
from eagle_forensics.drafter.wirings.candidates import pairs, standard_battery, variations
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.evidence.records import Rope

SCREEN_SEQUENCES = 16
"""Sequences of the first screening: the t quantile at the level needed is 4 at 16 sequences, 6 at 8."""
SCREEN_TOKENS = 128
"""Response positions of the first screening. On the built-in case 128 drop 68 of 78 wirings at a third of the cost of 400, which drop no more."""
GROWTH = 4
"""Each screening is this many times larger than the last."""
ROUNDS = 4
"""Batteries of one investigation at most: single departures, pairs, and two rounds around the best. Their intervals hold together."""


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
    equal_to_best: bool
    """Proposes the best one's token at every position and step: no number of tokens like these can tell the two apart."""

    @property
    def label(self) -> str:
        return self.wiring.label


def investigate(
    drafter: Drafter, sequences: Sequence[Recorded], trained: Sequence[str], slots: Sequence[str], steps: int = 3, *, extra: Sequence[str] = (),
    norm: FinalNorm | None = None, rope: Sequence[Rope] = (), settled: Callable[[WiringResult], bool] = lambda trained: False,
    screen_tokens: int = SCREEN_TOKENS, progress: Callable[[str], None] | None = None,
) -> list[WiringResult]:
    """Which wiring fits, best first: every order and every single departure from the contract; unless the contract is best and `settled`
    says that it explains what is known of the training, every two departures at once; then whatever departs once more from the best,
    until nothing better is found. `extra`: planes beside the dump's, tried in every order but not in pairs."""
    def run(wirings: Sequence[Wiring]) -> list[WiringResult]:
        return run_battery(drafter, sequences, list(dict.fromkeys(wirings)), steps, norm=norm, screen_tokens=screen_tokens, keep=[contract], rounds=ROUNDS, progress=progress)

    single = standard_battery(drafter, trained, (*slots, *extra), norm=norm, rope=rope)
    contract = single[0]
    found = run(single)
    if found[0].wiring.name == "trained" and settled(found[0]):
        return found
    found = _joined(run([*(r.wiring for r in found if r.complete), *pairs(drafter, trained, slots, norm=norm)]), found)
    for _ in range(ROUNDS - 2):
        best = found[0].wiring
        more = [w for w in variations(drafter, best, norm=norm, rope=rope) if not any(w.same_feed(r.wiring) for r in found)]
        if not more:
            break
        found = _joined(run([*(r.wiring for r in found if r.complete), *more]), found)
        if found[0].wiring.same_feed(best):
            break
    return found


def run_battery(
    drafter: Drafter, sequences: Sequence[Recorded], wirings: Sequence[Wiring], steps: int = 3, *, norm: FinalNorm | None = None, screen_tokens: int = SCREEN_TOKENS,
    keep: Sequence[Wiring] = (), rounds: int = 1, progress: Callable[[str], None] | None = None,
) -> list[WiringResult]:
    """Measure the wirings, best first; dropped ones follow, those of the latest screening first. Deterministic.

    `keep`: wirings that are never dropped. `screen_tokens`: response positions of the first screening; 0 evaluates all in full.
    `rounds`: batteries whose intervals are to hold together.
    """
    if not wirings:
        raise ValueError("no wiring to try")
    alive, dropped = list(wirings), []
    sizes = _stages(sequences, screen_tokens)
    level = stats.simultaneous_level(rounds * len(wirings) * (len(sizes) + 1))
    for stage, (count, rows) in enumerate(sizes):
        if len(alive) <= max(2, len(keep) + 1):
            break
        sample = _sample(sequences, count, rows)
        if progress:
            progress(f"screening {len(alive)} wirings on {count} sequences, {count * rows} positions at most")
        results = _ranked(alive, evaluate_all(drafter, sample, alive, steps, norm=norm), level, complete=False)
        gone = [r for r in results if r.difference.high < 0 and not any(r.wiring.same_feed(k) for k in keep)]
        dropped.append((stage, gone))
        lost = {id(r.wiring) for r in gone}
        alive = [w for w in alive if id(w) not in lost]
    if progress:
        progress(f"evaluating {len(alive)} wiring(s) on all {len(sequences)} sequences")
    final = _ranked(alive, evaluate_all(drafter, sequences, alive, steps, norm=norm), level, complete=True)
    return final + [r for _, gone in reversed(dropped) for r in gone]


def _joined(new: Sequence[WiringResult], old: Sequence[WiringResult]) -> list[WiringResult]:
    """The new results, and of the old ones what was not measured again: they were dropped against an earlier best."""
    every = [*new, *(r for r in old if not any(r.wiring.same_feed(n.wiring) for n in new))]
    return sorted(every, key=lambda r: (r.wiring.leaks, -r.difference.value, not r.complete))


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
            difference=stats.paired_difference_t(c.run_sums(), best.run_sums(), c.sizes(), level=level), n=c.n, complete=complete, correctness=c,
            equal_to_best=c is best or _equal(c, best))
        for w, c in zip(wirings, found, strict=True)]
    return sorted(results, key=lambda r: (r.wiring.leaks, -r.mean_run))


def _equal(a: Correctness, b: Correctness) -> bool:
    return all(bool((x.predicted == y.predicted)[x.valid].all()) for x, y in zip(a.sequences, b.sequences, strict=True))
