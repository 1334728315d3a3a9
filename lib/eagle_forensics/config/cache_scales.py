"""Do the scales of a quantized KV cache reach it? Without them an engine takes 1.0 and says so in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules
from eagle_forensics.finding import Evidence, Finding

SCALES = Question("config.kv-scales", "Do the scales of the quantized KV cache reach it?")
_SCALE = re.compile(r"(^|[._])(k|v|kv)_scale$|\.(k|v)_proj\.output_scale$")
_SCALED = re.compile(r"fp8(?!_e5m2)|int8|nvfp4|fp4")
"""Formats of a cache that take scales; e5m2 has the range of float16 and takes none."""
_RULE = ("vllm 0.32.0 model_executor/layers/quantization/kv_cache.py process_weights_after_loading: no k_scale and v_scale in the checkpoint means 1.0",
         "sglang 0.5.23 layers/quantization/kv_cache.py; compressed-tensors kv_cache_scheme, ModelOpt kv_cache_quant_algo")


@dataclass(frozen=True)
class _Side:
    who: str
    promises: str | None
    """What its config says of a calibrated cache."""
    scales: int
    tensors: int


def scale_findings(found: Inspection) -> list[Finding]:
    """One finding where the KV cache is quantized by the launch line or by a checkpoint; none where the launch line asks for another format, which holds no scales."""
    sides = _sides(found)
    asked = _asked(found)
    if not (_SCALED.match(asked) if asked else any(side.promises for side in sides)):
        return []
    said = found.log_lines("scales")
    common = {"unit": "tensors that hold a scale", "evidence": (*rules(*_RULE), *(Evidence(note=line) for line in said))}
    counts = {"observed": {side.who: side.scales for side in sides}}
    words = f"the KV cache is {asked or 'quantized as the checkpoint says'}"
    lost = next((side for side in sides if side.promises and side.tensors and not side.scales), None)
    if lost is not None:
        return [SCALES.fails(
            "load.kv-scales", f"{words}; {lost.who} promises calibrated scales ({lost.promises}) but none of its {lost.tensors} tensors is one: the engine takes 1.0", **counts, **common,
            expected="k_scale and v_scale of every layer",
            rival=("feature.rotated-basis", f"0 scales among {lost.tensors} tensors", "a rotation leaves the scales in the file; here the export lost them"),
            refuted_by="a file of this checkpoint that holds k_scale and v_scale, or the same accept length with an unquantized KV cache",
            remedy="Export the checkpoint with its scales; until then --kv-cache-dtype bfloat16 (auto follows the checkpoint's promise).", predicted_effect="Keys and values keep the range they were calibrated for.",
            next_step="Measure once with an unquantized KV cache (notebook 04): equal accept lengths clear it.")]
    if said and sides and all(side.scales for side in sides):
        return [SCALES.fails(
            "load.kv-scales", f"{words} and both checkpoints hold scales, but the engine says: {said[0]}", **counts, **common, expected="the scales of the checkpoints",
            rival=("feature.rotated-basis", "the engine's own line", "the log names the scale that is used; no rotation is involved"),
            refuted_by="a later line of the log that names the scales as loaded", remedy="Name the tensors as this release expects them, or --kv-cache-dtype bfloat16.",
            predicted_effect="Keys and values keep the range they were calibrated for.", next_step="Measure once with an unquantized KV cache (notebook 04).")]
    if said and any(side.scales for side in sides):
        without = next(side.who for side in sides if not side.scales)
        return [SCALES.suspects(
            "load.kv-scales", f"{words}; {without} holds no scales while the other checkpoint does, and the engine says: {said[0]}", **counts, **common, required=True,
            rival=("a healthy drafter", f"{without} was never calibrated", "not rejected: 1.0 may be right for it"),
            next_step="Measure once with an unquantized KV cache of the draft (notebook 04): equal accept lengths clear it.")]
    told = f"; the engine says: {said[0]}" if said else ""
    return [SCALES.passes(f"{words}; no checkpoint promises scales that it does not hold{told}", **counts, **common)]


def _asked(found: Inspection) -> str | None:
    """The format of --kv-cache-dtype; None for auto, which is the checkpoint's."""
    value = str(found.arguments.raw.get("kv_cache_dtype") or "auto") if found.arguments else "auto"
    return None if value == "auto" else value


def _sides(found: Inspection) -> list[_Side]:
    sides = []
    if found.target is not None:
        sides.append(_side("the target", found.target.config, found.target.tensors))
    if found.draft is not None:
        names = (*(tensor.name for tensor in found.draft.tensors.values()), *found.draft.unknown_tensors)
        sides.append(_side("the drafter", found.draft.config, names))
    return sides


def _side(who: str, config: Mapping[str, Any], names: Iterable[str]) -> _Side:
    listed = list(names)
    return _Side(who, _promise(config), sum(bool(_SCALE.search(name)) for name in listed), len(listed))


def _promise(config: Mapping[str, Any]) -> str | None:
    """Static scales that a quantization_config promises; a dynamic scheme promises none."""
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return None
    scheme = quantized.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and not scheme.get("dynamic"):
        return f"kv_cache_scheme of {scheme.get('num_bits', '?')} bits"
    inner = quantized.get("quantization") if isinstance(quantized.get("quantization"), Mapping) else quantized
    algorithm = inner.get("kv_cache_quant_algo")
    return f"kv_cache_quant_algo {algorithm}" if isinstance(algorithm, str) and algorithm.lower() not in ("none", "null") else None
