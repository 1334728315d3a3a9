"""One sample as a record: the parts that a layout names, checked against each other. Planes keep file order, rows are not shifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.containers import open_file, shown
from eagle_forensics.evidence.layouts import Layout, plane_folder, sglang_dumper
from eagle_forensics.evidence.listing import parts_of
from eagle_forensics.evidence.records import EvidenceError, Plane, Sample

BESIDE_PLANES = ("final", "input_ids", "token_ids", "loss_mask")
"""Files of a plane folder beside `aux_{i}`."""


def open_sample(file: Path) -> Any:
    """Contents of a listed sample: of its file, of its folder by name, or of all files of its step. EvidenceError with the reason."""
    if file.is_dir():
        parts = {p.stem: _only(open_file(p)) for p in sorted(file.iterdir()) if plane_folder.PLANE.fullmatch(p.stem) or p.stem in BESIDE_PLANES}
        return {name: value for name, value in parts.items() if isinstance(value, torch.Tensor)}
    if sglang_dumper.tags_of(file.name) is None:
        return open_file(file)
    names = parts_of(file, (p.name for p in file.parent.iterdir()))
    opened = [(sglang_dumper.tags_of(name), open_file(file.parent / name)) for name in names]
    return sglang_dumper.Step(tuple(sorted(opened, key=lambda item: item[0].index)))


def members_of(layout: Layout, content: Any, file: Path) -> Sequence[Any]:
    """The samples in an opened file. EvidenceError if it does not have the layout."""
    if not layout.test(content):
        raise EvidenceError(f"{file}: expected {layout.name} ({layout.shows}), found {shown(content)}. Move files of another kind out of the dump.")
    try:
        return [content] if layout.members is None else layout.members(content)
    except (ValueError, RuntimeError, IndexError, TypeError, AttributeError, KeyError) as error:
        raise _misfit(file, layout, error) from None


def read_member(layout: Layout, member: Any, file: Path, number: int | None = None, *, partial: bool = False) -> Sample:
    """A sample out of its member. EvidenceError naming file and number if its parts do not fit each other.

    `partial`: fewer rows than token ids are no error, as in a capture behind a prefix cache; the ids become `prompt_ids`.
    """
    at = file if number is None else f"{file}[{number}]"
    try:
        parts = layout.read(member, file)
        planes = tuple(Plane(slot, label, _plane(data, slot)) for slot, (label, data) in enumerate(parts.planes))
        length = planes[0].data.shape[0]
        if length == 0:
            raise ValueError("it holds 0 tokens")
        if any(plane.data.shape[0] != length for plane in planes):
            raise ValueError(f"its planes differ in length: {[p.data.shape[0] for p in planes]} tokens")
        whole = parts.input_ids if partial and parts.input_ids is not None and len(parts.input_ids) > length else None
        ids = _ids(whole, len(whole)) if whole is not None else _ids(parts.input_ids, length)
        mask = None if whole is not None and parts.loss_mask is not None and len(parts.loss_mask) == len(whole) else _mask(parts.loss_mask, length)
    except ValueError as error:
        raise EvidenceError(f"{at}: {error}. Record it again, or remove it from the dump.") from None
    except (RuntimeError, IndexError, TypeError, AttributeError, KeyError) as error:
        raise _misfit(at, layout, error) from None
    name = (parts.name or file.name) + ("" if number is None else f"[{number}]")
    about = parts.provenance if parts.provenance.dtype else replace(parts.provenance, dtype=_dtype(planes[0].data))
    return Sample(planes, ids if whole is None else None, mask, file, name, rank=parts.rank, ranks=parts.ranks, provenance=about, prompt_ids=None if whole is None else ids)


def _only(content: Any) -> Any:
    """The tensor of a file that holds one under a name."""
    return next(iter(content.values())) if isinstance(content, Mapping) and len(content) == 1 else content


def _misfit(at: Any, layout: Layout, error: Exception) -> EvidenceError:
    return EvidenceError(f"{at}: its contents do not fit the layout {layout.name} ({type(error).__name__}: {str(error)[:120]}). "
                         "Record it again, or remove it from the dump.")


def _dtype(data: torch.Tensor) -> str:
    return str(data.dtype).removeprefix("torch.")


def _plane(data: torch.Tensor, slot: int) -> torch.Tensor:
    if data.layout is not torch.strided or data.is_meta or data.is_quantized or not data.is_floating_point():
        raise ValueError(f"plane {slot} is {data.dtype} {data.layout}, expected dense floating-point states")
    if data.dtype.itemsize == 1:
        raise ValueError(f"plane {slot} is {_dtype(data)} without scales, so its values are known up to a factor a token only; the scales of the "
                         "recording (`hidden_states_scales`) are needed")
    if data.dim() != 2:
        raise ValueError(f"plane {slot} has the shape {list(data.shape)}, expected [tokens, hidden]")
    if not data.shape[1]:
        raise ValueError(f"plane {slot} has no columns")
    if data.nbytes > data.untyped_storage().nbytes():
        raise ValueError(f"plane {slot} claims {list(data.shape)}, more than the {data.untyped_storage().nbytes()} bytes stored for it")
    return data.detach()


def _ids(ids: torch.Tensor | None, length: int) -> torch.Tensor | None:
    if ids is None:
        return None
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"token ids are {ids.dtype} {list(ids.shape)}, expected whole numbers [{length}]")
    if ids.shape[0] != length:
        raise ValueError(f"{ids.shape[0]} token ids for {length} rows of hidden states")
    return ids.to(torch.int64)


def _mask(mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) != (length,):
        raise ValueError(f"loss mask {list(mask.shape)} for {length} rows of hidden states")
    return mask.to(torch.bool)
