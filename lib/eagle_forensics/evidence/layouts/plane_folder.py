"""A folder that is one sample: a file a plane (`aux_0.pt`, `aux_1.pt`, ..., `final.pt`), as patched servers write it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.layouts.parts import Layout, Parts, flat, has_rank, rows

PLANE = re.compile(r"aux_(\d+)")


def _planes(content: Any) -> list[str]:
    if not isinstance(content, Mapping):
        return []
    aux = sorted((name for name in content if isinstance(name, str) and PLANE.fullmatch(name)), key=lambda name: int(name[4:]))
    return [*aux, *(["final"] if aux and "final" in content else [])]


def _read(content: Mapping[str, Any], _: Path) -> Parts:
    return Parts([(name, rows(content[name])) for name in _planes(content)], flat(content, "input_ids", "token_ids"), flat(content, "loss_mask"))


PLANE_FOLDER = Layout(
    "plane_folder", "a folder of aux_0.pt, aux_1.pt, ... and final.pt, each [T, H]",
    lambda c: bool(_planes(c)) and all(has_rank(c, name, 2) for name in _planes(c)), _read)
