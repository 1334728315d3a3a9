"""Everything notebook 02 evaluates on: the drafter, the recorded sequences, and the target's own states at the boundaries worth trying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from eagle_forensics.case import Case
from eagle_forensics.drafter.network.model import Drafter, load_drafter
from eagle_forensics.drafter.recorded import NO_IDS, NO_MASK, Problem, Recorded, from_samples
from eagle_forensics.drafter.wirings.candidates import candidate_sets, ropes
from eagle_forensics.drafter.wirings.derived import EMBEDDING, FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.records import EvidenceError, Rope, Target
from eagle_forensics.evidence.states import States, fits, read_states, target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.evidence.tensors import load_tensor

OTHER_FAMILIES = ("eagle1",)
"""Families that the reader recognises and the standalone drafter does not run."""
MAPPED = 16
"""Sequences whose states at every boundary are computed for the search of the trained boundaries; a bank gives all it holds."""


class Lacking(EvidenceError):
    """The evidence is sound, but not enough of it or not of a kind that can be run here: nothing to correct, nothing examined."""


@dataclass(frozen=True)
class Workbench:
    """A drafter with something to read."""

    drafter: Drafter
    target: Target | None
    sequences: tuple[Recorded, ...]
    """Usable sequences; planes `slot 0`, `slot 1`, ... of the dump."""
    problems: tuple[Problem, ...]
    """Samples that were left out, with the reason."""
    slots: tuple[str, ...]
    """Planes of the dump in file order."""
    extra: tuple[str, ...]
    """Further planes that every sequence holds: the embedding of its tokens, where it is as wide as the states."""
    norm: FinalNorm | None
    """The target's final norm; None without its weights."""
    rope: tuple[Rope, ...]
    """Rotary setups other than the checkpoint's that are worth trying."""
    trained: Wiring
    """The dump's first planes, as every known trainer concatenates them."""
    computed: tuple[Recorded, ...]
    """The sequences that also hold the target's own states (`b=15`); empty without weights or bank."""
    sets: Mapping[tuple[int, ...], str]
    """Boundary sets that can be evaluated on `computed`, with where each comes from."""
    notes: tuple[str, ...]

    def holds(self, boundaries: Sequence[int]) -> bool:
        """Whether `computed` has the target's states at all of these."""
        return bool(self.computed) and all(f"b={b}" in self.computed[0].planes for b in boundaries)

    def set_wiring(self, boundaries: Sequence[int], name: str = "") -> Wiring:
        """The wiring that feeds the target's own states at `boundaries`, ascending as engines do."""
        return Wiring(tuple(f"b={b}" for b in sorted(boundaries)), name=name)


def open_workbench(case: Case, *, served: Sequence[int] | None = None, graph: Sequence[int] | None = None,
                   claimed: Sequence[int] | None = None, max_samples: int | None = None,
                   seed: int = 0, progress: Callable[[str], None] | None = None) -> Workbench:
    """Read drafter, dump and states. If the drafter cannot be evaluated at all: Lacking for what is absent, EvidenceError or
    ValueError for what is wrong."""
    if case.drafter is None or not case.training.dumps:
        raise Lacking("the standalone test needs drafter.path with weights and training.dump")
    draft = read_draft(case.drafter.path)
    if not draft.tensors:
        raise Lacking(f"{draft.path} holds no weights of a drafter")
    if draft.family in OTHER_FAMILIES:
        raise Lacking(f"{draft.path}: a drafter of family {draft.family} cannot be run here, only eagle3_llama and eagle3_mla; notebooks 01 and 03 do not need it")
    target = read_target(case.target.path) if case.target else None
    if "embed_tokens.weight" not in draft.tensors and not (target and "embed_tokens.weight" in target.tensors):
        raise Lacking(f"neither {draft.path} nor the target holds embed_tokens.weight, which the drafter reads beside the states")
    drafter = load_drafter(draft, target, embedding_from="target" if case.serving.engine == "sglang" else "draft")
    dump = case.training.dumps[0]
    broken: list[str] = []
    samples = iter_samples(find_dump(dump.path, dump.format), limit=max_samples, seed=seed if max_samples else None, problems=broken)
    sequences, problems = from_samples(samples, vocab=drafter.vocab, width=drafter.target_hidden)
    if not sequences:
        why = "; ".join([*broken, *(f"{p.sample_id}: {p.reason}" for p in problems)][:3])
        absent = problems and not broken and all(p.reason in (NO_IDS, NO_MASK) for p in problems)
        raise (Lacking if absent else EvidenceError)(f"{dump.path}: no sample can be evaluated ({why}). Expected token ids, a loss mask and planes of width {drafter.target_hidden}.")
    slots = tuple(n for n in sequences[0].planes if n.startswith("slot "))
    if len(slots) < drafter.n_aux:
        raise EvidenceError(f"{dump.path}: {len(slots)} planes a sample, fc reads {drafter.n_aux}.")
    table = _embedding(target, drafter)
    if table is not None:
        sequences = tuple(s.with_planes({EMBEDDING: table(s.input_ids)}) for s in sequences)
    sets = _boundary_sets(target, drafter.n_aux, {"the trainer's ids": claimed, "served by the engine": served, "served by the engine's CUDA graphs": graph})
    computed, notes = _with_states(case, target, sequences, sorted({b for s in sets for b in s}), progress)
    if others := [d.path.name for d in case.training.dumps[1:]]:
        notes.append(f"only the dump {dump.path.name} is evaluated, not {', '.join(others)}")
    return Workbench(drafter, target, sequences, (*(Problem("dump", text) for text in broken), *problems), slots, (EMBEDDING,) if table else (),
                     final_norm(target), ropes(drafter, target.rope if target else None), Wiring(slots[:drafter.n_aux], name="trained"),
                     computed, sets if computed else {}, tuple(notes))


def mapped(case: Case, bench: Workbench, progress: Callable[[str], None] | None = None) -> tuple[tuple[Recorded, ...], tuple[int, ...]]:
    """Sequences with the target's states at every boundary at hand (`b=0`, `b=1`, ...), and those boundaries; both empty without
    bank and weights."""
    if case.reference is not None:
        states = read_states(case.reference.path)
        held = tuple(b.index for b in states.boundaries if not b.normed)
        at = {tokens: i for i, tokens in enumerate(states.sequences)}
        found = tuple(_joined(s, states, at[key], held) for s in bench.sequences if (key := tuple(s.input_ids.tolist())) in at)
        if len(found) > 1 and len(held) >= bench.drafter.n_aux:
            return found, held
    if bench.target is None or fits(bench.target) is not None:
        return (), ()
    picked = [bench.sequences[i * len(bench.sequences) // MAPPED] for i in range(MAPPED)] if len(bench.sequences) > MAPPED else list(bench.sequences)
    boundaries = tuple(range(bench.target.layers + 1))
    states = target_states(bench.target, [s.input_ids.tolist() for s in picked], boundaries, cache=False, progress=progress)
    return tuple(_joined(s, states, i, boundaries) for i, s in enumerate(picked)), boundaries


def _embedding(target: Target | None, drafter: Drafter) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Looks up the target's embedding output [T, Ht]; None if it is not at hand or of another width than the states."""
    if target is None or "embed_tokens.weight" not in target.tensors or target.hidden != drafter.target_hidden:
        return None
    weight = load_tensor(target.tensors["embed_tokens.weight"])
    if drafter.vocab > len(weight):
        return None
    return lambda ids: weight[ids] * target.embedding_factor


def final_norm(target: Target | None) -> FinalNorm | None:
    """The target's final norm; None without its weights."""
    if target is None or "norm.weight" not in target.tensors:
        return None
    weight = load_tensor(target.tensors["norm.weight"])
    return FinalNorm(weight + 1 if target.norm_plus_one else weight, target.eps)


def _boundary_sets(target: Target | None, n_aux: int, claims: Mapping[str, Sequence[int] | None]) -> dict[tuple[int, ...], str]:
    if target is None:
        return {}
    found = {k: v for k, v in candidate_sets(target.layers).items() if len(k) == n_aux}
    for origin, ids in claims.items():
        if ids is not None and len(set(ids)) == n_aux and min(ids) >= 0 and max(ids) <= target.layers:
            key = tuple(sorted(ids))
            found[key] = f"{found[key]}; {origin}" if key in found else origin
    return found


def _with_states(case: Case, target: Target | None, sequences: Sequence[Recorded], boundaries: Sequence[int],
                 progress: Callable[[str], None] | None) -> tuple[tuple[Recorded, ...], list[str]]:
    if target is None:
        return (), ["no target: the states at other boundaries are not at hand"]
    reason = fits(target)
    if reason is None:
        states = target_states(target, [s.input_ids.tolist() for s in sequences], boundaries, progress=progress)
        return tuple(_joined(s, states, i, boundaries) for i, s in enumerate(sequences)), [f"states at {len(boundaries)} boundaries {states.origin}"]
    if case.reference is None:
        return (), [f"the target cannot be run here ({reason}) and the case names no reference bank"]
    states = read_states(case.reference.path)
    held = {b.index for b in states.boundaries if not b.normed}
    if missing := [b for b in boundaries if b not in held]:
        return (), [f"the target cannot be run here ({reason}) and the bank lacks boundaries {missing}"]
    at = {tokens: i for i, tokens in enumerate(states.sequences)}
    found = tuple(_joined(s, states, at[key], boundaries) for s in sequences if (key := tuple(s.input_ids.tolist())) in at)
    return found, [f"the target cannot be run here ({reason}); the bank holds {len(found)} of {len(sequences)} sequences"]


def _joined(sequence: Recorded, states: States, index: int, boundaries: Sequence[int]) -> Recorded:
    return sequence.with_planes({f"b={b}": states.plane(index, b) for b in boundaries})
