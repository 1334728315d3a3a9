"""The drafter fed with the target's own states: which boundary set behaves as the dump does, and what other feeds would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.battery import WiringResult, run_battery
from eagle_forensics.drafter.wirings.derived import INCREMENT, share_of, slice_of
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.drafter.workbench import Workbench

SAME_TOKENS = 0.97
"""Share of equal first draft tokens above which two feeds count as the same states. Measured on the built-in case (10,879 tokens): the
trained boundaries computed again agree on 1.000 of them, one boundary earlier on 0.805, one later on 0.747."""
UNDAMAGED = "as they should be"
ASIDE = 24
"""Sequences on which damaged states and other flags are tried: on the built-in case 3,300 tokens, an accept length to 0.1 tokens a round."""


@dataclass(frozen=True)
class Compared:
    """The drafter fed with the target's own states, beside the dump's planes."""

    dump: Correctness
    """Under the order of planes that fits best (`base`), everything else as the checkpoint says."""
    base: Wiring
    results: tuple[WiringResult, ...]
    """The dump's wiring and every boundary set, best first; clearly dead sets were dropped at a screening."""
    by_set: Mapping[tuple[int, ...], WiringResult]
    trained: tuple[int, ...] | None
    """The set under which it proposes the dump's tokens, in fc order; None if no set tried does."""
    served: Correctness | None
    """With the states of the served boundaries: the eager path's, unless decode runs another (then `decode` is what counts)."""
    decode: Correctness | None
    """With prompts at the eager path's boundaries and responses at those of the CUDA graph; None where the paths agree."""


def compare_sets(bench: Workbench, steps: int, served: Sequence[int] | None, graph: Sequence[int] | None = None, base: Wiring | None = None) -> Compared | None:
    """The dump's planes and every boundary set on the same sequences; what is served is never dropped. None without computed states.

    `graph`: boundaries of the CUDA graph path. `base`: the dump's wiring that fits best, if it is not the contract's.
    """
    if not bench.computed:
        return None
    dump = base or bench.trained
    wirings = {ids: bench.set_wiring(ids) for ids in bench.sets}
    if base is not None and (order := _order(base, bench.slots)) is not None:
        wirings |= {tuple(ids[i] for i in order): Wiring(tuple(f"b={ids[i]}" for i in order)) for ids in bench.sets}
    wanted = wirings.get(tuple(sorted(served))) if served else None
    sequences = bench.computed
    mixed = None
    if served and graph and tuple(graph) != tuple(served) and bench.holds(served) and bench.holds(graph):
        sequences = tuple(decoded(s, served, graph) for s in sequences)
        mixed = Wiring(tuple(f"decode {i}" for i in range(len(graph))), name="CUDA graph")
    keep = [w for w in (dump, wanted, mixed) if w]
    results = run_battery(bench.drafter, sequences, list(dict.fromkeys([dump, *wirings.values(), *([mixed] if mixed else [])])), steps, keep=keep)
    of = {r.wiring: r for r in results}
    by_set = {ids: of[w] for ids, w in wirings.items()}
    whole = {ids: r.correctness for ids, r in by_set.items() if r.complete}
    return Compared(of[dump].correctness, dump, tuple(results), by_set, behaves_like(whole, of[dump].correctness),
                    of[wanted].correctness if wanted else None, of[mixed].correctness if mixed else None)


def damaged(bench: Workbench, steps: int, boundaries: Sequence[int], ranks: Sequence[int]) -> dict[str, Correctness]:
    """What the drafter would do if the server handed it the states of `boundaries` in a damaged form: name -> correctness on a sample.
    Norms are the battery's to try."""
    right = bench.set_wiring(boundaries)
    forms = {f"one of {n} tensor-parallel slices": right.formed(slice_of(n)) for n in ranks}
    forms |= {f"divided by {n} ranks": right.formed(share_of(n)) for n in ranks}
    if bench.holds([b - 1 for b in boundaries]):
        forms["without the residual"] = right.formed(INCREMENT)
    found = evaluate_all(bench.drafter, spread(bench.computed), [right, *forms.values()], steps, norm=bench.norm)
    return dict(zip((UNDAMAGED, *forms), found, strict=True))


def spread(sequences: Sequence[Recorded]) -> Sequence[Recorded]:
    """At most `ASIDE` of the sequences, spread over all of them."""
    count = min(ASIDE, len(sequences))
    return [sequences[i * len(sequences) // count] for i in range(count)]


def same_first_tokens(a: Correctness, b: Correctness) -> float:
    """Share of response positions at which both propose the same first draft token."""
    pairs = [(x.predicted[:, 0] == y.predicted[:, 0])[x.valid[:, 0]] for x, y in zip(a.sequences, b.sequences, strict=True)]
    return float(np.concatenate(pairs).mean())


def behaves_like(found: Mapping[tuple[int, ...], Correctness], dump: Correctness) -> tuple[int, ...] | None:
    """The boundary set under which the drafter proposes the same tokens as under the dump; None if none or several do."""
    same = [ids for ids, c in found.items() if same_first_tokens(c, dump) >= SAME_TOKENS]
    return same[0] if len(same) == 1 else None


def _order(base: Wiring, slots: Sequence[str]) -> tuple[int, ...] | None:
    """Which of the dump's first planes each block of fc reads under `base`, if it is a permutation of them."""
    at = [slots.index(s) for s in base.states if s in slots]
    return tuple(at) if sorted(at) == list(range(len(base.planes))) else None


def decoded(sequence: Recorded, eager: Sequence[int], graph: Sequence[int]) -> Recorded:
    """The states a server feeds whose decode path captures other boundaries than its prefill."""
    generated = (sequence.loss_mask.cumsum(0) > 0)[:, None]
    pairs = zip(sorted(eager), sorted(graph), strict=True)
    return sequence.with_planes({
        f"decode {i}": torch.where(generated, sequence.planes[f"b={g}"], sequence.planes[f"b={e}"]) for i, (e, g) in enumerate(pairs)})
