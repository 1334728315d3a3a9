"""Wiring: one way in which the drafter can be fed and read, and its correctness on recorded text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness, judge
from eagle_forensics.drafter.network import forms
from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.network.unroll import Chunk, chunks, unroll
from eagle_forensics.drafter.recorded import ZERO, Recorded
from eagle_forensics.drafter.wirings import derived
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.evidence.records import DraftFlags, Rope


@dataclass(frozen=True)
class Wiring:
    """What the drafter is fed and how it is read. The defaults are the contract of EAGLE-3."""

    planes: tuple[str, ...]
    """Names of the target states in fc order, in any form of `derived`; `zero` is a plane of zeros."""
    token_shift: int = 1
    """Step k at position t reads the embedding of token t + token_shift + k. Above 1 it sees the token it has to predict."""
    hidden_shift: int = 0
    """Position t reads the states of position t + hidden_shift. Above 0 they have seen the token it has to predict."""
    flags: DraftFlags | None = None
    """Flags other than the checkpoint's; None inside keeps them."""
    d2t: str = "offset"
    """`offset` is the contract; `absolute` and `ignored` are the usual mistakes."""
    rope: Rope | None = field(default=None, hash=False)
    """Rotary setup other than the checkpoint's."""
    layer: str = ""
    """How the draft layers are computed, where it is not the reference's way: a name of `network.forms`."""
    name: str = ""
    """What this wiring stands for in the case: `trained`, `served`."""

    @property
    def label(self) -> str:
        """`served: b=0, b=2, b=15; token shift 0`"""
        forms = set(self.forms)
        if len(self.planes) > 1 and len(forms) == 1 and forms != {""}:
            parts = [f"{', '.join(self.states)}, each {forms.pop()}"]
        else:
            parts = [", ".join(self.planes)]
        parts += [f"token shift {self.token_shift}"] * (self.token_shift != 1)
        parts += [f"hidden shift {self.hidden_shift:+d}"] * (self.hidden_shift != 0)
        if self.flags:
            parts += [f"{k} {'on' if v else 'off'}" for k, v in vars(self.flags).items() if v is not None]
        parts += [f"d2t {self.d2t}"] * (self.d2t != "offset")
        parts += [f"rope {self.rope.origin}"] if self.rope else []
        parts += [self.layer] * bool(self.layer)
        return (f"{self.name}: " if self.name else "") + "; ".join(parts)

    @property
    def states(self) -> tuple[str, ...]:
        """The recorded planes, whatever form they are fed in."""
        return tuple(derived.split(p)[1] for p in self.planes)

    @property
    def forms(self) -> tuple[str, ...]:
        """The form of each plane; empty where it is fed as recorded."""
        return tuple(derived.split(p)[0] for p in self.planes)

    @property
    def leaks(self) -> bool:
        """The input holds the token to be predicted: no server can do that, so a high accuracy proves nothing."""
        return self.token_shift > 1 or self.hidden_shift > 0

    def formed(self, kind: str) -> Wiring:
        """The same wiring with every plane in one more form."""
        return replace(self, planes=tuple(derived.form(kind, p) for p in self.planes))

    def same_feed(self, other: Wiring) -> bool:
        """Equal but for the name."""
        return replace(self, name="") == replace(other, name="")

    def differences(self, other: Wiring) -> tuple[str, ...]:
        """In what two wirings differ: states, forms, token_shift, hidden_shift, flags, d2t, rope, layer."""
        parts = ("states", "forms", "token_shift", "hidden_shift", "flags", "d2t", "rope", "layer")
        return tuple(p for p in parts if getattr(self, p) != getattr(other, p))


def evaluate(drafter: Drafter, sequences: Sequence[Recorded], wiring: Wiring, steps: int = 3, *, norm: FinalNorm | None = None) -> Correctness:
    """Correctness of one wiring on all sequences."""
    return evaluate_all(drafter, sequences, [wiring], steps, norm=norm)[0]


def evaluate_all(drafter: Drafter, sequences: Sequence[Recorded], wirings: Sequence[Wiring], steps: int = 3, *,
                 norm: FinalNorm | None = None) -> tuple[Correctness, ...]:
    """Correctness of each wiring on the same sequences. What wirings share is computed once: products of fc, the embedding's
    share of attention, everything but the meaning of draft ids where only d2t differs, all of it where planes of two names are equal.

    `norm`: the target's final norm, for wirings that feed states after it.
    """
    if not sequences:
        raise ValueError("no sequence to evaluate")
    names = tuple(dict.fromkeys(n for w in wirings for n in w.planes if n != ZERO))
    sources = tuple(dict.fromkeys(s for n in names for s in derived.needed(n)))
    collected: list[list[SequenceCorrectness]] = [[] for _ in wirings]
    with torch.inference_mode():
        for chunk in chunks(sequences, steps):
            recorded = {n: p.to(drafter.dtype) for n, p in chunk.planes(sources).items()}
            planes, stands_for = _distinct({n: derived.derive(n, recorded.__getitem__, norm, drafter.eps) for n in names})
            projections = Projections(drafter, planes or {ZERO: torch.empty(len(chunk.tokens), 0)})
            seen: dict[Wiring, torch.Tensor] = {}
            for wiring, results in zip(wirings, collected, strict=True):
                key = replace(wiring, d2t="offset", name="", planes=tuple(stands_for.get(n, n) for n in wiring.planes))
                if key not in seen:
                    seen[key] = _draft_ids(drafter, chunk, projections, key, steps)
                results.extend(_judged(chunk, seen[key], drafter.target_ids(wiring.d2t)))
    return tuple(Correctness(tuple(results), steps) for results in collected)


def _draft_ids(drafter: Drafter, chunk: Chunk, projections: Projections, wiring: Wiring, steps: int) -> torch.Tensor:
    own = drafter.with_flags(wiring.flags)
    if wiring.rope is not None:
        own = own.with_rope(wiring.rope)
    if wiring.layer:
        own = forms.computed(own, wiring.layer)
    hidden = projections.hidden(wiring.planes, norm_before_fc=bool(own.flags.norm_before_fc), fc_norm=bool(own.flags.fc_norm))
    if wiring.hidden_shift:
        at = torch.arange(len(hidden))
        hidden = hidden[torch.minimum(torch.maximum(at + wiring.hidden_shift, at - chunk.position), chunk.last)]
    return unroll(own, chunk, hidden, steps, token_shift=wiring.token_shift)


def _distinct(planes: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Planes without bit-equal repetitions, and for every name the one that stands for it."""
    kept: dict[str, torch.Tensor] = {}
    stands_for = {}
    for name, data in planes.items():
        twin = next((n for n, other in kept.items() if torch.equal(other, data)), None)
        stands_for[name] = twin or name
        if twin is None:
            kept[name] = data
    return kept, stands_for


def _judged(chunk: Chunk, draft_ids: torch.Tensor, target_ids: torch.Tensor) -> Iterator[SequenceCorrectness]:
    for item, (start, stop) in zip(chunk.sequences, chunk.row_bounds, strict=True):
        yield judge(item, draft_ids[start:stop], target_ids)
