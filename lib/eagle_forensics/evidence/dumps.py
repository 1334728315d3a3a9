"""Dumps: what a folder of recorded hidden states says about itself, and its samples, one at a time.

`find_dump` recognises the layout by the content of its first readable file and reads what stands beside the samples
(`manifest.json`, `data_config.json`); `read_sample` and `iter_samples` give canonical Samples. Readers judge nothing:
labels and layer ids are handed on as the claims they are.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts import LAYOUTS, Layout, layout_of, open_sample
from eagle_forensics.evidence.records import MOST_IDS, DumpInfo, EvidenceError, Plane, Sample

SUFFIXES = (".pt", ".pth", ".ckpt", ".ckpt.gz", ".safetensors")
SIDE_FILES = re.compile(r"(cache|vocab_mapping|token_freq|training_state|optimizer|scheduler|rng_state|d2t|t2d)\b.*"
                        r"|(model|pytorch_model|adapter_model)(-\d+-of-\d+)?\.\w+")
"""Files of trainers and checkpoints that lie beside samples and are none."""
PROBES = 16
"""Files opened in search of one that tells the layout: a dump may begin with damaged ones."""
BARE_FOLDERS = 2000
"""Folders without a sample that are searched: a link can lead out of the dump into a whole file system."""
SIDE_LIMIT = 64 << 20
"""Bytes of a manifest.json worth reading: a larger one is no list of plane names."""


def find_dump(path: str | Path, format: str = "auto") -> DumpInfo:
    """The dump at `path` (folder or single file): layout, sample files in order, and its own claims about its planes.

    `format` forces a layout by name. Raises EvidenceError if nothing there is a sample of hidden states.
    """
    path = Path(path)
    forced = _forced(format)
    if not path.exists():
        raise EvidenceError(f"{path}: no such folder. Point training.dump.path at the folder that holds the samples.")
    files = _sample_files(path)
    if not files:
        raise EvidenceError(f"{path}: no sample files ({', '.join(SUFFIXES)}) in it. {_what_is_it(path)}")
    layout, planes = _probe(path, files, forced)
    notes: list[str] = []
    folder = path if path.is_dir() else path.parent
    return DumpInfo(path=path, format=layout.name, files=tuple(files), labels=_labels(folder / "manifest.json", planes, notes),
                    layer_ids=_layer_ids(folder / "data_config.json", notes), notes=tuple(notes))


def read_sample(info: DumpInfo, index: int) -> Sample:
    """Sample `index` of the dump. Raises EvidenceError naming the file if it is damaged, foreign or empty."""
    if not 0 <= index < len(info.files):
        raise EvidenceError(f"{info.path}: no sample {index}; the dump has {len(info.files)} (0 to {len(info.files) - 1}).")
    return _read(info.files[index], _by_name(info.format), info)


def iter_samples(info: DumpInfo, limit: int | None = None, seed: int | None = None,
                 problems: list[str] | None = None) -> Iterator[Sample]:
    """Up to `limit` readable samples, one in memory at a time: in file order, or drawn at random with `seed`.

    The message of every unreadable file is appended to `problems` and the rest goes on; without that list the first
    one raises EvidenceError.
    """
    order = list(range(len(info.files)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    found = 0
    for index in order:
        if limit is not None and found >= limit:
            return
        try:
            sample = read_sample(info, index)
        except EvidenceError as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        found += 1
        yield sample


def _forced(format: str) -> Layout | None:
    if format == "auto":
        return None
    names = [layout.name for layout in LAYOUTS]
    if format not in names:
        near = difflib.get_close_matches(format, names, n=1)
        raise EvidenceError(f"dump format {format!r} is not known." + (f" Did you mean {near[0]!r}?" if near else "")
                            + f" Known: auto, {', '.join(names)}.")
    return _by_name(format)


def _by_name(name: str) -> Layout:
    return next(layout for layout in LAYOUTS if layout.name == name)


def _sample_files(path: Path) -> list[Path]:
    """Sample files under `path` in natural order; a folder of aux_*.pt counts as one sample."""
    if path.is_file():
        return [path]
    found: list[Path] = []
    seen: set[str] = set()
    bare = 0
    for folder, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link back into the dump
            folders.clear()
            continue
        seen.add(real)
        folders.sort(key=_natural)
        if "aux_0.pt" in names:
            found.append(Path(folder))
            continue
        here = [Path(folder) / name for name in names if name.endswith(SUFFIXES) and not SIDE_FILES.fullmatch(name)]
        found += here
        bare += not here
        if bare > BARE_FOLDERS:
            raise EvidenceError(f"{path}: more than {BARE_FOLDERS} folders without a sample in it, the last one {folder}. Does a link lead out "
                                "of the dump? Point training.dump.path at the folder that holds the samples.")
    return sorted(found, key=lambda p: _natural(str(p.relative_to(path))))


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _probe(path: Path, files: list[Path], forced: Layout | None) -> tuple[Layout, int]:
    """Layout and number of planes, by the first readable sample."""
    refused: list[str] = []
    for file in files[:PROBES]:
        try:
            content = open_sample(file)
            layout = layout_of(content)
            if layout is None:
                refused.append(f"{file}: holds {_keys(content)}, which is no known layout.")
            elif forced and layout is not forced:
                refused.append(f"{file}: is {layout.name}, not {forced.name} ({forced.shows}).")
            else:
                return layout, len(_read(file, layout, None, content).planes)
        except EvidenceError as error:
            refused.append(str(error))
    known = "; ".join(f"{layout.name}: {layout.shows}" for layout in ([forced] if forced else LAYOUTS))
    raise EvidenceError(f"{path}: none of its first {len(refused)} file(s) is a readable sample. First: {refused[0]} "
                        f"Expected {known}. {_what_is_it(path)}".rstrip())


def _what_is_it(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return "It looks like a model checkpoint: a dump is a folder of recorded hidden states."
    return "Point training.dump.path at the folder that holds the samples." if path.is_dir() else ""


def _keys(content: Any) -> str:
    shown = [f"{k} {list(v.shape)}" if isinstance(v, torch.Tensor) else f"{k} ({type(v).__name__})" for k, v in content.items()]
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "") or "nothing"


def _read(file: Path, layout: Layout, info: DumpInfo | None, content: Any = None) -> Sample:
    content = open_sample(file) if content is None else content
    if not layout.test(content):
        raise EvidenceError(f"{file}: expected {layout.name} ({layout.shows}), found {_keys(content)}. "
                            "Move files of another kind out of the dump.")
    try:
        parts = layout.read(content)
        labels = info.labels if info else None
        planes = tuple(Plane(slot, labels[slot] if labels and slot < len(labels) else label, _plane(data, slot))
                       for slot, (label, data) in enumerate(parts.planes))
        rows = planes[0].data.shape[0]
        if rows == 0:
            raise ValueError("it holds 0 tokens")
        if any(plane.data.shape[0] != rows for plane in planes):
            raise ValueError(f"its planes differ in length: {[p.data.shape[0] for p in planes]} tokens")
        ids, mask = _ids(parts.input_ids, rows), _mask(parts.loss_mask, rows)
    except ValueError as error:
        raise EvidenceError(f"{file}: {error}. Record it again, or remove it from the dump.") from None
    except (RuntimeError, IndexError, TypeError) as error:
        raise EvidenceError(f"{file}: its tensors do not fit the layout {layout.name} ({str(error)[:120]}). "
                            "Record it again, or remove it from the dump.") from None
    return Sample(planes=planes, input_ids=ids, loss_mask=mask, source=file, sample_id=file.name)


def _plane(data: torch.Tensor, slot: int) -> torch.Tensor:
    if data.layout is not torch.strided or data.is_meta or data.is_quantized or not data.is_floating_point():
        raise ValueError(f"plane {slot} is {data.dtype} {data.layout}, expected dense floating-point states")
    if data.dim() != 2:
        raise ValueError(f"plane {slot} has the shape {list(data.shape)}, expected [tokens, hidden]")
    if data.nbytes > data.untyped_storage().nbytes():
        raise ValueError(f"plane {slot} claims {list(data.shape)}, more than the {data.untyped_storage().nbytes()} bytes stored for it")
    return data


def _ids(ids: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if ids is None:
        return None
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"token ids are {ids.dtype} {list(ids.shape)}, expected whole numbers [{rows}]")
    if ids.shape[0] != rows:
        raise ValueError(f"{ids.shape[0]} token ids for {rows} rows of hidden states")
    return ids.to(torch.int64)


def _mask(mask: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) != (rows,):
        raise ValueError(f"loss mask {list(mask.shape)} for {rows} rows of hidden states")
    return mask.to(torch.bool)


def _side(path: Path, notes: list[str]) -> Any:
    """A JSON file beside the samples, or None; what is wrong with it becomes a note."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > SIDE_LIMIT:
            raise ValueError("larger than any manifest")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({str(error)[:80]}); it is left out.")
        return None


def _labels(path: Path, planes: int, notes: list[str]) -> tuple[str, ...] | None:
    manifest = _side(path, notes)
    if manifest is None:
        return None
    labels = manifest.get("planes") if isinstance(manifest, dict) else None
    if labels is None:
        notes.append(f"{path.name} names no `planes`; the planes have no labels.")
    elif not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        notes.append(f"{path.name}: `planes` is no list of names; it is left out.")
    elif len(labels) != planes:
        notes.append(f"{path.name} names {len(labels)} planes ({', '.join(labels)[:120]}), the samples hold {planes}; "
                     "the labels are left out.")
    else:
        return tuple(labels)
    return None


def _layer_ids(path: Path, notes: list[str]) -> tuple[int, ...] | None:
    """`hidden_states.layer_ids` of speculators 0.3/0.4 (config_generator.py), also at the top level."""
    config = _side(path, notes)
    if not isinstance(config, dict):
        return None
    inner = config.get("hidden_states")
    ids = (inner if isinstance(inner, dict) else config).get("layer_ids")
    if isinstance(ids, list) and 0 < len(ids) <= MOST_IDS and all(type(i) is int for i in ids):
        return tuple(ids)
    notes.append(f"{path.name} holds no list of layer ids; it is left out.")
    return None
