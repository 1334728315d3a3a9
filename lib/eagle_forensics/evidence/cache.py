"""The cache folder, where computed states and the built-in case live between runs; and files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`EAGLE_FORENSICS_CACHE`, else `eagle-forensics` under XDG_CACHE_HOME or ~/.cache; not created here."""
    own = os.environ.get("EAGLE_FORENSICS_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eagle-forensics"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing (temporary file, fsync, replace; mode 0644): a reader never sees half of it. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk says no name
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
