"""The drafter: `read_draft(folder)` reads any published EAGLE-3 layout into one Draft, headers only.

The weights decide (family, layers, planes, widths); what the config claims otherwise becomes a note. What an engine makes
of it is `engines/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_forensics.evidence import configs
from eagle_forensics.evidence.archives import read_torch_index
from eagle_forensics.evidence.names import HeadSizes, count_layers, map_tensors
from eagle_forensics.evidence.records import (
    MOST_IDS,
    ClaimedIds,
    Draft,
    DraftFlags,
    EvidenceError,
    TensorInfo,
)
from eagle_forensics.evidence.targets import lift_text
from eagle_forensics.evidence.tensors import read_index, read_metadata

IDS = "eagle_aux_hidden_state_layer_ids"
BIN_INDEX = "pytorch_model.bin.index.json"


@dataclass(frozen=True)
class _Clues:
    """What a trainer leaves behind, for FORMATS."""

    config: Mapping[str, Any]
    architectures: tuple[str, ...]
    eagle: Mapping[str, Any]
    files: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    container: str

    def architecture(self, pattern: str) -> bool:
        return any(re.search(pattern, a) for a in self.architectures)


FORMATS: tuple[tuple[str, Callable[[_Clues], bool]], ...] = (
    ("speculators", lambda c: "speculators_model_type" in c.config or "transformer_layer_config" in c.config),
    ("torchspec", lambda c: "_torchspec_version" in c.config or "torchspec_version" in c.metadata),
    ("specforge_state", lambda c: c.container == "training_state.pt"),
    ("modelopt", lambda c: bool({"next_layer_regular", "use_mtp_layernorm", "parallel_draft_step", "has_lm_head"} & set(c.eagle))),
    ("angelslim", lambda c: bool({"modal_type", "target_model_type"} & set(c.config)) and c.architecture("^Eagle3Llama")),
    ("eagle", lambda c: c.container.startswith("pytorch_model") and c.architecture("^LlamaForCausalLM$")),
    ("specforge", lambda c: any("midlayer." in name for name in c.files) or c.architecture("ForCausalLMEagle3$")),
)
"""Layout by content, first match wins; anything else is `unknown`."""


def read_draft(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Draft:
    """The drafter of a checkpoint folder (safetensors, sharded or not, or a torch archive); without weights, of its config.

    `overrides` are laid over config.json, key by key, as a server's launch line may do.
    EvidenceError for a folder that is no checkpoint, a config that is no object, or a field of the wrong type.
    """
    path = Path(path)
    file, raw = configs.read_config(path, "drafter")
    config, notes = _lift({**raw, **(overrides or {})}, file)
    eagle = config.get("eagle_config") if isinstance(config.get("eagle_config"), Mapping) else {}
    files, container, metadata, weight_notes = _weights(path)
    hidden = configs.integer(config, "hidden_size", where=file)
    heads, kv_heads, head_dim, sizes = _heads(config, hidden, file)
    tensors, unknown, name_notes = map_tensors(files, sizes)
    claims = _Claims(config, file, tensors, weights=bool(files))
    ids, id_notes = _claimed_ids(config, file)
    rope, rope_notes = configs.rope(config, file)
    architectures = configs.strings(config, "architectures", file)
    clues = _Clues(config, architectures, eagle, files, metadata, container)
    hidden = claims.hidden(hidden)
    family = claims.family(hidden, architectures)
    target_hidden = configs.integer(config, "target_hidden_size", where=file) or hidden
    eps = configs.number(config, "rms_norm_eps", where=file)
    return Draft(
        path=path,
        source_format=next((name for name, test in FORMATS if test(clues)), "unknown"),
        config=config,
        family=family,
        architectures=architectures,
        hidden=hidden,
        target_hidden=target_hidden,
        n_aux=claims.planes(target_hidden, ids),
        layers=claims.layers(),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=claims.by_weight("intermediate_size", "layers.0.mlp.down_proj.weight", 1, "intermediate_size_mlp"),
        vocab=claims.by_weight("vocab_size", "t2d", 0),
        draft_vocab=claims.draft_vocab(),
        eps=1e-6 if eps is None else eps,
        rope=rope,
        max_positions=configs.integer(config, "max_position_embeddings", where=file),
        flags=DraftFlags(
            norm_before_residual=configs.boolean(config, "norm_before_residual", where=file),
            norm_before_fc=configs.boolean(eagle if "norm_before_fc" in eagle else config, "norm_before_fc", where=file),
            fc_norm=configs.boolean(config, "fc_norm", "use_aux_norm", where=file),
            norm_output=configs.boolean(config, "norm_output", where=file),
        ),
        ids=ids,
        tensors=tensors,
        unknown_tensors=unknown,
        notes=(*notes, *weight_notes, *name_notes, *id_notes, *rope_notes, *claims.notes, *_provenance(config, metadata),
               *(["config.json gives no rms_norm_eps; 1e-6 is assumed."] if eps is None else [])),
    )  # fmt: skip


def _lift(raw: Mapping[str, Any], where: Path) -> tuple[dict[str, Any], list[str]]:
    """speculators' `transformer_layer_config` and a multimodal `text_config` at the top; outer keys win."""
    layer = raw.get("transformer_layer_config")
    if layer is None:
        return lift_text(raw, where)
    if not isinstance(layer, Mapping):
        raise EvidenceError(f"{where}: `transformer_layer_config` is {layer!r:.80}; expected an object. Correct the config.")
    outer = {k: v for k, v in raw.items() if k != "transformer_layer_config"}
    return {**{k: v for k, v in layer.items() if k != "architectures"}, **outer}, ["the decoder layer is described by `transformer_layer_config`."]


def _weights(path: Path) -> tuple[dict[str, TensorInfo], str, dict[str, str], list[str]]:
    """Tensors by file name, the container they came from, safetensors metadata, notes."""
    if not path.is_dir():
        return {}, "", {}, ["only a config file was given: no weights, so the config's claims cannot be checked against tensors."]
    files = read_index(path)
    archives = _archives(path)
    if files:
        first = next(iter(files.values())).file
        notes = [f"{archives[0].name} lies beside the safetensors and was not read."] if archives else []
        return files, first.name, read_metadata(first), notes
    for archive in archives:
        for name, info in read_torch_index(archive).items():
            if name in files:
                raise EvidenceError(f"{archive}: tensor {name!r:.120} is also in {files[name].file.name}; expected each tensor in one file. Remove the stale export.")
            files[name] = info
    if archives:
        return files, archives[0].name, {}, []
    return {}, "", {}, ["the folder holds no weights, so the config's claims cannot be checked against tensors."]


def _archives(path: Path) -> list[Path]:
    """The torch archives that hold the weights: pytorch_model*.bin, all shards of the index, else training_state.pt."""
    shards = sorted(path.glob("pytorch_model*.bin"))
    index = path / BIN_INDEX
    if index.is_file():
        weight_map = configs.read_object(index).get("weight_map")
        named = set(weight_map.values()) if isinstance(weight_map, Mapping) and all(isinstance(v, str) for v in weight_map.values()) else None
        absent = sorted((named or set()) - {p.name for p in shards})
        if named is None or absent:
            raise EvidenceError(
                f"{index}: `weight_map` {'names ' + repr(absent[0])[:120] + ', which is not in the folder' if absent else 'is no object of file names'}; "
                "expected tensor names and their pytorch_model-*.bin files. The download is incomplete: fetch it again."
            )
    state = path / "training_state.pt"
    return shards or ([state] if state.is_file() else [])


def _heads(config: Mapping[str, Any], hidden: int | None, where: Path) -> tuple[int | None, int | None, int | None, HeadSizes]:
    """Heads, key/value heads, head dimension, and the row counts of fused projections."""
    heads = configs.integer(config, "num_attention_heads", where=where)
    kv_heads = configs.integer(config, "num_key_value_heads", where=where) or heads
    nope, rotary = (configs.integer(config, k, where=where) for k in ("qk_nope_head_dim", "qk_rope_head_dim"))
    head_dim = nope + rotary if nope and rotary else configs.integer(config, "head_dim", where=where)
    if head_dim is None and hidden and heads and hidden % heads == 0:
        head_dim = hidden // heads
    kv_lora = configs.integer(config, "kv_lora_rank", where=where)
    return heads, kv_heads, head_dim, HeadSizes(
        q=heads * head_dim if heads and head_dim else None,
        kv=kv_heads * head_dim if kv_heads and head_dim else None,
        q_lora=configs.integer(config, "q_lora_rank", where=where),
        kv_a=kv_lora + rotary if kv_lora and rotary else None,
    )  # fmt: skip


def _claimed_ids(config: Mapping[str, Any], where: Path) -> tuple[ClaimedIds, list[str]]:
    """Layer ids by the place where they stand, spelled as in the file."""
    notes: list[str] = []

    def ids(mapping: Mapping[str, Any], key: str, place: str) -> tuple[Any, ...] | None:
        if key not in mapping:
            return None
        value = mapping[key]
        if not isinstance(value, list):
            notes.append(f"{where.name}: `{place}` is {value!r:.80}; expected a list of integers: it is taken as absent.")
            return None
        if len(value) > MOST_IDS:
            raise EvidenceError(f"{where}: `{place}` holds {len(value)} ids ({', '.join(str(v)[:20] for v in value[:4])}, ...); expected one an aux plane, "
                                f"at most {MOST_IDS}. Write the ids of the layers that fc takes.")
        odd = [v for v in value if isinstance(v, bool) or not isinstance(v, int)]
        if odd:
            notes.append(f"{where.name}: `{place}` holds {odd[0]!r:.40}, which is no integer; expected integers such as [2, 30, 58].")
        if len({repr(v) for v in value}) < len(value):
            notes.append(f"{where.name}: `{place}` is {value!r:.80}: an id stands twice.")
        return tuple(value)

    top = ids(config, IDS, IDS)
    if "eagle_config" not in config:
        return ClaimedIds(top_level=top), notes
    eagle = config["eagle_config"]
    if not isinstance(eagle, Mapping):
        kind = "null" if eagle is None else "malformed"
        notes.append(f"{where.name}: `eagle_config` is {eagle!r:.80}; expected an object. Engines fall back to default layers without a word.")
        return ClaimedIds(top_level=top, eagle_config=kind), notes
    use = eagle.get("use_aux_hidden_state")
    if use is not None and not isinstance(use, bool):
        notes.append(f"{where.name}: `eagle_config.use_aux_hidden_state` is {use!r:.40}; expected true or false: it is taken as {bool(use)}.")
        use = bool(use)
    nested, layer_ids = ids(eagle, IDS, f"eagle_config.{IDS}"), ids(eagle, "layer_ids", "eagle_config.layer_ids")
    malformed = IDS in eagle and nested is None
    return ClaimedIds(nested, top, layer_ids, "malformed" if malformed else "object", use), notes


def _provenance(config: Mapping[str, Any], metadata: Mapping[str, str]) -> list[str]:
    stamps = {k.strip("_"): config[k] for k in ("speculators_version", "_torchspec_version", "transformers_version") if config.get(k)}
    stamps |= {k: metadata[k] for k in ("producer", "torchspec_version") if k in metadata}
    return [f"stamped {', '.join(f'{k} {v}' for k, v in stamps.items())[:200]}."] if stamps else []


class _Claims:
    """Config against weights: the weights win, every disagreement becomes a note."""

    def __init__(self, config: Mapping[str, Any], file: Path, tensors: Mapping[str, TensorInfo], *, weights: bool) -> None:
        self.config, self.file, self.tensors, self.weights = config, file, tensors, weights
        self.notes: list[str] = []

    def size(self, name: str, axis: int) -> int | None:
        info = self.tensors.get(name)
        return info.shape[axis] if info is not None and len(info.shape) > axis else None

    def by_weight(self, key: str, tensor: str, axis: int, *aliases: str) -> int | None:
        """A config field that a tensor's shape decides where there is one."""
        claimed, found = configs.integer(self.config, key, where=self.file), self.size(tensor, axis)
        others = (configs.integer(self.config, alias, where=self.file) for alias in aliases)
        if found is not None and claimed is not None and found != claimed and found not in others:
            self.notes.append(f"config.json says {key} {claimed}, the weights say {found} ({tensor} {list(self.tensors[tensor].shape)}).")
        return claimed if found is None else found

    def hidden(self, claimed: int | None) -> int | None:
        found = self.size("norm.weight", 0) or self.size("fc.weight", 0)
        if found is not None and claimed is not None and found != claimed:
            self.notes.append(f"config.json says hidden_size {claimed}, the weights say {found}.")
        if found is None and claimed is None:
            raise EvidenceError(f"{self.file}: no `hidden_size` and no weights that show it; expected an integer. Is this the config of a drafter?")
        return claimed if found is None else found

    def layers(self) -> int:
        claimed, found = configs.integer(self.config, "num_hidden_layers", where=self.file), count_layers(self.tensors)
        if not self.weights:
            self.notes.append(f"without weights the number of layers is the config's: {claimed or 1}.")
            return claimed or 1
        if claimed is not None and claimed != found:
            self.notes.append(f"config.json says num_hidden_layers {claimed}, the weights hold {found}.")
        return found

    def planes(self, target_hidden: int | None, ids: ClaimedIds) -> int | None:
        claimed = configs.integer(self.config, "num_aux_hidden_states", where=self.file)
        width = self.size("fc.weight", 1)
        if width is not None and target_hidden:
            if width % target_hidden:
                self.notes.append(f"fc takes {width} inputs, no multiple of the target's hidden size {target_hidden}: the number of planes is unknown.")
                return None
            if claimed is not None and claimed != width // target_hidden:
                self.notes.append(f"config.json says num_aux_hidden_states {claimed}, fc was built for {width // target_hidden}.")
            return width // target_hidden
        if self.weights:
            self.notes.append("the weights hold no fc.weight: nothing joins the aux planes.")
            return None
        listed = next((len(v) for v in (ids.nested, ids.top_level, ids.nested_layer_ids) if v), None)
        self.notes.append(f"without weights the number of aux planes is the config's: {claimed or listed or '3, the default of every engine'}.")
        return claimed or listed or 3

    def draft_vocab(self) -> int | None:
        claimed = configs.integer(self.config, "draft_vocab_size", where=self.file)
        rows, offsets = self.size("lm_head.weight", 0), self.size("d2t", 0)
        if rows is not None and offsets is not None and rows != offsets:
            self.notes.append(f"lm_head has {rows} rows but d2t has {offsets} entries: they must be equal.")
        found = rows if rows is not None else offsets
        if found is not None and claimed is not None and found != claimed:
            self.notes.append(f"config.json says draft_vocab_size {claimed}, the weights say {found}.")
        return claimed if found is None else found

    def family(self, hidden: int | None, architectures: tuple[str, ...]) -> str:
        """By the weights; by the config alone where there are none."""
        if "efficient_lm_head_config" in self.config or any("Eagle4" in a for a in architectures):
            self.notes.append("this is an EAGLE-4 head, which is outside this suite: its files are listed, not judged.")
            return "eagle4"
        if not self.weights:
            return "eagle3_mla" if self.config.get("kv_lora_rank") else "eagle3_llama"
        if "mask_hidden" in self.tensors:
            return "peagle"
        if any(".self_attn.kv_a_proj_with_mqa." in name or ".self_attn.kv_b_proj." in name for name in self.tensors):
            return "eagle3_mla"
        inputs = self.size("layers.0.self_attn.q_proj.weight", 1) or self.size("layers.0.self_attn.qkv_proj.weight", 1)
        if inputs is not None and hidden and inputs == 2 * hidden:
            return "eagle3_llama"
        if hidden and inputs == hidden and self.size("fc.weight", 1) == 2 * hidden:
            self.notes.append("fc joins one embedding and one hidden state: an EAGLE-1/2 head, which takes no aux planes.")
            return "eagle1"
        self.notes.append(f"q_proj takes {inputs} inputs; an EAGLE-3 layer takes 2 x hidden = {2 * (hidden or 0)}: the family is unknown.")
        return "unknown"
