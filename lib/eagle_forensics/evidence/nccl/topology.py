"""How the GPUs of a host are linked: the matrix that `nvidia-smi topo -m` prints, tab separated or pasted with spaces."""

from __future__ import annotations

import re
from pathlib import Path

from eagle_forensics.evidence.nccl.records import Topology
from eagle_forensics.evidence.records import EvidenceError

MAX_BYTES = 1_000_000
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS", re.ASCII)


def read_topology(path: str | Path) -> Topology:
    """The matrix. EvidenceError for a file without it, with a row that is cut, or whose two halves disagree."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); correct `nccl.topology` in the case") from None
    names: list[str] = []
    rows: dict[str, list[str]] = {}
    numa: dict[str, str | None] = {}
    for line in text.splitlines():
        raw = _ANSI.sub("", line)
        cells = raw.split()
        if not cells:
            continue
        if not names and re.fullmatch(r"GPU\d+", cells[0]) and not any(c == "X" or _LINK.fullmatch(c) for c in cells):
            names = [c for c in cells if re.fullmatch(r"(?:GPU|NIC)\d+|mlx\w+", c)]
        elif names and cells[0] in names and cells[0] not in rows:
            rows[cells[0]] = cells[1: 1 + len(names)]
            rest = [part.strip() for part in raw.split("\t")][1 + len(names):]
            numa[cells[0]] = rest[1] or None if len(rest) > 1 else None
    gpus = tuple(n for n in names if n.startswith("GPU"))
    if not gpus:
        raise EvidenceError(f"{path}: no GPU matrix found; expected the output of `nvidia-smi topo -m`")
    return Topology(path, gpus, _links(path, gpus, names, rows), tuple(n for n in names if n not in gpus), tuple(numa.get(g) for g in gpus))


def _links(path: Path, gpus: tuple[str, ...], names: list[str], rows: dict[str, list[str]]) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    for i, gpu in enumerate(gpus):
        cells = rows.get(gpu, [])
        for j, other in enumerate(gpus):
            at = names.index(other)
            kind = cells[at] if at < len(cells) else ""
            if i == j:
                continue
            if not _LINK.fullmatch(kind):
                raise EvidenceError(f"{path}: the row of {gpu} has {kind!r:.40} under {other}; expected NV#, PIX, PXB, PHB, NODE or SYS. "
                                    "Save the whole output of `nvidia-smi topo -m` again.")
            pair = (min(i, j), max(i, j))
            if found.setdefault(pair, kind) != kind:
                raise EvidenceError(f"{path}: {gpu} and {other} are {kind} in one half of the matrix and {found[pair]} in the other; "
                                    "save the output of `nvidia-smi topo -m` again.")
    return found
