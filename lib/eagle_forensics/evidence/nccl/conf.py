"""NCCL's configuration files, as NCCL reads them: `NCCL_CONF_FILE` or else `~/.nccl.conf`, then `/etc/nccl.conf`.

A line is NAME=value; `#` is a comment in the first column only; nothing is stripped or unquoted. The process environment wins over
the user's file, that over `/etc` (param.cc setEnvFile, os/linux.cc setenv without overwriting; NCCL_CONF_FILE since 2.23.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.evidence.environment import redacted
from eagle_forensics.evidence.records import EvidenceError

MAX_BYTES = 1_000_000
SYSTEM_FILE = Path("/etc/nccl.conf")
LONGEST = 1023
"""Characters of a name or value that NCCL keeps."""


@dataclass(frozen=True)
class ConfFile:
    """One file."""

    path: Path
    settings: Mapping[str, str]
    """NCCL's variables as NCCL takes them; the first of a name wins."""
    problems: tuple[str, ...]
    """Lines that NCCL takes otherwise than they look, one sentence each."""


def conf_files(env: Mapping[str, str], system: Path = SYSTEM_FILE) -> tuple[Path, ...]:
    """The files that NCCL would look for with this environment, that which wins first."""
    user = Path(env["NCCL_CONF_FILE"]) if env.get("NCCL_CONF_FILE") else Path(env["HOME"]) / ".nccl.conf" if env.get("HOME") else None
    return (*([user] if user else []), system)


def read_nccl_conf(path: str | Path) -> ConfFile:
    """The file's settings. EvidenceError if it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); NCCL skips a file that it cannot open") from None
    if len(raw) > MAX_BYTES:
        raise EvidenceError(f"{path}: over {MAX_BYTES} bytes; expected NAME=value lines")
    settings: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(raw.decode("utf-8", "replace").split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        problems += [f"line {number} ({name.strip()[:40]}): {problem}" for problem in _problems(name, equals, value)]
        if equals and name.startswith("NCCL_"):
            settings.setdefault(name[:LONGEST], redacted(name, value[:LONGEST]))
    return ConfFile(path, settings, tuple(problems))


def _problems(name: str, equals: str, value: str) -> Iterator[str]:
    if not equals:
        if name.strip():
            yield "no `=`, so NCCL skips it"
    elif name != name.strip() or name.startswith("export "):
        yield f"the name is taken as {name[:60]!r}, with its spaces: NCCL never looks for that"
    elif not re.fullmatch(r"[A-Za-z_]\w*", name):
        yield "this is no name of a variable"
    elif value != value.strip() or value[:1] in ("'", '"'):
        yield f"the value is taken as it stands, with quotes and spaces: {value[:60]!r}"
    if len(name) > LONGEST or len(value) > LONGEST:
        yield f"cut by NCCL after {LONGEST} characters"
