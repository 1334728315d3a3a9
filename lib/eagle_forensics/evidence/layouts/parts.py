"""What a layout is, and the steps that several of them share: batch dimensions of one, joined planes, padded batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eagle_forensics.evidence.records import MOST_IDS, Provenance

NOTHING = Provenance()


class Parts(NamedTuple):
    """One sample as its file holds it: planes `(label, [T, H])` in slot order, raw ids and mask, unshifted."""

    planes: list[tuple[str | None, torch.Tensor]]
    input_ids: torch.Tensor | None = None
    loss_mask: torch.Tensor | None = None
    provenance: Provenance = NOTHING
    name: str | None = None
    """What the recording calls the sample, where several files (one a rank) hold the same one; None: the file's name."""
    rank: int | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Layout:
    """One way to lay out samples in a file. ValueError from `members` or `read` says what does not fit."""

    name: str
    shows: str
    """What marks it, for people."""
    test: Callable[[Any], bool]
    read: Callable[[Any, Path], Parts]
    """Parts of one sample; the path only tells ranks and names."""
    members: Callable[[Any], Sequence[Any]] | None = None
    """The samples in one file, each as `read` takes it; None: a file is a sample."""


def has_rank(content: Any, key: str, rank: int) -> bool:
    """Whether `key` is a tensor of this rank, a batch dimension of one left out."""
    value = content.get(key) if isinstance(content, Mapping) else None
    return isinstance(value, torch.Tensor) and rank == (value.dim() - 1 if value.dim() == 3 and value.shape[0] == 1 else value.dim())


def rows(value: torch.Tensor) -> torch.Tensor:
    """States without a batch dimension of one."""
    return value[0] if value.dim() == 3 and value.shape[0] == 1 else value


def flat(content: Mapping[str, Any], *keys: str) -> torch.Tensor | None:
    """First of `keys` that is a tensor, without a batch dimension of one: ids or mask [T]."""
    for key in keys:
        value = content.get(key)
        if isinstance(value, torch.Tensor):
            return value[0] if value.dim() == 2 and value.shape[0] == 1 else value
    return None


def split(content: Mapping[str, Any], aux: str, last: str) -> list[tuple[str, torch.Tensor]]:
    """Planes of a joined `aux` [T, n*H] and the `last` [T, H], in that order."""
    wide, narrow = rows(content[aux]), rows(content[last])
    hidden = narrow.shape[-1]
    if hidden == 0 or wide.shape[-1] % hidden:
        raise ValueError(f"`{aux}` is {wide.shape[-1]} wide, no multiple of the {hidden} of `{last}`")
    return [*joined(aux, wide, hidden), (last, narrow)]


def joined(label: str, wide: torch.Tensor, hidden: int) -> list[tuple[str, torch.Tensor]]:
    """Planes of a joined tensor [T, n*H]; ValueError for more than any model has layers."""
    if wide.shape[-1] > MOST_IDS * hidden:
        raise ValueError(f"`{label}` is {wide.shape[-1]} wide, that is {wide.shape[-1] // hidden} planes of {hidden}")
    return [(f"{label}[{i}]", wide[:, i * hidden:(i + 1) * hidden]) for i in range(wide.shape[-1] // hidden)]


def pair(content: Mapping[str, Any], aux: str, last: str) -> Parts:
    """A sample whose planes are joined in `aux` and followed by `last`."""
    return Parts(split(content, aux, last), flat(content, "input_ids"), flat(content, "loss_mask"))


def sequences(positions: torch.Tensor) -> list[slice]:
    """Sequences of a batch that lie one after another, by their positions [T]: those that begin with their first token.

    Decode steps and prompts whose beginning came out of the prefix cache have no rows here for what the states depend on;
    they are left out.
    """
    starts = torch.nonzero(torch.cat([torch.ones(1, dtype=torch.bool), positions[1:] != positions[:-1] + 1])).flatten().tolist()
    ends = [*starts[1:], positions.shape[0]]
    return [slice(a, b) for a, b in zip(starts, ends, strict=True) if positions[a] == 0]


def rank_in(file: Path) -> tuple[str | None, int | None, int | None]:
    """Name, rank and number of ranks of `{name}.rank{R}of{N}.safetensors`, as the files for serving hosts write it; None three times for another name."""
    found = re.fullmatch(r"(.+)\.rank(\d{1,5})of(\d{1,5})", file.stem)
    return (found[1], int(found[2]), int(found[3])) if found else (None, None, None)
