"""JSON configuration files: one strict way to read them and to take a typed value out of them.

Every error is an EvidenceError that names the file, the field, what was expected and what to do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.records import EvidenceError, Rope

MAX_JSON_BYTES = 100_000_000
"""The limit of the safetensors format for its header; no config.json or shard index comes near it."""

DEFAULT_THETA = 10_000.0
"""Rotary base where a config is silent (transformers LlamaConfig, EAGLE cnets.py)."""


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object out of text; refuses anything else, duplicate keys and bottomless nesting. `where` names the source."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise EvidenceError(
                    f"{where}: the key {key!r:.80} stands twice in one object, so it depends on the reader which one "
                    "counts; expected each key once. Delete one of them."
                )
            seen[key] = value
        return seen

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=no_duplicates)
    except EvidenceError:
        raise
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{where}: not UTF-8 at byte {error.start}; expected JSON text. Export the file again.") from None
    except json.JSONDecodeError as error:
        raise EvidenceError(
            f"{where}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); expected a JSON object. "
            "The file is truncated or edited by hand: copy it again from its source."
        ) from None
    except (RecursionError, ValueError) as error:
        raise EvidenceError(f"{where}: unreadable JSON ({str(error)[:120]}); expected a plain JSON object.") from None
    if not isinstance(value, dict):
        raise EvidenceError(
            f"{where}: holds a JSON {_kind(value)}; expected an object ({{...}}). Name the model's own config file."
        )
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of at most 100 MB."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise EvidenceError(f"{path}: {path.stat().st_size} bytes of JSON; expected at most {MAX_JSON_BYTES}. Is this the right file?")
        raw = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Check the path and its permissions.") from None
    return parse_object(raw, str(path))


def read_config(path: Path, what: str) -> tuple[Path, dict[str, Any]]:
    """config.json of a model folder (or the file itself): its path and content. `what` is drafter or target."""
    if path.is_file() and path.suffix == ".json":
        return path, read_object(path)
    file = path / "config.json"
    if not path.exists():
        raise EvidenceError(f"{path}: the {what} does not exist; expected a model folder with config.json. Correct the path.")
    if not path.is_dir():
        raise EvidenceError(f"{path}: the {what} is a file; expected a model folder with config.json. Name the folder.")
    if not file.is_file():
        held = sorted(p.name for p in path.iterdir())[:5]
        raise EvidenceError(
            f"{path}: no config.json, so this folder is no {what} checkpoint; expected config.json beside the weights, found "
            f"{', '.join(held) if held else 'an empty folder'}. Name the folder that holds config.json."
        )
    return file, read_object(file)


def integer(config: Mapping[str, Any], *keys: str, where: Path, required: bool = False, minimum: int = 1) -> int | None:
    """The first of `keys` that is present and not null, as an int of at least `minimum`."""
    key, value = _first(config, keys)
    if key is None:
        if required:
            raise EvidenceError(f"{where}: no `{keys[0]}`; expected an integer. Is this the config of a language model?")
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise EvidenceError(f"{where}: `{key}` is {value!r:.80}; expected an integer of at least {minimum}. Correct the config.")
    return value


def number(config: Mapping[str, Any], *keys: str, where: Path, default: float | None = None) -> float | None:
    """The first of `keys` that is present and not null, as a finite positive number."""
    key, value = _first(config, keys)
    if key is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise EvidenceError(f"{where}: `{key}` is {value!r:.80}; expected a positive number. Correct the config.")
    return float(value)


def boolean(config: Mapping[str, Any], *keys: str, where: Path) -> bool | None:
    """The first of `keys` that is present and not null, as true or false."""
    key, value = _first(config, keys)
    if key is None:
        return None
    if not isinstance(value, bool):
        raise EvidenceError(f"{where}: `{key}` is {value!r:.80}; expected true or false. Correct the config.")
    return value


def strings(config: Mapping[str, Any], key: str, where: Path) -> tuple[str, ...]:
    """A list of strings (a single string counts as one); empty where absent."""
    value = config.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise EvidenceError(f"{where}: `{key}` is {value!r:.80}; expected a list of strings. Correct the config.")
    return tuple(value)


def rope(config: Mapping[str, Any], where: Path) -> tuple[Rope, list[str]]:
    """Rotary embedding of a config, and what was odd about it.

    Reads `rope_parameters` (transformers 5), else `rope_theta` with `rope_scaling`, else base 10000. A `rope_parameters`
    keyed by layer type gives its full attention.
    """
    notes: list[str] = []
    parameters, scaling = _mapping(config, "rope_parameters", where), _mapping(config, "rope_scaling", where)
    if parameters and all(isinstance(v, Mapping) for v in parameters.values()):
        kind = "full_attention" if "full_attention" in parameters else next(iter(parameters))
        notes.append(f"rope_parameters differs by layer type; `{kind}` is shown.")
        parameters = dict(parameters[kind])
    theta = number(config, "rope_theta", "rotary_emb_base", where=where)
    origin = "rope_theta"
    inner = number(parameters, "rope_theta", where=where)
    if inner is not None:
        if theta is not None and theta != inner:
            notes.append(f"rope_parameters.rope_theta is {inner:g} but rope_theta is {theta:g}: readers disagree on the base.")
        theta, origin = inner, "rope_parameters"
    if theta is None:
        theta, origin = DEFAULT_THETA, "default 10000"
    if parameters and scaling and _rope_type(parameters) != _rope_type(scaling):
        notes.append(f"rope_parameters says {_rope_type(parameters)} but rope_scaling says {_rope_type(scaling)}.")
    rest = {k: v for k, v in (parameters or scaling).items() if k not in ("rope_theta", "partial_rotary_factor")}
    if set(rest) <= {"type", "rope_type"} and _rope_type(rest) == "default":
        rest = {}
    return Rope(theta, rest or None, _partial(config, parameters, where), origin), notes


def _partial(config: Mapping[str, Any], parameters: Mapping[str, Any], where: Path) -> float:
    share = number(parameters, "partial_rotary_factor", where=where)
    if share is None:
        share = number(config, "partial_rotary_factor", "rotary_pct", where=where)
    if share is None:
        rotary, head = integer(config, "rotary_dim", where=where), integer(config, "head_dim", where=where)
        share = rotary / head if rotary and head else 1.0
    if share > 1:
        raise EvidenceError(f"{where}: rotates {share:g} of the head dimension; expected at most 1. Correct partial_rotary_factor.")
    return share


def _rope_type(mapping: Mapping[str, Any]) -> str:
    return str(mapping.get("rope_type", mapping.get("type", "default")))


def _mapping(config: Mapping[str, Any], key: str, where: Path) -> dict[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise EvidenceError(f"{where}: `{key}` is a {_kind(value)}; expected an object or null. Correct the config.")
    return dict(value)


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str | None, Any]:
    return next(((k, config[k]) for k in keys if config.get(k) is not None), (None, None))


def _kind(value: Any) -> str:
    return {list: "list", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}.get(type(value), "value")
