"""A captured folder: one safetensors a prompt and rank with `fed` and `input_ids`, and `manifest.json` that says where they come from."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from eagle_forensics.evidence.cache import write_bytes
from eagle_forensics.evidence.fed import Fed
from eagle_forensics.evidence.records import EvidenceError, Sample

FORMAT = "eagle-forensics capture"
VERSION = 1
MANIFEST = "manifest.json"


def write_fed(fed: Sequence[Fed], folder: Path, about: Mapping[str, Any]) -> Path:
    """Write a capture; `about` goes into its manifest. EvidenceError for a folder that holds anything else."""
    if folder.is_dir() and any(folder.iterdir()) and _manifest(folder) is None:
        raise EvidenceError(f"{folder}: is not empty and no capture. Name a new folder.")
    for old in folder.glob("prompt*.safetensors"):
        old.unlink()
    order: dict[tuple[int, ...], int] = {}
    for one in fed:
        number = order.setdefault(one.ids, len(order))
        name = f"prompt{number:03d}" + (f".rank{one.rank}of{one.ranks}" if one.ranks > 1 else "")
        write_bytes(folder / f"{name}.safetensors", save({"fed": _narrow(one.states).contiguous(), "input_ids": torch.tensor(one.ids)}, {"format": FORMAT}))
    kept = {"format": FORMAT, "version": VERSION, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "path_kind": "eager", "rows": "prefill",
            "prompts": len(order), "tokens": sum(map(len, order)), "ranks": max(one.ranks for one in fed), "shape": list(fed[0].states.shape[1:]),
            "dtype": sorted({str(_narrow(one.states).dtype).removeprefix("torch.") for one in fed}), **about}
    write_bytes(folder / MANIFEST, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())
    return folder


def with_engine(samples: Sequence[Sample], folder: Path) -> tuple[Sample, ...]:
    """The samples with the engine that the folder's manifest names; as they are where it names none."""
    engine = (_manifest(folder) or {}).get("engine")
    return tuple(replace(s, provenance=replace(s.provenance, engine=engine)) for s in samples) if isinstance(engine, str) else tuple(samples)


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def _narrow(states: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where that loses nothing, which is what a server in bfloat16 returns as JSON."""
    half = states.to(torch.bfloat16)
    return half if torch.equal(half.to(states.dtype), states) else states
