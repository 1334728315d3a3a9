"""Rotary embedding by engine and trainer: which fields of the draft's config are read, what was rotated in training, and the frequencies.

Formulas: linear (positions / factor), llama3 (Llama-3.1 smoothing), yarn (arXiv 2309.00071, as in transformers `modeling_rope_utils`,
vLLM and SGLang). `dynamic` leaves the frequencies alone below the trained length. Plain Python: no torch is needed to compare two configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle_forensics.engines import sglang, vllm
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import engine_label, nearest, row_at, version_key
from eagle_forensics.evidence.configs import rope
from eagle_forensics.evidence.records import Rope

READ = {"sglang": sglang.releases, "vllm": vllm.releases}
"""Engine -> the releases whose source was read."""
MOST_ROTATED = 65_536
"""Wider than any attention head; more is a damaged config, and its frequencies would fill the memory."""


@dataclass(frozen=True)
class RopeReading:
    """How one side understands the draft's rotary settings."""

    who: str
    rope: Rope
    source: str
    certain: bool = True
    """False: the rule was not read for this engine, version or trainer, or was not reproduced."""


def engine_rope(engine: str, version: str, config: Mapping[str, Any], file: Path) -> RopeReading:
    """What an engine rotates the draft by. An engine without a row is taken at the config's word, marked as uncertain."""
    rows = [row for row in table("rotary")["engine"] if row["name"] == engine]
    label = engine_label(engine, version)
    row = row_at(rows, version) if rows else None
    if row is None:
        return RopeReading(label, rope(config, file)[0], "the config as written; this engine's reading is not written down", certain=False)
    seen = {key: value for key, value in config.items() if key not in row["ignores"]}
    return RopeReading(label, rope(seen, file)[0], row["source"], certain=not nearest(engine, version, READ[engine]()).assumed)


def trained_rope(trainer: str | None, version: str | None, config: Mapping[str, Any], file: Path) -> RopeReading:
    """What the draft was rotated by in training: the config as saved, corrected by what is known of the trainer."""
    written = rope(config, file)[0]
    row = next((row for row in table("rotary")["trainer"] if row["name"] == trainer), None)
    if row is None or ("until" in row and (version is None or version_key(version) >= version_key(row["until"]))):
        return RopeReading("the config as saved by its trainer", written, "the draft's config")
    changed = replace(written, theta=row.get("theta", written.theta), partial=row.get("partial", written.partial),
                      scaling=None if row.get("scaling") == "none" else written.scaling)
    sure = row["certain"] and "mrope_section" not in (written.scaling or {})
    return RopeReading(f"{trainer} {version or ''}".strip(), changed, row["source"], sure)


def inverse_frequencies(rope: Rope, head_dim: int, max_positions: int | None = None) -> tuple[list[float], float]:
    """Inverse frequencies [rotated/2], and the factor on cos and sin (1.0 but for yarn).

    Raises ValueError for a scaling type that is not known, lacks its parameters or gives frequencies that are no positive numbers.
    """
    inverse, factor = _frequencies(rope, head_dim, max_positions)
    if not all(0 < f < math.inf for f in (*inverse, factor)):
        raise ValueError(f"rope: theta {rope.theta:g} with scaling {str(rope.scaling)[:120]} gives frequencies that are no positive numbers")
    return inverse, factor


def _frequencies(rope: Rope, head_dim: int, max_positions: int | None) -> tuple[list[float], float]:
    rotated = int(head_dim * rope.partial)
    if head_dim > MOST_ROTATED:
        raise ValueError(f"rope: head_dim {head_dim}; expected at most {MOST_ROTATED}")
    if rotated < 2 or rotated % 2:
        raise ValueError(f"rope: {rope.partial} of head_dim {head_dim} rotates {rotated} dimensions; expected an even number >= 2")
    inverse = [rope.theta ** -(i / rotated) for i in range(0, rotated, 2)]
    scaling = rope.scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default"))).lower()
    try:
        if kind in ("default", "dynamic", "mrope"):
            return inverse, 1.0
        if kind == "linear":
            return [f / float(scaling["factor"]) for f in inverse], 1.0
        if kind == "llama3":
            return _llama3(inverse, scaling), 1.0
        if kind in ("yarn", "deepseek_yarn"):
            return _yarn(inverse, scaling, rope.theta, rotated, max_positions)
    except KeyError as missing:
        raise ValueError(f"rope scaling {kind!r} lacks {missing}; found keys {sorted(scaling)}") from None
    raise ValueError(f"rope scaling {kind!r} is not known; known: default, dynamic, linear, llama3, yarn")


def _llama3(inverse: list[float], scaling: Mapping[str, Any]) -> list[float]:
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    smooth = [min(1.0, max(0.0, (original * f / (2 * math.pi) - low) / (high - low))) for f in inverse]
    return [f * (s + (1 - s) / factor) for f, s in zip(inverse, smooth, strict=True)]


def _yarn(inverse: list[float], scaling: Mapping[str, Any], theta: float, rotated: int, max_positions: int | None) -> tuple[list[float], float]:
    factor = float(scaling["factor"])
    original = scaling.get("original_max_position_embeddings") or max_positions
    if not original:
        raise KeyError("original_max_position_embeddings")

    def dimension(turns: float) -> float:
        return rotated * math.log(float(original) / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(float(scaling.get("beta_fast") or 32)), dimension(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = [min(1.0, max(0.0, (i - low) / max(high - low, 0.001))) for i in range(rotated // 2)]

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        first, second = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention = mscale(float(first)) / mscale(float(second)) if first and second else mscale(1.0)
    return [f * (1 - r) + f / factor * r for f, r in zip(inverse, ramp, strict=True)], float(attention)
