"""Which boundaries of the target was the drafter trained at? A search over every ordered choice of the target's own states.

31 boundaries give 26,970 ordered choices of three, 62 give 226,920. Each block of fc is filled in turn (the others zero, the best
few kept), unless the dump already tells where to start; then one block at a time is exchanged until nothing is better. fc is linear,
so the products of every state with every block are computed once. That is a search, not a proof: on planted drafters, each trained
at an ordered choice of three of eight random states, 40 % of the tokens noise, it ended where an exhaustive search does in 40 of 40
(`tests/drafter/test_search.py` repeats a part). What it ends at is then held against its neighbours and the runners-up with intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import ZERO, Recorded, spans
from eagle_forensics.drafter.wirings.battery import WiringResult, run_battery
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all

BEAM = 3
"""Partial choices kept while the blocks are filled."""
ROWS = 8
"""Response positions of each sequence that the search reads."""
RIVALS = 8
"""Choices other than the neighbours that the result is held against."""


@dataclass(frozen=True)
class Searched:
    """Where the search ended, and the intervals around it."""

    results: tuple[WiringResult, ...]
    """The best choice, its neighbours and the runners-up, best first, on all positions of the sequences searched."""
    tried: int
    """Choices evaluated; the others were never better in part."""
    planes: int
    sequences: int

    @property
    def best(self) -> tuple[int, ...]:
        """Boundaries of the best choice in fc order."""
        return boundaries_of(self.results[0].wiring)

    @property
    def like_best(self) -> tuple[WiringResult, ...]:
        """Choices that cannot be told from the best on these tokens."""
        return tuple(r for r in self.results[1:] if r.difference.high >= 0)


def search_boundaries(drafter: Drafter, sequences: Sequence[Recorded], boundaries: Sequence[int], steps: int = 3, *, like: Wiring, start: Sequence[int] | None = None,
                      known: Sequence[Sequence[int]] = (), norm: FinalNorm | None = None, progress: Callable[[str], None] | None = None) -> Searched:
    """Search the ordered choices of `boundaries` that fit the drafter best; everything but the planes is read as in `like`.

    `start`: a choice known from the dump, whose surroundings alone are searched. `known`: choices that are held against the result
    whatever they score. `sequences` hold the planes `b=0`, `b=1`, ...
    """
    names = [f"b={b}" for b in boundaries]
    sample = [s.cut(spans(s.loss_mask)[0].first + ROWS + 2) for s in sequences]
    scores: dict[tuple[str, ...], int] = {}

    def ranked(choices: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
        asked = list(dict.fromkeys(choices))
        new = [c for c in asked if c not in scores]
        if new:
            found = evaluate_all(drafter, sample, [replace(like, planes=c, name="") for c in new], min(steps, 2), norm=norm)
            scores.update(zip(new, (sum(c.run_sums()) for c in found), strict=True))
        return sorted(asked, key=lambda c: -scores[c])

    seeds = [c for c in (tuple(f"b={b}" for b in k) for k in (*([start] if start else []), *known)) if set(c) <= set(names)]
    beam = [(ZERO,) * drafter.n_aux]
    for block in range(0 if start else drafter.n_aux):
        if progress:
            progress(f"boundary search: block {block + 1} of {drafter.n_aux}")
        beam = ranked(_filled(beam, names))[:BEAM]
    best = ranked([*seeds, *(c for c in beam if ZERO not in c)])[0]
    while (better := ranked([best, *_exchanged(best, names)])[0]) != best:
        best = better
    whole = [c for c in sorted(scores, key=lambda c: -scores[c]) if ZERO not in c]
    rivals = dict.fromkeys([best, *seeds, *_neighbours(best, names), *whole[:RIVALS]])
    results = run_battery(drafter, sequences, [replace(like, planes=c, name="") for c in rivals], steps, norm=norm, keep=[replace(like, planes=c, name="") for c in seeds])
    return Searched(tuple(results), len(scores), len(names), len(sequences))


def boundaries_of(wiring: Wiring) -> tuple[int, ...]:
    """The boundaries a wiring of the target's own states feeds, in fc order."""
    return tuple(int(s.removeprefix("b=")) for s in wiring.states)


def _filled(choices: Iterable[tuple[str, ...]], names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Every choice with one more block filled by a state it does not hold."""
    return (_put(c, i, n) for c in choices for i, held in enumerate(c) if held == ZERO for n in names if n not in c)


def _exchanged(choice: tuple[str, ...], names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """One block of `choice` replaced, or two swapped."""
    yield from (_put(choice, i, n) for i in range(len(choice)) for n in names if n not in choice)
    for i in range(len(choice)):
        for j in range(i):
            yield _put(_put(choice, i, choice[j]), j, choice[i])


def _neighbours(choice: tuple[str, ...], names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Every block one boundary down or up, together and one by one."""
    at = [names.index(c) for c in choice]
    for by in (-1, 1):
        moved = [[*at], *([*at] for _ in at)]
        moved[0] = [a + by for a in at]
        for i in range(len(at)):
            moved[i + 1][i] += by
        yield from (tuple(names[a] for a in m) for m in moved if min(m) >= 0 and max(m) < len(names) and len(set(m)) == len(m))


def _put(choice: tuple[str, ...], at: int, name: str) -> tuple[str, ...]:
    return (*choice[:at], name, *choice[at + 1:])
