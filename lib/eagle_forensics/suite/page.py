"""Self-contained HTML pages: templates, style and script from beside this module, and a policy that forbids everything else."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def asset(name: str) -> str:
    """Text of a file in templates/."""
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
