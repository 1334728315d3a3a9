"""The environment of running processes: of a server and of the workers it started, as the kernel shows it.

`/proc/PID/environ` is what a process was started with; what it changed itself later is not there. Secrets are redacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.records import EvidenceError

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One running process."""

    pid: int
    name: str
    """`comm`: at most 15 characters, no arguments."""
    env: Mapping[str, str]


def read_processes(pid: int, proc: Path = PROC) -> tuple[Process, ...]:
    """The process and all it started, itself first. EvidenceError if it does not run or belongs to another user."""
    parents: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        parents.setdefault(_parent(folder), []).append(int(folder.name))
    found, todo = [], [pid]
    while todo:
        here = todo.pop(0)
        try:
            found.append(Process(here, (proc / str(here) / "comm").read_text(encoding="utf-8", errors="replace").strip(), read_env(proc / str(here) / "environ")))
        except (OSError, EvidenceError) as error:
            if here == pid:
                raise EvidenceError(f"process {pid}: its environment cannot be read ({error}). Is it the PID of a running server, and yours? Use sudo, or save "
                                    f"`tr '\\0' '\\n' < /proc/{pid}/environ`.") from None
            continue  # ended meanwhile, or of another user
        todo += sorted(parents.get(here, ()))
    return tuple(found)


def _parent(folder: Path) -> int:
    """PPID out of `stat`; the name before it may hold spaces and brackets."""
    try:
        return int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
