"""The text that a live server served, walked offline under every wiring worth trying: which one takes the server's own number of rounds?

The text is the target's, whatever the drafter was fed; the number of verify rounds is the drafter's. In float32 both sides
compute the same, so under the wiring that the server feeds the walk counts its rounds to the integer, answer by answer, for
chains and for SGLang's trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from eagle_forensics import stats
from eagle_forensics.boundary import format_boundaries
from eagle_forensics.drafter.network.forms import layer_forms
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.prediction.tree import grow_trees
from eagle_forensics.drafter.recorded import ZERO, Recorded
from eagle_forensics.drafter.wirings.candidates import candidate_sets, plane_orders, ropes, variations
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.drafter.wirings.sets import decoded
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.evidence.answers import ServedAnswer
from eagle_forensics.evidence.records import Target
from eagle_forensics.evidence.states import States

GRAPH = "CUDA graph"
"""Name of the wiring whose answers are decoded by a graph that captures other boundaries than the prompt's pass."""


@dataclass(frozen=True)
class Known:
    """Boundaries of the case, in fc order; None where they are not known."""

    trained: tuple[int, ...] | None
    served: tuple[int, ...] | None
    """By the engine's rules, eager path."""
    graph: tuple[int, ...] | None = None
    """By the engine's rules in CUDA graphs, where they are others."""


@dataclass(frozen=True)
class Setting:
    """How a round was drafted."""

    steps: int
    topk: int = 1
    draft_tokens: int | None = None


@dataclass(frozen=True)
class Walked:
    """One wiring on all answers."""

    wiring: Wiring
    rounds: tuple[int, ...]
    """Verify rounds by the walk, one number an answer."""
    served: tuple[int, ...]
    """Verify rounds that the server counted."""
    tokens: tuple[int, ...]
    """Tokens of these rounds."""
    difference: stats.Estimate
    """Accept length of the walk minus that of the server, paired over answers."""

    @property
    def missed(self) -> int:
        """Answers whose count it does not give."""
        return sum(a != b for a, b in zip(self.rounds, self.served, strict=True))

    @property
    def off(self) -> int:
        """Rounds by which it misses, over all answers and regardless of sign."""
        return sum(abs(a - b) for a, b in zip(self.rounds, self.served, strict=True))


def wirings(drafter: Drafter, target: Target, known: Known, *, norm: FinalNorm | None, topk: int, exact: bool) -> tuple[Wiring, ...]:
    """What the server may feed: the known sets, those one layer beside them, the usual ones, orders of the known ones, departures from
    the trained one, and zeros. Trees, which cost more, take sets and swaps of neighbouring planes alone. Other ways to compute the draft
    layer are tried where counts are `exact`: an accept length alone does not tell them from other states."""
    sets = [*filter(None, (known.trained, known.served)), *_beside(known, target.layers), *candidate_sets(target.layers)]
    found = [_of(ids) for ids in sets if len(ids) == drafter.n_aux]
    if known.graph and known.served and len(known.graph) == len(known.served) == drafter.n_aux:
        found.append(Wiring(tuple(f"decode {i}" for i in range(drafter.n_aux)), name=GRAPH))
    known_sets = [ids for ids in (known.trained, known.served) if ids and len(ids) == drafter.n_aux]
    if topk > 1:
        found += [_of((*ids[:i], ids[i + 1], ids[i], *ids[i + 2:])) for ids in known_sets for i in range(drafter.n_aux - 1)]
    else:
        found += [Wiring(order) for ids in known_sets for order in plane_orders(_of(ids).planes, drafter.n_aux)]
        found += [w for w in variations(drafter, _of(known.trained), norm=norm, rope=ropes(drafter, target.rope)) if not w.leaks] if known.trained in known_sets else []
        found += [replace(_of(known.trained), layer=name) for name in layer_forms(drafter)] if exact and known.trained in known_sets else []
        found.append(Wiring((ZERO,) * drafter.n_aux))
    return tuple(dict.fromkeys(found))


def boundaries_needed(tried: Sequence[Wiring], known: Known) -> tuple[int, ...]:
    """Boundaries whose states the wirings read."""
    planes = {s for w in tried for s in w.states}
    ids = {int(p.removeprefix("b=")) for p in planes if p.startswith("b=")}
    return tuple(sorted(ids | ({*known.served, *known.graph} if GRAPH in {w.name for w in tried} else set())))


def recorded(answers: Sequence[ServedAnswer], states: States, known: Known) -> tuple[Recorded, ...]:
    """Prompt and answer with the target's states at every boundary of `states`, planes `b=15`; with `decode 0`, ... for CUDA graphs."""
    rows = []
    for i, answer in enumerate(answers):
        ids = torch.tensor((*answer.prompt_ids, *answer.output_ids))
        row = Recorded({f"b={b.index}": states.plane(i, b) for b in states.boundaries}, ids, torch.arange(len(ids)) >= len(answer.prompt_ids), answer.prompt)
        held = {b.index for b in states.boundaries}
        both = known.served and known.graph and {*known.served, *known.graph} <= held and len(known.served) == len(known.graph)
        rows.append(decoded(row, known.served, known.graph) if both else row)
    return tuple(rows)


def walk_answers(drafter: Drafter, sequences: Sequence[Recorded], answers: Sequence[ServedAnswer], tried: Sequence[Wiring], setting: Setting, *,
                 norm: FinalNorm | None = None, progress: Callable[[str], None] | None = None) -> tuple[Walked, ...]:
    """Every wiring's verify rounds beside the server's, the nearest first. Each answer needs two tokens: the first comes from prefill."""
    served = tuple(a.rounds for a in answers)
    tokens = tuple(len(a.output_ids) - 1 for a in answers)
    say = progress or (lambda line: None)
    say(f"walking {len(answers)} served answers under {len(tried)} wirings")
    if setting.topk == 1:
        counts = [[s.rounds(setting.steps).rounds for s in c.sequences] for c in evaluate_all(drafter, sequences, tried, setting.steps, norm=norm)]
    else:
        counts = [[s.rounds(setting.steps, setting.draft_tokens).rounds for s in grow_trees(drafter, sequences, w.planes, setting.steps, setting.topk).sequences] for w in tried]
    level = stats.simultaneous_level(len(tried))
    found = [Walked(w, tuple(c), served, tokens, stats.paired_difference(tokens, tokens, c, served, level=level)) for w, c in zip(tried, counts, strict=True)]
    return tuple(sorted(found, key=lambda w: (w.missed, w.off)))


def named(w: Wiring, known: Known) -> str:
    """The wiring in the words of the case: `trained: b=2, b=15, b=27`."""
    names = [name for name, ids in (("trained", known.trained), ("served by the engine's rules", known.served)) if ids and w.same_feed(_of(ids))]
    if w.name == GRAPH:
        return f"prompt {format_boundaries(known.served)}, answer by CUDA graphs {format_boundaries(known.graph)}"
    return replace(w, name=", ".join(names)).label if names else w.label


def trained_wiring(known: Known) -> Wiring | None:
    """The wiring of the trained boundaries under the checkpoint's own flags."""
    return _of(known.trained) if known.trained else None


def by_rules(known: Known) -> Wiring | None:
    """The wiring that the engine's rules say decode feeds."""
    if known.graph and known.served:
        return Wiring(tuple(f"decode {i}" for i in range(len(known.graph))), name=GRAPH)
    return _of(known.served) if known.served else None


def counts_table(found: Sequence[Walked], known: Known) -> list[Mapping[str, object]]:
    """A row a wiring: what it is, answers whose count it gives, rounds it misses by, accept length apart."""
    return [{"wiring": named(w.wiring, known), "answers reproduced": f"{len(w.served) - w.missed} of {len(w.served)}", "rounds walked": sum(w.rounds), "rounds served": sum(w.served),
             "off by": w.off, "accept length apart": f"{w.difference.value:+.3f}"} for w in found]


def _of(ids: Sequence[int]) -> Wiring:
    return Wiring(tuple(f"b={b}" for b in ids))


def _beside(known: Known, layers: int) -> list[tuple[int, ...]]:
    """The known sets moved by one layer."""
    moved = [tuple(b + shift for b in ids) for ids in filter(None, (known.trained, known.served)) for shift in (-1, 1)]
    return [ids for ids in moved if min(ids) >= 0 and max(ids) <= layers]
