"""What is to be done about each fault, what is written on another engine release, and how is it checked afterwards?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from eagle_forensics.case import Case
from eagle_forensics.diagnosis.ranking import Supported
from eagle_forensics.diagnosis.records import Effect
from eagle_forensics.diagnosis.rules import question
from eagle_forensics.engines.layers import resolve_layers
from eagle_forensics.engines.versions import engine_label
from eagle_forensics.finding import Edit, Finding

IDS = "layer_ids"
"""What the keys of layer lists end in, on every engine."""


def edits(items: Sequence[Finding]) -> tuple[Edit, ...]:
    """The changes of files that a fault's findings print, each once."""
    seen: dict[tuple[str, str], Edit] = {}
    for item in items:
        for edit in item.edits:
            seen.setdefault((edit.file, edit.key), edit)
    return tuple(seen.values())


def predicted_effect(items: Sequence[Finding]) -> str | None:
    """The behaviour's own prediction (notebook 02) before any other words."""
    ordered = sorted((f for f in items if f.predicted_effect), key=lambda f: question(f) != "drafter")
    return ordered[0].predicted_effect if ordered else None


def elsewhere(changes: Sequence[Edit], case: Case, records: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(releases, list): how the layer ids of the fix are spelled on other engine releases; empty where the fix is no list of ids."""
    served = (records.get("layers") or {}).get("served") or {}
    change = next((e for e in changes if e.key.endswith(IDS) and isinstance(e.value, list)), None)
    if change is None or not (case.serving.engine and case.serving.version and served.get("model_type") and served.get("layers")):
        return ()
    try:
        answer = resolve_layers(case.serving.engine, case.serving.version, model_type=served["model_type"], layers=served["layers"], ids=change.value)
    except ValueError:
        return ()
    here = engine_label(case.serving.engine, case.serving.version)
    rows = []
    for (engine, ids), group in groupby(answer.write_as.items(), key=lambda kv: (kv[0].split()[0], tuple(kv[1]))):
        releases = [name.split()[1] for name, _ in group]
        span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
        if (label := engine_label(engine, span)) != here:
            rows.append((label, f"[{', '.join(map(str, ids))}]"))
    return tuple(rows)


def verification(fault: Supported, case: Case, gain: Effect | None) -> tuple[str, tuple[str, ...]]:
    """The command that checks the fix (the whole suite: a second fault may show only now), and what it must show."""
    see = [f"{', '.join(f'`{i}`' for i in fault.ids)} pass{'es' if len(fault.ids) == 1 else ''}"]
    if gain is not None and set(fault.ids) & set(gain.findings):
        at = f" at {gain.steps} draft steps" if gain.steps else ""
        see.append(f"an accept length of {gain.accept_length_after.text()} tokens a round{at}")
        if gain.tokens_per_second_after:
            see.append(f"{gain.tokens_per_second_after.text(1)} tokens/s, if a round takes as long as now")
    return f"eagle-forensics run {shlex.quote(str(case.file)) if case.file else 'CASE.yaml'}", tuple(see)
