"""A tiny residual-stream target with known states, and generators for every damage a dump can carry."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import Plane, Sample
from eagle_forensics.fingerprint.rows import Weights

LAYERS, HIDDEN, FFN, VOCAB = 6, 64, 128, 40
EPS = 1e-6


class TinyTarget:
    """Layers of causal mixing and an MLP; `sink` plants a massive activation on token 0 from boundary 3 on."""

    def __init__(self, seed: int = 0, sink: float = 0.0, layers: int = LAYERS) -> None:
        g = torch.Generator().manual_seed(seed)
        self.layers = layers

        def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(*shape, generator=g) * scale

        self.embed = draw(VOCAB, HIDDEN)
        self.mix = [draw(HIDDEN, HIDDEN, scale=0.25 / HIDDEN**0.5 * 2) for _ in range(layers)]
        self.up = [draw(HIDDEN, FFN, scale=HIDDEN**-0.5) for _ in range(layers)]
        self.down = [draw(FFN, HIDDEN, scale=0.9 / FFN**0.5) for _ in range(layers)]
        self.norm = 1 + 0.3 * draw(HIDDEN)
        self.sink_vector = draw(HIDDEN, scale=sink)

    def rms(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)

    def run(self, ids: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """States at boundaries 0..L, states after each attention, MLP activations `[T, FFN]`."""
        h = self.embed[ids]
        states, middle, active = [h], [], []
        steps = torch.arange(1, len(ids) + 1).unsqueeze(1)
        for layer in range(self.layers):
            r = h + (self.rms(h).cumsum(0) / steps.sqrt()) @ self.mix[layer]
            a = torch.tanh(self.rms(r) @ self.up[layer])
            h = r + a @ self.down[layer]
            if layer == 2:
                h = h.clone()
                h[0] += self.sink_vector
            states.append(h)
            middle.append(r)
            active.append(a)
        return states, middle, active

    def final(self, x: torch.Tensor) -> torch.Tensor:
        return self.rms(x) * self.norm

    def weights(self) -> Weights:
        return Weights(embed=lambda ids: self.embed[list(ids)], norm=self.norm, eps=EPS)


class TinyBank:
    """The bank of a TinyTarget for some sequences."""

    def __init__(self, target: TinyTarget, sequences: list[torch.Tensor], boundaries: list[Boundary] | None = None) -> None:
        self.boundaries = tuple(boundaries if boundaries is not None else [*map(Boundary, range(target.layers + 1)), Boundary(target.layers, True)])
        self.sequences = sequences
        self._states = [target.run(s)[0] for s in sequences]
        self._final = target.final

    def plane(self, i: int, boundary: Boundary) -> torch.Tensor:
        state = self._states[i][boundary.index]
        return self._final(state) if boundary.normed else state


def sequences(count: int = 6, length: int = 50, seed: int = 1) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (length + 3 * i,), generator=g) for i in range(count)]


def samples(planes_of, ids: list[torch.Tensor], labels: tuple[str, ...] | None = None) -> list[Sample]:
    """Samples whose planes are `planes_of(ids)`, a list of `[T, W]`."""
    out = []
    for number, s in enumerate(ids):
        planes = tuple(Plane(i, labels[i] if labels else None, p) for i, p in enumerate(planes_of(s)))
        out.append(Sample(planes, s, None, Path(f"data_{number}.pt"), f"data_{number}"))
    return out
