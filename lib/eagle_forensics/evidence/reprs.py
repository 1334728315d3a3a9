"""Python reprs in log lines (`ServerArgs(tp_size=8, ...)`, `{'model': ...}`): split and read piece by piece, never evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

CLOSING = {"(": ")", "[": "]", "{": "}"}


def read_fields(text: str) -> tuple[dict[str, Any], bool]:
    """The fields of the call, Namespace or dict that `text` begins with, and whether it is closed.

    A value that is no literal (an enum, an object) stays as its text.
    """
    opening = next((i for i, char in enumerate(text) if char in "({"), None)
    if opening is None:
        return {}, False
    separator = ":" if text[opening] == "{" else "="
    fields: dict[str, Any] = {}
    pieces, closed = _split(text[opening:])
    for piece in pieces:
        name, found, value = piece.partition(separator)
        if found:
            fields[str(literal(name.strip())) if separator == ":" else name.strip()] = literal(value.strip())
    return fields, closed


def literal(text: str) -> Any:
    """The value of a literal; the text itself where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _split(text: str) -> tuple[list[str], bool]:
    """Pieces between the top-level commas of a bracketed text, and whether its bracket is closed."""
    pieces: list[str] = []
    stack: list[str] = []
    quote, start, i = "", 1, 0
    while i < len(text):
        char = text[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in CLOSING:
            stack.append(CLOSING[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return _filled([*pieces, text[start:i]]), True
        elif char == "," and len(stack) == 1:
            pieces.append(text[start:i])
            start = i + 1
        i += 1
    return _filled(pieces), False


def _filled(pieces: Iterable[str]) -> list[str]:
    return [piece for piece in pieces if piece.strip()]
