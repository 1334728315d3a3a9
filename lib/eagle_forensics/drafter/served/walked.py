"""What a walk over served text gives: which wirings were walked, on how many answers, what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_forensics.finding import Finding

if TYPE_CHECKING:
    from eagle_forensics.drafter.served.text import Known, Setting, Walked


@dataclass(frozen=True, eq=False)
class ServedText:
    """Answers of a live server, walked; `walked` is empty with the reason in `opening`, or where there are no answers."""

    walked: tuple[Walked, ...] = ()
    known: Known | None = None
    setting: Setting | None = None
    exact: bool = False
    """Server and walk compute in float32, so that counts have to agree to the integer."""
    dtype: str = ""
    answers: int = 0
    left_out: tuple[str, ...] = ()
    remedy: str | None = None
    opening: tuple[Finding, ...] = ()
