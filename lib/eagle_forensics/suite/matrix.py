"""The runs of a batch: case files times the settings of a matrix.

A matrix is YAML: a mapping of keys to lists (every combination is a run) or a list of mappings (each is a run). A key is
one that `--set` takes. A text with `*` under a key that ends in `.path` stands for the paths that match it, sorted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eagle_forensics.case import known_keys

MOST = 10_000
"""Runs of one batch at most; more is a slip of the pen."""


class MatrixError(ValueError):
    """A matrix that cannot be used; the message says what was read and what was expected."""


@dataclass(frozen=True)
class Planned:
    """One run of a batch."""

    case: Path
    overrides: Mapping[str, Any]
    """Dotted case keys."""
    parameters: Mapping[str, Any]
    """Notebook parameters."""
    label: str
    """The case and what the matrix set: `case.yaml drafter.path=ckpt-2000`."""


def plan(cases: Sequence[Path], settings: Mapping[str, Any], matrix: Path | None = None) -> list[Planned]:
    """Every run of a batch, cases in the given order. `settings` hold for all runs, the matrix goes before them."""
    points = _read(matrix) if matrix else [{}]
    planned, keys = [], set(known_keys())
    for case in cases:
        for point in (p for raw in points for p in _expanded(raw, case)):
            merged = {**settings, **point}
            overrides = {k: v for k, v in merged.items() if k in keys or "." in k}
            label = " ".join([str(case), *(f"{k}={v}" for k, v in point.items())])
            planned.append(Planned(case, overrides, {k: v for k, v in merged.items() if k not in overrides}, label))
            if len(planned) > MOST:
                raise MatrixError(f"{matrix}: more than {MOST} runs. Split the matrix.")
    return planned


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MatrixError(f"{path}: cannot be read as a matrix ({' '.join(str(error).split())[:200]}).") from None
    expected = "expected `key: [value, value]` lines, or a list of `{key: value}` mappings"
    if isinstance(raw, dict) and raw and all(isinstance(v, list) and v for v in raw.values()):
        return [dict(zip(map(str, raw), values, strict=True)) for values in itertools.islice(itertools.product(*raw.values()), MOST + 1)]
    if isinstance(raw, list) and raw and all(isinstance(row, dict) and row for row in raw):
        return [{str(k): v for k, v in row.items()} for row in raw]
    raise MatrixError(f"{path}: {type(raw).__name__ if raw else 'empty'}; {expected}, such as `drafter.path: [./ckpt-1000, ./ckpt-2000]`.")


def _expanded(point: Mapping[str, Any], case: Path) -> Iterator[dict[str, Any]]:
    """The point once, or once for each path that its patterns match beside the case file."""
    patterns = {k: v for k, v in point.items() if k.endswith(".path") and isinstance(v, str) and "*" in v and "://" not in v}
    matches = []
    for key, pattern in patterns.items():
        root = Path(pattern).anchor or (case if case.is_dir() else case.parent)
        found = sorted(Path(root).glob(pattern.removeprefix(Path(pattern).anchor)), key=_natural)
        if not found:
            raise MatrixError(f"{key}: nothing matches {pattern!r} beside {case}.")
        matches.append([(key, str(path.absolute())) for path in found])
    for chosen in itertools.product(*matches):
        yield {**point, **dict(chosen)}


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """`ckpt-900` before `ckpt-1000`."""
    parts = ["".join(g) for _, g in itertools.groupby(str(path), str.isdecimal)]
    return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
