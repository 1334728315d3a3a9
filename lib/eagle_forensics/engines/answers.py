"""The records in which `engines/` answers. Plain frozen dataclasses; importing them costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Paths = Mapping[str, tuple[int, ...] | None]
"""Boundaries by execution path: `eager` (prefill, and everything without CUDA graphs) and `graph` (decode and verify replayed from a CUDA graph);
None: the path crashes, refuses, or does not exist."""


@dataclass(frozen=True)
class Capture:
    """What one engine release does with one id list, before it is compared with other releases."""

    release: str
    """Release whose rules answered."""
    read_from: str
    """Place the ids were read from: `nested`, `top_level`, `nested_layer_ids`, `argument`; `default` when none was used."""
    values: Paths
    """What the release's rule writes into its list of layers to capture, reachable or not."""
    reached: Paths
    """The values that exist and are captured, ascending, even if a width check then stops the server."""
    boundaries: Paths
    """The boundaries the drafter is fed, ascending; None where the path crashes or does not exist."""
    error: str | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    assumed: bool = False
    post_norm: tuple[int, ...] = ()
    """Captured boundaries that are taken after the final norm (TensorRT-LLM's id -1)."""


@dataclass(frozen=True)
class LayerAnswer:
    """Which boundaries an engine release captures for a list of raw ids, per execution path."""

    engine: str
    version: str
    model_type: str
    layers: int
    ids: tuple[Any, ...] | None
    """As given; None when there were none."""
    boundaries: Paths
    error: str | None
    """The crash or refusal to expect, None if the server runs."""
    write_as: Mapping[str, list[int]]
    """`<engine> <version>` -> ids that capture, there, the boundaries of the eager path; releases around each rule change."""
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    assumed: bool
    """Some rule used was not read for this version or class."""
    read_from: str = "default"
    values: Paths = field(default_factory=dict)
    reached: Paths = field(default_factory=dict)
    post_norm: tuple[int, ...] = ()
    runner: str | None = None
    """vLLM model runner the answer is for, `v1` or `v2`."""

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dicts, as `layers --json` prints them."""
        return _plain(asdict(self))


@dataclass(frozen=True)
class WriteAnswer:
    """What to write in the draft's config.json so that an engine release captures given boundaries."""

    ids: tuple[int, ...] | None
    """The list; None with no error means: write no ids, the default captures them."""
    key: str
    """Dotted key in config.json (or launch option) that this release reads."""
    notes: tuple[str, ...] = ()
    error: str | None = None
    """Why no list does it."""

    def to_json(self) -> dict[str, Any]:
        return _plain(asdict(self))


@dataclass(frozen=True)
class LoadAnswer:
    """What becomes of a draft checkpoint in an engine release."""

    engine: str
    version: str
    loaded: Mapping[str, str]
    """File name -> parameter it fills."""
    dropped: Mapping[str, str]
    """File name -> why it is not used."""
    replaced: Mapping[str, str]
    """File name -> what the engine uses instead of it."""
    missing: tuple[str, ...]
    """Parameters the engine builds for which the file has nothing, or not all (`qkv_proj.weight[q_proj]`): random weights."""
    flags: Mapping[str, str]
    """Head flag that the config sets -> `honoured`, `ignored` or `default assumed` with the reason."""
    error: str | None
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    assumed: bool

    def to_json(self) -> dict[str, Any]:
        return _plain(asdict(self))


@dataclass(frozen=True)
class Message:
    """A line the engine prints, or a sentence of ours about its arguments."""

    level: str
    """`info`, `warning`, `error` as the engine logs it; `note` for a sentence of ours that no log holds."""
    text: str


@dataclass(frozen=True)
class ArgsAnswer:
    """What launch arguments come to mean in an engine release."""

    engine: str
    version: str
    raw: Mapping[str, Any]
    effective: Mapping[str, Any]
    messages: tuple[Message, ...]
    error: str | None
    """The exception to expect at start, None if the arguments are accepted."""
    sources: tuple[str, ...]
    assumed: bool
    changed: tuple[str, ...] = ()
    """Keys of `effective` that the user set to something else."""
    refusal: str | None = None
    """What kind of error: `usage` (the command line itself: wrong type, unknown flag), `tree` (a tree that does not fit), `value` (any other)."""
    open: tuple[str, ...] = ()
    """Flags on which a rule hangs and whose value only the shell knows: nothing is refused on their account."""

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dicts, as `args --json` prints them."""
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
