"""Source text of released engines for the tests: from an environment of this checkout, the cache, or one download without dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from eagle_forensics.engines.source import open_tree
from eagle_forensics.evidence.cache import cache_folder

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "sglang": ("srt/models/", "srt/model_executor/", "srt/arg_groups/", "srt/server_args.py", "srt/environ.py",
               "srt/speculative/adaptive_spec_params.py"),
    "vllm": ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/spec_decode/", "v1/spec_decode/", "config/", "model_executor/models/"),
}


def source_of(engine: str, distribution: str, version: str) -> Path:
    """A folder that holds the package's text at `version`; skips the test, with pip's words, if it cannot be had."""
    for site in (ROOT / f".venv-{engine}").glob("lib/python3*/site-packages"):
        if (site / engine).is_dir() and open_tree(engine, site).version == version:
            return site
    folder = cache_folder() / "engines" / f"{distribution}-{version}"
    if not all((folder / engine / part).exists() for part in NEEDED[engine]):  # none, or one of an earlier list
        shutil.rmtree(folder, ignore_errors=True)
        _download(engine, f"{distribution}=={version}", folder)
    return folder


def unpack(wheel: Path, engine: str, folder: Path) -> None:
    """The Python files of a wheel that the comparison reads."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(f"{engine}/")
            if name.startswith(f"{engine}/") and name.endswith(".py") and (inside.startswith(NEEDED[engine]) or "/" not in inside):
                archive.extract(name, folder)


def _download(engine: str, requirement: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                   "--retries", "1", "--timeout", "20", "--dest", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"pip cannot fetch {requirement}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        unpack(wheels[0], engine, Path(scratch) / "unpacked")
        (Path(scratch) / "unpacked").replace(folder)
