"""Wirings: every way in which the same drafter can be fed, and the sets of them worth trying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, permutations, product

import torch

from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness, judge
from eagle_forensics.drafter.fuse import Projections
from eagle_forensics.drafter.model import Drafter
from eagle_forensics.drafter.recorded import ZERO, Recorded
from eagle_forensics.drafter.unroll import Chunk, chunks, unroll
from eagle_forensics.evidence.records import DraftFlags, Rope

ALL_ORDERS_UP_TO = 5
"""Planes up to which every ordered subset is tried (5 planes, 3 of them: 60 orders)."""


@dataclass(frozen=True)
class Wiring:
    """What the drafter is fed and how it is read. The defaults are the contract of EAGLE-3."""

    planes: tuple[str, ...]
    """Names of the target states in fc order; `zero` is a plane of zeros."""
    token_shift: int = 1
    """Step k at position t reads the embedding of token t + token_shift + k. Above 1 it sees the token it has to predict."""
    hidden_shift: int = 0
    """Position t reads the states of position t + hidden_shift. Above 0 they have seen the token it has to predict."""
    normed: bool = False
    """Planes brought to unit root mean square (no weight), as by a forgotten norm."""
    flags: DraftFlags | None = None
    """Flags other than the checkpoint's; None inside keeps them."""
    d2t: str = "offset"
    """`offset` is the contract; `absolute` and `ignored` are the usual mistakes."""
    rope: Rope | None = None
    """Rotary setup other than the checkpoint's."""
    name: str = ""
    """What this wiring stands for in the case: `trained`, `served`."""

    @property
    def label(self) -> str:
        """`served: b=0, b=2, b=15; token shift 0`"""
        parts = [", ".join(self.planes)]
        parts += [f"token shift {self.token_shift}"] * (self.token_shift != 1)
        parts += [f"hidden shift {self.hidden_shift:+d}"] * (self.hidden_shift != 0)
        parts += ["planes normed"] * self.normed
        if self.flags:
            parts += [f"{k} {'on' if v else 'off'}" for k, v in vars(self.flags).items() if v is not None]
        parts += [f"d2t {self.d2t}"] * (self.d2t != "offset")
        parts += [f"rope theta {self.rope.theta:g}"] if self.rope else []
        return (f"{self.name}: " if self.name else "") + "; ".join(parts)

    @property
    def leaks(self) -> bool:
        """The input holds the token to be predicted: no server can do that, so a high accuracy proves nothing."""
        return self.token_shift > 1 or self.hidden_shift > 0

    def same_feed(self, other: Wiring) -> bool:
        """Equal but for the name."""
        return replace(self, name="") == replace(other, name="")

    def differences(self, other: Wiring) -> tuple[str, ...]:
        """Fields in which two wirings differ, the name apart."""
        return tuple(f.name for f in fields(self) if f.name != "name" and getattr(self, f.name) != getattr(other, f.name))


def plane_orders(available: Sequence[str], n_aux: int) -> tuple[tuple[str, ...], ...]:
    """Ordered choices of `n_aux` planes: all of them up to five planes, beyond that the ascending ones and every order of the first;
    for more than five aux planes windows of neighbours only (the orders of 31 planes have 34 digits)."""
    if len(available) <= ALL_ORDERS_UP_TO:
        return tuple(permutations(available, n_aux))
    if n_aux > ALL_ORDERS_UP_TO:
        return tuple(tuple(available[i:i + n_aux]) for i in range(len(available) - n_aux + 1))
    return tuple(dict.fromkeys([*combinations(available, n_aux), *permutations(available[:n_aux])]))


def candidate_sets(layers: int) -> dict[tuple[int, ...], str]:
    """Boundary sets that trainers and engines are known to produce for a target of `layers` layers, with their origin."""
    half = layers // 2
    named = {
        (2, half, layers - 3): "engine default", (3, half + 1, layers - 2): "default list read as post-layer", (1, half - 1, layers - 4): "post-layer list read as boundaries",
        (0, 1, 2): "EAGLE's trainer on a stock Hugging Face target", (0, 3, half + 1): "[-1, 2, L/2] read as post-layer",
        (0, 2, half): "embedding put first", (2, half, layers): "list ending in the last layer"}
    return {ids: why for ids, why in named.items() if len(set(ids)) == 3 and min(ids) >= 0 and max(ids) <= layers}


def flag_sets(drafter: Drafter) -> tuple[DraftFlags, ...]:
    """Every combination of flags the weights allow, other than the present one."""
    names = ["norm_before_residual", "norm_output"]
    names += ["norm_before_fc"] * (drafter.input_norm is not None) + ["fc_norm"] * (drafter.fc_norm is not None)
    found = []
    for values in product((False, True), repeat=len(names)):
        changed = {n: v for n, v in zip(names, values, strict=True) if v != getattr(drafter.flags, n)}
        if changed:
            found.append(DraftFlags(**changed))
    return tuple(found)


def variations(drafter: Drafter, around: Wiring) -> tuple[Wiring, ...]:
    """One departure at a time from `around`: shifts, norm state, flags, d2t readings."""
    base = replace(around, name="")
    found = [replace(base, token_shift=s) for s in (0, 2)] + [replace(base, hidden_shift=s) for s in (-1, 1)] + [replace(base, normed=True)]
    found += [replace(base, flags=f) for f in flag_sets(drafter)]
    if drafter.d2t is not None:
        found += [replace(base, d2t=r) for r in ("absolute", "ignored") if bool((drafter.target_ids(r) != drafter.target_ids()).any())]
    return tuple(w for w in dict.fromkeys(found) if not w.same_feed(around))


def standard_battery(drafter: Drafter, trained: Sequence[str], available: Sequence[str], *, deep: bool = False) -> tuple[Wiring, ...]:
    """The trained wiring, every order of the available planes, and the variations around the trained one.

    `deep`: every order under every flag combination, for two faults at once.
    """
    first = Wiring(tuple(trained), name="trained")
    orders = [Wiring(o) for o in plane_orders(available, drafter.n_aux)]
    if deep:
        orders += [replace(w, flags=f) for w in orders for f in flag_sets(drafter)]
    rest = dict.fromkeys([*orders, *variations(drafter, first), Wiring((ZERO,) * drafter.n_aux)])
    return (first, *(w for w in rest if not w.same_feed(first)))


def evaluate(drafter: Drafter, sequences: Sequence[Recorded], wiring: Wiring, steps: int = 3) -> Correctness:
    """Correctness of one wiring on all sequences."""
    return evaluate_all(drafter, sequences, [wiring], steps)[0]


def evaluate_all(drafter: Drafter, sequences: Sequence[Recorded], wirings: Sequence[Wiring], steps: int = 3) -> tuple[Correctness, ...]:
    """Correctness of each wiring on the same sequences. What wirings share is computed once: products of fc, the embedding's
    share of attention, everything but the meaning of draft ids where only d2t differs, all of it where planes of two names are equal."""
    if not sequences:
        raise ValueError("no sequence to evaluate")
    names = tuple(dict.fromkeys(n for w in wirings for n in w.planes if n != ZERO))
    collected: list[list[SequenceCorrectness]] = [[] for _ in wirings]
    with torch.inference_mode():
        for chunk in chunks(sequences, steps):
            planes, stands_for = _distinct(chunk.planes(names))
            projections = Projections(drafter, planes or {ZERO: torch.empty(len(chunk.tokens), 0)})
            seen: dict[Wiring, torch.Tensor] = {}
            for wiring, results in zip(wirings, collected, strict=True):
                key = replace(wiring, d2t="offset", name="", planes=tuple(stands_for.get(n, n) for n in wiring.planes))
                if key not in seen:
                    seen[key] = _draft_ids(drafter, chunk, projections, key, steps)
                results.extend(_judged(chunk, seen[key], drafter.target_ids(wiring.d2t)))
    return tuple(Correctness(tuple(results), steps) for results in collected)


def _draft_ids(drafter: Drafter, chunk: Chunk, projections: Projections, wiring: Wiring, steps: int) -> torch.Tensor:
    own = drafter.with_flags(wiring.flags)
    if wiring.rope is not None:
        own = own.with_rope(wiring.rope)
    hidden = projections.hidden(wiring.planes, norm_before_fc=bool(own.flags.norm_before_fc), fc_norm=bool(own.flags.fc_norm), normed=wiring.normed)
    if wiring.hidden_shift:
        at = torch.arange(len(hidden))
        hidden = hidden[torch.minimum(torch.maximum(at + wiring.hidden_shift, at - chunk.position), chunk.last)]
    return unroll(own, chunk, hidden, steps, token_shift=wiring.token_shift)


def _distinct(planes: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Planes without bit-equal repetitions, and for every name the one that stands for it."""
    kept: dict[str, torch.Tensor] = {}
    stands_for = {}
    for name, data in planes.items():
        twin = next((n for n, other in kept.items() if torch.equal(other, data)), None)
        stands_for[name] = twin or name
        if twin is None:
            kept[name] = data
    return kept, stands_for


def _judged(chunk: Chunk, draft_ids: torch.Tensor, target_ids: torch.Tensor) -> Iterator[SequenceCorrectness]:
    for item, (start, stop) in zip(chunk.sequences, chunk.row_bounds, strict=True):
        yield judge(item, draft_ids[start:stop], target_ids)
