"""The remedy for wrong layers: which list to write, under which key, so that this engine release captures given boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.case import Case
from eagle_forensics.engines.layers import write_ids
from eagle_forensics.engines.versions import engine_label
from eagle_forensics.evidence.records import Target
from eagle_forensics.finding import Edit


@dataclass(frozen=True)
class Remedy:
    """What to do, in words and as changes of files (none where the config lies outside the case folder or no list does it)."""

    text: str
    edits: tuple[Edit, ...] = ()


def serve_boundaries(case: Case, target: Target, boundaries: Sequence[int], runner: str | None = None) -> Remedy:
    """How to make the case's engine capture `boundaries` of `target`."""
    serving, wanted = case.serving, sorted(boundaries)
    if not (serving.engine and serving.version):
        return Remedy(f"Serve {format_boundaries(wanted)}: `eagle-forensics layers` spells it for your engine.")
    engine = engine_label(serving.engine, serving.version)
    answer = write_ids(serving.engine, serving.version, model_type=target.model_type, layers=target.layers, boundaries=wanted,
                       architecture=target.architectures[0] if target.architectures else None, runner=runner)
    if answer.error:
        return Remedy(f"{engine} cannot serve {format_boundaries(wanted)}: {answer.error}")
    value = None if answer.ids is None else list(answer.ids)
    text = f"For {engine} write `{answer.key}: {value}` in the drafter's config.json; that serves {format_boundaries(wanted)}."
    if answer.notes:
        text += " " + " ".join(answer.notes)
    file = case.relative(case.drafter.path / "config.json") if case.drafter else None
    return Remedy(text, (Edit(file=file, key=answer.key, value=value, applies_to=engine),) if file else ())
