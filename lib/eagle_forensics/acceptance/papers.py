"""What the case's papers say that the measured runs are judged beside: the server's log, the effective arguments, the head, its recorded answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.acceptance import recorded
from eagle_forensics.acceptance.recorded import Recorded
from eagle_forensics.case import Case
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.server_log import LogLine, read_server_log


@dataclass(frozen=True)
class Papers:
    """Empty where the case names none."""

    said: tuple[LogLine, ...] = ()
    """What the server's log says of itself."""
    layers: Mapping[str, Any] = field(default_factory=dict)
    """Record of notebook 01."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Effective launch arguments."""
    answers: Recorded = field(default_factory=Recorded)
    head: str | None = None
    """Name of the served head: its folder's."""
    reach: int | None = None
    """Positions that it was made for."""


def read(case: Case, layers: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None) -> Papers:
    """`layers`, `arguments`: records of notebook 01, which tells of papers that cannot be read."""
    said, head, reach = (), None, None
    try:
        if case.serving.log:
            said = read_server_log(case.serving.log).lines
    except (EvidenceError, OSError):
        pass
    try:
        if case.drafter:
            head, reach = case.drafter.path.name, read_draft(case.drafter.path).max_positions
    except (EvidenceError, OSError):
        pass
    return Papers(said, layers or {}, arguments or {}, recorded.read(case), head, reach)
