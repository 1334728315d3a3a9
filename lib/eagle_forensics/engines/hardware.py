"""The GPU as engines ask for it: the major part of its compute capability."""

from __future__ import annotations

import re

_SPELLED = re.compile(r"(?:sm[_ ]?)?(\d+)(?:\.(\d+))?[af]?", re.IGNORECASE)


def capability_major(text: str | None) -> int | None:
    """12 of `12.0`, `sm120` or `sm_120a`; None for no text, and for one that is no compute capability."""
    match = _SPELLED.fullmatch((text or "").strip())
    if match is None:
        return None
    number = int(match[1])
    return number if match[2] is not None or number < 20 else number // 10  # sm90 and 120 have the minor digit at their end
