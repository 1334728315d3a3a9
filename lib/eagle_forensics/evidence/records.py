"""The canonical records that readers hand to everything else: Draft, Target, Sample, DumpInfo, LaunchLine.

Readers never interpret: a record says what a file holds, in canonical names. What an engine makes of it is `engines/`.
Tensors are `numpy`/`torch` objects read on demand; importing this module imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class EvidenceError(ValueError):
    """Evidence that cannot be read; the message names the file, what was expected and what to do."""


MOST_IDS = 1000
"""More than any model has layers; a longer list of ids is a damaged file, and every rule that walks it would crawl."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its file's header describes it; no data read."""

    name: str
    """Name in the file."""
    file: Path
    dtype: str
    """safetensors spelling: `BF16`, `F32`, `I64`, `BOOL`, `F8_E4M3`."""
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    """Byte where the data starts in the file; None in a torch archive, which is opened by torch."""
    row_start: int = 0
    """First row in the file's tensor that this name denotes; above 0 for the parts of a fused tensor (qkv, gate_up)."""


@dataclass(frozen=True)
class ClaimedIds:
    """Layer ids exactly as a draft's config.json spells them, by the place where they stand (None: absent there)."""

    nested: tuple[Any, ...] | None = None
    """`eagle_config.eagle_aux_hidden_state_layer_ids`: read by SGLang; by vLLM's V1 runner since 0.22.1."""
    top_level: tuple[Any, ...] | None = None
    """`eagle_aux_hidden_state_layer_ids`: read by vLLM and speculators; ignored for capture by SGLang."""
    nested_layer_ids: tuple[Any, ...] | None = None
    """`eagle_config.layer_ids`: read raw by vLLM's V2 runner since 0.28."""
    eagle_config: str = "absent"
    """`absent`, `null`, `object` or `malformed`: SGLang swallows the last three kinds of surprise silently."""
    use_aux_hidden_state: bool | None = None


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one side."""

    theta: float
    scaling: Mapping[str, Any] | None
    partial: float
    """Share of the head dimension that is rotated (1.0: all of it)."""
    origin: str
    """Where theta came from: `rope_parameters`, `rope_theta`, `default 10000`."""


@dataclass(frozen=True)
class DraftFlags:
    """Head semantics as the config claims them; None: the key is absent and the engine's default decides."""

    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None


@dataclass(frozen=True)
class Draft:
    """A drafter checkpoint of any published EAGLE-3 layout, in canonical names."""

    path: Path
    source_format: str
    """`specforge`, `speculators`, `modelopt`, `eagle`, ... as recognised by content."""
    config: Mapping[str, Any]
    """config.json as read (speculators' nested layer config lifted to the top)."""
    family: str
    """By weights: `eagle3_llama`, `eagle3_mla`, `eagle1`, `unknown`."""
    architectures: tuple[str, ...]
    hidden: int | None
    target_hidden: int | None
    n_aux: int | None
    """Number of aux planes fc was built for: fc.in / target hidden."""
    layers: int
    """Decoder layers counted in the weights."""
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate: int | None
    vocab: int | None
    draft_vocab: int | None
    eps: float
    rope: Rope
    max_positions: int | None
    flags: DraftFlags
    ids: ClaimedIds
    tensors: Mapping[str, TensorInfo]
    """Canonical name (`fc.weight`, `layers.0.self_attn.q_proj.weight`, `d2t`) to the tensor in its file."""
    unknown_tensors: tuple[str, ...] = ()
    """File names that map to no canonical name."""
    notes: tuple[str, ...] = ()
    """What was odd while reading, one sentence each."""


@dataclass(frozen=True)
class Target:
    """The target model: its configuration and an index of its weights."""

    path: Path
    config: Mapping[str, Any]
    """config.json, a nested `text_config` lifted to the top."""
    model_type: str
    architectures: tuple[str, ...]
    layers: int
    hidden: int
    vocab: int
    eps: float
    rope: Rope
    tensors: Mapping[str, TensorInfo]
    """`embed_tokens.weight`, `norm.weight`, `lm_head.weight` and the rest, without the `model.` prefix; empty without weights."""
    norm_plus_one: bool = False
    """Gemma-type final norm: x * (1 + w)."""
    embedding_factor: float = 1.0
    """Multiplier on the embedding output (Gemma sqrt(H), Granite)."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plane:
    """One recorded hidden-state tensor of one sample."""

    slot: int
    """Position in the file, 0-based."""
    label: str | None
    """Name the file, its keys or its manifest give it: a claim."""
    data: torch.Tensor
    """[T, H]"""


@dataclass(frozen=True)
class Provenance:
    """What a recording says about where its states come from; None: it does not say."""

    engine: str | None = None
    """`vllm`, `sglang`."""
    dtype: str | None = None
    """Type the planes are stored in (`bfloat16`, `float8_e4m3fn`), before scales are applied."""
    path_kind: str | None = None
    """`eager` where the recorder forces that execution path."""
    forward_pass: int | None = None
    """Number of the forward pass."""


@dataclass(frozen=True)
class Sample:
    """One training or capture sample: unshifted, planes apart."""

    planes: tuple[Plane, ...]
    input_ids: torch.Tensor | None
    """[T] int64, unshifted."""
    loss_mask: torch.Tensor | None
    """[T] bool: positions whose token was generated by the target; None where the file has none."""
    source: Path
    sample_id: str
    rank: int | None = None
    """Tensor-parallel rank that wrote it, where the file tells; samples of one `sample_id` and several ranks are copies of one recording."""
    ranks: int | None = None
    """Number of tensor-parallel ranks, where the file tells."""
    provenance: Provenance = Provenance()
    prompt_ids: torch.Tensor | None = None
    """[N] int64, in captures with fewer rows than token ids (a cached prefix whose rows were never computed, or rows cut off): all of them.
    `input_ids` is None until it is known to which the rows belong."""


class Far(Protocol):
    """A folder on another machine whose files come when they are asked for."""

    def fetch(self, file: Path) -> None:
        """Bring the files of a listed sample here. EvidenceError with the reason."""


@dataclass(frozen=True)
class DumpInfo:
    """What a dump folder says about itself, without reading its tensors."""

    path: Path
    format: str
    """`speculators_v1`, `vllm_extract`, ..."""
    files: tuple[Path, ...]
    """The file of every sample, in order; a file that holds several is listed once for each."""
    labels: tuple[str, ...] | None
    """Plane labels of a manifest (`planes: [embed, layer2, ...]`), in file order."""
    layer_ids: tuple[int, ...] | None
    """Ids of a `data_config.json`, where one exists."""
    notes: tuple[str, ...] = ()
    members: tuple[int, ...] = ()
    """Number of the sample inside its file, entry by entry with `files`; empty where every file is one sample."""
    widths: tuple[int, ...] = ()
    """Widths of the planes of a sample, in slot order."""
    remote: Far | None = None
    """Where files that are not here yet come from."""


@dataclass(frozen=True)
class LaunchLine:
    """Launch arguments as written."""

    argv: tuple[str, ...]
    arguments: Mapping[str, Any]
    """Flag without dashes and with underscores to its text value (True for a bare flag)."""
    origin: str
    """`case`, or the file it was read from."""
    notes: tuple[str, ...] = field(default=())
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment set on the line itself, exported by its script or given to its container; secrets redacted."""
