"""What is expected of a planted case, and how a run's diagnosis is judged against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Kind = Literal["single", "double", "healthy", "abstain"]
KEPT = 20
"""Samples of the real dump that a case keeps and reads, by default."""


@dataclass(frozen=True)
class Expected:
    """The truth about a case, kept outside of it."""

    faults: tuple[str, ...] = ()
    """Planted slugs: all must be named and one of them first."""
    follows: tuple[str, ...] = ()
    """Slugs that the evidence also supports (a consequence, or the same fault seen from another side); naming them is no false accusation."""
    verdicts: tuple[str, ...] = ()
    """Verdicts that are right; empty: FAIL with faults, else PASS."""
    rival: str | None = None
    """Slug that the first planted fault must name as its rejected rival."""
    suspects: tuple[str, ...] = ()
    """Slugs planted with evidence that can only raise a suspicion: the diagnosis must list them as open, and accuse nobody."""

    @property
    def right_verdicts(self) -> tuple[str, ...]:
        return self.verdicts or (("FAIL",) if self.faults else ("PASS",))


@dataclass(frozen=True)
class Planted:
    """One case of the line-up."""

    name: str
    make: Callable[[Path], None]
    """Writes the case folder; what it writes is evidence and never says what was planted."""
    expected: Expected
    notebooks: tuple[int, ...] = (1, 4)
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def kind(self) -> Kind:
        if self.expected.faults:
            return "double" if len(self.expected.faults) > 1 else "single"
        return "healthy" if self.expected.right_verdicts == ("PASS",) else "abstain"


def planted(name: str, make: Callable[[Path], None], *faults: str, follows: tuple[str, ...] = (), rival: str | None = None,
            notebooks: tuple[int, ...] = (1, 4)) -> Planted:
    """A case with these faults."""
    return Planted(name, make, Expected(faults, follows, rival=rival), notebooks)


def healthy(name: str, make: Callable[[Path], None], notebooks: tuple[int, ...] = (1, 4)) -> Planted:
    """A case that is right, however odd it looks."""
    return Planted(name, make, Expected(), notebooks)


def abstains(name: str, make: Callable[[Path], None], *verdicts: str, suspects: tuple[str, ...] = (), notebooks: tuple[int, ...] = (1, 4)) -> Planted:
    """A case with too little evidence."""
    return Planted(name, make, Expected(verdicts=verdicts or ("INCONCLUSIVE",), suspects=suspects), notebooks)


def case(name: str, make: Callable[[Path], None], *faults: str, follows: tuple[str, ...] = (), rival: str | None = None,
         verdicts: tuple[str, ...] = (), suspects: tuple[str, ...] = (), samples: int = KEPT) -> Planted:
    """A case of the real pair: notebooks 01 to 03, and 04 where something was measured."""
    notebooks = (1, 2, 3, 4) if getattr(make, "measured", None) else (1, 2, 3)
    return Planted(name, make, Expected(faults, follows, verdicts, rival, suspects), notebooks, (("max_samples", samples), ("temperature", [])))


def papers_and_tensors(name: str, make: Callable[[Path], None], *faults: str, **more: Any) -> Planted:
    """A case of the real pair without notebook 02, where papers and tensors must settle it."""
    return replace(case(name, make, *faults, **more), notebooks=(1, 3))


@dataclass(frozen=True)
class Outcome:
    """What the suite said about a case."""

    verdict: str
    named: tuple[str, ...]
    """Slugs of the diagnosis, strongest first."""
    rivals: tuple[str | None, ...]
    """The rejected rival of each, in the same order."""
    suspected: tuple[str, ...]
    """Slugs of the diagnosis' open suspicions."""
    statements: tuple[str, ...]
    seconds: float


def outcome(merged: Mapping[str, Any], seconds: float) -> Outcome:
    """Of the content of a run's findings.json; the statements are those of failed, undecided and broken findings."""
    open_ = [f for f in merged["findings"] if f["status"] in ("fail", "error") or (f["status"] == "inconclusive" and f["required"])]
    faults = merged["diagnosis"]["faults"]
    return Outcome(merged["verdict"], tuple(d["slug"] for d in faults), tuple(d["competitor"] and d["competitor"]["fault"] for d in faults),
                   tuple(s["slug"] for s in merged["diagnosis"]["suspicions"]),
                   tuple(f"{f['id']} {f['status']} {f['fault'] or ''}: {f['statement']}" for f in open_), seconds)


def judge(case: Planted, seen: Outcome) -> dict[str, Any]:
    """The row of a case in `lineup.json`."""
    want = case.expected
    false = [s for s in seen.named if s not in want.faults + want.follows]
    named = all(s in seen.named for s in want.faults)
    first = bool(want.faults) and bool(seen.named) and seen.named[0] in want.faults
    verdict = seen.verdict in want.right_verdicts
    rival = want.rival is None or (want.faults[0], want.rival) in zip(seen.named, seen.rivals, strict=True)
    as_expected = first and named and rival if want.faults else not seen.named and set(want.suspects) <= set(seen.suspected)
    return {"name": case.name, "kind": case.kind, "planted": list(want.faults), "named": list(seen.named), "rivals": list(seen.rivals), "rival_right": rival,
            "suspects": list(want.suspects), "suspected": list(seen.suspected), "verdict": seen.verdict, "right": verdict and not false and as_expected,
            "first": first, "all_named": named, "false": false, "verdict_right": verdict,
            "seconds": round(seen.seconds, 2), "statements": list(seen.statements)}
