"""Which files of a folder are samples: by name and first bytes, in natural order, without opening the dump.

Several files can be one sample: a folder of plane files (`aux_0.pt`, ..., `final.pt`), or the files of one step and rank of SGLang's dumper.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from eagle_forensics.evidence.containers import kind_of
from eagle_forensics.evidence.layouts import plane_folder, sglang_dumper
from eagle_forensics.evidence.records import EvidenceError

SUFFIXES = (".pt", ".pth", ".ckpt", ".ckpt.gz", ".safetensors")
"""Endings of every trainer's samples; files with another ending count if the first ones of that ending hold tensors."""
SIDE_FILES = re.compile(r"(cache|vocab_mapping|token_freq|training_state|optimizer|scheduler|rng_state|d2t|t2d)\b.*"
                        r"|(model|pytorch_model|adapter_model)(-\d+-of-\d+)?\.\w+|\..*|.*\.(lock|tmp)"
                        r"|(manifest|metadata|data_config|sample_lengths|config|.*\.index)\.json")
"""Files of trainers and checkpoints that lie beside samples and are none."""
NUMBER = re.compile(r"\d+")
PROBED = 4
"""Files of an unknown ending whose first bytes are read."""
BARE_FOLDERS = 2000
"""Folders without a sample that are searched: a link can lead out of the dump into a whole file system."""

Walk = Iterable[tuple[Path, list[str]]]


def sample_files(path: Path, walk: Walk | None = None) -> list[Path]:
    """Sample files under `path` in natural order; of a sample in several files its first one, or their folder.

    `walk` gives folders and the names in them where they are not (all) on this disk. EvidenceError for a maze of empty folders.
    """
    found: list[tuple[str, Path]] = []
    bare = 0
    for folder, names in walk if walk is not None else walked(path):
        under = "" if folder == path else f"{folder.relative_to(path)}/"
        if any(plane_folder.PLANE.fullmatch(name.partition(".")[0]) for name in names):
            found.append((natural(under), folder))
            continue
        steps, rest = _dumper_samples([name for name in names if not SIDE_FILES.fullmatch(name)])
        here = [*steps, *(_with_tensors(folder, rest) if walk is None else [n for n in rest if n.endswith(SUFFIXES)])]
        found += [(natural(under + name), folder / name) for name in here]
        bare += not here
        if bare > BARE_FOLDERS:
            raise EvidenceError(f"{path}: more than {BARE_FOLDERS} folders without a sample in it, the last one {folder}. Does a link lead out "
                                "of the dump? Point training.dump.path at the folder that holds the samples.")
    return [file for _, file in sorted(found)]


def walked(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders under `path` and the names in them; links are followed, but no folder is entered twice."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort(key=natural)
        yield Path(folder), names


def parts_of(file: Path, names: Iterable[str]) -> list[str]:
    """Those of `names`, all of one folder, that make up the sample listed as `file`."""
    tags = sglang_dumper.tags_of(file.name)
    if tags is None:
        return [file.name]
    return sorted((n for n in names if (other := sglang_dumper.tags_of(n)) and other.sample == tags.sample), key=natural)


def natural(text: str) -> str:
    """Sort key under which `data_10` comes after `data_9`: before every number its length, before that a character below all of names."""
    return NUMBER.sub(_ranked, text)


def _ranked(number: re.Match[str]) -> str:
    digits = str(int(number[0]))
    return f"\0{chr(len(digits))}{digits}"


def _dumper_samples(names: list[str]) -> tuple[list[str], list[str]]:
    """The first file of every step and rank of SGLang's dumper, and the names that are not its own."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    rest = []
    for name in names:
        tags = sglang_dumper.tags_of(name)
        (groups[tags.sample] if tags else rest).append(name)
    return [min(group, key=natural) for group in groups.values()], rest


def _with_tensors(folder: Path, names: list[str]) -> list[str]:
    endings: dict[str, list[str]] = defaultdict(list)
    for name in names:
        endings["" if name.endswith(SUFFIXES) else Path(name).suffix].append(name)
    return [n for ending, group in endings.items() if (ending == "" and group[0].endswith(SUFFIXES)) or _holds_tensors(folder, group) for n in group]


def _holds_tensors(folder: Path, names: list[str]) -> bool:
    for name in names[:PROBED]:
        try:
            kind = kind_of(folder / name)
            if kind in ("torch", "gzip", "safetensors") or (kind == "json" and _is_reply(folder / name)):
                return True
        except OSError:
            continue
    return False


def _is_reply(file: Path) -> bool:
    with file.open("rb") as stream:
        return b'"meta_info"' in stream.read(1 << 20)
