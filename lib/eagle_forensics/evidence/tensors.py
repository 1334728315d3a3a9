"""Tensors of a checkpoint: what the headers say, and the rows that are asked for.

`read_header` and `read_index` read headers only; `load_array` and `load_tensor` read only the asked rows. The header is
validated here, byte for byte as strictly as the safetensors format demands, because a lying header is evidence too.
Torch archives (`.bin`, `.pt`) go through `archives`, never through a free unpickler.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from eagle_forensics.evidence import archives
from eagle_forensics.evidence.archives import read_torch_index
from eagle_forensics.evidence.configs import parse_object, read_object
from eagle_forensics.evidence.records import EvidenceError, TensorInfo

if TYPE_CHECKING:
    import torch

__all__ = ["load_array", "load_rows", "load_tensor", "missing_shards", "read_header", "read_index", "read_metadata", "read_torch_index"]

MAX_HEADER_BYTES = 100_000_000
"""Limit of the safetensors format (MAX_HEADER_SIZE of its reference reader)."""

INDEX_NAME = "model.safetensors.index.json"
COPY_AGAIN = "The file is corrupt or cut off: copy it again from its source and compare sizes."

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits per element of every dtype of the safetensors format."""

STORAGE = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "U16": "<u2", "I16": "<i2",
    "F16": "<f2", "BF16": "<u2", "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
"""numpy type whose bytes are those of the dtype; a dtype that is not here can be listed but not loaded."""

Rows = slice | Sequence[int] | None


def read_header(path: Path | str) -> dict[str, TensorInfo]:
    """Name to TensorInfo of one safetensors file; reads its header only. EvidenceError if the header lies."""
    path = Path(path)
    start, size, header = _header(path)
    infos: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            infos[name] = _tensor(path, name, entry, start, size - start)
    position = 0
    for info in sorted(infos.values(), key=lambda i: (i.offset, i.nbytes)):
        begin = info.offset - start
        if begin < position:
            raise EvidenceError(
                f"{path}: tensor {info.name!r:.120}: data_offsets begin at {begin} inside another tensor's data, which ends at "
                f"{position}; expected tensors that do not overlap. {COPY_AGAIN}"
            )
        if begin > position:
            raise EvidenceError(
                f"{path}: tensor {info.name!r:.120}: data_offsets begin at {begin} but the data before it ends at {position}; "
                f"expected no gap (the format forbids it and engines refuse the file). {COPY_AGAIN}"
            )
        position = begin + info.nbytes
    if position != size - start:
        raise EvidenceError(
            f"{path}: the header describes {position} bytes of data but the file holds {size - start}; expected them to be "
            f"equal. {COPY_AGAIN}"
        )
    return infos


def read_metadata(path: Path | str) -> dict[str, str]:
    """`__metadata__` of one safetensors file (`format`, `producer`, a trainer's version stamp); empty where absent."""
    return dict(_header(Path(path))[2].get("__metadata__", {}))


def read_index(folder: Path | str, *, partial: bool = False) -> dict[str, TensorInfo]:
    """Name to TensorInfo over all safetensors files of a model folder (or of one file); empty without any.

    A shard that `model.safetensors.index.json` names but the folder lacks is an EvidenceError, or skipped if `partial`.
    """
    folder = Path(folder)
    if folder.is_file():
        return read_header(folder)
    if not folder.is_dir():
        raise EvidenceError(f"{folder}: does not exist; expected a folder with model*.safetensors. Correct the path.")
    index = folder / INDEX_NAME
    absent: tuple[str, ...] = ()
    if index.is_file():
        weight_map = _weight_map(index)
        names = sorted(set(weight_map.values()))
        absent = missing_shards(folder)
        if absent and not partial:
            raise EvidenceError(
                f"{index}: `weight_map` names {len(names)} shards, of which {len(absent)} are not in the folder (first: {absent[0]}); "
                "expected all of them. The download is incomplete: fetch the missing files."
            )
        files = [folder / name for name in names if name not in absent]
    else:
        weight_map = {}
        files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    infos: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in infos:
                raise EvidenceError(
                    f"{file}: tensor {name!r:.120} is also in {infos[name].file.name}; expected each tensor in one file. Two exports "
                    "lie in one folder: remove the stale one."
                )
            infos[name] = info
    for name, shard in weight_map.items():
        if shard not in absent and (name not in infos or infos[name].file.name != shard):
            raise EvidenceError(
                f"{index}: `weight_map` places {name!r:.120} in {shard}, whose header does not hold it; expected index and shards of "
                "one export. Fetch both again."
            )
    return infos


def missing_shards(folder: Path) -> tuple[str, ...]:
    """Shards that the folder's index names but the folder does not hold."""
    index = folder / INDEX_NAME
    if not index.is_file():
        return ()
    return tuple(sorted(name for name in set(_weight_map(index).values()) if not (folder / name).is_file()))


def load_array(info: TensorInfo, rows: Rows = None) -> np.ndarray:
    """The tensor, or only `rows` of it, as numpy; BF16, F16 and FP8 become float32, everything else keeps its type.

    FP8 values are the bare numbers: scales lie in tensors of their own. ValueError for rows outside the tensor.
    """
    raw = _raw(info, rows)
    if info.dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if info.dtype == "F16":
        return raw.astype(np.float32)
    if info.dtype == "BOOL":
        return raw != 0
    if info.dtype in _FP8:
        return fp8_values(info.dtype)[raw]
    return raw


def load_tensor(info: TensorInfo, rows: Rows = None) -> torch.Tensor:
    """The tensor, or only `rows` of it, as torch in its own dtype; mapped from the file, unless rows are picked one by one."""
    import torch

    if info.offset is None:
        return _torch_rows(info, rows)
    raw = _raw(info, rows)
    if info.dtype == "BOOL":
        return torch.from_numpy(raw != 0)
    dtype = archives.torch_dtype(info.dtype)
    if not raw.flags.aligned or not raw.flags.writeable:
        raw = raw.copy()
    if raw.dtype.kind == "u" and dtype != torch.uint8:  # BF16, FP8 and wide unsigned types, which torch takes from numpy only as ints
        return torch.from_numpy(raw.view(f"i{raw.dtype.itemsize}")).view(dtype)
    return torch.from_numpy(raw)


def load_rows(infos: Sequence[TensorInfo], rows: Sequence[int]) -> torch.Tensor:
    """The same rows of several tensors of one safetensors file, dtype and shape, `[tensors, rows, ...]` in their dtype: the file is opened once.

    ValueError for tensors that differ and rows outside of them.
    """
    import torch

    first = infos[0]
    if len({(i.file, i.dtype, i.shape) for i in infos}) > 1 or first.offset is None or first.dtype not in STORAGE:
        raise ValueError(f"{first.file}: expected tensors of one file, dtype and shape, found {sorted({(i.dtype, i.shape) for i in infos})}")
    picked = _picked(first, rows)
    runs = _runs(picked)
    out = torch.empty(len(infos), len(picked), *first.shape[1:], dtype=archives.torch_dtype(first.dtype))
    raw = out.view(torch.uint8).numpy().reshape(len(infos), len(picked), -1)
    try:
        with first.file.open("rb", buffering=0) as file:
            for info, part in zip(infos, raw, strict=True):
                _fill(part, file, info, info.offset + info.row_start * raw.shape[2], runs)
    except OSError as error:
        raise EvidenceError(f"{first.file}: cannot be read ({error.strerror}). Check the path and its permissions.") from None
    return out


@functools.cache
def fp8_values(dtype: str) -> np.ndarray:
    """The 256 values of an 8-bit float, `[256]` float32 (OCP FP8: E4M3 has no infinity; OCP MX: E8M0 is a power of two)."""
    if dtype == "F8_E8M0":
        return np.array([2.0 ** (code - 127) for code in range(255)] + [math.nan]).astype(np.float32)
    exponent_bits, mantissa_bits, bias = _FP8[dtype]
    values = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        value = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
        if dtype == "F8_E4M3" and code & 0x7F == 0x7F:
            value = math.nan
        if dtype == "F8_E5M2" and exponent == (1 << exponent_bits) - 1:
            value = math.nan if mantissa else math.inf
        values.append(sign * value)
    return np.array(values, dtype=np.float32)


_FP8 = {"F8_E4M3": (4, 3, 7), "F8_E5M2": (5, 2, 15), "F8_E8M0": (8, 0, 127)}


def _header(path: Path) -> tuple[int, int, dict[str, Any]]:
    """Start of the data, size of the file, parsed header."""
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise EvidenceError(f"{path}: {size} bytes; expected a safetensors file, which begins with an 8-byte header length. {COPY_AGAIN}")
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER_BYTES:
                raise EvidenceError(
                    f"{path}: header length {length} bytes; expected at most {MAX_HEADER_BYTES}. This is no safetensors file, or its "
                    f"first bytes are damaged. {COPY_AGAIN}"
                )
            if 8 + length > size:
                raise EvidenceError(
                    f"{path}: header length {length} bytes but only {size - 8} bytes follow; expected the whole header in the file. {COPY_AGAIN}"
                )
            raw = file.read(length)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Check the path and its permissions.") from None
    header = parse_object(raw, f"{path}: safetensors header")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise EvidenceError(f"{path}: `__metadata__` is {metadata!r:.80}; expected an object of strings. {COPY_AGAIN}")
    return 8 + length, size, header


def _tensor(path: Path, name: str, entry: Any, start: int, data_bytes: int) -> TensorInfo:
    """One header entry, checked against the file."""
    where = f"{path}: tensor {name!r:.120}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise EvidenceError(f"{where}: header entry is {entry!r:.120}; expected exactly dtype, shape and data_offsets. {COPY_AGAIN}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise EvidenceError(f"{where}: dtype {dtype!r:.40}; expected one of {', '.join(sorted(BITS))}. {COPY_AGAIN}")
    if not isinstance(shape, list) or not all(_natural(n) for n in shape) or len(shape) > 64:
        raise EvidenceError(f"{where}: shape {shape!r:.80}; expected a list of non-negative integers. {COPY_AGAIN}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(n) for n in offsets) or offsets[0] > offsets[1]:
        raise EvidenceError(f"{where}: data_offsets {offsets!r:.80}; expected [begin, end] with begin <= end. {COPY_AGAIN}")
    begin, end = offsets
    if end > data_bytes:
        raise EvidenceError(f"{where}: data_offsets end at byte {end} of the data but the file holds only {data_bytes}; expected them inside the file. {COPY_AGAIN}")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (end - begin):
        raise EvidenceError(
            f"{where}: shape {shape} of {dtype} takes {-(-bits // 8)} bytes but data_offsets span {end - begin}; expected them to be equal. {COPY_AGAIN}"
        )
    return TensorInfo(name, path, dtype, tuple(shape), end - begin, start + begin)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name to shard name; every shard is a plain file name in the index's own folder."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise EvidenceError(f"{index}: no `weight_map` object; expected tensor names and their shards. Fetch the index again.")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard == Path(shard).name and "\\" not in shard and "\0" not in shard
        if not plain or not shard.endswith(".safetensors"):
            raise EvidenceError(
                f"{index}: `weight_map` places {name!r:.120} in {shard!r:.120}; expected the plain name of a .safetensors file in this "
                "folder. Do not use this checkpoint before you know who wrote its index."
            )
    return weight_map


def _raw(info: TensorInfo, rows: Rows) -> np.ndarray:
    """The asked rows with the bytes as they are on disk; mapped for a range of rows, read run by run for a list of them."""
    if info.offset is None:
        return archives.raw_array(_torch_rows(info, rows))
    if info.dtype not in STORAGE:
        raise EvidenceError(f"{info.file}: tensor {info.name!r:.120} is {info.dtype}, which this reader lists but cannot load; compare an unpacked export.")
    kind, shape = np.dtype(STORAGE[info.dtype]), info.shape
    row_bytes = math.prod(shape[1:]) * kind.itemsize
    start = info.offset + info.row_start * row_bytes
    picked = _picked(info, rows)
    try:
        if info.file.stat().st_size < info.offset + info.nbytes:
            raise EvidenceError(f"{info.file}: became shorter than its header says while it was being read. {COPY_AGAIN}")
        if isinstance(picked, range):
            shape = (len(picked), *shape[1:]) if shape else shape
            if 0 in shape:
                return np.empty(shape, kind)
            begin = start + picked.start * row_bytes
            return np.memmap(info.file, kind, "c", begin, shape).view(np.ndarray)
        out = np.empty((len(picked), row_bytes), np.uint8)
        with info.file.open("rb", buffering=0) as file:
            _fill(out, file, info, start, _runs(picked))
        return out.view(kind).reshape(len(picked), *shape[1:])
    except OSError as error:
        raise EvidenceError(f"{info.file}: cannot be read ({error.strerror}). Check the path and its permissions.") from None


def _runs(picked: Sequence[int]) -> list[tuple[int, int, int]]:
    """Consecutive rows that are read together: place of the first among those asked for, its row, how many."""
    cuts = [0, *(np.flatnonzero(np.diff(picked) != 1) + 1).tolist(), len(picked)] if len(picked) else [0]
    return [(a, picked[a], b - a) for a, b in itertools.pairwise(cuts)]


def _fill(out: np.ndarray, file: BinaryIO, info: TensorInfo, start: int, runs: list[tuple[int, int, int]]) -> None:
    """Read runs of rows, whose first one begins at byte `start`, to their places in `out` [rows, bytes of one]."""
    row_bytes = out.shape[1]
    for place, row, count in runs:
        file.seek(start + row * row_bytes)
        if file.readinto(out[place : place + count]) != count * row_bytes:
            raise EvidenceError(f"{info.file}: row {row} of {info.name!r:.120} or one after it ends early. {COPY_AGAIN}")


def _picked(info: TensorInfo, rows: Rows) -> range | list[int]:
    """The asked rows: a range of consecutive ones, or a list in the asked order."""
    count = info.shape[0] if info.shape else 1
    if rows is None:
        return range(count)
    if not info.shape:
        raise ValueError(f"{info.name}: rows of a scalar were asked for; expected rows=None.")
    if isinstance(rows, slice):
        spread = range(*rows.indices(count))
        return spread if spread.step == 1 else list(spread)
    wanted = np.asarray(rows, np.int64).tolist()
    if wanted and not 0 <= min(wanted) <= max(wanted) < count:
        outside = next(row for row in wanted if not 0 <= row < count)
        raise ValueError(f"{info.name}: row {outside} was asked for; expected rows in 0..{count - 1} ({info.file}).")
    return wanted


def _torch_rows(info: TensorInfo, rows: Rows) -> torch.Tensor:
    tensor = archives.open_tensor(info)
    if tensor.ndim:
        tensor = tensor[info.row_start : info.row_start + info.shape[0]]
    picked = _picked(info, rows)
    if rows is None:
        return tensor
    return tensor[picked.start : picked.start + len(picked)] if isinstance(picked, range) else tensor[picked]

