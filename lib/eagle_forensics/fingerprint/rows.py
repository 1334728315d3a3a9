"""What is compared with what: the rows of a dump, and the target's states and weights read on exactly those rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import EvidenceError, Sample, Target
from eagle_forensics.fingerprint.parts import GatedMlp, Head, gated_mlp, head_of

BUDGET_BYTES = 256 << 20
"""Float32 bytes of dump rows held at once; further samples are counted, not read."""


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

    def __len__(self) -> int:
        return len(self.sequence)

    def take(self, index: np.ndarray) -> Rows:
        """The same slots on some of the rows."""
        at = torch.as_tensor(index)
        return replace(self, planes=tuple(p[at] for p in self.planes), tokens=None if self.tokens is None else self.tokens[at],
                       sequence=self.sequence[index], position=self.position[index])


def collect(samples: Iterable[Sample], *, labels: Sequence[str] | None = None, budget: int = BUDGET_BYTES) -> Rows:
    """The rows of several samples of one dump. `labels` (a manifest's) replace the labels of the planes.

    Samples whose planes differ in number or width from the most common layout, or in length from their tokens, are left out
    and named in the notes. Raises EvidenceError if no sample is left.
    """
    samples = list(samples)
    layout, _ = (Counter(_layout(s) for s in samples).most_common(1) or [((), 0)])[0]
    with_tokens = any(s.input_ids is not None for s in samples)
    kept, notes, used = [], [], 0
    for number, sample in enumerate(samples):
        reason = _unusable(sample, layout, with_tokens)
        if reason:
            notes.append(f"{sample.sample_id} left out: {reason}")
            continue
        size = 4 * sum(p.data.numel() for p in sample.planes)
        if kept and used + size > budget:
            notes.append(f"{len(samples) - number} further samples not read: {used >> 20} MiB of rows are enough for the medians")
            break
        kept.append(sample)
        used += size
    if not kept:
        raise EvidenceError("no sample with hidden states can be compared"
                            + (f" ({'; '.join(notes[:3])})" if notes else ": none was given")
                            + ". Expected planes [T, H] with one row a token; check training.dump or captures of the case.")
    lengths = [len(s.planes[0].data) for s in kept]
    return Rows(
        planes=tuple(torch.cat([s.planes[slot].data.to(torch.float32) for s in kept]) for slot in range(len(layout))),
        labels=tuple(labels) if labels is not None and len(labels) == len(layout) else tuple(p.label for p in kept[0].planes),
        tokens=torch.cat([torch.as_tensor(s.input_ids, dtype=torch.int64) for s in kept]) if with_tokens else None,
        sequence=np.repeat(np.arange(len(kept)), lengths),
        position=np.concatenate([np.arange(n) for n in lengths]),
        samples=tuple(s.sample_id for s in kept), notes=tuple(notes),
    )


def _layout(sample: Sample) -> tuple[int, ...]:
    return tuple(p.data.shape[-1] if p.data.ndim == 2 else -1 for p in sample.planes)


def _unusable(sample: Sample, layout: tuple[int, ...], with_tokens: bool) -> str | None:
    if not sample.planes or any(p.data.ndim != 2 for p in sample.planes):
        return "its planes are not [T, H]"
    if _layout(sample) != layout:
        return f"its planes have widths {_layout(sample)}, the others {layout}"
    lengths = {len(p.data) for p in sample.planes}
    if len(lengths) > 1 or lengths == {0}:
        return f"its planes have {sorted(lengths)} rows"
    if with_tokens and (sample.input_ids is None or len(sample.input_ids) != min(lengths)):
        have = "no token ids" if sample.input_ids is None else f"{len(sample.input_ids)} token ids"
        return f"{have} for {min(lengths)} rows"
    return None


@dataclass(frozen=True)
class Weights:
    """What of the target's weights the tests can use; every part optional."""

    embed: Callable[[Sequence[int]], torch.Tensor] | None = None
    """Token ids to rows of `embed_tokens`, `[n, H]`, without the embedding factor."""
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
        embedding_factor=target.embedding_factor,
        norm=weight + 1 if weight is not None and target.norm_plus_one else weight, eps=target.eps,
        head=head_of(target), mlp=lambda layer: gated_mlp(target, layer),
    )


class Reference:
    """A bank read on the rows of a dump: `at(b)` are the target's states for exactly `rows`, in their order."""

    def __init__(self, bank: Bank, rows: Rows, weights: Weights, layers: int | None = None) -> None:
        """Samples are found in the bank by their tokens; a sample that goes beyond its bank sequence is compared on the common start.

        L+norm is derived from b=L where the bank lacks it and the norm's weight is known.
        Raises EvidenceError if the bank holds none of the dump's tokens.
        """
        if rows.tokens is None:
            raise EvidenceError("the dump has no token ids, so its rows cannot be found in the bank. "
                                "Capture input_ids with the states, or run the tests that need no bank.")
        self.bank, self.weights, self.layers = bank, weights, layers
        self._parts: list[tuple[int, int]] = []
        index: list[np.ndarray] = []
        sequences = [torch.as_tensor(s, dtype=torch.int64) for s in bank.sequences]
        for sample in np.unique(rows.sequence):
            at = np.flatnonzero(rows.sequence == sample)
            shared, number = max(((_common(rows.tokens[at], s), -j) for j, s in enumerate(sequences)), default=(0, 0))
            if shared >= min(8, len(at)):
                self._parts.append((-number, shared))
                index.append(at[:shared])
        if not index:
            raise EvidenceError(f"none of the {len(rows.samples)} samples starts with the tokens of one of the bank's "
                                f"{len(sequences)} sequences. Make the bank from the tokens of this dump.")
        self.rows = rows.take(np.concatenate(index))
        last = Boundary(layers) if layers is not None else None
        self._derived = Boundary(layers, True) if last in bank.boundaries and weights.norm is not None else None
        self.boundaries = tuple(sorted({*bank.boundaries, *([self._derived] if self._derived else [])}))

    def at(self, boundary: Boundary) -> torch.Tensor:
        """`[N, H]` float32."""
        if boundary == self._derived and boundary not in self.bank.boundaries:
            return self.weights.normed(self.at(Boundary(boundary.index)))
        return torch.cat([self.bank.plane(j, boundary)[:n].to(torch.float32) for j, n in self._parts])


def _common(tokens: torch.Tensor, other: torch.Tensor) -> int:
    n = min(len(tokens), len(other))
    differ = (tokens[:n] != other[:n]).nonzero()
    return int(differ[0]) if len(differ) else n
