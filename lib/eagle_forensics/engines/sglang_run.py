"""One start of an SGLang server while the argument rules rewrite it. Tables: `sglang_args.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.engines.answers import Message
from eagle_forensics.engines.tables import current, table
from eagle_forensics.engines.versions import since

TABLE = "sglang_args"


class Stop(Exception):
    """The server does not start; the text is the exception it raises."""

    def __init__(self, text: str, kind: str = "value") -> None:
        super().__init__(text)
        self.kind = kind
        """As `ArgsAnswer.refusal`."""


@dataclass
class Run:
    """The arguments of one start, as the rules rewrite them."""

    release: str
    args: dict[str, Any]
    env: Mapping[str, str]
    architecture: str | None
    draft_architecture: str | None
    messages: list[Message] = field(default_factory=list)
    assumed: bool = False
    overlap: bool | None = None
    spec_v2: bool | None = None
    auto: bool = False

    def get(self, name: str) -> Any:
        return self.args.get(name)

    def say(self, level: str, text: str) -> None:
        if text:
            self.messages.append(Message(level, text))

    def row(self, *name: str) -> Mapping[str, Any]:
        """The row in force of a table of `sglang_args.toml`, named by its keys."""
        rows: Any = table(TABLE)
        for key in name:
            rows = rows[key]
        return current(rows, self.release)

    def since(self, version: str) -> bool:
        return since(version, self.release)
