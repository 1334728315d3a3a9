"""One EAGLE-3 drafter, llama type or MLA, in plain torch from canonical weights; no engine, no trainer.

The forward of one step (sources: SGLang 0.5.23 llama_eagle3.py and kimi_k25_eagle3.py, vLLM 0.33.0 llama_eagle3.py, speculators 0.9.0):

    h   = fc(aux features)                                  step 0; the own hidden state afterwards
    z   = [RMS_input_layernorm(E[next token]), RMS_hidden_norm(h)]          embedding first
    h   = res + o(attention(z)) ; res = h, or RMS_hidden_norm(h) with norm_before_residual
    h   = h + MLP(RMS_post_attention_layernorm(h))
    ids = argmax lm_head(RMS_norm(h)), a draft id d means target id d + d2t[d]
    fed back: h, or RMS_norm(h) with norm_output

Layers above the first are plain layers on h (vLLM norms them by `input_layernorm`, SGLang by `hidden_norm`: the tensor that
exists is used). The attention itself is `attention`, the loop over tokens and steps is `unroll`, fc is `fuse`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eagle_forensics.drafter.network import rope as rotary
from eagle_forensics.drafter.network.arithmetic import choose_device, feed_forward, linear, rms_norm
from eagle_forensics.drafter.network.attention import Grouped, Input, Latent
from eagle_forensics.evidence.records import Draft, DraftFlags, Rope, Target

FAMILIES = ("eagle3_llama", "eagle3_mla")
"""Families of drafters that run here."""
LLAMA_TENSORS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
MLA_TENSORS = ("self_attn.q_a_proj.weight", "self_attn.q_a_layernorm.weight", "self_attn.q_b_proj.weight",
               "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight")
LAYER_TENSORS = ("self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
STORED = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

Get = Callable[[str], torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer. Matrices are as stored (mapped, any float type), norms and biases in the drafter's dtype."""

    attention: Grouped | Latent
    o: torch.Tensor
    o_bias: torch.Tensor | None
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    mlp_biases: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    """Of gate, up and down."""
    embedding_norm: torch.Tensor | None
    """None above the first layer, which alone reads the embedding, or where it is left out (`forms`)."""
    hidden_norm: torch.Tensor | None
    """None where it is left out."""
    post_norm: torch.Tensor
    attention_residual: bool = True
    mlp_residual: bool = True
    """Whether the state is added to what attention and MLP give."""

    def after_attention(self, residual: torch.Tensor, attended: torch.Tensor, eps: float) -> torch.Tensor:
        """The layer's output [N, H] from the attention's [N, NH * Dv]."""
        h = linear(attended, self.o, self.o_bias)
        if self.attention_residual:
            h.add_(residual)
        out = feed_forward(rms_norm(h, self.post_norm, eps), self.gate, self.up, self.down, self.mlp_biases)
        return out.add_(h) if self.mlp_residual else out


@dataclass(frozen=True, eq=False)
class Drafter:
    """A drafter ready to run. All shapes are read off the weights; `flags` hold no None."""

    fc: torch.Tensor
    """[H, n_aux * Ht]"""
    fc_bias: torch.Tensor | None
    input_norm: torch.Tensor | None
    """[n_aux * Ht], used with norm_before_fc."""
    fc_norm: tuple[torch.Tensor, ...] | None
    """n_aux of [Ht], used with fc_norm."""
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor
    """[Vd, H]"""
    head_bias: torch.Tensor | None
    embedding: torch.Tensor
    """[V, H] as stored, in main memory: only looked-up rows are converted and moved."""
    d2t: torch.Tensor | None
    """[Vd] int64 offsets: draft id d means target id d + d2t[d]; None: draft ids are target ids."""
    n_aux: int
    eps: float
    flags: DraftFlags
    rope: Rope
    dtype: torch.dtype
    """Of all activations and sums."""
    max_positions: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def hidden(self) -> int:
        return self.fc.shape[0]

    @property
    def target_hidden(self) -> int:
        return self.fc.shape[1] // self.n_aux

    @property
    def vocab(self) -> int:
        return self.embedding.shape[0]

    @property
    def device(self) -> torch.device:
        return self.fc.device

    def target_ids(self, reading: str = "offset") -> torch.Tensor:
        """[Vd] target id of every draft id. `reading`: `offset` (the contract), `absolute` or `ignored` (the two usual mistakes)."""
        own = torch.arange(self.head.shape[0])
        if self.d2t is None or reading == "ignored":
            return own
        if reading not in ("offset", "absolute"):
            raise ValueError(f"d2t reading {reading!r} is not known; known: offset, absolute, ignored")
        return self.d2t + own if reading == "offset" else self.d2t

    def with_flags(self, flags: DraftFlags | None) -> Drafter:
        """The same weights under other flags; None in `flags` keeps the present value. ValueError if a norm has no weight."""
        if flags is None:
            return self
        merged = DraftFlags(**{k: getattr(self.flags, k) if v is None else v for k, v in vars(flags).items()})
        missing = [n for n, on, w in (("input_norm.weight", merged.norm_before_fc, self.input_norm),
                                      ("fc_norm.<i>.weight", merged.fc_norm, self.fc_norm)) if on and w is None]
        if missing:
            raise ValueError(f"drafter: the flags ask for {', '.join(missing)}, which the checkpoint does not hold")
        return replace(self, flags=merged)

    def with_rope(self, rope: Rope) -> Drafter:
        """The same weights under another rotary setup."""
        return replace(self, rope=rope)


def build(
    weights: Mapping[str, torch.Tensor], *, heads: int, kv_heads: int, head_dim: int | None = None, n_aux: int | None = None,
    target_hidden: int | None = None, eps: float = 1e-5, rope: Rope | None = None, flags: DraftFlags | None = None, interleaved: bool = True,
    max_positions: int | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu", notes: tuple[str, ...] = (),
) -> Drafter:
    """A Drafter from canonical names; MLA where there is a `kv_b_proj`. Flags that are None follow the trainers' class defaults:
    norms before fc iff their weights exist, norm_before_residual and norm_output False (speculators 0.9.0, raw Hugging Face configs).

    `interleaved`: MLA's rotary layout. Raises ValueError naming every missing tensor, or the tensor whose shape does not fit.
    """
    latent = "layers.0.self_attn.kv_b_proj.weight" in weights
    layers = len({n.split(".")[1] for n in weights if n.startswith("layers.")}) or 1
    _complete(weights, layers, MLA_TENSORS if latent else LLAMA_TENSORS)
    fc, vocab = weights["fc.weight"], len(weights["lm_head.weight"])
    n_aux = n_aux or fc.shape[1] // (target_hidden or fc.shape[0])
    if n_aux < 1 or fc.shape[1] % n_aux:
        raise ValueError(f"drafter: fc.weight is {tuple(fc.shape)}; its input width is no multiple of {n_aux} planes")
    head_dim = head_dim or len(weights["layers.0.self_attn.q_proj.weight"]) // heads if not latent else None
    _fitting(weights, heads, kv_heads, head_dim)
    d2t = weights.get("d2t")
    if d2t is not None and len(d2t) != vocab:
        raise ValueError(f"drafter: d2t has {len(d2t)} entries, lm_head {vocab} rows; expected one entry a row")

    def get(name: str) -> torch.Tensor | None:
        tensor = weights.get(name)
        if tensor is None:
            return None
        return tensor.to(device) if tensor.ndim > 1 else tensor.to(device, dtype)

    fc_norm = tuple(get(n) for i in range(n_aux) for n in (f"fc_norm.{i}.weight",) if n in weights)
    resolved = DraftFlags(norm_before_residual=False, norm_before_fc="input_norm.weight" in weights, fc_norm=len(fc_norm) == n_aux, norm_output=False)
    drafter = Drafter(
        fc=get("fc.weight"), fc_bias=get("fc.bias"), input_norm=get("input_norm.weight"), fc_norm=fc_norm if len(fc_norm) == n_aux else None,
        layers=tuple(_layer(get, i, fc.shape[0], heads, head_dim, eps, interleaved) for i in range(layers)),
        norm=get("norm.weight"), head=get("lm_head.weight"), head_bias=get("lm_head.bias"), embedding=weights["embed_tokens.weight"],
        d2t=None if d2t is None else d2t.long(), n_aux=n_aux, eps=eps, flags=resolved, dtype=dtype, max_positions=max_positions, notes=notes,
        rope=rope or Rope(theta=10000.0, scaling=None, partial=1.0, origin="default 10000"))
    rotary.frequencies(drafter.rope, drafter.layers[0].attention.rotated, max_positions)
    return drafter.with_flags(flags)


def load_drafter(draft: Draft, target: Target | None = None, *, flags: DraftFlags | None = None, dtype: torch.dtype = torch.float32,
                 embedding_from: str = "draft", device: str = "auto") -> Drafter:
    """The Drafter of a checkpoint, its weights mapped. Embedding and head come from the draft, else from the target (its tied embedding serves as head).

    `embedding_from="target"` takes the target's embedding even if the draft holds one, as SGLang does. `flags` override the config's.
    `device`: `auto` (the GPU if there is one with room), `cpu` or `cuda`.
    Raises ValueError naming what is missing or that the drafter is of a kind that does not run here.
    """
    if draft.family not in FAMILIES:
        raise ValueError(f"{draft.path}: the drafter's weights are of family {draft.family!r}; the standalone drafter runs {' and '.join(FAMILIES)}")
    if not draft.heads or not draft.kv_heads:
        raise ValueError(f"{draft.path}: config.json states no num_attention_heads / num_key_value_heads, which the weights alone do not tell")
    if (activation := draft.config.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise ValueError(f"{draft.path}: config.json says hidden_act {activation!r:.40}; the standalone drafter computes silu, which every EAGLE-3 trainer uses")
    from eagle_forensics.evidence.tensors import load_tensor

    infos: dict[str, Any] = {name: info for name, info in draft.tensors.items() if name != "t2d"}
    notes = []
    theirs = dict(target.tensors) if target else {}
    if embedding_from == "target" and "embed_tokens.weight" in theirs:
        infos.pop("embed_tokens.weight", None)
    tied = theirs.get("lm_head.weight", theirs.get("embed_tokens.weight"))
    for name, info in (("embed_tokens.weight", theirs.get("embed_tokens.weight")), ("lm_head.weight", tied)):
        if name not in infos and info is not None:
            infos[name] = info
            notes.append(f"{name} is the target's ({info.name})")
    weights = {name: load_tensor(info) for name, info in infos.items()}
    odd = [f"{name} ({w.dtype})" for name, w in weights.items() if name != "d2t" and w.dtype not in STORED]
    if odd:
        raise ValueError(f"{draft.path}: {', '.join(odd)[:200]} are quantised or no floats; expected bf16, fp16 or fp32 weights. Give the unquantised export.")
    broken = [name for name, w in weights.items()  # not the embedding: of a large one only the rows looked up are ever read
              if name != "embed_tokens.weight" and w.is_floating_point() and not _finite(w)]
    if broken:
        raise ValueError(f"{draft.path}: {', '.join(broken)[:200]} hold NaN or infinite weights; expected finite ones. Training diverged or the "
                         "file is damaged: take an earlier checkpoint, or copy it again from its source.")
    own = DraftFlags(**{k: (v if flags is None or getattr(flags, k) is None else getattr(flags, k)) for k, v in vars(draft.flags).items()})
    moved = sum(w.nbytes for name, w in weights.items() if name != "embed_tokens.weight")
    return build(weights, heads=draft.heads, kv_heads=draft.kv_heads, head_dim=draft.head_dim, n_aux=draft.n_aux, target_hidden=draft.target_hidden,
                 eps=draft.eps, rope=draft.rope, flags=own, max_positions=draft.max_positions, dtype=dtype, notes=tuple(notes),
                 interleaved=draft.config.get("rope_interleave") is not False, device=choose_device(device, moved).type)


def _finite(weight: torch.Tensor) -> bool:
    """Whether all values are finite, without a temporary of the weight's size."""
    return all(bool(edge.isfinite()) for edge in weight.aminmax()) if weight.numel() else True


def _complete(weights: Mapping[str, torch.Tensor], layers: int, attention: tuple[str, ...]) -> None:
    wanted = ["fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight"]
    wanted += [f"layers.{i}.{name}" for i in range(layers) for name in (*attention, *LAYER_TENSORS)]
    missing = [n for n in wanted if n not in weights]
    if missing:
        raise ValueError(f"drafter: {len(missing)} tensor(s) missing: {', '.join(missing)}. "
                         "A drafter without embedding or head needs the target's weights (`target:` in the case).")


def _fitting(weights: Mapping[str, torch.Tensor], heads: int, kv_heads: int, head_dim: int | None) -> None:
    """`head_dim` None: MLA."""
    at, hidden = "layers.0.self_attn.", len(weights["fc.weight"])
    shapes = {"norm.weight": (hidden,), "lm_head.weight": (None, hidden), "embed_tokens.weight": (None, hidden)}
    if head_dim is not None:
        shapes |= {at + "q_proj.weight": (heads * head_dim, 2 * hidden), at + "k_proj.weight": (kv_heads * head_dim, 2 * hidden), at + "v_proj.weight": (kv_heads * head_dim, 2 * hidden)}
        words = f"{heads} heads, {kv_heads} key/value heads of {head_dim}"
    else:
        q_rank, kv_rank = len(weights[at + "q_a_layernorm.weight"]), len(weights[at + "kv_a_layernorm.weight"])
        shapes |= {at + "q_a_proj.weight": (q_rank, 2 * hidden), at + "q_b_proj.weight": (None, q_rank),
                   at + "kv_a_proj_with_mqa.weight": (None, 2 * hidden), at + "kv_b_proj.weight": (None, kv_rank)}
        words = f"{heads} heads, ranks {q_rank} and {kv_rank}"
        uneven = [n for n in ("q_b_proj", "kv_b_proj", "o_proj") if weights[f"{at}{n}.weight"].shape[n == "o_proj"] % heads]
        if uneven:
            raise ValueError(f"drafter: {at}{uneven[0]}.weight is {tuple(weights[f'{at}{uneven[0]}.weight'].shape)}, which {heads} heads do not divide")
    for name, shape in shapes.items():
        found = tuple(weights[name].shape)
        if len(found) != len(shape) or any(w is not None and f != w for f, w in zip(found, shape, strict=True)):
            raise ValueError(f"drafter: {name} is {found}, expected {tuple('any' if s is None else s for s in shape)} (hidden {hidden}, {words})")


def _layer(get: Get, index: int, hidden: int, heads: int, head_dim: int | None, eps: float, interleaved: bool) -> Layer:
    at = f"layers.{index}."
    inner, own_norm = get(at + "input_layernorm.weight"), get(at + "hidden_norm.weight")

    def entry(name: str) -> Input:
        return Input(get(f"{at}self_attn.{name}.weight"), get(f"{at}self_attn.{name}.bias"), hidden)

    if head_dim is not None:
        attention = Grouped(entry("q_proj"), entry("k_proj"), entry("v_proj"), get(at + "self_attn.q_norm.weight"), get(at + "self_attn.k_norm.weight"), head_dim, eps)
    else:
        kv_a, norm = entry("kv_a_proj_with_mqa"), get(at + "self_attn.kv_a_layernorm.weight")
        attention = Latent(entry("q_a_proj"), kv_a, get(at + "self_attn.q_a_layernorm.weight"), norm, get(at + "self_attn.q_b_proj.weight"),
                           get(at + "self_attn.kv_b_proj.weight"), heads, len(kv_a.weight) - len(norm), eps, interleaved)
    return Layer(
        attention=attention, o=get(at + "self_attn.o_proj.weight"), o_bias=get(at + "self_attn.o_proj.bias"),
        gate=get(at + "mlp.gate_proj.weight"), up=get(at + "mlp.up_proj.weight"), down=get(at + "mlp.down_proj.weight"),
        mlp_biases=tuple(get(f"{at}mlp.{n}_proj.bias") for n in ("gate", "up", "down")), embedding_norm=inner if index == 0 else None,
        hidden_norm=own_norm if index == 0 or inner is None else inner, post_norm=get(at + "post_attention_layernorm.weight"))
