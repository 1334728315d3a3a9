"""Which settings does NCCL really have? What was meant, held against the running process, its configuration files and NCCL's own log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.nccl.conf import ConfFile, conf_files, read_nccl_conf
from eagle_forensics.evidence.nccl.records import NcclLog
from eagle_forensics.evidence.processes import PROC, Process, read_processes
from eagle_forensics.nccl import grammar
from eagle_forensics.nccl.audit import Host, audit, ordered
from eagle_forensics.nccl.engine import applied
from eagle_forensics.nccl.issue import ERROR, INFO, WARN, Issue
from eagle_forensics.nccl.registry import rules

PRINTING = ("NCCL_DEBUG", "NCCL_TOPO_DUMP", "NCCL_GRAPH_DUMP")
"""Prefixes of variables that only print: a start for the log's sake has its own."""


@dataclass(frozen=True)
class Live:
    """What is known of the settings of a served process."""

    env: Mapping[str, str]
    """Its environment, and what NCCL adds to it from configuration files."""
    proven: bool
    """It was read from a process (a dump of /proc/PID/environ), not written down as what was meant."""
    processes: tuple[Process, ...] = ()
    """The server and its workers, where they run on this host."""
    files: tuple[ConfFile, ...] = field(default=())
    """Configuration files that exist on this host, that which wins first."""


def gather(source: Mapping[str, Any] | Path) -> Live:
    """The environment of a case; one named as /proc/PID/environ brings its workers and NCCL's configuration files. EvidenceError as its readers."""
    if isinstance(source, Mapping):
        return Live(read_env(source), proven=False)
    path = Path(source)
    if path.name != "environ" or path.parent.parent != PROC or not path.parent.name.isdigit():
        return Live(read_env(path), proven=b"\0" in _head(path))
    processes = read_processes(int(path.parent.name))
    env = dict(processes[0].env)
    files = tuple(read_nccl_conf(file) for file in conf_files(env) if file.is_file())
    for file in files:
        env = {**file.settings, **env}
    return Live(env, True, processes, files)


def examine(live: Live, host: Host, *, meant: Mapping[str, str] | None = None, log: NcclLog | None = None) -> tuple[Issue, ...]:
    """All issues of a served process's settings, errors first. `meant`: what the launch script sets; `log`: NCCL's own log of that process."""
    found = [*audit(live.env, host), *(not_live(meant, live.env, host) if meant and live.proven else ()), *_differ(live.processes), *_files(live.files)]
    return ordered([*found, *(logged(live.env, log, host) if log else ())])


def not_live(meant: Mapping[str, str], process: Mapping[str, str], host: Host) -> Iterator[Issue]:
    """Variables that were meant to be set but that the served process does not have, or has with another value.

    `process` is the environment of the scheduler process (`/proc/PID/environ`), not that of the shell.
    """
    forced = {s.variable for s in host.made if s.overwrites}
    for name, value in sorted(meant.items()):
        if not name.startswith("NCCL_") or process.get(name) == value or name in forced:
            continue
        has = f"has {process[name]!r}" if name in process else "does not have it"
        yield Issue("NOT_LIVE", ERROR, name, f"set to {value!r}, but the served process {has}",
                    "Pass it to the worker processes (container, ssh and service managers drop environments).")


def logged(env: Mapping[str, str], log: NcclLog, host: Host) -> Iterator[Issue]:
    """The environment against what NCCL's log says it read. Silence of the log counts only where NCCL cannot start without printing the line."""
    wanted = {name: value for name, value in applied(env, host.made).items() if name.startswith("NCCL_") and value}
    for name, value in sorted((n, v) for n, v in wanted.items() if not n.startswith(PRINTING)):
        seen = log.environment.get(name)
        if seen is not None and not _same(name, value, seen):
            yield Issue("NOT_LIVE", ERROR, name, f"set to {value!r}, but NCCL's log says it read {seen!r}", "Is the log of the same start? Then another place sets it: a script, the engine.")
        elif seen is None and would_print(name, log) and not any(True for i in audit({name: value}, host) if i.severity == ERROR):
            yield Issue("NOT_LIVE", ERROR, name, f"set to {value!r}, but NCCL's log, which names every variable it reads at start, does not name it",
                        "Is the log of the same start? Then pass it to the worker processes.")
    for name, seen in sorted(log.environment.items()):
        if name not in wanted and not name.startswith(PRINTING):
            yield Issue("SET_ELSEWHERE", WARN, name, f"NCCL's log shows it set to {seen!r}, but the environment of the case has it not",
                        "Look for it in NCCL_CONF_FILE or ~/.nccl.conf, /etc/nccl.conf and the launch script.")


def would_print(name: str, log: NcclLog) -> bool:
    """Whether a whole log of a start would hold the line: the variable is one of those, the start reached its end, and ENV is logged."""
    subsystems = log.subsystems
    env_logged = bool(log.environment) and (not subsystems or bool({"ENV", "ALL"} & subsystems))
    return name in rules()["logged"]["names"] and log.channels is not None and env_logged


def _same(name: str, value: str, seen: str) -> bool:
    number = grammar.as_int(seen)
    if number is not None and grammar.strtoll(value) == number:
        return True
    if name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL") and value[:1].isdigit():
        levels = rules()["levels"]["integers"]
        return seen == levels[min(grammar.strtoll(value), len(levels) - 1)]
    return value.strip().rstrip(".") == seen.strip().rstrip(".")


def _differ(processes: Sequence[Process]) -> Iterator[Issue]:
    for name in sorted({n for p in processes for n in p.env if n.startswith("NCCL_")}):
        values = {p.env[name]: p for p in processes if name in p.env}
        if len(values) > 1:
            text = ", ".join(f"{value!r} in {p.name} ({p.pid})" for value, p in values.items())
            yield Issue("PROCESSES_DIFFER", WARN, name, f"the processes of the server do not agree: {text}", "Find which of them talks through NCCL; ranks must agree.")


def _files(files: Sequence[ConfFile]) -> Iterator[Issue]:
    for file in files:
        names = ", ".join(file.settings) or "nothing"
        yield Issue("CONF_FILE_PRESENT", INFO, file.path.name, f"{file.path} sets {names}; the process environment wins over it", "It is part of what was audited.")
        for problem in file.problems:
            yield Issue("CONF_FILE_SYNTAX", ERROR, file.path.name, f"{file.path}, {problem}", "Write NAME=value from the first column, without quotes.")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(65536)
    except OSError:
        return b""  # read_env has said why
