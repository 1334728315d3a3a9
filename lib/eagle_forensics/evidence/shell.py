"""Shell text as commands: quotes, continuations, comments, variables. Nothing is ever executed or substituted by a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eagle_forensics.evidence.records import EvidenceError

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?\}|([A-Za-z_][A-Za-z0-9_]*))")
UNRESOLVED = re.compile(r"\$[A-Za-z0-9_{(]|^\$$|`")
ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)$", re.DOTALL)
LONGEST_WORD = 100_000
"""Characters; the kernel takes 131,072 in one argument, and splitting a longer word takes minutes."""
OPERATOR = re.compile(r"^[;&|<>()]+$")


@dataclass(frozen=True)
class Command:
    """One command of a script: the variables set in front of it or exported before it, and its words."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    line: int


def commands(text: str, where: str) -> list[Command]:
    """The simple commands of a shell text, in order, with variables of literal assignments put in.

    EvidenceError for a quote that is never closed, with the line and column where it opens.
    """
    variables: dict[str, str] = {}
    exported: dict[str, str] = {}
    found: list[Command] = []
    if long := re.search(rf"\S{{{LONGEST_WORD + 1}}}", text):
        raise EvidenceError(f"{where}: a word of more than {LONGEST_WORD} characters ({long[0][:30]}...); expected a launch line. "
                            "Paste the line that starts the server.")
    for line, logical in _logical_lines(text, where):
        for words in _simple(logical):
            words = _expand(words, variables)
            own: dict[str, str] = {}
            while words and words[0] == "env":
                words = words[1:]
            while words and (assigned := ASSIGNMENT.match(words[0])):
                own[assigned[1]] = f"{variables.get(assigned[1], '')} {assigned[3]}" if assigned[2] else assigned[3]
                words = words[1:]
            if words and words[0] in ("export", "declare", "local", "readonly"):
                pairs = {m[1]: m[3] for w in words[1:] if (m := ASSIGNMENT.match(w))}
                if words[0] == "export":
                    exported |= pairs
                variables |= pairs
            elif words:
                found.append(Command(tuple(words), {**exported, **own}, line))
            else:
                variables |= own
    return found


def unresolved(words: Iterable[str]) -> list[str]:
    """Words that still hold a shell variable or substitution."""
    return [w for w in words if UNRESOLVED.search(w)]


def _logical_lines(text: str, where: str) -> Iterable[tuple[int, str]]:
    """Lines with continuations joined and comments removed; a quote or an array may span lines."""
    start, buffer, quote, opened, array = 1, [], "", (0, 0), False
    line, column, i = 1, 0, 0
    while i < len(text):
        char = text[i]
        column += 1
        if char == "\\" and quote != "'" and i + 1 < len(text):
            following = text[i + 1 : i + 3]
            step = 3 if following == "\r\n" else 2
            if following[:1] == "\n" or step == 3:
                buffer.append("" if quote else " ")
                line, column = line + 1, 0
            else:
                buffer.append(text[i : i + 2])
                column += 1
            i += step
            continue
        if quote:
            quote = "" if char == quote else quote
            buffer.append(char)
        elif char in "'\"":
            quote, opened = char, (line, column)
            buffer.append(char)
        elif char == "#" and (not buffer or buffer[-1][-1:].isspace()):
            end = text.find("\n", i)
            i = len(text) if end < 0 else end
            continue
        elif char == "\n" and not array:
            yield start, "".join(buffer)
            buffer = []
        else:
            if char in "<>":
                _drop_descriptor(buffer)
            array = (array and char != ")") or (char == "(" and buffer[-1:] == ["="])
            buffer.append(" " if char == "\n" else char)
        if char == "\n":
            line, column = line + 1, 0
        if not buffer:
            start = line
        i += 1
    if quote:
        raise EvidenceError(
            f"{where}: the quote {quote} that opens at line {opened[0]}, column {opened[1]} is never closed; expected a matching {quote}. "
            "Close it, or paste the launch line again."
        )
    yield start, "".join(buffer)


def _drop_descriptor(buffer: list[str]) -> None:
    """Remove the 2 of `2>` from the end of a line; the 16 of `16 >` is a word of its own and stays."""
    digits = len(buffer)
    while digits and buffer[digits - 1].isdigit():
        digits -= 1
    if digits == 0 or buffer[digits - 1].isspace():
        del buffer[digits:]


def _simple(logical: str) -> Iterable[list[str]]:
    """The words of each command of a logical line; operators, redirections and their targets fall away."""
    lexer = shlex.shlex(logical, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    array: list[str] | None = None
    skip = False
    for word in _tokens(lexer):
        if array is not None:
            if word.startswith(")"):
                words[-1] += shlex.join(array)
                array = None
            else:
                array.append(word)
        elif word == "(" and words and words[-1].endswith("=") and ASSIGNMENT.match(words[-1]):
            array = []
        elif OPERATOR.match(word):
            skip = "<" in word or ">" in word
            if not skip:
                yield words
                words = []
        elif skip:
            skip = False
        else:
            words.append(word)
    yield words


def _tokens(lexer: shlex.shlex) -> Iterable[str]:
    try:
        yield from lexer
    except ValueError:  # a lone backslash at the very end
        return


def _expand(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Variables with a known literal value put in; a word that is one variable alone is split like a shell does."""
    out: list[str] = []
    for word in words:
        alone = VARIABLE.fullmatch(word)
        if alone and (alone[1] or alone[2]) in variables:
            try:
                out += shlex.split(variables[alone[1] or alone[2]])
            except ValueError:
                out.append(variables[alone[1] or alone[2]])
        else:
            out.append(VARIABLE.sub(lambda m: variables.get(m[1] or m[2], m[0]), word))
    return out
