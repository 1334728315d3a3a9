"""What a release does not hand to the drafter under pipeline parallelism, under data-parallel attention, and for images. Rules: `handover.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.engines import sglang, vllm
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import Nearest, nearest, row_at, since


@dataclass(frozen=True)
class Lost:
    """One thing that does not arrive."""

    text: str
    until: str
    """First release that hands it over."""
    source: str
    assumed: bool
    """The release itself was not read."""


def lost(engine: str, version: str, mode: str, *, architecture: str | None, settings: Mapping[str, Any], runner: str | None = None) -> Lost | None:
    """What goes missing in `mode` (`pipeline`, `dp-attention`, `images`), None where nothing is known to. `settings`: arguments that took effect."""
    at = _release(engine, version)
    for row in table("handover")["row"]:
        fits = row["engine"] == engine and row["mode"] == mode and row.get("runner") in (None, runner)
        within = since(row["from"], at.release) and not since(row["until"], at.release)
        named = not row.get("classes") or any(part in (architecture or "") for part in row["classes"])
        if fits and within and named and all(settings.get(name) not in (None, False, "none") for name in row.get("needs", ())):
            return Lost(row["text"], row["until"], row["source"], at.assumed)
    return None


def not_read(engine: str, version: str) -> str | None:
    """Why that nothing is known to go missing says nothing: the release was not read. None for one that was."""
    return _release(engine, version).note


def _release(engine: str, version: str) -> Nearest:
    return nearest(engine, version, (sglang if engine == "sglang" else vllm).releases())


def stages_carry(engine: str, version: str, architecture: str) -> tuple[bool | None, str]:
    """Whether pipeline stages of this target hand aux states on (None: not read, or the target names no class), and the rule's source; refused at start where not."""
    row = row_at([row for row in table("handover")["carries"] if row["engine"] == engine], version)
    if row is None:
        return None, ""
    if architecture in row["classes"]:
        return True, row["source"]
    return (None if not architecture or any(part in architecture for part in row["not_read"]) else False), row["source"]
