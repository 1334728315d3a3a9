"""Do our rules hold for the engine that is really there? Its own source text against our tables."""

from __future__ import annotations

from pathlib import Path

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question
from eagle_forensics.engines.source import Tree, examine, installed, open_tree
from eagle_forensics.engines.versions import engine_label
from eagle_forensics.finding import Evidence, Finding

QUESTION = Question("config.engine-source", "Do the rules used here agree with the engine's own source?")
SHOWN = 8
"""Differences quoted in full; the rest are counted."""


def source_finding(found: Inspection, engine_tree: str = "") -> Finding:
    """Compare our tables with an engine's source: the tree named, else the one installed beside this Python.

    `engine_tree`: an unpacked wheel, a site-packages folder or an environment. Nothing of it is imported.
    """
    engine = found.case.serving.engine
    if engine not in ("sglang", "vllm"):
        return QUESTION.needs(found, "serving.engine", decides="which rules apply")
    try:
        tree = open_tree(engine, Path(engine_tree).expanduser()) if engine_tree else _installed(engine)
    except ValueError as error:
        return QUESTION.suspects(None, str(error), required=True, next_step="Correct engine_tree, or leave it empty.")
    if tree is None:
        return QUESTION.absent(f"{engine} is not installed beside this Python, and engine_tree names no copy of it",
                               "Name its environment or unpacked wheel in engine_tree; it decides whether a patched or newer engine follows the rules used here.")
    ledger = examine(engine, tree)
    label, ours = engine_label(engine, tree.version), found.engine
    other = "" if tree.version == found.case.serving.version else f" (the case names {ours})"
    real = [d for d in ledger.differences if not d.unread]
    unread = [d for d in ledger.differences if d.unread]
    evidence = tuple(Evidence(note=str(d)) for d in [*real, *unread][:SHOWN])
    common = {"n": ledger.checked, "unit": "comparisons", "observed": len(real), "expected": 0, "evidence": evidence}
    if real:
        return QUESTION.suspects(None, f"{len(real)} of {ledger.checked} rules differ between our tables and the source of {label}{other}: {real[0].what}",
                                 required=True, next_step="Trust the engine's source; the differences are quoted here. A patched engine shows like this.", **common)
    if unread:
        return QUESTION.suspects(None, f"{len(unread)} of {ledger.checked} rules could not be read from the source of {label}{other}; the rest agree", **common)
    return QUESTION.passes(f"{ledger.checked} rules agree with the source of {label}{other}", **common)


def _installed(engine: str) -> Tree | None:
    there = installed(engine)
    return open_tree(engine, there[1], there[0]) if there else None
