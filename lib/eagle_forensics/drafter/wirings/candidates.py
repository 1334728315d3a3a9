"""The wirings worth trying: orders of planes, boundary sets, and departures from a contract one and two at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product

from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import ZERO
from eagle_forensics.drafter.wirings import derived
from eagle_forensics.drafter.wirings.derived import FINAL, UNIT, FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring
from eagle_forensics.evidence.records import DraftFlags, Rope

ALL_ORDERS_UP_TO = 5
"""Planes up to which every ordered subset is tried (5 planes, 3 of them: 60 orders)."""
ENGINE_THETA = 10000.0
"""Base that EAGLE's trainer and engines fall back to when a config states none."""
PARTIAL = (0.25, 0.5)
"""Shares of the head dimension that published targets rotate (GLM 0.5, Qwen3.5 0.25); tried where either side rotates a part."""


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


def ropes(drafter: Drafter, target: Rope | None) -> tuple[Rope, ...]:
    """Rotary setups that trainers and engines are known to exchange for the checkpoint's own; `origin` says in what they differ."""
    own = drafter.rope
    found = [replace(own, theta=ENGINE_THETA, origin=f"theta {ENGINE_THETA:g}")]
    if target is not None:
        found += [replace(own, theta=target.theta, origin=f"theta {target.theta:g} of the target"),
                  replace(target, origin="as the target")]
    found += [replace(own, scaling=None, origin="without scaling")] * (own.scaling is not None)
    if own.partial != 1 or (target is not None and target.partial != 1):
        found += [replace(own, partial=p, origin=f"on {p:g} of the head") for p in (*PARTIAL, 1.0) if int(drafter.layers[0].attention.rotated * p) % 2 == 0]
    tried, kept = [(own.theta, own.scaling, own.partial)], []
    for rope in found:
        if (rope.theta, rope.scaling, rope.partial) not in tried:
            tried.append((rope.theta, rope.scaling, rope.partial))
            kept.append(rope)
    return tuple(kept)


def variations(drafter: Drafter, around: Wiring, *, norm: FinalNorm | None = None, rope: Sequence[Rope] = ()) -> tuple[Wiring, ...]:
    """One departure at a time from `around`: shifts, norm state, flags, d2t readings, rotary setups."""
    base = replace(around, name="")
    found = [replace(base, token_shift=s) for s in (0, 1, 2)] + [replace(base, hidden_shift=s) for s in (-1, 0, 1)]
    plain = replace(base, planes=around.states)
    found += [plain, plain.formed(UNIT)] + ([plain.formed(FINAL), plain.formed(FINAL).formed(FINAL)] if norm else [])
    found += [replace(base, flags=f) for f in (None, *flag_sets(drafter))]
    found += [replace(base, rope=r) for r in (None, *rope)]
    found += [replace(base, d2t=r) for r in readings(drafter)]
    return tuple(w for w in dict.fromkeys(found) if not w.same_feed(around))


def readings(drafter: Drafter) -> tuple[str, ...]:
    """The ways to read d2t that differ for this drafter."""
    if drafter.d2t is None:
        return ("offset",)
    return ("offset", *(r for r in ("absolute", "ignored") if bool((drafter.target_ids(r) != drafter.target_ids()).any())))


def standard_battery(drafter: Drafter, trained: Sequence[str], available: Sequence[str], *, norm: FinalNorm | None = None,
                     rope: Sequence[Rope] = ()) -> tuple[Wiring, ...]:
    """The trained wiring first, every order of the available planes, one departure at a time from the trained one, and zeros."""
    first = Wiring(tuple(trained), name="trained")
    orders = [Wiring(o) for o in plane_orders(available, drafter.n_aux)]
    last = [Wiring((*trained[:-1], derived.form(FINAL, p))) for p in dict.fromkeys((trained[-1], available[-1]))] if norm else []
    return _unlike(first, [*orders, *last, *variations(drafter, first, norm=norm, rope=rope), Wiring((ZERO,) * drafter.n_aux)])


def pairs(drafter: Drafter, trained: Sequence[str], available: Sequence[str], *, norm: FinalNorm | None = None) -> tuple[Wiring, ...]:
    """Two departures at once from the contract: every order with every departure, and every two departures of different kinds.

    Without rotary setups, which cost little accuracy, and without what no server can feed.
    """
    first = Wiring(tuple(trained), name="trained")
    single = variations(drafter, first, norm=norm)

    def both() -> Iterator[Wiring]:
        for order in plane_orders(available, drafter.n_aux):
            yield from variations(drafter, Wiring(order), norm=norm)
        for one in single:
            yield from (w for w in variations(drafter, one, norm=norm) if len(w.differences(first)) == 2)

    return _unlike(first, [w for w in both() if not w.leaks])[1:]


def _unlike(first: Wiring, others: Sequence[Wiring]) -> tuple[Wiring, ...]:
    """`first`, then the others without repetitions of it or of each other."""
    return (first, *(w for w in dict.fromkeys(others) if not w.same_feed(first)))
