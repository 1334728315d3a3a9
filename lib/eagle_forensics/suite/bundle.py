"""A run folder as one file to mail: everything but large evidence, which is named with its size and digest."""

from __future__ import annotations

import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from eagle_forensics.suite.files import sha256, write_json
from eagle_forensics.suite.runfolder import RunFolder, RunFolderError, open_folder

MAIL_MB = 20
"""Most that mail servers commonly take in one message is 25 MB, of which the encoding of an attachment takes a quarter."""
MOST_UNPACKED_MB = 500
LEFT_OUT = "left_out.json"
"""Inside a bundle: what the run folder holds and the bundle does not."""


def write_bundle(run_dir: Path, out: Path | None = None, *, most_mb: float = MAIL_MB) -> tuple[Path, list[str]]:
    """Write `RUN.zip` beside the run folder (or `out`), smallest evidence first until `most_mb` is reached.

    Returns its path and what was left out. Raises RunFolderError for a folder that is no finished run, or where even the
    post-mortem and the findings are larger.
    """
    folder = open_folder(Path(run_dir).resolve())
    if folder.merged() is None:
        raise RunFolderError(f"{folder.path} has no findings.json: the run is not finished. Run the same case again to resume it.")
    target = (Path(out) if out else folder.path.with_suffix(".zip")).resolve()
    if target.is_relative_to(folder.path):
        raise RunFolderError(f"{target} lies in the run folder itself. Name another place.")
    files = sorted((p for p in folder.path.rglob("*") if p.is_file() and not p.is_symlink() and p.name != ".lock"),
                   key=lambda p: (p.parent != folder.path, "evidence" in p.relative_to(folder.path).parts, p.stat().st_size))
    left: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="ef-") as work:
        packed = Path(work) / "bundle.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                # a file is weighed whole: how well it packs is known only afterwards, and text that packs is small anyway
                if packed.stat().st_size + _packed_at_most(file) > most_mb * 1e6:
                    left.append(file)
                    continue
                archive.write(file, str(PurePosixPath(folder.path.name) / file.relative_to(folder.path).as_posix()))
                archive.fp.flush()
            if any(file.parent == folder.path for file in left):
                raise RunFolderError(f"{folder.path}: the post-mortem and findings alone are larger than {most_mb:g} MB. Give a larger --most-mb.")
            write_json(Path(work) / LEFT_OUT, [{"file": f.relative_to(folder.path).as_posix(), "bytes": f.stat().st_size, "sha256": sha256(f)} for f in left])
            archive.write(Path(work) / LEFT_OUT, f"{folder.path.name}/{LEFT_OUT}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(packed, target)
    return target, [f"{f.relative_to(folder.path)} ({f.stat().st_size / 1e6:.1f} MB)" for f in left]


def bundle_text(run_dir: Path, out: Path | None = None, *, most_mb: float | None = None) -> str:
    """What `write_bundle` did, in words."""
    target, left = write_bundle(run_dir, out, most_mb=most_mb or MAIL_MB)
    lines = [f"wrote {target} ({target.stat().st_size / 1e6:.1f} MB)", *(f"  left out: {line}" for line in left)]
    return "\n".join([*lines, f"next: eagle-forensics show {target.name}"])


@contextmanager
def opened(path: Path) -> Iterator[RunFolder]:
    """A run folder, or a bundle unpacked for as long as it is looked at."""
    if not zipfile.is_zipfile(path):
        yield open_folder(path.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="ef-") as work:
        yield open_folder(_unpacked(path, Path(work)))


def _unpacked(path: Path, work: Path) -> Path:
    """The one run folder of a bundle. Refuses what a bundle never holds: other paths than below one folder, links, gigabytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [PurePosixPath(e.filename) for e in entries]
            roots = {n.parts[0] for n in names if n.parts}
            strange = next((e.filename for e, n in zip(entries, names, strict=True)
                            if n.is_absolute() or ".." in n.parts or "\\" in e.filename or stat.S_ISLNK(e.external_attr >> 16)), None)
            if strange is not None or len(roots) != 1:
                raise RunFolderError(f"{path}: no bundle of a run ({strange!r:.80} stands in it)." if strange else f"{path}: no bundle of a run: it holds {len(roots)} folders.")
            if sum(e.file_size for e in entries) > MOST_UNPACKED_MB * 1e6:
                raise RunFolderError(f"{path}: unpacks to more than {MOST_UNPACKED_MB} MB, which no bundle does.")
            archive.extractall(work)
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise RunFolderError(f"{path}: cannot be unpacked ({error}). Ask for the bundle again.") from None
    return work / roots.pop()


def _packed_at_most(file: Path) -> int:
    """Bytes of a file in an archive at most: deflate adds 5 bytes a block of 16 kB, the entry its names."""
    size = file.stat().st_size
    return size + size // 1000 + 1000
