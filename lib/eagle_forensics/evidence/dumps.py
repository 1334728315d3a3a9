"""Dumps: what a folder of recorded hidden states says about itself, and its samples, one at a time.

`find_dump` recognises the layout by the content of the first readable files and reads what stands beside the samples
(`manifest.json`, `data_config.json`); `read_sample` and `iter_samples` give canonical Samples. Readers judge nothing:
labels and layer ids are handed on as the claims they are.
"""

from __future__ import annotations

import difflib
import functools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.containers import shown
from eagle_forensics.evidence.layouts import LAYOUTS, Layout, layout_named, layout_of
from eagle_forensics.evidence.listing import SUFFIXES, sample_files
from eagle_forensics.evidence.records import DumpInfo, EvidenceError, Sample
from eagle_forensics.evidence.remote import Remote, remote
from eagle_forensics.evidence.samples import members_of, open_sample, read_member
from eagle_forensics.evidence.side_files import layer_ids, plane_labels, shard_counts

PROBES = 16
"""Files opened in search of samples that tell the layout: a dump may begin with damaged ones."""
VOTES = 5
"""Samples that decide the layout and the widths of the planes: a stray file is not the dump."""
MOST_COUNTED = 2000
"""Files that are opened to count their samples; where there are more, all hold as many as the first ones."""

Kind = tuple[Layout, tuple[int, ...]]


def find_dump(path: str | Path, format: str = "auto") -> DumpInfo:
    """The dump at `path` (folder, single file or fsspec URL): layout, samples in order, and its own claims about its planes.

    `format` forces a layout by name. Raises EvidenceError if nothing there is a sample of hidden states.
    """
    forced = _forced(format)
    far = remote(path)
    path = Path(path) if far is None else far.folder
    if far is None and not path.exists():
        raise EvidenceError(f"{path}: no such folder. Point training.dump.path at the folder that holds the samples.")
    files = [path] if path.is_file() else sample_files(path, far.walk() if far else None)
    if not files:
        raise EvidenceError(f"{path}: no sample files ({', '.join(SUFFIXES)}, or any other that holds tensors) in it. {_what_is_it(path)}")
    notes: list[str] = []
    layout, widths = _probe(path, files, forced, far, notes)
    folder = path if path.is_dir() else path.parent
    files, members = _listed(folder, files, layout, far, notes)
    return DumpInfo(path, layout.name, tuple(files), plane_labels(folder, len(widths), notes), layer_ids(folder, notes), tuple(notes),
                    tuple(members), widths, far)


def read_sample(info: DumpInfo, index: int) -> Sample:
    """Sample `index` of the dump. Raises EvidenceError naming the file if it is damaged, foreign, empty or of another width."""
    if not 0 <= index < len(info.files):
        raise EvidenceError(f"{info.path}: no sample {index}; the dump has {len(info.files)} (0 to {len(info.files) - 1}).")
    file, layout = info.files[index], layout_named(info.format)
    if info.remote:
        info.remote.fetch(file)
    before = signature(file)
    if not info.members:
        sample = read_member(layout, members_of(layout, open_sample(file), file)[0], file)
    else:
        held, number = _opened(file, layout, before), info.members[index]
        last = index + 1 == len(info.files) or info.members[index + 1] == 0
        if number >= len(held) or (last and number + 1 < len(held)):
            raise EvidenceError(f"{file}: holds {len(held)} samples, {number + 1} were expected. It was exchanged, or its manifest is stale: list the dump again.")
        sample = read_member(layout, held[number], file, number)
    widths = tuple(plane.data.shape[1] for plane in sample.planes)
    if widths != info.widths:
        raise EvidenceError(f"{file}: its planes are {_widths(widths)} wide, those of the dump {_widths(info.widths)}. It comes from another target or "
                            "recorder, or is cut: move it out of the dump.")
    if signature(file) != before:
        raise EvidenceError(f"{file}: was changed while it was read. Wait until the dump is written.")
    if info.labels:
        sample = replace(sample, planes=tuple(replace(p, label=info.labels[p.slot]) for p in sample.planes))
    return sample


def iter_samples(info: DumpInfo, limit: int | None = None, seed: int | None = None,
                 problems: list[str] | None = None) -> Iterator[Sample]:
    """Up to `limit` readable samples, one in memory at a time: in file order, or drawn at random with `seed`.

    The message of every unreadable file, and of every file that changed while its sample was in use, is appended to `problems`
    and the rest goes on; without that list the first one raises EvidenceError.
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
            before = signature(sample.source)
            found += 1
            yield sample
            if signature(sample.source) != before:
                raise EvidenceError(f"{sample.source}: was changed while its sample was in use; what was computed from it may mix two recordings. "
                                    "Wait until the dump is written.")
        except EvidenceError as error:
            if problems is None:
                raise
            problems.append(str(error))


def signature(file: Path) -> tuple[Any, ...]:
    """Changes when the file, or a file of the folder, is written."""
    try:
        parts = sorted(file.iterdir()) if file.is_dir() else [file]
        return tuple((p.name, s.st_size, s.st_mtime_ns, s.st_ino) for p in parts for s in [p.stat()])
    except OSError:
        return ()


def _forced(format: str) -> Layout | None:
    if format == "auto":
        return None
    names = [layout.name for layout in LAYOUTS]
    if format not in names:
        near = difflib.get_close_matches(format, names, n=1)
        raise EvidenceError(f"dump format {format!r} is not known." + (f" Did you mean {near[0]!r}?" if near else "")
                            + f" Known: auto, {', '.join(names)}.")
    return layout_named(format)


def _probe(path: Path, files: list[Path], forced: Layout | None, far: Remote | None, notes: list[str]) -> Kind:
    """Layout and widths that most of the first readable samples have."""
    seen: list[Kind] = []
    refused: list[str] = []
    for file in files[:PROBES]:
        try:
            seen.append(_kind(file, forced, far))
        except EvidenceError as error:
            refused.append(str(error))
        if len(seen) == VOTES:
            break
    if not seen:
        known = "; ".join(f"{layout.name}: {layout.shows}" for layout in ([forced] if forced else LAYOUTS))
        raise EvidenceError(f"{path}: none of its first {len(refused)} file(s) is a readable sample. First: {refused[0]} "
                            f"Expected {known}. {_what_is_it(path)}".rstrip())
    votes = Counter((layout.name, widths) for layout, widths in seen).most_common()
    (name, widths), count = votes[0]
    if len(votes) > 1:
        others = ", ".join(f"{n} of {other} ({_widths(w)})" for (other, w), n in votes[1:])
        notes.append(f"the dump is mixed: of its first samples {count} are {name} ({_widths(widths)} wide), {others}; only the former are read.")
    return layout_named(name), widths


def _kind(file: Path, forced: Layout | None, far: Remote | None) -> Kind:
    if far:
        far.fetch(file)
    content = open_sample(file)
    layout = layout_of(content)
    if layout is None:
        bare = "" if isinstance(content, dict) else "; a bare tensor can be read as a capture"
        raise EvidenceError(f"{file}: holds {shown(content)}, which is no known layout{bare}.")
    if forced and layout is not forced:
        raise EvidenceError(f"{file}: is {layout.name}, not {forced.name} ({forced.shows}).")
    held = members_of(layout, content, file)
    if not held:
        raise EvidenceError(f"{file}: holds no sample from its first token.")
    return layout, tuple(plane.data.shape[1] for plane in read_member(layout, held[0], file).planes)


def _listed(folder: Path, files: list[Path], layout: Layout, far: Remote | None, notes: list[str]) -> tuple[list[Path], list[int]]:
    """Every sample's file and its number in it. A file that cannot be opened stays one entry: reading it says why."""
    if layout.members is None:
        return files, []
    known = shard_counts(folder, notes)
    entries: list[tuple[Path, int]] = []
    empty, usual = 0, None
    for index, file in enumerate(files):
        count = known.get(file.relative_to(folder).as_posix()) if file.is_relative_to(folder) else None
        if count is None:
            if index < MOST_COUNTED or usual is None:
                usual = _count(file, layout, far)
            count = usual
        empty += count == 0
        entries += [(file, number) for number in range(count)]
    if empty:
        notes.append(f"{empty} of {len(files)} recordings hold no sequence from its first token (decode steps, cached prefixes); they are left out.")
    return [file for file, _ in entries], [number for _, number in entries]


def _count(file: Path, layout: Layout, far: Remote | None) -> int:
    try:
        if far:
            far.fetch(file)
        return len(members_of(layout, open_sample(file), file))
    except EvidenceError:
        return 1


@functools.lru_cache(maxsize=2)
def _opened(file: Path, layout: Layout, signature: tuple[Any, ...]) -> Sequence[Any]:
    """Members of a file that holds several; kept because they are asked for one after another."""
    return members_of(layout, open_sample(file), file)


def _widths(widths: tuple[int, ...]) -> str:
    return f"{len(widths)} x {widths[0]}" if len(set(widths)) == 1 else ", ".join(map(str, widths))[:120]


def _what_is_it(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return "It looks like a model checkpoint: a dump is a folder of recorded hidden states."
    return "Point training.dump.path at the folder that holds the samples." if path.is_dir() else ""
