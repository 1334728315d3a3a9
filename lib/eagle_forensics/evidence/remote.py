"""Dumps on other machines: an fsspec URL (`s3://...`, `gs://...`, `http://...`, `memory://...`) as a folder whose files come when they are asked for.

The file systems are those the user has installed; how to log in is theirs to know (environment, their own files), nothing of it is stored or shown.
Fetched files lie in the cache under a name that changes with the listing, so a dump that was recorded again is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from eagle_forensics.address import url_of
from eagle_forensics.evidence.cache import cache_folder
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.side_files import NAMES

FILE_LIMIT = 16 << 30
"""Bytes of one file: a shard of 1,024 long samples of a large target stays below it."""
SPARE = 2 << 30
"""Bytes that stay free on the disk of the cache."""
PIECE = 1 << 22


@dataclass(frozen=True)
class Remote:
    """A listed remote folder and its mirror in the cache."""

    folder: Path
    """The mirror; files are there once they were fetched."""
    url: str
    """As it may be shown."""
    names: Mapping[str, str] = field(repr=False)
    """Name below the folder to the file system's own name."""
    fs: Any = field(repr=False, compare=False)
    fetched: set[str] = field(default_factory=set, repr=False, compare=False)

    def walk(self) -> Iterator[tuple[Path, list[str]]]:
        """Folders and the names in them."""
        folders: dict[PurePosixPath, list[str]] = defaultdict(list)
        for name in self.names:
            folders[PurePosixPath(name).parent].append(PurePosixPath(name).name)
        for folder in sorted(folders):
            yield self.folder / folder, folders[folder]

    def fetch(self, file: Path) -> None:
        """Bring the files of a listed sample here, if they are not yet. EvidenceError with the reason."""
        from eagle_forensics.evidence.listing import parts_of

        name = file.relative_to(self.folder).as_posix()
        inside = [n for n in self.names if name == "." or n.startswith(name + "/")]
        if name not in self.names and inside:
            wanted = inside
        else:
            beside = {PurePosixPath(n).name: n for n in self.names if PurePosixPath(n).parent == PurePosixPath(name).parent} if "___" in name else {}
            wanted = [beside[n] for n in parts_of(file, beside)] if beside else [name]
        for one in wanted:
            self._bring(one)

    def _bring(self, name: str) -> None:
        if name in self.fetched:
            return
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, here = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as copy, self.fs.open(self.names[name], "rb") as there:
                self._copy(there, copy, name)
            Path(here).replace(target)
        except EvidenceError:
            raise
        except Exception as error:  # every file system has errors of its own; their texts may hold signed addresses
            raise EvidenceError(f"{self.url}: {name} cannot be fetched ({type(error).__name__}). Check access to it, or copy the dump here.") from None
        finally:
            Path(here).unlink(missing_ok=True)
        self.fetched.add(name)

    def _copy(self, there: BinaryIO, copy: BinaryIO, name: str) -> None:
        size = 0
        while piece := there.read(PIECE):
            size += len(piece)
            if size > FILE_LIMIT or shutil.disk_usage(self.folder).free < SPARE:
                raise EvidenceError(f"{self.url}: {name} does not fit (limit {FILE_LIMIT >> 30} GiB a file, {SPARE >> 30} GiB of the disk stay free). "
                                    "Copy some samples here by hand and point training.dump.path at them.")
            copy.write(piece)


def _listing(fs: Any, base: str) -> dict[str, dict[str, Any]]:
    """Files of a folder, or the one file, by full name. A web server answers for a folder as for a file, so the folder is asked for first."""
    try:
        listing = fs.find(base + "/", detail=True)
    except FileNotFoundError:
        listing = {}
    return listing or ({base: fs.info(base)} if fs.isfile(base) else {})


def remote(path: str | Path) -> Remote | None:
    """The remote folder behind an fsspec URL, listed, its side files fetched; None for a path on this machine. EvidenceError if it cannot be listed."""
    url = url_of(path)
    if url is None:
        return None
    import fsspec

    from eagle_forensics.evidence.transport import shown

    shows = shown(url)
    try:
        fs, base = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        base = base.rstrip("/")
        listing = _listing(fs, base)
    except (ImportError, ValueError) as error:
        raise EvidenceError(f"{shows}: no file system for it here ({str(error)[:160]}). Install the package it names, or copy the dump here.") from None
    except Exception as error:  # every file system has errors of its own
        raise EvidenceError(f"{shows}: cannot be listed ({type(error).__name__}). Check the address and the access to it, or copy the dump here.") from None
    names = {}
    for full in listing:
        name = full.removeprefix(base).strip("/") or PurePosixPath(base).name
        if full.startswith(base) and ".." not in PurePosixPath(name).parts:
            names[name] = full
    if not names:
        raise EvidenceError(f"{shows}: nothing there. Point training.dump.path at the folder that holds the samples.")
    stamp = repr(sorted((n, [listing[full].get(k) for k in ("size", "mtime", "LastModified", "created", "ETag", "etag", "updated")]) for n, full in names.items()))
    folder = cache_folder() / "remote" / hashlib.sha256(shows.encode()).hexdigest()[:16]
    far = Remote(folder / hashlib.sha256(stamp.encode()).hexdigest()[:8] / (PurePosixPath(base).name or "dump"), shows, names, fs)
    for old in folder.glob("*") if folder.is_dir() else ():
        if old != far.folder.parent:
            shutil.rmtree(old, ignore_errors=True)
    far.folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if name in names:
            far.fetch(far.folder / name)
    return far
