"""The drafter fed with the target's own states: which boundary set behaves as the dump does, and what the served one costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.wiring import evaluate_all
from eagle_forensics.drafter.workbench import Workbench

SAME_TOKENS = 0.97
"""Share of equal first draft tokens above which two feeds count as the same states. Measured on the built-in case (10,879 tokens): the
trained boundaries computed again agree on 1.000 of them, one boundary earlier on 0.805, one later on 0.747."""


@dataclass(frozen=True)
class Compared:
    """The drafter fed with the target's own states."""

    dump: Correctness
    by_set: Mapping[tuple[int, ...], Correctness]
    trained: tuple[int, ...] | None
    """The set under which it proposes the dump's tokens; None if no set tried does."""
    served: Correctness | None


def evaluate_sets(bench: Workbench, steps: int) -> tuple[Correctness | None, dict[tuple[int, ...], Correctness]]:
    """The dump's planes and every boundary set on the same sequences: (dump, by set). (None, {}) without computed states."""
    if not bench.computed:
        return None, {}
    wirings = [bench.trained, *(bench.set_wiring(ids) for ids in bench.sets)]
    dump, *found = evaluate_all(bench.drafter, bench.computed, wirings, steps)
    return dump, dict(zip(bench.sets, found, strict=True))


def same_first_tokens(a: Correctness, b: Correctness) -> float:
    """Share of response positions at which both propose the same first draft token."""
    pairs = [(x.predicted[:, 0] == y.predicted[:, 0])[x.valid[:, 0]] for x, y in zip(a.sequences, b.sequences, strict=True)]
    return float(np.concatenate(pairs).mean())


def behaves_like(found: Mapping[tuple[int, ...], Correctness], dump: Correctness) -> tuple[int, ...] | None:
    """The boundary set under which the drafter proposes the same tokens as under the dump; None if none or several do."""
    same = [ids for ids, c in found.items() if same_first_tokens(c, dump) >= SAME_TOKENS]
    return same[0] if len(same) == 1 else None
