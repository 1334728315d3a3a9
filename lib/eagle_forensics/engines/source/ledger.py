"""What a comparison of our tables with an engine's own source found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One place where our table and the engine's source disagree; both are quoted."""

    what: str
    """The question both were asked, e.g. `DeepseekV2ForCausalLM, L=61, ids [2, 30, 58]`."""
    ours: str
    our_source: str
    theirs: str
    their_source: str
    """`file:line` of the engine's tree, relative to its package."""
    topic: str = "layers"
    """`layers` (capture and loading of the draft) or `arguments`."""
    unread: bool = False
    """The source no longer has what the check reads, or the function could not be run: our table is neither confirmed nor contradicted."""

    def __str__(self) -> str:
        verb = "cannot be checked against" if self.unread else "disagrees with"
        return f"{self.what}: our table says {self.ours} ({self.our_source}); {verb} {self.their_source}: {self.theirs}"


@dataclass
class Ledger:
    """Counts comparisons and keeps those that disagree."""

    checked: int = 0
    topic: str = "layers"
    differences: list[Difference] = field(default_factory=list)

    def compare(self, what: str, ours: Any, our_source: str, theirs: Any, their_source: str) -> bool:
        """Records one comparison; True if both sides say the same."""
        self.checked += 1
        if ours == theirs:
            return True
        self.differences.append(Difference(what, _words(ours), our_source, _words(theirs), their_source, self.topic))
        return False

    def unread(self, what: str, ours: Any, our_source: str, why: str, their_source: str) -> None:
        """Records a question that the source did not answer."""
        self.checked += 1
        self.differences.append(Difference(what, _words(ours), our_source, why, their_source, self.topic, unread=True))


def _words(value: Any) -> str:
    return value if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)
