"""Heads of more than one draft layer: what notebook 01 must say of the release that is to load them."""

from __future__ import annotations

import torch

from tests.lineup import papers as p
from tests.lineup.outcome import healthy, planted

LAYERS = "drafter.extra-layers"


def two_layers(first: str = "midlayer.") -> dict[str, torch.Tensor]:
    tensors = p.renamed("midlayer.", first)
    return tensors | {k.replace(first, "layers.1."): v.clone() for k, v in tensors.items() if k.startswith(first)}


TWO = p.LLAMA.but(draft={"num_hidden_layers": 2}, tensors=two_layers)
CASES = p.alone(
    planted("two draft layers, SGLang 0.5.11", TWO.but(version="0.5.11"), LAYERS, rival="drafter.residual"),
    planted("two draft layers, SGLang 0.5.8", TWO.but(version="0.5.8"), LAYERS, rival="drafter.residual"),
    healthy("two draft layers, SGLang 0.5.12", TWO.but(version="0.5.12")),
    healthy("two draft layers, vLLM", p.VLLM.but(draft={"num_hidden_layers": 2}, tensors=lambda: two_layers("layers.0."))),
)
