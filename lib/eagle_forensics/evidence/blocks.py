"""Big text files in blocks of whole lines: the fast way through a log of any size, in bounded memory. Gzip is seen through."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

CHUNK = 1 << 20
"""Bytes read at a time; a line longer than that is cut there."""


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in whole lines, about CHUNK bytes each, with the offset of each block. OSError where it cannot be read."""
    rest, offset = b"", 0
    with open_bytes(path) as file:
        while block := _read(file):
            data = rest + block
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) >= CHUNK:
                cut = len(data)
            if cut:
                yield offset, data[:cut]
            rest, offset = data[cut:], offset + cut
    if rest:
        yield offset, rest


def open_bytes(path: Path) -> BinaryIO:
    """The file for reading, unpacked where its first bytes say gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def _read(file: BinaryIO) -> bytes:
    try:
        return file.read(CHUNK)
    except (EOFError, zlib.error) as error:
        raise OSError(0, f"damaged gzip: {error}") from None


def line_at(block: bytes, at: int) -> tuple[int, int]:
    """Begin and end of the line around a position of a block, without its newline."""
    end = block.find(b"\n", at)
    return block.rfind(b"\n", 0, at) + 1, len(block) if end < 0 else end
