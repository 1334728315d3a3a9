"""Reads the rule tables (TOML files beside this module) once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from eagle_forensics.engines.versions import row_at


@cache
def table(name: str) -> Mapping[str, Any]:
    """The rule table `<name>.toml` of this package."""
    return tomllib.loads(resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def current(rows: Sequence[Mapping[str, Any]], release: str) -> Mapping[str, Any]:
    """The row in force at `release`: the last that started, or the first of all before its start."""
    return row_at(rows, release) or rows[0]


def family_of(families: Sequence[Mapping[str, Any]], model_type: str, architecture: str | None) -> Mapping[str, Any] | None:
    """The row of a target class; the architecture decides, the model type is second; None when neither is known."""
    for field, name in (("architectures", architecture), ("model_types", model_type)):
        for row in families:
            if name is not None and name in row[field]:
                return row
    return None
