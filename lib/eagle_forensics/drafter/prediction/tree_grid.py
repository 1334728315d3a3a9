"""Predicted accept length for every steps x topk x draft-token budget, on as many sequences as a bounded amount of work allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_forensics import stats
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.prediction.tree import Trees, grow_trees, nodes
from eagle_forensics.drafter.recorded import Recorded, spread

TOPKS = (1, 2, 4)
BUDGETS = (4, 8, 16, 32)
WORK = 4e11
"""Floating-point operations spent on trees by default: half a minute of two slow cores."""
LEAST_SEQUENCES = 2
"""Fewer have no interval."""


@dataclass(frozen=True)
class TreePrediction:
    """One setting of SGLang's --speculative-num-steps, -eagle-topk, -num-draft-tokens, greedy."""

    steps: int
    topk: int
    draft_tokens: int
    """The root among them, as SGLang counts."""
    accept_length: stats.Estimate
    """By the walk, on the sequences of the grid."""
    gain: stats.Estimate
    """Against the chain of as many steps on the same sequences, paired."""


def tree_grid(drafter: Drafter, sequences: Sequence[Recorded], planes: Sequence[str], steps: int, *, configured: tuple[int, int, int] | None = None,
              work: float = WORK) -> tuple[TreePrediction, ...]:
    """Predictions up to `steps` steps, and for the `configured` (steps, topk, draft tokens). ValueError with the reason if the work does not allow it."""
    topks = sorted({*TOPKS, *((configured[1],) if configured else ())})
    topks = [k for k in topks if k <= len(drafter.head)]
    most = max(steps, configured[0]) if configured else steps
    weights = drafter.head.numel() + sum(
        w.numel() for layer in drafter.layers for w in (layer.o, layer.gate, layer.up, layer.down, *(i.weight for i in layer.attention.inputs())))
    chosen = spread(sequences, int(work / (2 * weights * most * sum(topks))), LEAST_SEQUENCES)
    grown = {topk: grow_trees(drafter, chosen, planes, most, topk) for topk in topks}
    settings = [(s, k, n) for s in range(1, most + 1) for k in topks for n in _budgets(s, k)]
    if configured and configured not in settings and _grows(configured):
        settings.append(configured)
    return tuple(_predict(grown[k], grown[1], s, k, n) for s, k, n in settings)


def _predict(trees: Trees, chain: Trees, steps: int, topk: int, draft_tokens: int) -> TreePrediction:
    mine, plain = trees.rounds(steps, draft_tokens), chain.rounds(steps, steps + 1)
    gain = stats.paired_difference([r.tokens for r in mine], [r.tokens for r in plain], [r.rounds for r in mine], [r.rounds for r in plain])
    return TreePrediction(steps, topk, draft_tokens, trees.accept_length(steps, draft_tokens), gain)


def _budgets(steps: int, topk: int) -> list[int]:
    if topk == 1:
        return [steps + 1]
    return sorted({n for n in (steps + 1, *BUDGETS) if steps < n <= nodes(steps, topk) + 1})


def _grows(setting: tuple[int, int, int]) -> bool:
    steps, topk, draft_tokens = setting
    return topk > 1 and 2 <= draft_tokens <= nodes(steps, topk) + 1
