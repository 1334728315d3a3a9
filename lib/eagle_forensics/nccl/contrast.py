"""What do the case's own nccl-tests tables say against each other: is the served release, or a served setting, the slower one?

Two sets of tables are compared only if the same number of ranks ran the same test and exactly one thing differs: the library or
NCCL's variables. A text table does not record its environment, so such tables prove nothing here. A table is one launch: the launch
is the unit, and two sides count as different only if no launch of one overlaps the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_forensics import faults
from eagle_forensics.evidence.nccl.records import NcclTests
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.live import PRINTING
from eagle_forensics.nccl.settings import NOTEBOOK
from eagle_forensics.nccl.sizes import MessagePlan, message_bytes

LAUNCHES = 4
"""Tables a side: of the 70 ways to deal eight equal launches to two sides, 2 keep them apart by chance."""
GAIN = 0.1
"""Share of the time from which a difference counts."""
WHY = "launches of one setting differ by 2 to 5 %, and these were not run side by side"
PREFILL_TOKENS = 512
"""Tokens of a short prompt: from here on a message is prefill's."""
VERSION, TRADE, SIZE = "nccl.version-regression", "nccl.p2p-trade", "nccl.wrong-size"
_TRANSPORT = ("NCCL_P2P_", "NCCL_SHM_")
_ALGORITHM = {"NCCL_ALGO", "NCCL_NVLS_ENABLE"}


@dataclass(frozen=True)
class Side:
    """The launches of one library under one environment."""

    nccl: str
    env: Mapping[str, str]
    tables: tuple[NcclTests, ...]

    def times(self, size: int) -> list[float]:
        """Out-of-place times of that size, us, one a launch."""
        return [at.time_us for t in self.tables if (at := t.at(size)) and at.time_us]


@dataclass(frozen=True)
class Effect:
    """The second side against the first at some sizes."""

    ratio: float
    """Median over sizes of second over first; above 1 the second is slower."""
    bounds: tuple[float, float]
    """Least and largest ratio of any launch to any of the other side."""
    apart: bool
    """At every size no launch of one side reaches the other, and the difference is above `GAIN`."""
    launches: int
    """Of the side with fewer."""
    sizes: tuple[int, ...]

    @property
    def proven(self) -> bool:
        return self.apart and self.launches >= LAUNCHES

    @property
    def text(self) -> str:
        least, most = (100 * (b - 1) for b in self.bounds)
        return f"{100 * (self.ratio - 1):+.0f} % at {', '.join(f'{n:,}' for n in self.sizes)} bytes ({least:+.0f} to {most:+.0f} % from launch to launch, {self.launches} or more a side)"


def sides(tests: Sequence[NcclTests]) -> tuple[Side, ...]:
    """Tables by library and environment; those that do not record both, count wrong results or are no all-reduce are left out."""
    found: dict[tuple[Any, ...], list[NcclTests]] = {}
    for t in tests:
        if t.failed or t.nccl is None or t.environment is None or t.test != "all_reduce_perf":
            continue
        env = {k: v for k, v in t.environment.items() if not k.startswith(PRINTING)}
        found.setdefault((t.nccl, tuple(sorted(env.items())), t.ranks, t.graph, t.rows[0].dtype), []).append(t)
    return tuple(Side(key[0], dict(key[1]), tuple(tables)) for key, tables in found.items())


def effect(first: Side, second: Side, low: float, high: float) -> Effect | None:
    """The difference at the common sizes from `low` to `high` bytes; None without one."""
    sizes = sorted({r.bytes for t in first.tables for r in t.rows if low <= r.bytes <= high})
    both = [(n, np.array(first.times(n)), np.array(second.times(n))) for n in sizes if first.times(n) and second.times(n)]
    if not both:
        return None
    ratios = [float(np.median(b) / np.median(a)) for _, a, b in both]
    slower = all(b.min() > a.max() and r > 1 + GAIN for (_, a, b), r in zip(both, ratios, strict=True))
    faster = all(b.max() < a.min() and r < 1 - GAIN for (_, a, b), r in zip(both, ratios, strict=True))
    return Effect(float(np.median(ratios)), (min(float(b.min() / a.max()) for _, a, b in both), max(float(b.max() / a.min()) for _, a, b in both)), slower or faster,
                  min(len(x) for _, a, b in both for x in (a, b)), tuple(n for n, _, _ in both))


def versions(tests: Sequence[NcclTests], plan: MessagePlan | None, served: str | None, *, off: str | None = None) -> Finding:
    """Is the served NCCL slower than another one at decode size? `served`: its release."""
    common: dict[str, Any] = {"id": "nccl.version", "question": "Is the served NCCL release slower at decode size than another?", "notebook": NOTEBOOK, "required": False}
    pairs = [] if off or plan is None else [(a, b, e) for a, b in _alike(tests) if a.nccl != b.nccl and dict(a.env) == dict(b.env) and (e := _decode(a, b, plan))]
    if not pairs:
        return Finding(**common, status=Status.SKIPPED, statement="Releases were not compared: " + (off or "no two releases were measured at decode size with equal ranks and a recorded environment") + ".",
                       next_step=None if off else f"nccl-tests with -J, {LAUNCHES} launches with each library (LD_PRELOAD), everything else equal.")
    other, mine, e = max((_ordered(p, p[0].nccl == served) for p in pairs), key=lambda p: (served in (p[0].nccl, p[1].nccl), abs(p[2].ratio - 1)))
    common |= {"observed": e.ratio, "expected": 1.0, "unit": f"time of {mine.nccl} over {other.nccl}", "n": e.launches, "interval": e.bounds, "evidence": _evidence(mine, other),
               "threshold": 1 + GAIN, "threshold_why": WHY}
    if mine.nccl != served or not e.proven:
        level = mine.nccl == served and not e.apart and e.launches >= LAUNCHES and e.ratio <= 1 + GAIN
        why = f"which release is served is not known ({served or 'no log'})" if mine.nccl != served else f"the launches overlap, or there are fewer than {LAUNCHES} a side"
        return Finding(**common, status=Status.PASS if level else Status.INCONCLUSIVE, statement=f"NCCL {mine.nccl} against {other.nccl}: {e.text}; "
                       + (f"no difference above {100 * GAIN:.0f} %." if level else f"{why}."), next_step=None if level else f"{LAUNCHES} launches with each library, in turn, and the log of the served one.")
    if e.ratio < 1:
        return Finding(**common, status=Status.PASS, statement=f"The served NCCL {mine.nccl} is faster than {other.nccl}: {e.text}.")
    return Finding(**common, status=Status.FAIL, fault=VERSION, statement=f"The served NCCL {mine.nccl} is slower at decode size than {other.nccl}: {e.text}.",
                   competitor=Competitor(fault="nccl.env-ignored", margin=f"no overlap of {e.launches} and {e.launches} launches",
                                         why_rejected="both sides record the same NCCL variables; only the library's version line differs"),
                   refuted_by=faults.fault(VERSION).refuted_if, remedy=f"{faults.fault(VERSION).remedy} Here: {other.nccl}.",
                   predicted_effect=_saved(other, mine, plan), next_step="The server's own tokens/s with each library, same settings.")


def settings(tests: Sequence[NcclTests], plan: MessagePlan | None, served: Mapping[str, str] | None, *, off: str | None = None, fallback: bool = False) -> list[Finding]:
    """Do the case's tables show a setting that beats the served one? `served`: its environment; `fallback`: its graph search failed. One finding a fault, or one that names none."""
    common: dict[str, Any] = {"id": "nccl.tables", "question": "Do the case's own tables show a faster setting than the served one?", "notebook": NOTEBOOK, "required": False}
    pairs = [] if off or plan is None else [(a, b, e) for a, b in _alike(tests) if a.nccl == b.nccl and dict(a.env) != dict(b.env) and (e := _decode(a, b, plan))]
    if not pairs:
        return [Finding(**common, status=Status.SKIPPED, statement="Settings were not compared: " + (off or "no two environments were measured at decode size with one library; a text table does not record its own") + ".",
                       next_step=None if off else f"nccl-tests with -J, {LAUNCHES} launches of each setting, in turn.")]
    known = [_ordered(p, _is_served(p[0], p[1], served)) for p in pairs if _is_served(p[0], p[1], served) != _is_served(p[1], p[0], served)]
    decided = [_pair(p, plan) for p in known if p[2].launches >= LAUNCHES]
    named = {slug: p for p in sorted(decided, key=lambda p: p.decode.ratio) if (slug := p.fault(fallback))}
    if named:
        return [_accused(slug, p, common, plan) for slug, p in named.items()]
    p = _pair(max(known or [_ordered(p, p[2].ratio < 1) for p in pairs], key=lambda p: p[2].ratio), plan)
    common |= _figures(p)
    if p not in decided:
        why = f"fewer than {LAUNCHES} launches a side" if known else "neither is known to be served"
        return [Finding(**common, status=Status.INCONCLUSIVE, statement=f"{p.text}; {why}, so nothing is concluded.", next_step=f"{LAUNCHES} launches of each, in turn; and the environment of the served process.")]
    if p.opposite:
        return [Finding(**common, status=Status.INCONCLUSIVE, statement=f"A trade between decode and prefill: {p.text}.", next_step="The server's tokens/s at one request and at the usual number, and its prefill time.")]
    only_large = p.large is not None and p.large.proven and not p.decode.apart
    return [Finding(**common, status=Status.PASS, statement=f"No measured setting beats the served one at decode size: {p.text}." +
                    (" Large messages alone differ: that says nothing of decode." if only_large else ""))]


@dataclass(frozen=True)
class _Pair:
    """The served setting against another one."""

    other: Side
    mine: Side
    decode: Effect
    large: Effect | None
    """At sizes of prefill."""

    @property
    def names(self) -> list[str]:
        return _difference(self.other, self.mine)

    @property
    def text(self) -> str:
        return f"{_shown(self.mine, self.names)} against {_shown(self.other, self.names)}: {self.decode.text}" + (f", {self.large.text}" if self.large else "")

    @property
    def opposite(self) -> bool:
        """Decode and prefill prove opposite things."""
        return self.large is not None and self.large.proven and self.decode.proven and (self.large.ratio > 1) != (self.decode.ratio > 1)

    def fault(self, fallback: bool) -> str | None:
        """What the pair proves: a trade of the transport; a setting (an algorithm among them) chosen by large messages that decode pays for; a better one."""
        if self.opposite and all(n.startswith(_TRANSPORT) for n in self.names):
            return TRADE
        if self.opposite:
            chosen = all(n in self.mine.env and not n.startswith(_TRANSPORT) for n in self.names)
            return None if not chosen or self.decode.ratio < 1 else "nccl.algorithm" if set(self.names) <= _ALGORITHM else SIZE
        if self.decode.proven and self.decode.ratio > 1:
            return "nccl.graph-fallback" if fallback else "nccl.algorithm"
        return None


def _pair(ordered: tuple[Side, Side, Effect], plan: MessagePlan) -> _Pair:
    other, mine, decode = ordered
    return _Pair(other, mine, decode, effect(other, mine, message_bytes(plan.hidden, PREFILL_TOKENS, plan.element_bytes), float("inf")))


def _figures(p: _Pair) -> dict[str, Any]:
    e = p.decode
    return {"observed": e.ratio, "expected": 1.0, "unit": "time of the served setting over the other", "n": e.launches, "interval": e.bounds, "evidence": _evidence(p.mine, p.other),
            "threshold": 1 + GAIN, "threshold_why": WHY}


def _accused(slug: str, p: _Pair, common: Mapping[str, Any], plan: MessagePlan) -> Finding:
    known, names, gain = faults.fault(slug), ", ".join(p.names), _saved(p.other, p.mine, plan)
    shared = {**common, **_figures(p), "status": Status.FAIL, "fault": slug, "refuted_by": known.refuted_if, "remedy": known.remedy}
    ends = f"no overlap of {p.decode.launches} and {p.large.launches} launches at either end" if p.large else f"no overlap of {p.decode.launches} launches a side"
    equal = f"library, ranks and every other variable are recorded and equal; only {names} differs"
    if slug == TRADE:
        return Finding(**shared | {"id": "nccl.trade"}, statement=f"The transport trades latency for throughput: {p.text}.", next_step="The server's tokens/s at one request and at the usual number, under both.",
                       competitor=Competitor(fault=known.rival, margin=ends, why_rejected=equal))
    if slug == SIZE:
        return Finding(**shared | {"id": "nccl.large-messages", "remedy": f"Take {names} away, or keep it to prefill's sizes (a tuner file by size): a setting for decode is judged by the time column at {plan.bytes:,} bytes."},
                       statement=f"The served setting gains at sizes that decode never sends and costs at those that it sends: {p.text}.", predicted_effect=gain,
                       competitor=Competitor(fault=known.rival, margin=ends, why_rejected=f"a setting that is not taken changes no size; {names} changes both ends"),
                       next_step="The server's tokens/s without it, and its prefill time.")
    return Finding(**shared | {"refuted_by": "A paired A/B in turn whose interval holds 1, or the server's tokens/s unchanged.", "remedy": f"A/B in the server of {_shown(p.other, p.names)}."},
                   statement=f"The served setting is slower at decode size than another that was measured: {p.text}.", predicted_effect=gain,
                   competitor=Competitor(fault=known.rival, margin=f"no overlap of {p.decode.launches} launches a side", why_rejected=f"library and ranks are equal and recorded; only {names} differs"),
                   next_step="The server's own A/B: both environments, each with and without speculation.")


def _alike(tests: Sequence[NcclTests]) -> list[tuple[Side, Side]]:
    """Pairs that ran the same test: ranks, graph replay, type."""
    return [(a, b) for a, b in itertools.combinations(sides(tests), 2)
            if (a.tables[0].ranks, a.tables[0].graph, a.tables[0].rows[0].dtype) == (b.tables[0].ranks, b.tables[0].graph, b.tables[0].rows[0].dtype)]


def _decode(a: Side, b: Side, plan: MessagePlan) -> Effect | None:
    return effect(a, b, plan.bytes / 2, plan.bytes * 2)


def _ordered(pair: tuple[Side, Side, Effect], first_is_mine: bool) -> tuple[Side, Side, Effect]:
    """(other, mine, mine over other)."""
    a, b, e = pair
    return (b, a, Effect(1 / e.ratio, (1 / e.bounds[1], 1 / e.bounds[0]), e.apart, e.launches, e.sizes)) if first_is_mine else pair


def _difference(a: Side, b: Side) -> list[str]:
    return sorted(k for k in {**a.env, **b.env} if a.env.get(k) != b.env.get(k))


def _is_served(side: Side, other: Side, served: Mapping[str, str] | None) -> bool:
    """Whether the server has this side's value of everything in which the two differ."""
    return served is not None and all(served.get(k) == side.env.get(k) for k in _difference(side, other))


def _shown(side: Side, names: Sequence[str]) -> str:
    return " ".join(f"{n}={side.env[n]}" if n in side.env else f"no {n}" for n in names)


def _evidence(*found: Side) -> tuple[Evidence, ...]:
    return tuple(Evidence(note=f"NCCL {s.nccl}, {len(s.tables)} launches", path=str(t.path)) for s in found for t in s.tables[:8])


def _saved(fast: Side, slow: Side, plan: MessagePlan | None) -> str | None:
    if plan is None or not (fast.times(plan.bytes) and slow.times(plan.bytes)):
        return None
    return f"{plan.verify_ms(float(np.median(slow.times(plan.bytes)) - np.median(fast.times(plan.bytes)))):.1f} ms less a verify forward ({plan.count} all-reduces)"
