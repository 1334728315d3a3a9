"""What stands beside the samples of a dump: plane names, layer ids, the number of samples a shard holds. Claims, handed on as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.records import MOST_IDS

SIDE_LIMIT = 64 << 20
"""Bytes of a side file worth reading: a larger one is no list of plane names."""
NAMES = ("manifest.json", "data_config.json", "manifest.jsonl")


def plane_labels(folder: Path, planes: int, notes: list[str]) -> tuple[str, ...] | None:
    """`planes` of a manifest.json, if it names each; what is wrong with it becomes a note."""
    path = folder / "manifest.json"
    manifest = _json(path, notes)
    if manifest is None:
        return None
    labels = manifest.get("planes") if isinstance(manifest, dict) else None
    if labels is None:
        notes.append(f"{path.name} names no `planes`; the planes have no labels.")
    elif not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        notes.append(f"{path.name}: `planes` is no list of names; it is left out.")
    elif len(labels) != planes:
        notes.append(f"{path.name} names {len(labels)} planes ({', '.join(labels)[:120]}), the samples hold {planes}; "
                     "the labels are left out.")
    else:
        return tuple(labels)
    return None


def layer_ids(folder: Path, notes: list[str]) -> tuple[int, ...] | None:
    """`hidden_states.layer_ids` of speculators 0.3/0.4 (config_generator.py), also at the top level of data_config.json."""
    path = folder / "data_config.json"
    config = _json(path, notes)
    if not isinstance(config, dict):
        return None
    inner = config.get("hidden_states")
    ids = (inner if isinstance(inner, dict) else config).get("layer_ids")
    if isinstance(ids, list) and 0 < len(ids) <= MOST_IDS and all(type(i) is int for i in ids):
        return tuple(ids)
    notes.append(f"{path.name} holds no list of layer ids; it is left out.")
    return None


def shard_counts(folder: Path, notes: list[str]) -> dict[str, int]:
    """Samples a shard, by file name, of verl-speco's manifest.jsonl; empty without one."""
    text = _text(folder / "manifest.jsonl", notes)
    counts, odd = {}, 0
    for line in (text or "").splitlines():
        try:
            row = json.loads(line) if line.strip() else {}
            if row:
                name, count = row["path"], row["num_samples"]
                if not isinstance(name, str) or type(count) is not int or not 0 <= count <= 1 << 30:
                    raise ValueError(row)
                counts[name] = count
        except (ValueError, KeyError, TypeError, RecursionError):
            odd += 1
    if odd:
        notes.append(f"manifest.jsonl: {odd} lines name no shard with its number of samples; they are left out.")
    if absent := sorted(name for name in counts if not (folder / name).exists()):
        notes.append(f"manifest.jsonl lists {len(absent)} shards that are not there: {', '.join(absent)[:120]}.")
    return counts


def _text(path: Path, notes: list[str]) -> str | None:
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > SIDE_LIMIT:
            raise ValueError("larger than any manifest")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read ({str(error)[:80]}); it is left out.")
        return None


def _json(path: Path, notes: list[str]) -> Any:
    text = _text(path, notes)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({str(error)[:80]}); it is left out.")
        return None
