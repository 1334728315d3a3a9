"""Layer ids as a config spells them: integers, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def not_integers(ids: Sequence[Any] | None) -> str | None:
    """What is wrong with the first id that is no integer (2.0 is one, "2" and true are not); None if all are, or there are none."""
    for index, item in enumerate(ids or ()):
        if isinstance(item, bool) or not (isinstance(item, int) or (isinstance(item, float) and item.is_integer())):
            return f"layer ids must be integers; id {index} is {item!r} ({type(item).__name__}): write numbers, without quotes"
    return None
