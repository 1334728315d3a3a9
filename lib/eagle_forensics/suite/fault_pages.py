"""The fault catalogue as a page (docs/faults.md) and as text for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from eagle_forensics.faults import Fault, catalogue, fault
from eagle_forensics.suite.report import title
from eagle_forensics.suite.runfolder import NOTEBOOKS

GROUPS = {"args": "Launch arguments", "wiring": "Which states are fed", "feature": "The captured tensor", "drafter": "Head semantics", "vocab": "Vocabulary map and shared tables",
          "load": "Loading and quantization", "data": "Training data and objective", "runtime": "State of the engine", "measure": "Measurement", "cost": "Cost of a verify round",
          "nccl": "Interconnect"}
"""First part of a slug -> heading."""


def catalogue_markdown() -> str:
    """The whole catalogue, a section a fault."""
    faults = list(catalogue().values())
    lines = ["# Fault catalogue", "", f"The {len(faults)} ways in which the chain from training data to served token breaks, as the suite names them. Generated from `faults.toml`: "
             "`eagle-forensics faults --markdown`.", "", "A fault is accused only where the observation that discriminates it was made and its nearest rival is rejected.", ""]
    for group, members in itertools.groupby(faults, key=_group):
        lines += [f"## {GROUPS[group]}", ""]
        for one in members:
            lines += [f"### {one.slug}", "", *(f"- **{name}**: {text}" for name, text in _fields(one)), ""]
    return "\n".join(lines)


def fault_text(slug: str | None) -> str:
    """One fault in full, or all in a line each. Raises ValueError with a did-you-mean for an unknown slug."""
    if slug is None:
        width = max(map(len, catalogue()))
        return "\n".join(f"{one.slug:<{width}}  {one.title}" for one in catalogue().values())
    try:
        one = fault(slug)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    return "\n".join([one.slug, *(f"  {name}: {text}" for name, text in _fields(one))])


def _fields(one: Fault) -> Iterator[tuple[str, str]]:
    rival = f"`{one.rival}`" if one.rival in catalogue() else one.rival
    yield "What is wrong", one.title
    yield "Shows", one.looks_like
    yield f"Against its rival {rival}", one.told_apart
    yield "Seen by", ", ".join(title(NOTEBOOKS[n - 1]) for n in one.seen_by)
    yield "Remedy", one.remedy
    yield "Refuted if", one.refuted_if


def _group(one: Fault) -> str:
    return one.slug.split(".")[0]
