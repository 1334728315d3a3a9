"""In which dtype and which quantization an engine runs the draft. Rules: `loading.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.engines.hardware import capability_major
from eagle_forensics.engines.tables import current, table

ENGINES = tuple(sorted(table("loading")["dtype"]))
"""Engines whose rules are written down."""
_SHORT = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class DraftDtype:
    """The dtype of the draft's parameters, and whose config decided."""

    runs: str | None
    """None: the config that decides names none, and the weights beside it are not looked at here."""
    follows: str
    """`argument`, `draft` or `target`."""
    claimed: str | None
    """What that config names."""
    source: str


@dataclass(frozen=True)
class DraftQuantization:
    """The quantization method of the draft's layers."""

    method: str | None
    whence: str
    ignores_own: bool
    """The draft's own quantization_config is not used."""
    source: str


def draft_dtype(engine: str, *, asked: str, draft: Mapping[str, Any], target: Mapping[str, Any], capability: str | None = None) -> DraftDtype:
    """`asked` is --dtype (or `auto`), `draft` and `target` their configs, `capability` the GPU's (`9.0`). KeyError for an engine not in ENGINES."""
    rule = table("loading")["dtype"][engine]
    if asked != "auto":
        return DraftDtype(_SHORT.get(asked, asked), "argument", asked, rule["source"])
    config = draft if rule["follows"] == "draft" else target
    claimed = config.get("torch_dtype") or config.get("dtype")
    claimed = None if claimed is None else str(claimed).removeprefix("torch.")
    exempt = any(str(config.get("model_type", "")).startswith(kind) for kind in rule["exception"])
    major = capability_major(capability)
    old = major is not None and major < 8
    float32 = "bfloat16" if exempt else rule.get("float32_before_8", rule["float32"]) if old else rule["float32"]
    missing = rule.get("missing") and ("bfloat16" if exempt else rule["missing"])
    runs = missing if claimed is None else float32 if claimed == "float32" else claimed
    return DraftDtype(runs, rule["follows"], claimed, rule["source"])


def draft_quantization(engine: str, version: str, *, effective: Mapping[str, Any], raw: Mapping[str, Any], draft: Mapping[str, Any],
                       target: Mapping[str, Any]) -> DraftQuantization:
    """`effective` and `raw` as `resolve_args` answers; `draft` and `target` their configs. KeyError for an engine not in ENGINES."""
    row = current(table("loading")["quantization"][engine], version)
    own, asked, flag = _method(draft), effective.get("draft_quantization"), effective.get("quantization")
    if row["takes"] == "nothing":
        return DraftQuantization(None, "this release builds its layers unquantized", own is not None, row["source"])
    if row["takes"] == "target":
        return DraftQuantization(flag or _method(target), "the target's quantization is used for the draft in this release", own is not None, row["source"])
    if own is not None or asked is None:
        return DraftQuantization(own, "its own quantization_config" if own else "none is asked for", False, row["source"])
    inherited = engine == "sglang" and raw.get("speculative_draft_model_quantization") is None
    return DraftQuantization(asked, f"inherited from --quantization {flag}" if inherited else "asked for the draft", False, row["source"])


def _method(config: Mapping[str, Any]) -> str | None:
    own = config.get("quantization_config")
    if not own:
        return None
    return str(own.get("quant_method", "unnamed")) if isinstance(own, Mapping) else "unnamed"
