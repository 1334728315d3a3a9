"""Where a run came from: hashes of its inputs, versions, revision of the suite, host. Bounded in what it reads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eagle_forensics import __version__
from eagle_forensics.case import Case
from eagle_forensics.suite.files import sha256
from eagle_forensics.suite.runfolder import checkout_root

WHOLE_FILE = 16 * 2**20
"""Files up to this many bytes are hashed whole (about 10 ms); of larger ones the header, and the digest says so."""
PER_INPUT_BYTES = 256 * 2**20
PER_INPUT_FILES = 64
LISTED_FILES = 10_000
_PACKAGES = ("torch", "safetensors", "transformers", "numpy", "scipy", "pandas", "matplotlib", "papermill", "nbclient",
             "nbconvert", "ipykernel", "jupyterlab", "pydantic", "sglang", "vllm", "speculators")


def inputs(case: Case) -> list[dict[str, Any]]:
    """Every path the case names: bytes, digest and how the digest was taken."""
    out = []
    for key, path in case.paths():
        entry: dict[str, Any] = {"key": key, "path": str(path)}
        try:
            entry |= _folder(path) if path.is_dir() else _file(path)
        except OSError as error:
            entry |= {"bytes": None, "digest": None, "method": f"not read: {error.strerror or error}"}
        out.append(entry)
    return out


def _file(path: Path, whole: int = WHOLE_FILE) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # a pipe or a device may never end
        raise OSError(errno.EINVAL, "not a regular file")
    size = path.stat().st_size
    if size <= whole:
        return {"bytes": size, "digest": sha256(path), "method": "sha256 of the whole file"}
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        header = path.suffix == ".safetensors" and length <= WHOLE_FILE
        start += file.read(length if header else 2**20)
    what = "the safetensors header" if header else "the first MiB"
    return {"bytes": size, "digest": hashlib.sha256(start).hexdigest(), "method": f"size and sha256 of {what}"}


def _folder(path: Path) -> dict[str, Any]:
    listed: list[tuple[Path, int]] = []
    for root, folders, names in os.walk(path):
        folders.sort()
        files = [Path(root, name) for name in sorted(names)]
        listed += [(file, file.stat().st_size) for file in files if file.is_file()]
        if len(listed) >= LISTED_FILES:
            break
    digest, spent, hashed = hashlib.sha256(), 0, 0
    headers = False
    for file, size in listed:
        digest.update(f"{file.relative_to(path)}\0{size}\0".encode(errors="surrogateescape"))
        if hashed < PER_INPUT_FILES:
            whole = WHOLE_FILE if spent < PER_INPUT_BYTES else 0
            found = _file(file, whole)
            headers |= "whole" not in found["method"]
            digest.update(found["digest"].encode())
            spent, hashed = spent + min(size, WHOLE_FILE), hashed + 1
    method = "sha256 over names, sizes and " + ("contents" if hashed == len(listed) else f"the contents of the first {hashed} files")
    method += "; of large files the header" if headers else ""
    method += f"; only the first {len(listed)} files were listed" if len(listed) >= LISTED_FILES else ""
    return {"bytes": sum(size for _, size in listed), "files": len(listed), "digest": digest.hexdigest(), "method": method}


def suite(notebooks: dict[str, Path]) -> dict[str, Any]:
    """Version and revision of the suite and of the notebooks it runs."""
    return {"version": __version__, "source_sha256": source_sha256(), "git": git_revision(),
            "notebooks": {name: sha256(path) for name, path in notebooks.items() if path.is_file()}}


@cache
def source_sha256() -> str:
    """SHA-256 over the package's source files: tells runs of different code apart, also outside git."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for file in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".toml", ".json", ".j2")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def git_revision() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout; None when the suite is installed elsewhere or git is absent."""
    root = checkout_root()
    if root is None or not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True).stdout.strip()


@cache
def versions() -> Mapping[str, str]:
    """Python and the packages that can change a result, where installed; imports none of them. Read once a process."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return MappingProxyType(found)


def host() -> dict[str, Any]:
    """The machine, without its name or addresses."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {"system": f"{platform.system()} {platform.machine()}", "kernel": platform.release(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": memory, "gpus": _gpus(), "python": sys.implementation.name}


def _gpus() -> list[str]:
    try:
        shown = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                               capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    return shown.stdout.strip().splitlines() if shown.returncode == 0 else []


def fingerprint(*parts: Any) -> str:
    """SHA-256 over JSON values, for telling whether two runs are the same."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
