"""Which NCCL environment variables exist in which release, and the rules of their values (data: registry.csv, rules.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

NEWEST = (2, 30, 7)
"""Last release whose source was read; a later one is judged by this one's rules and said to be."""
OLDEST = (2, 8, 3)


@dataclass(frozen=True)
class Variable:
    """An environment variable that NCCL's source reads."""

    name: str
    first: tuple[int, ...]
    """First release that reads it; OLDEST stands for that release or an earlier one."""
    last: tuple[int, ...]
    """Last release that reads it; NEWEST stands for that release or a later one."""
    kind: str
    """`int`: read by strtoll; `level`: a topology level; `text`: anything else."""


def version(text: str) -> tuple[int, ...]:
    """`2.27.5+cuda12.8` as (2, 27, 5). Raises ValueError for a text that is no NCCL version."""
    found = re.match(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not found or found[1] != "2":
        raise ValueError(f"NCCL version {text!r} is not of the form 2.27.5")
    return tuple(int(part) for part in found.groups() if part is not None)


@cache
def variables() -> Mapping[str, Variable]:
    """All known variables by name."""
    rows = resources.files(__package__).joinpath("registry.csv").read_text(encoding="utf-8").splitlines()[1:]
    parts = (row.split(",") for row in rows if row)
    return MappingProxyType({name: Variable(name, version(first), version(last), kind) for name, first, last, kind in parts})


@cache
def rules() -> Mapping[str, Any]:
    """The tables of rules.toml."""
    return MappingProxyType(tomllib.loads(resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")))
