"""What will NCCL make of this environment? Unknown, dead, misspelt, misread, overridden and harmful settings, by release.

NCCL says nothing when it ignores a variable, reads `4M` as 4 bytes or `sys` as no level at all. Source of each rule: NCCL's
own parsers (`param.cc`, `tuning.cc`, `paths.cc`) of the releases named in rules.toml.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.nccl import engine, grammar
from eagle_forensics.nccl.issue import ERROR, INFO, WARN, Issue
from eagle_forensics.nccl.registry import NEWEST, OLDEST, rules, variables, version


@dataclass(frozen=True)
class Host:
    """What the audit needs to know of the machine and the server; None: unknown, and rules that need it keep silent."""

    nccl: str | None = None
    """Release, as its log prints it."""
    link: str | None = None
    """`pcie`, `nvlink`, `nvswitch`."""
    nodes: int | None = 1
    engine: str | None = None
    """`sglang`, `vllm`."""
    engine_release: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Launch arguments of the engine, by name with underscores."""

    @property
    def made(self) -> tuple[engine.Setting, ...]:
        """What the engine sets itself."""
        return engine.settings(self.engine, self.engine_release, self.flags)


def audit(env: Mapping[str, str], host: Host = Host()) -> tuple[Issue, ...]:
    """All issues of an environment, errors first. Other variables than NCCL's are ignored. ValueError for a bad NCCL version."""
    release = version(host.nccl) if host.nccl else None
    settings = {name: value for name, value in engine.applied(env, host.made).items() if name.upper().startswith("NCCL_")}
    found = [issue for name, value in sorted(settings.items()) for issue in _variable(name, value, release, host)]
    return ordered([*found, *_combinations(settings), *engine.issues(env, host.engine, host.made)])


def ordered(issues: Sequence[Issue]) -> tuple[Issue, ...]:
    """Errors first, then warnings; a finding twice is one."""
    rank = {ERROR: 0, WARN: 1, INFO: 2}
    return tuple(sorted(dict.fromkeys(issues), key=lambda i: rank[i.severity]))


def _variable(name: str, value: str, release: tuple[int, ...] | None, host: Host) -> Iterator[Issue]:
    known = yield from _name(name, release)
    if not known:
        return
    kind = variables()[name].kind
    if kind == "int":
        yield from grammar.integer(name, value, release)
    elif kind == "level":
        yield from grammar.level(name, value, release)
    elif name in ("NCCL_ALGO", "NCCL_PROTO"):
        yield from grammar.selection(name, value, release, host.link)
    elif name in rules()["words"]:
        yield from grammar.words(name, value)
    elif name == "NCCL_CONF_FILE":
        yield Issue("CONF_FILE_PRESENT", INFO, name, f"settings may also come from {value}; the process environment wins over it",
                    "Audit that file as well.")
    alone = rules()["no_effect_on_one_node"]
    if host.nodes == 1 and (name in alone["names"] or name.startswith(tuple(alone["prefixes"]))):
        yield Issue("NO_EFFECT_SINGLE_NODE", INFO, name, "concerns the network only: no effect on an all-reduce within one node",
                    "Leave it out of a single-node tuning.")


def _name(name: str, release: tuple[int, ...] | None) -> Iterator[Issue]:
    """Issues of the name itself; returns whether the release reads it."""
    table = rules()
    if name in table["removed"]:
        yield Issue("REMOVED", ERROR, name, f"removed in NCCL {table['removed'][name]}: it is ignored", "Delete it.")
        return False
    if name in table["deprecated"]:
        entry = table["deprecated"][name]
        yield Issue("DEPRECATED", WARN, name, f"deprecated since NCCL {entry['since']}", f"Use {entry['instead']}.")
        return False
    elsewhere = table["elsewhere"]
    if name in elsewhere["names"] or name.startswith(tuple(elsewhere["prefixes"])):
        return False
    entry = variables().get(name)
    if entry is None:
        near = difflib.get_close_matches(name.upper(), variables(), n=1, cutoff=0.8)
        hint = f"Did you mean {near[0]}?" if near else "Delete it, or check its spelling."
        newer = release is not None and release > NEWEST
        yield Issue("UNKNOWN_VAR", WARN if newer else ERROR, name, "no NCCL release up to 2.30.7 reads it: it is ignored" +
                    (f" (the rules for {_text(release)} are not known)" if newer else ""), hint)
        return False
    if release is not None and entry.first > OLDEST and release < entry.first[: len(release)]:
        yield Issue("NOT_YET", ERROR, name, f"read since NCCL {_text(entry.first)}, this is {_text(release)}: it is ignored", "Delete it, or use a newer NCCL.")
        return False
    if release is not None and entry.last < NEWEST and release > entry.last:
        yield Issue("REMOVED", ERROR, name, f"last read by NCCL {_text(entry.last)}, this is {_text(release)}: it is ignored", "Delete it.")
        return False
    return True


def _combinations(env: Mapping[str, str]) -> Iterator[Issue]:
    p2p_off = env.get("NCCL_P2P_DISABLE", "").strip() == "1"
    if p2p_off and "NCCL_P2P_LEVEL" in env:
        yield Issue("P2P_DISABLE_WINS", ERROR, "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE=1 wins: the level is ignored", "Delete one of the two.")
    if p2p_off and re.fullmatch(r"\s*1\s*", env.get("NCCL_SHM_DISABLE", "")):
        yield Issue("P2P_AND_SHM_OFF", ERROR, "NCCL_SHM_DISABLE", "with P2P and shared memory off the ranks of one node talk over sockets",
                    "Leave at least one of them on.")
    for low, high, effect in (
        ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL sets both to the maximum, {high}"),
        ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "the maximum is applied first, then channels are duplicated up to the minimum, {low}"),
    ):
        a, b = grammar.as_int(env.get(low)), grammar.as_int(env.get(high))
        if a is not None and b is not None and a > b:
            yield Issue("CTAS_MIN_GT_MAX", WARN, low, f"{low}={a} is above {high}={b}: " + effect.format(low=a, high=b), "Set the minimum below the maximum.")


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
