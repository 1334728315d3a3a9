"""Torch archives (`pytorch_model.bin`, `training_state.pt`): opened by torch with weights_only and mmap, or not at all."""

from __future__ import annotations

import functools
import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_forensics.evidence.records import EvidenceError, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import torch

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U16": "uint16", "U32": "uint32",
    "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""safetensors dtype to its name in torch."""

STATE_KEYS = ("draft_state_dict", "state_dict", "model_state_dict", "model", "module")
"""Where trainers nest the weights (SpecForge training_state.pt: draft_state_dict)."""


def read_torch_index(path: Path | str) -> dict[str, TensorInfo]:
    """Name to TensorInfo of one torch archive, data left on disk; a nested `draft_state_dict` or `state_dict` is entered.

    EvidenceError for an archive that would need more than tensors and plain containers to open.
    """
    path = Path(path)
    infos = {}
    for name, tensor in _state(path).items():
        dtype = {v: k for k, v in DTYPES.items()}.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None or str(tensor.layout) != "torch.strided":
            raise EvidenceError(
                f"{path}: tensor {name!r:.120} is {tensor.dtype}, {tensor.layout}; expected a dense tensor of a plain type. "
                "Export the checkpoint as safetensors."
            )
        infos[name] = TensorInfo(name, path, dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size())
    return infos


def tensors_only(source: Path | io.BytesIO) -> Any:
    """The one place where torch reads a pickle: tensors, numbers, text, lists and dicts, never code; mapped where it is a file.

    ValueError for an archive in memory whose entries are packed: torch.save stores them as they are, and a few packed bytes can be gigabytes.
    """
    import torch

    if not isinstance(source, Path):
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
        if any(e.compress_type for e in entries) or sum(e.file_size for e in entries) > source.getbuffer().nbytes:
            raise ValueError("its entries are packed, which torch.save never does")
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=isinstance(source, Path))


def code_wanted(error: Exception) -> str | None:
    """The name a refused pickle asked for (`os.system`), None if the error is no such refusal or names nothing."""
    wanted = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
    return wanted[1] if wanted else None


def load_archive(path: Path | str) -> Any:
    """The content of a torch archive (`weights_only=True`, mapped where the format allows it); EvidenceError with the reason."""
    path = Path(path)
    if not path.is_file():
        raise EvidenceError(f"{path}: does not exist; expected a torch archive. Correct the path in the case.")
    try:
        return tensors_only(path)
    except Exception as error:  # a hostile pickle may raise anything
        reason = " ".join(str(error).split())
        if isinstance(error, pickle.UnpicklingError):
            raise EvidenceError(
                f"{path}: opening it would need {code_wanted(error) or 'more than tensors'}, that is, run code of the file; expected only tensors, "
                "numbers, strings, lists and dicts. It was refused: export it as safetensors where it was made."
            ) from None
        raise EvidenceError(
            f"{path}: no torch archive ({type(error).__name__}: {reason.split('. ')[0][:160]}); expected a file of torch.save in zip format. "
            "Copy it again, or export the checkpoint as safetensors."
        ) from None


def open_tensor(info: TensorInfo) -> torch.Tensor:
    """The whole mapped tensor behind a TensorInfo of an archive."""
    return _state(info.file)[info.name]


def torch_dtype(dtype: str) -> torch.dtype:
    """torch's type for a safetensors dtype."""
    import torch

    return getattr(torch, DTYPES[dtype])


def raw_array(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor as numpy, in the storage type of its dtype (see tensors.STORAGE)."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("u2")
    if str(tensor.dtype).startswith("torch.float8"):
        return tensor.view(torch.uint8).numpy()
    return tensor.numpy()


def _state(path: Path) -> dict[str, torch.Tensor]:
    try:
        stat = path.stat()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Check the path and its permissions.") from None
    return _state_of(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _state_of(path: Path, mtime_ns: int, size: int) -> dict[str, torch.Tensor]:
    import torch

    content = load_archive(path)
    if isinstance(content, dict):
        content = next((content[k] for k in STATE_KEYS if isinstance(content.get(k), dict)), content)
        tensors = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, torch.Tensor)}
        if tensors:
            return tensors
    raise EvidenceError(
        f"{path}: holds {type(content).__name__} without tensors; expected a state dict (name to tensor), bare or under "
        f"{' or '.join(STATE_KEYS)}. Name the file with the drafter's weights."
    )
