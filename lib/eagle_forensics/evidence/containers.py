"""What a file of tensors holds, opened by its first bytes and never by its extension; nothing is unpickled.

Read are torch archives (weights_only, also gzipped), safetensors and JSON. Files up to `HELD_BYTES` are read whole, so that one which shrinks
afterwards harms nobody; larger ones are mapped. A mapped file that is cut off in the moment before its rows are copied ends the process
that reads it (SIGBUS, which no check can exclude): copy a dump that is still being written before it is examined.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.archives import code_wanted, tensors_only
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.tensors import MAX_HEADER_BYTES, load_tensor, read_header

GUNZIP_LIMIT = 4 << 30
"""Bytes a gzipped sample may expand to: no single sequence comes near, a gzip bomb does."""
HELD_BYTES = 8 << 20
"""Bytes of a file up to which reading all of it costs no more than some blocks of rows: a few milliseconds."""
JSON_LIMIT = 1 << 30
"""Bytes of a JSON reply worth reading: one prompt of 2,000 tokens with three planes of 7,168 numbers is below it."""


def kind_of(path: Path) -> str | None:
    """`torch`, `gzip`, `safetensors` or `json` by the first bytes; None for anything else. OSError if it cannot be read."""
    if not path.is_file():  # a pipe would never end
        return None
    with path.open("rb") as file:
        head = file.read(16)
        size = path.stat().st_size
    if head[:2] == b"PK":
        return "torch"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= min(size - 8, MAX_HEADER_BYTES):
        return "safetensors"
    return "json" if head.lstrip()[:1] in (b"{", b"[") else None


def open_file(path: Path) -> Any:
    """Contents of a file: tensors by name, a list of such, or the value of a JSON text. EvidenceError with the reason."""
    try:
        kind = kind_of(path)
        small = kind is not None and path.stat().st_size <= HELD_BYTES
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}). Check the file and its permissions.") from None
    if kind == "safetensors" or (kind is None and path.suffix == ".safetensors" and path.is_file()):
        return {name: load_tensor(info, range(info.shape[0]) if small and info.shape else None) for name, info in read_header(path).items()}
    return open_json(path) if kind == "json" else open_pt(path)


def open_pt(path: Path) -> Any:
    """What `torch.save` wrote, with weights_only and memory mapping. Raises EvidenceError with the reason."""
    try:
        kind = kind_of(path)
        if kind == "gzip":
            return tensors_only(_gunzip(path))
        if kind != "torch":
            raise EvidenceError(f"{path}: no zip archive of torch.save (empty, cut off, foreign, or written by torch before 1.6). "
                                "Copy it again or save it again with a current torch; else remove it from the dump.")
        return tensors_only(io.BytesIO(path.read_bytes()) if path.stat().st_size <= HELD_BYTES else path)
    except EvidenceError:
        raise
    except pickle.UnpicklingError as error:
        asks = f"its pickle asks for {code_wanted(error) or 'more than tensors'}"
        raise EvidenceError(f"{path}: refused. Loading it would run code ({asks}); only tensors, numbers, text, lists and dicts "
                            "are read. Save it again as plain tensors where it was made.") from None
    except Exception as error:  # a damaged file makes torch raise RuntimeError, ValueError, KeyError, EOFError, OSError ...
        text = " ".join(str(error).split())[:160] or "no details"
        raise EvidenceError(f"{path}: damaged or cut off ({type(error).__name__}: {text}). "
                            "Copy it again, or remove it from the dump.") from None


def open_json(path: Path) -> Any:
    """The value of a JSON file. EvidenceError with the reason."""
    if path.stat().st_size > JSON_LIMIT:
        raise EvidenceError(f"{path}: {path.stat().st_size >> 20} MiB of JSON; save fewer prompts a file (limit {JSON_LIMIT >> 20} MiB).")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: no readable JSON ({str(error)[:100]}). Save the server's reply as it came.") from None


def shown(content: Any) -> str:
    """What a file holds, for people."""
    import torch

    if isinstance(content, torch.Tensor):
        return f"a bare tensor {list(content.shape)}"
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}" + (f" of {len(content)}, the first {shown(content[0])}" if isinstance(content, list) and content else "")
    keys = [f"{k} {list(v.shape)}" if isinstance(v, torch.Tensor) else f"{k} ({type(v).__name__})" for k, v in list(content.items())[:8]]
    return (", ".join(keys) + (", ..." if len(content) > 8 else ""))[:400] or "nothing"


def _gunzip(path: Path) -> io.BytesIO:
    with gzip.open(path) as stream:
        data = stream.read(GUNZIP_LIMIT + 1)
    if len(data) > GUNZIP_LIMIT:
        raise EvidenceError(f"{path}: expands to more than {GUNZIP_LIMIT >> 30} GiB; that is no sample. Unpack and check it.")
    return io.BytesIO(data)
