"""The drafter fed with the target's own states: which boundary set behaves as the dump does, and what the served one costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagle_forensics.drafter.battery import WiringResult, run_battery
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.workbench import Workbench

SAME_TOKENS = 0.97
"""Share of equal first draft tokens above which two feeds count as the same states. Measured on the built-in case (10,879 tokens): the
trained boundaries computed again agree on 1.000 of them, one boundary earlier on 0.805, one later on 0.747."""


@dataclass(frozen=True)
class Compared:
    """The drafter fed with the target's own states, beside the dump's planes."""

    dump: Correctness
    results: tuple[WiringResult, ...]
    """The dump's wiring (`trained`) and every boundary set, best first; clearly dead sets were dropped at a screening."""
    by_set: Mapping[tuple[int, ...], WiringResult]
    trained: tuple[int, ...] | None
    """The set under which it proposes the dump's tokens; None if no set tried does."""
    served: Correctness | None


def compare_sets(bench: Workbench, steps: int, served: tuple[int, ...] | None) -> Compared | None:
    """The dump's planes and every boundary set on the same sequences; the served set is never dropped. None without computed states."""
    if not bench.computed:
        return None
    wirings = {ids: bench.set_wiring(ids) for ids in bench.sets}
    wanted = wirings.get(tuple(sorted(served))) if served else None
    results = run_battery(bench.drafter, bench.computed, [bench.trained, *wirings.values()], steps, keep=[w for w in (bench.trained, wanted) if w])
    of = {r.wiring: r for r in results}
    by_set = {ids: of[w] for ids, w in wirings.items()}
    dump = of[bench.trained].correctness
    whole = {ids: r.correctness for ids, r in by_set.items() if r.complete}
    return Compared(dump, tuple(results), by_set, behaves_like(whole, dump), of[wanted].correctness if wanted else None)


def same_first_tokens(a: Correctness, b: Correctness) -> float:
    """Share of response positions at which both propose the same first draft token."""
    pairs = [(x.predicted[:, 0] == y.predicted[:, 0])[x.valid[:, 0]] for x, y in zip(a.sequences, b.sequences, strict=True)]
    return float(np.concatenate(pairs).mean())


def behaves_like(found: Mapping[tuple[int, ...], Correctness], dump: Correctness) -> tuple[int, ...] | None:
    """The boundary set under which the drafter proposes the same tokens as under the dump; None if none or several do."""
    same = [ids for ids, c in found.items() if same_first_tokens(c, dump) >= SAME_TOKENS]
    return same[0] if len(same) == 1 else None
