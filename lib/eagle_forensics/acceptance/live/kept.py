"""What a measurement leaves in its folder, as it comes: prompts, answers, and the settings under which they were served (`evidence.answers` reads it)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle_forensics.acceptance.clients.records import Answer
from eagle_forensics.acceptance.live.measure import Measurement
from eagle_forensics.acceptance.live.workload import Workload
from eagle_forensics.evidence.answers import PROMPTS, SERVED


def start(folder: Path, work: Workload) -> None:
    """A fresh folder with the prompts; what a former measurement left in it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("answers_*.jsonl"), *folder.glob(SERVED)):
        old.unlink()
    _write(folder / PROMPTS, [{"id": p.id, "domain": p.domain, "input_ids": p.ids, "max_tokens": p.max_tokens, "temperature": p.temperature, **p.constraint} for p in work.prompts], "w")


def answers(folder: Path, name: str, found: Sequence[Answer]) -> None:
    """Answers appended to `answers_<name>.jsonl`."""
    _write(folder / f"answers_{name}.jsonl", [asdict(a) for a in found], "a")


def served(folder: Path, m: Measurement) -> None:
    """The server's settings, as far as the walk on its text needs them."""
    own = {p.temperature for p in m.workload.prompts} - {None}
    about = {"engine": m.server.engine, "version": m.server.version, "dtype": m.server.dtype, "steps": m.server.steps, "topk": m.server.topk,
             "draft_tokens": m.server.draft_tokens, "temperature": max({m.settings.sampling.temperature, *own}), "adaptive": bool(m.server.argument("speculative_adaptive"))}
    (folder / SERVED).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _write(file: Path, rows: Sequence[dict[str, Any]], mode: str) -> None:
    with file.open(mode, encoding="utf-8", errors="backslashreplace") as stream:  # of half a character, that is its JSON escape
        stream.writelines(json.dumps({k: v for k, v in row.items() if v is not None} if mode == "w" else row, ensure_ascii=False) + "\n" for row in rows)
