"""What is compared with what: the rows of a dump, and the target's states and weights read on exactly those rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import EvidenceError, Plane, Sample, Target
from eagle_forensics.fingerprint.parts import GatedMlp, Head, gated_mlp, head_of

BUDGET_BYTES = 64 << 20
"""Float32 bytes of dump rows held at once; further samples are counted, not read."""
ROWS = 128
"""Rows of one sample that are compared: tokens of a text are alike, so medians gain from more samples, not from more tokens."""
SPREAD = 16
"""Samples that shall have room in the budget: of wide states fewer rows a sample are read."""
CHUNK_BYTES = 10 << 20
"""Float32 bytes of states of all boundaries that are compared at once: the 128 rows of a sample at 32 boundaries 576 wide. Opening a file and asking
torch a few times costs a quarter of a millisecond a chunk, as much as the arithmetic of 2 MiB; more than this leaves the shared cache."""
BLOCK = 32
"""Consecutive rows read together: neighbours tell a shift by tokens, and a disk reads them at once."""


class Bank(Protocol):
    """The target's states at known boundaries for some token sequences (`evidence.states.States`)."""

    boundaries: Sequence[Boundary]
    sequences: Sequence[torch.Tensor]

    def plane(self, i: int, boundary: Boundary) -> torch.Tensor:
        """States of sequence i at the boundary, `[T, H]`."""
        ...


@dataclass(frozen=True)
class Rows:
    """One row a token, sequence after sequence, the same for all slots of a dump."""

    planes: tuple[torch.Tensor, ...]
    """One `[N, W]` float32 tensor a slot, in file order; W may differ between slots."""
    labels: tuple[str | None, ...]
    tokens: torch.Tensor | None
    """`[N]` int64, unshifted."""
    sequence: np.ndarray
    """`[N]`: which sample a row belongs to."""
    position: np.ndarray
    """`[N]`: position of the row in its sample."""
    samples: tuple[str, ...]
    """Ids of the samples read."""
    notes: tuple[str, ...] = ()
    """Samples left out, and why."""
    texts: tuple[torch.Tensor, ...] = ()
    """Token ids of every sample up to its last row that is compared, `[T]`: what a bank is made from; empty without token ids."""

    @property
    def layout(self) -> tuple[int, ...]:
        """Width of every slot."""
        return tuple(p.shape[1] for p in self.planes)

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(p.nbytes for p in self.planes)

    def __len__(self) -> int:
        return len(self.sequence)

    def openings(self, slots: int) -> list[Sample]:
        """The first rows of every sample whose tokens are known, in the first `slots` slots, as samples."""
        found = []
        for number, text in enumerate(self.texts):
            at = np.flatnonzero((self.sequence == number) & (self.position < BLOCK))
            if np.array_equal(self.position[at], np.arange(len(at))) and len(at):
                planes = tuple(Plane(slot, self.labels[slot], self.planes[slot][at]) for slot in range(slots))
                found.append(Sample(planes, text[: len(at)], None, Path(self.samples[number]), self.samples[number]))
        return found

    def take(self, index: np.ndarray) -> Rows:
        """The same slots on some of the rows."""
        at = torch.as_tensor(index)
        return replace(self, planes=tuple(p[at] for p in self.planes), tokens=None if self.tokens is None else self.tokens[at],
                       sequence=self.sequence[index], position=self.position[index])


def collect(samples: Iterable[Sample], *, labels: Sequence[str] | None = None, budget: int = BUDGET_BYTES) -> Rows:
    """The rows of several samples of one dump, one sample in memory at a time. `labels` (a manifest's) replace the labels of the planes.

    Samples whose planes differ in number or width from the most common layout, or in length from their tokens, are left out
    and named in the notes. Raises EvidenceError if no sample is left.
    """
    parts: list[Rows] = []
    notes: list[str] = []
    samples = list(samples)
    for number, sample in enumerate(samples):
        try:
            part = cut(sample, budget=budget)
        except EvidenceError as error:
            notes.append(str(error))
            continue
        if parts and sum(p.nbytes for p in parts) + part.nbytes > budget:
            notes.append(f"{len(samples) - number} further samples not read: {sum(p.nbytes for p in parts) >> 20} MiB of rows are enough for the medians")
            break
        parts.append(part)
    return join(parts, labels=labels, notes=notes)


def cut(sample: Sample, *, budget: int = BUDGET_BYTES, reach: int | None = None) -> Rows:
    """The rows of one sample that are compared, copied out of its file: all of a short sample, else blocks spread over it.

    `reach`: positions from there on are not looked at (a bank computed for them would cost their whole past).
    Raises EvidenceError for planes that are not [T, W] of one length, or token ids of another.
    """
    lengths = sorted({len(p.data) for p in sample.planes if p.data.ndim == 2})
    if not sample.planes or any(p.data.ndim != 2 for p in sample.planes):
        raise EvidenceError(f"{sample.sample_id} left out: its planes are not [T, H]")
    if len(lengths) > 1 or lengths == [0]:
        raise EvidenceError(f"{sample.sample_id} left out: its planes have {lengths} rows")
    if sample.input_ids is not None and len(sample.input_ids) != lengths[0]:
        raise EvidenceError(f"{sample.sample_id} left out: {len(sample.input_ids)} token ids for {lengths[0]} rows")
    row_bytes = 4 * sum(p.data.shape[1] for p in sample.planes)
    position = picked(min(lengths[0], reach or lengths[0]), max(BLOCK, min(ROWS, budget // (SPREAD * max(row_bytes, 1)))))
    at = torch.as_tensor(position)
    ids = None if sample.input_ids is None else torch.as_tensor(sample.input_ids[: int(position[-1]) + 1], dtype=torch.int64).clone()
    return Rows(tuple(p.data[at].to(torch.float32) for p in sample.planes), tuple(p.label for p in sample.planes), None if ids is None else ids[at],
                np.zeros(len(position), int), position, (sample.sample_id,), texts=() if ids is None else (ids,))


def picked(length: int, most: int) -> np.ndarray:
    """Positions of at most `most` rows out of `length`: blocks of `BLOCK`, the first one always, one drawn from each equal part of the rest (the same for a length)."""
    if length <= most:
        return np.arange(length)
    edges = np.linspace(1, length // BLOCK, max(1, most // BLOCK)).astype(int)
    others = np.random.default_rng(length).integers(edges[:-1], edges[1:])
    return (np.append(0, others)[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


def join(parts: Sequence[Rows], *, labels: Sequence[str] | None = None, notes: Sequence[str] = ()) -> Rows:
    """Rows of single samples as one; those of another layout than most, and those without token ids where others have them, are left out."""
    layout = Counter(p.layout for p in parts).most_common(1)[0][0] if parts else ()
    with_tokens = any(p.tokens is not None for p in parts)
    notes, kept = list(notes), []
    for part in parts:
        if part.layout != layout:
            notes.append(f"{part.samples[0]} left out: its planes have widths {part.layout}, the others {layout}")
        elif with_tokens and part.tokens is None:
            notes.append(f"{part.samples[0]} left out: no token ids for {len(part)} rows")
        else:
            kept.append(part)
    if not kept:
        raise EvidenceError("no sample with hidden states can be compared"
                            + (f" ({'; '.join(notes[:3])})" if notes else ": none was given")
                            + ". Expected planes [T, H] with one row a token; check training.dump or captures of the case.")
    return Rows(
        planes=tuple(torch.cat([p.planes[slot] for p in kept]) for slot in range(len(layout))),
        labels=tuple(labels) if labels is not None and len(labels) == len(layout) else kept[0].labels,
        tokens=torch.cat([p.tokens for p in kept]) if with_tokens else None,
        sequence=np.repeat(np.arange(len(kept)), [len(p) for p in kept]), position=np.concatenate([p.position for p in kept]),
        samples=tuple(s for p in kept for s in p.samples), notes=tuple(notes), texts=tuple(t for p in kept for t in p.texts),
    )


@dataclass(frozen=True)
class Weights:
    """What of the target's weights the tests can use; every part optional."""

    embed: Callable[[Sequence[int]], torch.Tensor] | None = None
    """Token ids to rows of `embed_tokens`, `[n, H]`, without the embedding factor."""
    rows: int | None = None
    """Rows of `embed_tokens`; None: any token id has one."""
    embedding_factor: float = 1.0
    norm: torch.Tensor | None = None
    """Weight of the final norm as it multiplies, `[H]` float32 (1 + w where the model says so)."""
    eps: float = 1e-6
    head: Head | None = None
    """The output head."""
    mlp: Callable[[int], GatedMlp | None] | None = None
    """Layer to its MLP, where it is one that can be computed here."""

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """The final norm applied to `[N, H]`."""
        states = states.to(torch.float32)
        return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm


def weights_of(target: Target) -> Weights:
    """The parts of a target checkpoint that fingerprints need, read by slice; empty for a checkpoint without weights.

    A final norm with a bias is no root-mean-square norm: it is left out, so that nothing is said about norm states.
    """
    from eagle_forensics.evidence.tensors import load_tensor

    table, norm = target.tensors.get("embed_tokens.weight"), target.tensors.get("norm.weight")
    weight = load_tensor(norm).to(torch.float32) if norm and "norm.bias" not in target.tensors else None
    return Weights(
        embed=(lambda ids: load_tensor(table, rows=[int(i) for i in ids]).to(torch.float32)) if table else None,
        rows=table.shape[0] if table and table.shape else None, embedding_factor=target.embedding_factor,
        norm=weight + 1 if weight is not None and target.norm_plus_one else weight, eps=target.eps,
        head=head_of(target), mlp=lambda layer: gated_mlp(target, layer),
    )


LATE_LEAST = 16
"""Tokens that must agree in a row before a sample counts as beginning within a bank sequence; fewer repeat by chance."""


class Reference:
    """A bank read on the rows of a dump: `at(b)` are the target's states for exactly `rows`, in their order."""

    def __init__(self, bank: Bank, rows: Rows, weights: Weights, layers: int | None = None) -> None:
        """Samples are found in the bank by their tokens; a sample that goes beyond its bank sequence is compared on the common start,
        one that begins within it (rows of a cached prefix were never recorded) from there on, which `late` counts.

        L+norm is derived from b=L where the bank lacks it and the norm's weight is known.
        Raises EvidenceError if the bank holds none of the dump's tokens.
        """
        if rows.tokens is None:
            raise EvidenceError("the dump has no token ids, so its rows cannot be found in the bank. "
                                "Capture input_ids with the states, or run the tests that need no bank.")
        self.bank, self.weights, self.layers = bank, weights, layers
        self._read = getattr(bank, "part", None) or (lambda i, boundaries, at: torch.stack([bank.plane(i, b)[torch.as_tensor(at)] for b in boundaries]))
        self._parts: list[tuple[int, list[int]]] = []
        self.late: dict[int, int] = {}
        """Sample number to the position of its bank sequence at which it begins, where that is not the start."""
        index: list[np.ndarray] = []
        known = rows.tokens.numpy()
        sequences = [np.asarray(s, dtype=np.int64) for s in bank.sequences]
        for sample in np.unique(rows.sequence):
            at = np.flatnonzero(rows.sequence == sample)
            position, tokens = rows.position[at], known[at]
            shared, number = max(((_common(tokens, position, s), -j) for j, s in enumerate(sequences)), default=(0, 0))
            if shared < min(8, len(at)):
                offset, shared, number = max(((o, _common(tokens, position + o, s), -j) for j, s in enumerate(sequences) for o in _starts(tokens, position, s)),
                                             key=lambda found: found[1], default=(0, 0, 0))
                if shared >= min(LATE_LEAST, len(at)):
                    position = position + offset
                    self.late[int(sample)] = offset
            if shared >= min(8, len(at)):
                self._parts.append((-number, position[:shared].tolist()))
                index.append(at[:shared])
        if not index:
            raise EvidenceError(f"none of the {len(rows.samples)} samples starts with the tokens of one of the bank's "
                                f"{len(sequences)} sequences. Make the bank from the tokens of this dump.")
        found = np.concatenate(index)
        self.rows = rows if len(found) == len(rows) else rows.take(found)
        last = Boundary(layers) if layers is not None else None
        self.width = self._read(self._parts[0][0], bank.boundaries[:1], self._parts[0][1][:1]).shape[2]
        """H of the bank."""
        self._derived = Boundary(layers, True) if last in bank.boundaries and weights.norm is not None else None
        self.boundaries = tuple(sorted({*bank.boundaries, *([self._derived] if self._derived else [])}))

    def at(self, boundary: Boundary) -> torch.Tensor:
        """`[N, H]` float32."""
        out = torch.empty(len(self.rows), self.width)
        for at, states in self.chunks([boundary]):
            out[at] = states[0]
        return out

    def chunks(self, boundaries: Sequence[Boundary]) -> Iterator[tuple[slice, torch.Tensor]]:
        """Consecutive rows and their states at the boundaries, `[boundaries, n, H]` float32, which the next chunk overwrites."""
        step = max(1, CHUNK_BYTES // (4 * self.width * len(boundaries)))
        step = max(step // BLOCK * BLOCK, min(step, BLOCK))
        held = [Boundary(b.index) if self._is_derived(b) else b for b in boundaries]
        buffer, start = torch.empty(len(boundaries), min(step, max(len(at) for _, at in self._parts)), self.width), 0
        for j, at in self._parts:
            for here in (at[i:i + step] for i in range(0, len(at), step)):
                states = buffer[:, : len(here)]
                states.copy_(self._read(j, held, here))
                for state, boundary in zip(states, boundaries, strict=True):
                    if self._is_derived(boundary):
                        state.copy_(self.weights.normed(state))
                yield slice(start, start + len(here)), states
                start += len(here)

    def _is_derived(self, boundary: Boundary) -> bool:
        return boundary == self._derived and boundary not in self.bank.boundaries


def _starts(tokens: np.ndarray, position: np.ndarray, other: np.ndarray) -> list[int]:
    """Offsets at which the first tokens of the rows stand in the other sequence."""
    if len(tokens) < LATE_LEAST:
        return []
    places = np.flatnonzero(other == tokens[0]) - position[0]
    return [int(o) for o in places if o > 0 and _common(tokens[:LATE_LEAST], position[:LATE_LEAST] + o, other) == LATE_LEAST]


def _common(tokens: np.ndarray, position: np.ndarray, other: np.ndarray) -> int:
    """How many of the rows, from the first on, have the tokens of the other sequence at their positions."""
    n = int((position < len(other)).sum())
    differ = tokens[:n] != other[position[:n]]
    return int(differ.argmax()) if differ.any() else n
