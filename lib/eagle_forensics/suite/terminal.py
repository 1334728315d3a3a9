"""Evidence text on a terminal: escape sequences and control characters must not reach it."""

from __future__ import annotations

import io
import re
import shutil
import sys
from typing import Any

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[P^_X][^\x1b]*(?:\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_escapes(text: str) -> str:
    """Text without terminal escape sequences (colours, cursor moves, titles, links)."""
    return _ESCAPES.sub("", text)


def visible(text: object, limit: int = 2000) -> str:
    """Text safe to print: escape sequences dropped, other control and bidi characters made visible, long text cut."""
    raw = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", without_escapes(str(text)))
    return raw if len(raw) <= limit else f"{raw[:limit]} … ({len(raw) - limit} characters more)"


STYLE = {"FAIL": "red", "fail": "red", "regression": "red", "ERROR": "magenta", "error": "magenta", "INCONCLUSIVE": "yellow", "inconclusive": "yellow",
         "PASS": "green", "pass": "green", "improvement": "green", "skipped": "dim"}
"""rich style of a status or change; the word is always printed too."""


def printed(*items: Any) -> str:
    """Tables and plain lines as text for stdout: with colours on a terminal, without elsewhere. Text is never markup."""
    from rich.console import Console
    from rich.text import Text

    live = sys.stdout.isatty()
    width = shutil.get_terminal_size((120, 24)).columns if live else 160
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=live, no_color=not live or None, width=width, markup=False, highlight=False, emoji=False)
    for item in items:
        console.print(Text(item) if isinstance(item, str) else item, soft_wrap=isinstance(item, str))
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))
