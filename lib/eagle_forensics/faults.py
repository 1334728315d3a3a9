"""The fault catalogue: what goes wrong with EAGLE-3 speculative decoding, and how one fault is told from its rival.

`faults.toml` beside this module is the data: one table a slug `<link>.<fault>`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType


@dataclass(frozen=True)
class Fault:
    """One way in which the chain from training data to served token breaks."""

    slug: str
    title: str
    """What is wrong, in one line."""
    looks_like: str
    """The observation that discriminates it."""
    rival: str
    """Slug of the nearest competitor."""
    told_apart: str
    """How to tell it from the rival."""
    seen_by: tuple[int, ...]
    """Notebooks that can see it, 1 to 5."""
    remedy: str
    refuted_if: str
    """The observation that clears it."""


@cache
def catalogue() -> Mapping[str, Fault]:
    """All faults by slug, in the order of the chain."""
    text = resources.files(__package__).joinpath("faults.toml").read_text(encoding="utf-8")
    return MappingProxyType({
        slug: Fault(slug=slug, **{**row, "seen_by": tuple(row["seen_by"])}) for slug, row in tomllib.loads(text).items()
    })


def fault(slug: str) -> Fault:
    """The fault of that slug; KeyError with a did-you-mean for an unknown one."""
    known = catalogue()
    if slug not in known:
        near = difflib.get_close_matches(slug, known, n=1)
        raise KeyError(f"unknown fault {slug!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return known[slug]
