"""Text and plain JSON, written whole or not at all (`write_bytes`): what a reader finds under a name is always a complete version of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from eagle_forensics.evidence.cache import write_bytes


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for UTF-8 text; lone surrogates of hostile evidence become `?`."""
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON (see `plain`), atomically."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The parsed content, or None if the file is absent or not JSON (an aborted writer never leaves half a file)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def plain(value: Any, where: str = "value") -> Any:
    """A value as JSON types: NaN and infinities become None; arrays, paths, enums, records and dataclasses are unfolded.

    Raises TypeError naming the place of anything else, so that no object is silently turned into text.
    """
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return plain(value.value, where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, where) for item in value), key=str)
    if callable(getattr(value, "tolist", None)):  # numpy and torch, scalars included
        return plain(value.tolist(), where)
    raise TypeError(f"{where} is a {type(value).__name__}, which has no plain JSON form; convert it before recording it")


def sha256(data: bytes | Path) -> str:
    """SHA-256 in hex of bytes or of a whole file."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
