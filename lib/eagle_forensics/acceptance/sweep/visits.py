"""What was measured on one server at one step count, and the file that keeps it: an interrupted sweep goes on where it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from eagle_forensics.acceptance.live.frames import as_run
from eagle_forensics.acceptance.live.measure import Measurement
from eagle_forensics.acceptance.runs import Run


class Role(StrEnum):
    """What a visit is for."""

    SWEEP = "sweep"
    AGAIN = "again"
    """Without speculation once more at the end, on the same prompts: how far the machine drifted."""
    FRESH_BASE = "fresh-baseline"
    """Without speculation, on prompts that the sweep did not ask."""
    FRESH = "fresh"
    """A new server at the recommended steps, on these other prompts."""


@dataclass(frozen=True)
class Visit:
    """One server, started for it, at one step count."""

    steps: int
    role: Role
    measurements: tuple[Measurement, ...] = ()
    """One a concurrency; partial ones are among them."""
    problem: str | None = None
    """Why nothing, or not everything, was measured."""
    reused: bool = False
    """Kept from an earlier run of this folder."""

    @property
    def name(self) -> str:
        return f"steps-{self.steps}_{self.role}"

    @property
    def first(self) -> Measurement | None:
        """At the first concurrency, if it was measured to the end."""
        return next((m for m in self.measurements if m.complete), None) if not self.problem else None

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its measurements that count, as rows of the measurements table."""
        return () if self.problem else tuple(replace(as_run(m), label=self._label(m)) for m in self.measurements if m.complete and m.good)

    def _label(self, m: Measurement) -> str:
        name = f"K = {self.steps}" if self.steps else "no speculation"
        more = {Role.SWEEP: "", Role.AGAIN: ", at the end", Role.FRESH_BASE: ", other prompts", Role.FRESH: ", fresh server, other prompts"}[self.role]
        return f"{name}{more}" + (f", concurrency {m.settings.concurrency}" if m.settings.concurrency > 1 else "")


@dataclass(frozen=True)
class _Kept:
    """A visit on disk; `key` stands for command, prompts and settings."""

    key: str
    visit: Visit


def keep(folder: Path, key: str, visit: Visit) -> None:
    """Write the visit into its file."""
    (folder / f"{visit.name}.json").write_bytes(_adapter().dump_json(_Kept(key, visit), indent=1))


def recall(folder: Path, key: str, steps: int, role: Role) -> Visit | None:
    """The visit of an earlier run with the same command, prompts and settings, if it was measured to the end."""
    file = folder / f"{Visit(steps, role).name}.json"
    try:
        found = _adapter().validate_json(file.read_bytes())
    except (OSError, ValidationError):  # none, or of another version: measured anew
        return None
    whole = found.visit.problem is None and found.visit.measurements and all(m.complete for m in found.visit.measurements)
    return replace(found.visit, reused=True) if found.key == key and whole else None


def of(visits: Sequence[Visit], role: Role) -> tuple[Visit, ...]:
    return tuple(v for v in visits if v.role is role)


@cache
def _adapter() -> TypeAdapter[_Kept]:
    return TypeAdapter(_Kept)
