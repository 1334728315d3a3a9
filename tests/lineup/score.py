"""The score of a line-up: confusion of planted and named, counts, and the change against the last recorded result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle_forensics.suite.files import write_json

Row = dict[str, Any]
NONE = "(none)"
TARGETS = {"single_first": 0.95, "double_all_named": 0.80, "healthy_passed": 1.0, "abstained": 1.0}
"""Share of the cases of a kind that must be right; no healthy case may be accused."""
RECORDED = Path(__file__).parent / "recorded.json"
KNOWN_MISSES = json.loads((Path(__file__).parent / "known_misses.json").read_text(encoding="utf-8"))
"""Name of a case -> why the suite is known to miss it. Only what is listed here may be missed."""


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """`right of all` by kind, rank-1 right, both named, healthy accused, abstentions."""
    def share(items: Sequence[Row], key: str) -> list[int]:
        return [sum(bool(r[key]) for r in items), len(items)]

    kind = {k: [r for r in rows if r["kind"] == k] for k in ("single", "double", "healthy", "abstain")}
    return {"right": share(rows, "right"), "single_first": share(kind["single"], "first"), "double_all_named": share(kind["double"], "all_named"),
            "healthy_passed": share(kind["healthy"], "right"), "healthy_accused": [sum(bool(r["named"]) for r in kind["healthy"]), len(kind["healthy"])],
            "abstained": share(kind["abstain"], "right"), "false_accusations": [sum(bool(r["false"]) for r in rows), len(rows)]}


def confusion(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Planted slug -> named slug -> cases. A planted slug that was named counts for itself, one that was not for what was named falsely."""
    table: dict[str, Counter] = {}
    for row in rows:
        false = row["false"] or [NONE]
        for slug in row["planted"] or [NONE]:
            seen = [slug] if slug in row["named"] else false
            table.setdefault(slug, Counter()).update(seen)
        if row["planted"] and row["false"] and all(s in row["named"] for s in row["planted"]):
            table.setdefault(NONE, Counter()).update(row["false"])
    return {planted: dict(named) for planted, named in sorted(table.items())}


def unexpected(rows: Sequence[Row]) -> list[Row]:
    """What makes a line-up fail: a healthy case accused, or a case missed that is not a known miss."""
    return [r for r in rows if (not r["right"] and r["name"] not in KNOWN_MISSES) or (r["kind"] == "healthy" and r["named"])]


def last_recorded(folder: Path, tier: str) -> dict[str, Any] | None:
    """The newest `lineup.json` of this tier under `folder`, else what the project has recorded."""
    for file in sorted(folder.glob("*/lineup.json"), reverse=True):
        earlier = json.loads(file.read_text(encoding="utf-8"))
        if earlier["tier"] == tier:
            return earlier
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    return recorded.get(tier)


def record(tier: str, rows: Sequence[Row]) -> None:
    """Keep a result with the project: what was right and named, by case."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    kept[tier] = {"tier": tier, "counts": counts(rows), "cases": [{k: r[k] for k in ("name", "right", "named")} for r in rows]}
    write_json(RECORDED, kept)


def result(tier: str, when: str, seconds: float, rows: Sequence[Row], before: dict[str, Any] | None) -> dict[str, Any]:
    """The content of `lineup.json`."""
    return {"tier": tier, "when": when, "seconds": round(seconds, 1), "counts": counts(rows), "targets": TARGETS, "confusion": confusion(rows),
            "cases": list(rows), "changes": changes(rows, before)}


def changes(rows: Sequence[Row], before: dict[str, Any] | None) -> list[str]:
    """One line a case that was right and is not, or the reverse, or is new."""
    if before is None:
        return ["no earlier result"]
    old = {r["name"]: r for r in before["cases"]}
    lines = []
    for row in rows:
        was = old.pop(row["name"], None)
        if was is None:
            lines.append(f"new: {row['name']} ({'right' if row['right'] else 'missed'})")
        elif was["right"] != row["right"]:
            lines.append(f"{'mended' if row['right'] else 'BROKEN'}: {row['name']} (named {was['named']} before, {row['named']} now)")
    return lines + [f"gone: {name}" for name in old]


def brief(lines: Sequence[str]) -> str:
    """Changes on a line: what was mended or broken by name, new and gone cases counted."""
    kinds = Counter(line.partition(":")[0] for line in lines)
    counted = [f"{kinds[kind]} {kind}" for kind in ("new", "gone") if kinds[kind]]
    return "; ".join([*(line for line in lines if line.partition(":")[0] not in ("new", "gone")), *counted])


def report(rows: Sequence[Row], before: dict[str, Any] | None) -> str:
    """The printed end of a line-up."""
    lines = ["", "planted -> named (cases)"]
    for planted, named in confusion(rows).items():
        lines.append(f"  {planted:32} " + ", ".join(f"{slug if slug != planted else 'itself'} {n}" for slug, n in sorted(named.items(), key=lambda x: -x[1])))
    lines += ["", *(f"  {name.replace('_', ' '):20} {got} of {of}" for name, (got, of) in counts(rows).items())]
    missed = [r for r in rows if not r["right"]]
    for row in missed:
        lines += ["", f"  MISSED {row['name']} ({row['kind']}): planted {row['planted'] or 'nothing'}, named {row['named'] or 'nothing'}, verdict {row['verdict']}"]
        lines += [f"    known: {KNOWN_MISSES[row['name']]}"] if row["name"] in KNOWN_MISSES else [f"    {s[:260]}" for s in row["statements"]]
    mended = [name for name in KNOWN_MISSES if any(r["name"] == name and r["right"] for r in rows)]
    lines += [f"  no longer missed, take it off known_misses.json: {name}" for name in mended]
    lines += ["", "against the last result: " + (brief(changes(rows, before)) or "no change")]
    return "\n".join(lines)
