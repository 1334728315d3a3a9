"""How long does a GPU take to read the experts of one token? From the target's config and the memory's peak, without any measurement.

A check of the fitted cost of a round: each verified token touches other experts, and their weights are read once per forward.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

MATRICES = 3
"""Of a gated expert: gate, up, down."""
REACHED = 0.8
"""Share of the peak at which the published figures of one MoE (1.037 ms against 1.051 ms fitted) agree; the peak itself is the bound."""
SCALE_BYTES = 2
"""Of one group of quantized weights."""
_BYTES = {"float8": 1.0, "fp8": 1.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0}


@dataclass(frozen=True)
class ExpertRead:
    """One token's experts on one GPU."""

    gigabytes: float
    peak_gb_per_s: float

    @property
    def peak_ms(self) -> float:
        """At the memory's peak: no GPU is faster."""
        return 1e3 * self.gigabytes / self.peak_gb_per_s

    @property
    def ms(self) -> float:
        return self.peak_ms / REACHED


def expert_read(config: Mapping[str, Any] | None, gpu: str | None, gpus: int | None) -> ExpertRead | None:
    """What the experts of one token cost; None for a dense target, an unknown GPU, or a config that does not say enough."""
    text = {**(config or {}), **((config or {}).get("text_config") or {})}
    names = ("num_experts_per_tok", "hidden_size", "moe_intermediate_size", "num_hidden_layers")
    sizes = [text.get(n) for n in names]
    dense, width, peak = text.get("first_k_dense_replace", 0), _width(text), _peak(gpu)
    if not gpus or peak is None or width is None or not all(isinstance(x, int) and x > 0 for x in sizes) or not isinstance(dense, int):
        return None
    k, hidden, inner, layers = sizes
    return ExpertRead(k * MATRICES * hidden * inner * (layers - dense) * width / gpus / 1e9, peak)


def _width(text: Mapping[str, Any]) -> float | None:
    """Bytes of one expert weight, group scales included."""
    quantization = text.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return _BYTES.get(str(text.get("dtype") or text.get("torch_dtype")).removeprefix("torch."))
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    found = {**quantization, **(weights if isinstance(weights, Mapping) else {})}
    bits, group = found.get("num_bits", found.get("bits", found.get("w_bit"))), found.get("group_size", found.get("q_group_size"))
    if isinstance(bits, int) and bits > 0:
        return bits / 8 + (SCALE_BYTES / group if isinstance(group, int) and group > 0 else 0.0)
    return _BYTES.get(str(quantization.get("quant_method")))


def _peak(gpu: str | None) -> float | None:
    name = (gpu or "").lower()
    return next((row["gb_per_s"] for row in _gpus() if all(word in name for word in row["words"])), None)


@cache
def _gpus() -> tuple[Mapping[str, Any], ...]:
    return tuple(tomllib.loads(resources.files(__package__).joinpath("gpus.toml").read_text(encoding="utf-8"))["gpu"])
