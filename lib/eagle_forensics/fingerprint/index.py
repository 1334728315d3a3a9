"""What was read of a dump: rows and votes of its samples in the cache folder, so that a run that is repeated or was cut short reads only what is new.

One safetensors file a sample, in the dtype of the dump: the rows that were compared and, as metadata, the file they come from (size, time) and what each
slot was found to be. A file that was written since is read again. At most the rows of `rows.BUDGET_BYTES` are kept a dump.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from eagle_forensics.evidence.cache import cache_folder, write_bytes
from eagle_forensics.evidence.dumps import signature
from eagle_forensics.evidence.records import DumpInfo, EvidenceError
from eagle_forensics.evidence.tensors import load_tensor, read_header, read_metadata
from eagle_forensics.fingerprint.rows import Rows

FORMAT = "1"
"""Version of an entry, part of every key: to be raised with whatever changes rows or votes."""

Vote = str | None
"""What one sample says a slot is: the boundary as text, None where no state explains it cleanly."""


@dataclass(frozen=True)
class Entry:
    """One sample as it was read."""

    rows: Rows | None
    """None where only its votes were kept."""
    votes: Mapping[str, tuple[Vote, ...]]
    """By what they were taken against."""
    sample: str
    dtypes: tuple[torch.dtype, ...] = ()
    """Of the planes in their file; empty: float32."""


class Index:
    """The entries of one dump. Damaged and outdated ones count as absent; a cache that cannot be written is no index."""

    def __init__(self, info: DumpInfo, settings: str) -> None:
        """`settings`: what else the rows depend on."""
        self.info = info
        key = hashlib.sha256(f"{FORMAT} {info.path.resolve()} {info.format} {settings}".encode()).hexdigest()[:16]
        self.folder = cache_folder() / "fingerprint" / key

    def find(self, number: int) -> Entry | None:
        """Sample `number` of the dump, if it was read and its file is still the same."""
        file = self._file(number)
        if not file.is_file():
            return None
        try:
            about = json.loads(read_metadata(file)["about"])
            if about["signature"] != self.stamp(number):
                return None
            tensors = {name: load_tensor(info).clone() for name, info in read_header(file).items()}
            rows = _rows(tensors, about) if "position" in tensors else None
            dtypes = tuple(tensors[f"slot_{i}"].dtype for i in range(len(rows.planes))) if rows else ()
            return Entry(rows, {against: tuple(votes) for against, votes in about["votes"].items()}, str(about["sample"]), dtypes)
        except (EvidenceError, KeyError, ValueError, TypeError, OSError):
            return None

    def stamp(self, number: int) -> str:
        """The state of a sample's file: changes when it is written."""
        return json.dumps(signature(self.info.files[number]))

    def keep(self, number: int, entry: Entry, stamp: str) -> None:
        """Store an entry that was read from the file in the state `stamp`."""
        rows = entry.rows
        about = {"signature": stamp, "sample": entry.sample, "votes": entry.votes, "labels": rows.labels if rows else (), "slots": len(rows.planes) if rows else 0}
        tensors: dict[str, torch.Tensor] = {"none": torch.zeros(0)}
        if rows is not None:
            tensors = {f"slot_{i}": p.to(entry.dtypes[i] if entry.dtypes else p.dtype).contiguous() for i, p in enumerate(rows.planes)}
            tensors["position"] = torch.as_tensor(rows.position)
            if rows.texts:
                tensors["text"] = rows.texts[0]
        try:
            write_bytes(self._file(number), save(tensors, {"about": json.dumps(about)}))
        except OSError:
            return

    def _file(self, number: int) -> Path:
        member = self.info.members[number] if self.info.members else 0
        name = hashlib.sha256(f"{self.info.files[number]} {member}".encode()).hexdigest()[:20]
        return self.folder / f"{name}.safetensors"


def _rows(tensors: Mapping[str, torch.Tensor], about: Mapping) -> Rows:
    position = tensors["position"].numpy()
    planes = tuple(tensors[f"slot_{i}"].to(torch.float32) for i in range(about["slots"]))
    text = tensors.get("text")
    if not planes or any(len(p) != len(position) for p in planes) or (text is not None and len(text) <= position[-1]):
        raise ValueError("its parts do not fit each other")
    return Rows(planes, tuple(about["labels"]), None if text is None else text[torch.as_tensor(position)], np.zeros(len(position), int), position,
                (about["sample"],), texts=() if text is None else (text,))
