"""Launch arguments to a mapping, as argparse would read them: `--flag value`, `--flag=value`, bare flags, unique prefixes.

Shell quoting is the caller's: `argv` is already split. Errors use argparse's own words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.engines.versions import since
from eagle_forensics.evidence.shell import unresolved

_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*", re.DOTALL)
_NUMBER = re.compile(r"-\d+(?:\.\d+)?")
_DECIDES = re.compile(r"speculative_(?!draft_model_(path|revision)$)|.*_backend$|(page_size|pp_size|quantization)$")
"""Flags on which a budget or a refusal hangs; a number of ranks, a port or a share of memory decides neither."""


@dataclass
class ParsedArgv:
    """Arguments as written: typed where the flag is known."""

    raw: dict[str, Any] = field(default_factory=dict)
    """Destination (no dashes, underscores) -> value; True for a bare flag; text for a flag not in the table."""
    env: dict[str, str] = field(default_factory=dict)
    """`NAME=value` written before the first flag."""
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """What argparse would refuse, in its words."""
    open: list[str] = field(default_factory=list)
    """Flags on which a rule hangs and whose value only the shell knows (`--speculative-num-steps $N`); they are left out of `raw`."""

    def refuse_early_flags(self, engine: str, release: str, first: Mapping[str, str], assumed: bool) -> None:
        """Flags that `release` does not know yet: an error where the release was read, else a note. `first`: flag -> first release."""
        for name in self.raw:
            if name in first and not since(first[name], release):
                said = f"unrecognized arguments: --{name.replace('_', '-')} (it exists from {engine} {first[name]} on)"
                (self.notes if assumed else self.errors).append(said)


def parse_argv(argv: Sequence[str], kinds: Mapping[str, str], aliases: Mapping[str, str]) -> ParsedArgv:
    """Reads `argv` with the flags of `kinds` (destination -> int, float, str, flag); other flags are kept as text and noted."""
    out = ParsedArgv()
    words = [str(word) for word in argv]
    for word in words[:_first_flag(words)]:
        if _ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            out.env[name] = value
    for item in written(words, kinds, aliases, out.notes):
        if item.name is None:
            out.notes.append(f"{item.words[0]!r} belongs to no flag and is ignored here")
            continue
        name, values = item.name, list(item.values)
        kind = kinds.get(name)
        if _outside(name, kind, values):
            out.notes.append(f"--{item.spelled} is {values[0]}, which is set outside of this text: its value is not known")
            out.open += [name] if _DECIDES.match(name) else []
            continue
        if name in out.raw:
            out.notes.append(f"--{item.spelled} is given more than once; the last one counts")
        out.raw[name] = _convert(item.spelled, kind, values, out)
    return out


@dataclass(frozen=True)
class Written:
    """One flag with its values as they stand in a command, or one word that belongs to no flag (name None)."""

    name: str | None
    """Destination: aliases and unique prefixes resolved."""
    spelled: str
    values: tuple[str, ...]
    words: tuple[str, ...]
    """All of it, in the command's own spelling."""


def written(argv: Sequence[str], kinds: Mapping[str, str], aliases: Mapping[str, str], notes: list[str] | None = None) -> Iterator[Written]:
    """The flags of a command in order, from the first one on; what is noteworthy of their spelling is appended to `notes`."""
    words, position = list(argv), _first_flag(argv)
    while position < len(words):
        start, word = position, words[position]
        position += 1
        if not word.startswith("--"):
            yield Written(None, "", (), (word,))
            continue
        spelled, equals, attached = word[2:].partition("=")
        name = _destination(spelled, kinds, aliases, notes if notes is not None else [])
        kind = kinds.get(name)
        values = [attached] if equals else []
        if kind != "flag" and not equals:
            while position < len(words) and not _is_flag(words[position]) and (kind is None or not values):
                values.append(words[position])
                position += 1
        yield Written(name, spelled, tuple(values), tuple(words[start:position]))


def _first_flag(words: Sequence[str]) -> int:
    return next((i for i, word in enumerate(words) if word.startswith("--")), len(words))


def _outside(name: str, kind: str | None, values: list[str]) -> bool:
    """Whether only the shell knows the value: a variable or substitution where a number stands, or as the whole of a text that is no place."""
    if not values or not unresolved(values[:1]):
        return False
    return kind in ("int", "float") or (values[0][0] in "$`" and not name.endswith(("model", "path", "revision")))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word) and word != "-"


def _destination(spelled: str, kinds: Mapping[str, str], aliases: Mapping[str, str], notes: list[str]) -> str:
    name = spelled.replace("-", "_")
    name = aliases.get(name, name)
    if name in kinds:
        return name
    longer = sorted({aliases.get(known, known) for known in (*kinds, *aliases) if known.startswith(name)}) if len(name) > 5 else []
    if len(longer) == 1:
        notes.append(f"--{spelled} is read as --{longer[0].replace('_', '-')}: argparse accepts unique prefixes")
        return longer[0]
    near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.88)
    hint = f"; did you mean --{near[0].replace('_', '-')}?" if near else ""
    notes.append(f"--{spelled} is not examined here{hint}")
    return name


def _convert(spelled: str, kind: str | None, values: list[str], out: ParsedArgv) -> Any:
    if kind == "flag":
        return True
    if kind is None:
        return True if not values else " ".join(values)
    if not values:
        out.errors.append(f"argument --{spelled}: expected one argument")
        return None
    if kind == "str":
        return values[0]
    try:
        return {"int": int, "float": float}[kind](values[0])
    except ValueError:
        out.errors.append(f"argument --{spelled}: invalid {kind} value: {values[0]!r}")
        return values[0]
