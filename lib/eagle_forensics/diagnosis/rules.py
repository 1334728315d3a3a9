"""The tables by which findings are joined: `rules.toml`, `decide.toml` and `plain.toml`, read once and checked.

A fault is named by its slug or by its link (`wiring.*`); a finding by its id or the beginning of it (`layers.slot-*`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from eagle_forensics.faults import catalogue
from eagle_forensics.finding import Finding


@dataclass(frozen=True)
class Line:
    """A line of evidence: the findings of one question."""

    question: str
    weight: int
    words: str
    source: str


@dataclass(frozen=True)
class LinkRule:
    """One link of the chain: what breaks it, what lets it hold, what else speaks of it."""

    name: str
    asks: str
    faults: tuple[str, ...]
    decides: tuple[str, ...]
    says: tuple[str, ...]
    missing: str
    source: str


@dataclass(frozen=True)
class Relation:
    """How one fault bears on another: `produces`, `origin` or `contributes`."""

    cause: str
    effect: str
    kind: str
    why: str
    source: str


@dataclass(frozen=True)
class Gate:
    """A fault that makes the figures of some questions meaningless."""

    fault: str
    spoils: tuple[str, ...]
    why: str
    source: str


@dataclass(frozen=True)
class ContradictionRule:
    """Two groups of findings that cannot both be taken at their word. Without a second group the first contradicts itself."""

    name: str
    first: tuple[str, ...]
    first_is: tuple[str, ...]
    says: str
    holds: str
    why: str
    source: str
    second: tuple[str, ...] = ()
    second_is: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """Offline x live: what both together say, and which faults remain."""

    says: str
    source: str
    remains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clears:
    """Faults that the pass of a finding excludes."""

    finding: str
    faults: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Without:
    """Faults that a launch argument excludes."""

    argument: str
    value: Any
    faults: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class DecideRule:
    """What decides between a suspicion and its rival, and the command for it."""

    suspicion: str
    rival: str
    observation: str
    command: str
    source: str
    restart: Mapping[str, str]
    """Words about the launch flags, by engine; empty where the server stays as it is."""


@dataclass(frozen=True)
class Rules:
    """All tables."""

    by_rule: tuple[str, ...]
    """Findings that say of the server what papers and the engine's rules say of it."""
    lines: Mapping[str, Line]
    links: tuple[LinkRule, ...]
    relations: tuple[Relation, ...]
    gates: tuple[Gate, ...]
    contradictions: tuple[ContradictionRule, ...]
    cells: Mapping[str, Cell]
    clears: tuple[Clears, ...]
    without: tuple[Without, ...]
    hazards: tuple[str, ...]
    """Undecided findings that name a fault of another day, and no suspicion."""
    deciders: tuple[DecideRule, ...]
    plain: Mapping[str, str]


@cache
def rules() -> Rules:
    """The tables, read once. KeyError for a row that names a fault the catalogue does not have."""
    table, decide, plain = (_read(name) for name in ("rules.toml", "decide.toml", "plain.toml"))
    without = [Without(r["argument"], r["is"], tuple(r["faults"]), r["source"]) for r in table["without"]]
    found = Rules(
        by_rule=tuple(table["by_rule"]["findings"]), lines={r["question"]: Line(**r) for r in table["line"]}, links=_rows(LinkRule, table["link"]), relations=_rows(Relation, table["relation"]),
        gates=_rows(Gate, table["gate"]), contradictions=_rows(ContradictionRule, table["contradiction"]),
        cells={name: Cell(r["says"], r["source"], tuple(r.get("remains", ()))) for name, r in table["cell"].items()},
        clears=_rows(Clears, table["clears"]), without=tuple(without), hazards=tuple(table["hazard"]["findings"]),
        deciders=tuple(DecideRule(**{**r, "restart": decide["restart"][r["restart"]] if "restart" in r else {}}) for r in decide["decide"]), plain=plain)
    _known(found)
    return found


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a slug or finding id is one of the patterns (`wiring.*`)."""
    return any(fnmatchcase(name, p) for p in patterns)


def question(item: Finding | str) -> str:
    """`layers` of `layers.slot-0`."""
    return (item if isinstance(item, str) else item.id).split(".", 1)[0]


def by_rule(id: str) -> bool:
    """Whether a finding says of the server only what papers and the engine's rules say of it."""
    return matches(id, rules().by_rule)


def weight(questions: Iterable[str]) -> int:
    """Sum over the independent lines of evidence: findings of one question count once."""
    lines = rules().lines
    return sum(lines[q].weight if q in lines else 1 for q in set(questions))


def words(name: str) -> str:
    """A line of evidence in words."""
    lines = rules().lines
    return lines[name].words if name in lines else name


def link_of(slug: str) -> LinkRule | None:
    """The link that a fault breaks: the one that names it, before the one that names its kind."""
    links = rules().links
    return next((x for x in links if slug in x.faults), next((x for x in links if matches(slug, x.faults)), None))


def slugs(patterns: Sequence[str]) -> tuple[str, ...]:
    """Every fault of the catalogue that the patterns name, in its order."""
    return tuple(s for s in catalogue() if matches(s, patterns))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _rows(kind: type, rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in rows)


def _known(found: Rules) -> None:
    named = [*found.plain, *(g.fault for g in found.gates), *(n for r in found.relations for n in (r.cause, r.effect)), *(n for r in found.deciders for n in (r.suspicion, r.rival)),
             *(f for group in (found.links, found.contradictions, found.clears, found.without) for row in group for f in row.faults), *(f for c in found.cells.values() for f in c.remains)]
    unknown = sorted({n for n in named if not slugs([n])})
    if unknown:
        raise KeyError(f"rules of the diagnosis name unknown faults: {', '.join(unknown)}")
