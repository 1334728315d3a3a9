"""What the demo's cases share: target, drafter, the training dump recomputed through it, and a bank of its own states.

All of it lies in the cache folder under a name that is the hash of what it is made from. Every step is atomic, so a killed
preparation resumes; a finished one is recognised by its files without importing torch.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle_forensics.demo.target import CONVERSION, WHEEL_SHA256, target_folder
from eagle_forensics.evidence.cache import cache_folder, write_bytes

DATA = Path(__file__).parent / "data"
STAGE = 1
"""Version of what is made here; part of the folder's name."""
TRAINED = (2, 15, 27)
"""Boundaries the drafter was trained at; with the last layer's output before the norm they are the dump's planes."""
VARIANT_BOUNDARIES = (0, 1, 2, 14, 15, 26, 27)
"""Boundaries that the variants train on or serve: kept in the state cache for every test sequence."""
BANK_EVERY = 8
"""Every how many test sequences one goes into the bank: 10 of 79, all four families."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One sequence of the data set."""

    split: str
    family: str
    prompt: str
    prompt_ids: tuple[int, ...]
    gen_ids: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.gen_ids


@dataclass(frozen=True)
class Stage:
    """Prepared folders."""

    root: Path
    target: Path

    @property
    def dump(self) -> Path:
        return self.root / "dump"

    @property
    def bank(self) -> Path:
        return self.root / "bank"

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"


def sequences(split: str = "test") -> list[Row]:
    """The 79 `test` or 903 `train` sequences; responses are the target's own greedy choice."""
    lines = (DATA / "sequences.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (json.loads(line) for line in lines)
    return [Row(r["split"], r["family"], r["prompt"], tuple(r["prompt_ids"]), tuple(r["gen_ids"])) for r in rows if r["split"] == split]


def root() -> Path:
    """Folder of the demo's stage in the cache: its name is the hash of the data, the target and the recipe."""
    digest = hashlib.sha256(f"{STAGE} {CONVERSION} {WHEEL_SHA256}".encode())
    for file in sorted(p for p in DATA.rglob("*") if p.is_file() and p.name != "README.md"):
        content = file.read_bytes() if file.stat().st_size < 1 << 20 else str(file.stat().st_size).encode()
        digest.update(f"{file.relative_to(DATA)} ".encode() + hashlib.sha256(content).digest())
    return cache_folder() / "demo" / digest.hexdigest()[:12]


def stage(progress: Progress | None = None, offline: bool = False) -> Stage:
    """Target, dump and bank, made if they are not in the cache (about a minute after the download).

    DemoError if the target cannot be had.
    """
    say = progress or (lambda line: None)
    found = Stage(root(), target_folder(say, offline))
    if not _complete(found.root / "prepared.json"):
        files = _make(found, say)
        listing = {str(p.relative_to(cache_folder())): p.stat().st_size for p in files}
        write_bytes(found.root / "prepared.json", json.dumps(listing, indent=0).encode())
    return found


def _complete(listing: Path) -> bool:
    """Whether every file of a finished preparation is there with its size."""
    if not listing.is_file():
        return False
    files = json.loads(listing.read_text())
    return all((path := cache_folder() / name).is_file() and path.stat().st_size == size for name, size in files.items())


def _make(found: Stage, say: Progress) -> list[Path]:
    import torch

    from eagle_forensics.boundary import Boundary
    from eagle_forensics.evidence.states import target_key, target_states, write_states
    from eagle_forensics.evidence.targets import read_target

    for name in ("config.json", "model.safetensors"):
        write_bytes(found.drafter / name, (DATA / "drafter" / name).read_bytes())
    rows, target = sequences(), read_target(found.target)
    last = target.layers
    say(f"computing the target's states for {len(rows)} test sequences ({sum(len(r.ids) for r in rows)} tokens)")
    states = target_states(target, [r.ids for r in rows], [*VARIANT_BOUNDARIES, last], progress=say)
    say(f"writing the training dump ({len(rows)} samples, speculators v1)")
    for index, row in enumerate(rows):
        mask = torch.tensor([0] * len(row.prompt_ids) + [1] * len(row.gen_ids))
        sample = {"input_ids": torch.tensor(row.ids), "loss_mask": mask, "hidden_states": [states.plane(index, b) for b in (*TRAINED, last)]}
        buffer = io.BytesIO()
        torch.save(sample, buffer)
        write_bytes(found.dump / f"data_{index}.pt", buffer.getvalue())
    write_bytes(found.dump / "sample_lengths.json", json.dumps([len(r.ids) for r in rows]).encode())
    chosen = [r.ids for r in rows[::BANK_EVERY]]
    say(f"writing the bank: {len(chosen)} sequences at all {last + 1} boundaries and after the final norm")
    everywhere = [*range(last + 1), Boundary(last, normed=True)]
    write_states(target_states(target, chosen, everywhere, cache=False), found.bank,
                 about="SmolLM2-135M-Instruct, states computed from the weights for sequences of the built-in case")
    kept = cache_folder() / "states" / target_key(target)[:16]
    return [p for folder in (found.drafter, found.dump, found.bank, kept) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
