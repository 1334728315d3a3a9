"""The target's own states: its residual stream at given boundaries for given tokens, computed here or read from a bank.

`target_states` runs the target from its weights and keeps only what is asked for, in a cache keyed by content: one more
boundary later costs only that boundary. `write_states` and `read_states` are the folder format of a reference bank: one
safetensors file a sequence (`b0`, `b15`, `b30_norm` [T, H], `input_ids` [T]) and `bank.json` with its provenance.

Boundaries are where `boundary.py` puts them: b=j is the input of decoder layer j, b=L the input of the final norm (taken
before it, unlike Hugging Face's `hidden_states[-1]`), L+norm its output.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.cache import cache_folder, write_bytes
from eagle_forensics.evidence.records import EvidenceError, Target
from eagle_forensics.evidence.tensors import load_rows, load_tensor, read_header, read_metadata

FORMAT = 1
"""Version of the bank folder and of cache entries; part of every key."""

Progress = Callable[[str], None]
Sequences = Sequence[Sequence[int]]


@dataclass(frozen=True)
class States:
    """The target's states at known boundaries for known token sequences."""

    boundaries: tuple[Boundary, ...]
    sequences: tuple[tuple[int, ...], ...]
    """Token ids, one tuple a sequence."""
    origin: str
    """Where the states come from, for people."""
    load: Callable[[int, Boundary], torch.Tensor] = field(repr=False, compare=False)
    """Reads one plane; use `plane`."""
    load_rows: Callable[[int, Sequence[Boundary], Sequence[int]], torch.Tensor] | None = field(default=None, repr=False, compare=False)
    """Reads some rows of several planes and nothing else, where that can be done; use `part`."""

    def plane(self, sequence: int, boundary: Boundary | int) -> torch.Tensor:
        """State [T, H] of one sequence at one boundary, in the dtype it was computed or recorded in.

        ValueError for a boundary or sequence that is not held.
        """
        boundary = _boundary(boundary)
        if boundary not in self.boundaries:
            raise ValueError(f"no states at {boundary}; held: {', '.join(map(str, self.boundaries))}")
        if not 0 <= sequence < len(self.sequences):
            raise ValueError(f"no sequence {sequence}; held: {len(self.sequences)}")
        return self._finite(self.load(sequence, boundary), boundary)

    def part(self, sequence: int, boundaries: Sequence[Boundary], rows: Sequence[int]) -> torch.Tensor:
        """Some rows of planes, `[boundaries, n, H]`: only these are read and checked."""
        if self.load_rows:
            return self._finite(self.load_rows(sequence, boundaries, rows), *boundaries)
        return self._finite(torch.stack([self.load(sequence, b)[torch.as_tensor(rows)] for b in boundaries]), *boundaries)

    def _finite(self, states: torch.Tensor, *boundaries: Boundary) -> torch.Tensor:
        if not math.isfinite(float(states.sum())) and not states.isfinite().all():  # the sum is 20 times faster in bf16
            at = next(b for b, plane in zip(boundaries, states if len(boundaries) > 1 else [states], strict=True) if not plane.isfinite().all())
            raise EvidenceError(f"{self.origin}: {_name(at)} holds NaN or infinite values; a reference must be finite. Write the bank again "
                                "from sound weights.")
        return states


def target_states(target: Target, sequences: Sequences, boundaries: Sequence[Boundary | int], *, cache: bool = True,
                  float32: bool = False, progress: Progress | None = None) -> States:
    """States of `sequences` at `boundaries`, from the cache or by running the target in its stored dtype, or in `float32` as some servers do.

    EvidenceError if the target cannot be run (`fits` says why), a boundary lies outside 0..L, or a token outside its vocabulary.
    """
    wanted = tuple(sorted({_boundary(b) for b in boundaries}))
    tokens = tuple(tuple(int(t) for t in ids) for ids in sequences)
    _check(target, tokens, wanted)
    origin = f"computed from the target's weights ({target.path.name}, content {target_key(target)[:12]})"
    if not cache:
        kept: dict[tuple[int, Boundary], torch.Tensor] = {}
        missing = dict.fromkeys(range(len(tokens)), wanted)
        _compute(target, tokens, missing, lambda i, b, plane: kept.__setitem__((i, b), plane), progress, float32)
        return States(wanted, tokens, origin, lambda i, b: kept[i, b])

    key = target_key(target) + (" float32" if float32 else "")
    entries = [_Entry(key, ids) for ids in tokens]
    missing = {i: absent for i, entry in enumerate(entries) if (absent := tuple(b for b in wanted if entry.read(b) is None))}
    if missing:
        _compute(target, tokens, missing, lambda i, b, plane: entries[i].write(b, plane), progress, float32)

    def load(index: int, boundary: Boundary) -> torch.Tensor:
        plane = entries[index].read(boundary)
        if plane is None:
            raise EvidenceError(f"{entries[index].file(boundary)}: the cached states disappeared or were damaged while in use. Run again.")
        return plane

    return States(wanted, tokens, origin, load)


def fits(target: Target, *, float32: bool = False) -> str | None:
    """Why the target cannot be run on this machine in its stored dtype, or in `float32`, in one sentence; None if it can as far as its files tell."""
    if not target.tensors:
        return f"{target.path} holds no weights"
    if "quantization_config" in target.config:
        return "its weights are quantised, which plain transformers does not run; capture its states on the serving host"
    expected = {f"layers.{i}." for i in range(target.layers)}
    absent = len(expected - {match[0] for name in target.tensors if (match := re.match(r"layers\.\d+\.", name))})
    if absent or "embed_tokens.weight" not in target.tensors or "norm.weight" not in target.tensors:
        return f"weights are missing ({absent} of {target.layers} layers have none)"
    need = sum(4 * math.prod(info.shape) if float32 else info.nbytes for info in target.tensors.values()) * 1.15 + (1 << 30)
    have = available_bytes()
    if need > have:
        return f"it needs about {need / 2**30:.1f} GiB of memory and {have / 2**30:.1f} GiB are available; capture its states on the serving host"
    return None


def available_bytes() -> int:
    """Memory this process may still take: MemAvailable, capped by the control group's limit."""
    values = dict(re.findall(r"(\w+):\s+(\d+) kB", _text("/proc/meminfo")))
    have = int(values.get("MemAvailable", 8 << 20)) << 10
    limit, used = _text("/sys/fs/cgroup/memory.max").strip(), _text("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        have = min(have, max(0, int(limit) - int(used)))
    return have


def target_key(target: Target) -> str:
    """Content key of a target: its config, and of every weight file the header, the size and 256 evenly spaced blocks.

    Fine-tunes share shapes and sizes, hence the blocks.
    """
    digest = hashlib.sha256(f"eagle-forensics states {FORMAT}".encode())
    digest.update(json.dumps(dict(target.config), sort_keys=True, default=str).encode())
    for file in sorted({info.file for info in target.tensors.values()}):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(8 + min(int.from_bytes(stream.read(8), "little"), 1 << 26)))
            for block in range(256):
                stream.seek(size * block // 256)
                digest.update(stream.read(4096))
    return digest.hexdigest()


def write_states(states: States, path: str | Path, about: str = "") -> Path:
    """Write a reference bank folder; `about` says in a sentence where the target and the tokens come from."""
    path = Path(path)
    for index, ids in enumerate(states.sequences):
        tensors = {_name(b): states.load(index, b).contiguous() for b in states.boundaries}
        write_bytes(path / f"states_{index}.safetensors", save({**tensors, "input_ids": torch.tensor(ids)}))
    provenance = {"format": "eagle-forensics bank", "version": FORMAT, "origin": states.origin, "about": about, "sequences": len(states.sequences),
                  "boundaries": [_name(b) for b in states.boundaries], "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    write_bytes(path / "bank.json", (json.dumps(provenance, indent=1) + "\n").encode())
    return path


def read_states(path: str | Path) -> States:
    """States of a reference bank folder; planes are mapped when asked for. EvidenceError for anything else."""
    path = Path(path)
    try:
        about = json.loads((path / "bank.json").read_text(encoding="utf-8"))
        boundaries = tuple(_parse(name) for name in about["boundaries"])
        count, origin = int(about["sequences"]), str(about.get("about") or about["origin"])
        if count < 1:
            raise ValueError(f"it holds {count} sequences")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(f"{path}: not a reference bank (bank.json: {str(error)[:120]}). Expected the folder that write_states makes: "
                            "bank.json and states_0.safetensors, ...") from None
    headers, sequences = [], []
    for index in range(count):
        file = path / f"states_{index}.safetensors"
        header = read_header(file)
        lacking = [n for n in ("input_ids", *map(_name, boundaries)) if n not in header]
        if lacking:
            raise EvidenceError(f"{file}: bank.json promises {', '.join(lacking)}, the file has none. Write the bank again.")
        ids = load_tensor(header["input_ids"])
        like = header[_name(boundaries[0])]
        wrong = [n for n in map(_name, boundaries) if header[n].shape[:1] != ids.shape or len(header[n].shape) != 2
                 or (header[n].dtype, header[n].shape[1]) != (like.dtype, like.shape[1])]
        if ids.dim() != 1 or wrong:
            raise EvidenceError(f"{file}: expected {len(ids.flatten())} rows of states of one width and dtype, found {(wrong[0], header[wrong[0]].shape, header[wrong[0]].dtype) if wrong else ids.shape}. "
                                "Write the bank again.")
        headers.append(header)
        sequences.append(tuple(ids.tolist()))

    def load(index: int, boundary: Boundary) -> torch.Tensor:
        return load_tensor(headers[index][_name(boundary)])

    def some(index: int, asked: Sequence[Boundary], rows: Sequence[int]) -> torch.Tensor:
        return load_rows([headers[index][_name(b)] for b in asked], rows)

    return States(boundaries, tuple(sequences), f"{path.name}: {origin}", load, some)


class _Entry:
    """Cache entries of one sequence under one target: a file a boundary, checked by its own checksum."""

    def __init__(self, target: str, tokens: tuple[int, ...]) -> None:
        self.key = hashlib.sha256(f"{target} {tokens}".encode()).hexdigest()
        self.rows = len(tokens)
        self.folder = cache_folder() / "states" / target[:16] / self.key[:16]

    def file(self, boundary: Boundary) -> Path:
        return self.folder / f"{_name(boundary)}.safetensors"

    def read(self, boundary: Boundary) -> torch.Tensor | None:
        """The stored plane; None if there is none, or a damaged or foreign one."""
        file = self.file(boundary)
        if not file.is_file():
            return None
        try:
            plane = load_tensor(read_header(file)["states"])
            stamp = read_metadata(file)
        except (EvidenceError, KeyError, OSError):
            return None
        sound = stamp.get("key") == self.key and plane.shape[:1] == (self.rows,) and stamp.get("crc32") == _crc(plane)
        return plane if sound else None

    def write(self, boundary: Boundary, plane: torch.Tensor) -> None:
        plane = plane.contiguous()
        try:
            self._save(boundary, plane)
        except OSError as error:
            raise EvidenceError(f"{self.folder}: computed states cannot be kept there ({error.strerror or error}). Set EAGLE_FORENSICS_CACHE to a "
                                "folder that can be written and has room.") from None

    def _save(self, boundary: Boundary, plane: torch.Tensor) -> None:
        write_bytes(self.file(boundary), save({"states": plane}, {"key": self.key, "boundary": str(boundary), "crc32": _crc(plane)}))


def _crc(plane: torch.Tensor) -> str:
    return f"{zlib.crc32(plane.contiguous().view(torch.uint8).numpy()):08x}"


def _compute(target: Target, tokens: tuple[tuple[int, ...], ...], missing: dict[int, tuple[Boundary, ...]],
             keep: Callable[[int, Boundary, torch.Tensor], None], progress: Progress | None, float32: bool) -> None:
    from eagle_forensics.evidence.forward import TargetRunner

    say = progress or (lambda line: None)
    why_not = fits(target, float32=float32)
    if why_not:
        raise EvidenceError(f"{target.path}: its states cannot be computed here: {why_not}.")
    runner = TargetRunner(target, float32=float32)
    total, done, last = sum(len(tokens[i]) for i in missing), 0, 0.0
    for index, asked in missing.items():
        for boundary, plane in runner.states(tokens[index], asked).items():
            if not plane.isfinite().all():
                raise EvidenceError(f"{target.path}: its states hold NaN or infinite values at {boundary}; expected finite ones. The weights up "
                                    "to there are damaged: copy the target again from its source.")
            keep(index, boundary, plane)
        done += len(tokens[index])
        if time.monotonic() - last > 2 or done == total:
            last = time.monotonic()
            say(f"target states: {done} of {total} tokens")


def _check(target: Target, tokens: tuple[tuple[int, ...], ...], boundaries: tuple[Boundary, ...]) -> None:
    for b in boundaries:
        if not 0 <= b.index <= target.layers or (b.normed and b.index != target.layers):
            raise EvidenceError(f"{b} does not exist in a target of {target.layers} layers: boundaries are 0 to {target.layers}, "
                                f"and {target.layers} after the final norm.")
    for index, ids in enumerate(tokens):
        if not ids:
            raise EvidenceError(f"sequence {index} has no tokens; leave it out.")
        if not 0 <= min(ids) <= max(ids) < target.vocab:
            raise EvidenceError(f"sequence {index} holds token {max(ids) if max(ids) >= target.vocab else min(ids)}, outside the target's "
                                f"vocabulary of {target.vocab}: these tokens belong to another model.")


def _boundary(value: Boundary | int) -> Boundary:
    return value if isinstance(value, Boundary) else Boundary(int(value))


def _name(boundary: Boundary) -> str:
    return f"b{boundary.index}" + ("_norm" if boundary.normed else "")


def _parse(name: str) -> Boundary:
    match = re.fullmatch(r"b(\d+)(_norm)?", name)
    if match is None:
        raise ValueError(f"{name!r} names no boundary (b0, b15, b30_norm)")
    return Boundary(int(match[1]), normed=match[2] is not None)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
