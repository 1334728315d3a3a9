"""What does the engine make of the environment before NCCL reads it? SGLang and vLLM set some of NCCL's variables themselves.

Data: the `engine` tables of rules.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.nccl.issue import ERROR, INFO, WARN, Issue
from eagle_forensics.nccl.registry import rules


@dataclass(frozen=True)
class Setting:
    """One variable that the engine sets."""

    variable: str
    value: str
    overwrites: bool
    """Whatever was set before; else only where nothing was."""
    because: str
    """The launch flag that causes it, or the release that always does it."""


def settings(engine: str | None, release: str | None, flags: Mapping[str, Any] | None = None) -> tuple[Setting, ...]:
    """What the engine sets, given its launch flags (`enable_symm_mem`). Nothing for an unknown engine or release."""
    if not engine or not release:
        return ()
    given = {name for name, value in (flags or {}).items() if str(value).lower() not in ("false", "none", "0")}
    found: dict[str, Setting] = {}
    for rule in rules()["engine"]:
        if rule["engine"] != engine or not _within(release, rule) or (rule.get("when") and rule["when"] not in given) or given & set(rule.get("unless", ())):
            continue
        found[rule["variable"]] = Setting(rule["variable"], rule["value"], rule.get("overwrites", False),
                                          f"--{rule['when'].replace('_', '-')}" if rule.get("when") else f"{_NAMES.get(engine, engine)} {release}")
    return tuple(found.values())


def applied(env: Mapping[str, str], made: tuple[Setting, ...]) -> dict[str, str]:
    """The environment after the engine has set its own."""
    return {**env, **{s.variable: s.value for s in made if s.overwrites or s.variable not in env}}


def issues(env: Mapping[str, str], engine: str | None, made: tuple[Setting, ...]) -> Iterator[Issue]:
    """Where the engine's own setting meets the environment's."""
    code = f"SET_BY_{(engine or '').upper()}"
    for s in made:
        given = env.get(s.variable)
        if given is None:
            yield Issue(code, INFO, s.variable, f"{s.because} sets it to {s.value}", "A benchmark without it measures another system.")
        elif s.overwrites and given != s.value:
            ours = s.variable.startswith("NCCL_")
            yield Issue(code, ERROR if ours else WARN, s.variable, f"{s.because} overwrites it with {s.value}: {given!r} never reaches {'NCCL' if ours else 'CUDA'}",
                        "Delete it, or change the flag or release that sets it." if ours else "Delete it.")


_NAMES = {"sglang": "SGLang", "vllm": "vLLM"}


def _within(release: str, rule: Mapping[str, Any]) -> bool:
    number = _numbers(release)
    return _numbers(rule.get("since", "0")) <= number <= _numbers(rule.get("until", "999"))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"(?:\.?(?:post|dev|rc)|\+)", release)[0])[:4])
