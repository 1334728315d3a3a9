"""One EAGLE-3 drafter (llama type) in plain torch, built from canonical weights; no engine, no trainer.

The forward of one step, for layer 0 (source: SGLang 0.5.23 llama_eagle3.py, vLLM 0.33.0 llama_eagle3.py, speculators 0.9.0):

    h   = fc(aux features)                                  step 0; the own hidden state afterwards
    z   = [RMS_input_layernorm(E[next token]), RMS_hidden_norm(h)]          embedding first
    h   = res + o(attention(z)) ; res = h, or RMS_hidden_norm(h) with norm_before_residual
    h   = h + MLP(RMS_post_attention_layernorm(h))
    ids = argmax lm_head(RMS_norm(h)), a draft id d means target id d + d2t[d]
    fed back: h, or RMS_norm(h) with norm_output

Layers above the first are plain llama layers on h (vLLM norms them by `input_layernorm`, SGLang by `hidden_norm`: the
tensor that exists is used).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from eagle_forensics.drafter import rope as rotary
from eagle_forensics.evidence.records import Draft, DraftFlags, Rope, Target

LAYER_TENSORS = (
    "post_attention_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer; q, k and v stacked, gate and up stacked. Optional tensors are None where the checkpoint has none."""

    qkv_embedding: torch.Tensor | None
    """[(NH + 2 NKV) D, H]: the half of q, k, v that reads the embedding; None above the first layer."""
    qkv_hidden: torch.Tensor
    """[(NH + 2 NKV) D, H]: the half that reads the hidden state."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    embedding_norm: torch.Tensor | None
    hidden_norm: torch.Tensor
    post_norm: torch.Tensor


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
    """[V, H] in its stored dtype: only looked-up rows are converted."""
    d2t: torch.Tensor | None
    """[Vd] int64 offsets: draft id d means target id d + d2t[d]; None: draft ids are target ids."""
    heads: int
    kv_heads: int
    head_dim: int
    n_aux: int
    eps: float
    flags: DraftFlags
    rope: Rope
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
    def dtype(self) -> torch.dtype:
        return self.fc.dtype

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
    target_hidden: int | None = None, eps: float = 1e-5, rope: Rope | None = None, flags: DraftFlags | None = None,
    max_positions: int | None = None, dtype: torch.dtype = torch.float32, notes: tuple[str, ...] = (),
) -> Drafter:
    """A Drafter from canonical names. Flags that are None follow the trainers' class defaults: norms before fc iff their
    weights exist, norm_before_residual and norm_output False (speculators 0.9.0, raw Hugging Face configs).

    Raises ValueError naming every missing tensor, or the tensor whose shape does not fit.
    """
    layers = len({n.split(".")[1] for n in weights if n.startswith("layers.")}) or 1
    wanted = ["fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight"]
    wanted += [f"layers.{i}.{name}" for i in range(layers) for name in LAYER_TENSORS]
    missing = [n for n in wanted if n not in weights]
    if missing:
        raise ValueError(f"drafter: {len(missing)} tensor(s) missing: {', '.join(missing)}. "
                         "A drafter without embedding or head needs the target's weights (`target:` in the case).")

    def get(name: str, required: bool = False) -> torch.Tensor | None:
        return weights[name].to(dtype) if required or name in weights else None

    fc = weights["fc.weight"]
    hidden = fc.shape[0]
    n_aux = n_aux or fc.shape[1] // (target_hidden or hidden)
    if n_aux < 1 or fc.shape[1] % n_aux:
        raise ValueError(f"drafter: fc.weight is {tuple(fc.shape)}; its input width is no multiple of {n_aux} planes")
    width = weights["layers.0.self_attn.q_proj.weight"].shape[0]
    head_dim = head_dim or width // heads
    expected = {"layers.0.self_attn.q_proj.weight": (heads * head_dim, 2 * hidden), "layers.0.self_attn.k_proj.weight": (kv_heads * head_dim, 2 * hidden),
                "norm.weight": (hidden,), "lm_head.weight": (None, hidden), "embed_tokens.weight": (None, hidden)}
    for name, shape in expected.items():
        found = tuple(weights[name].shape)
        if len(found) != len(shape) or any(w is not None and f != w for f, w in zip(found, shape, strict=True)):
            raise ValueError(f"drafter: {name} is {found}, expected {tuple('any' if s is None else s for s in shape)} "
                             f"(hidden {hidden}, {heads} heads, {kv_heads} key/value heads of {head_dim})")
    fc_norm = [get(n) for i in range(n_aux) for n in (f"fc_norm.{i}.weight",) if n in weights]
    d2t = weights.get("d2t")
    if d2t is not None and len(d2t) != len(weights["lm_head.weight"]):
        raise ValueError(f"drafter: d2t has {len(d2t)} entries, lm_head {len(weights['lm_head.weight'])} rows; expected one entry a row")
    resolved = DraftFlags(norm_before_residual=False, norm_before_fc="input_norm.weight" in weights, fc_norm=len(fc_norm) == n_aux, norm_output=False)
    drafter = Drafter(
        fc=get("fc.weight", True), fc_bias=get("fc.bias"), input_norm=get("input_norm.weight"),
        fc_norm=tuple(fc_norm) if len(fc_norm) == n_aux else None,
        layers=tuple(_layer(get, i, hidden) for i in range(layers)),
        norm=get("norm.weight", True), head=get("lm_head.weight", True), head_bias=get("lm_head.bias"),
        embedding=weights["embed_tokens.weight"], d2t=None if d2t is None else d2t.long(),
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, n_aux=n_aux, eps=eps, flags=resolved,
        rope=rope or Rope(theta=10000.0, scaling=None, partial=1.0, origin="default 10000"), max_positions=max_positions, notes=notes)
    rotary.frequencies(drafter.rope, head_dim, max_positions)
    return drafter.with_flags(flags)


def load_drafter(draft: Draft, target: Target | None = None, *, flags: DraftFlags | None = None, dtype: torch.dtype = torch.float32,
                 embedding_from: str = "draft") -> Drafter:
    """The Drafter of a checkpoint. Embedding and head come from the draft, else from the target (its tied embedding serves as head).

    `embedding_from="target"` takes the target's embedding even if the draft holds one, as SGLang does. `flags` override the config's.
    Raises ValueError naming what is missing or that the family is not supported here.
    """
    if draft.family != "eagle3_llama":
        raise ValueError(f"{draft.path}: the drafter's weights are of family {draft.family!r}; the standalone drafter runs eagle3_llama")
    if not draft.heads or not draft.kv_heads:
        raise ValueError(f"{draft.path}: config.json states no num_attention_heads / num_key_value_heads, which the weights alone do not tell")
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
    broken = [name for name, w in weights.items()  # not the embedding: of a large one only the rows looked up are ever read
              if name != "embed_tokens.weight" and w.is_floating_point() and not bool(w.isfinite().all())]
    if broken:
        raise ValueError(f"{draft.path}: {', '.join(broken)[:200]} hold NaN or infinite weights; expected finite ones. Training diverged or the "
                         "file is damaged: take an earlier checkpoint, or copy it again from its source.")
    own = DraftFlags(**{k: (v if flags is None or getattr(flags, k) is None else getattr(flags, k)) for k, v in vars(draft.flags).items()})
    return build(weights, heads=draft.heads, kv_heads=draft.kv_heads, head_dim=draft.head_dim, n_aux=draft.n_aux, target_hidden=draft.target_hidden,
                 eps=draft.eps, rope=draft.rope, flags=own, max_positions=draft.max_positions, dtype=dtype, notes=tuple(notes))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def mlp(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(x)) * up(x))"""
    gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
    return F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)


def _layer(get: Any, index: int, hidden: int) -> Layer:
    at = f"layers.{index}."

    def stacked(names: tuple[str, ...], kind: str) -> torch.Tensor | None:
        parts = [get(f"{at}{n}.{kind}") for n in names]
        present = [p for p in parts if p is not None]
        if not present:
            return None
        if len(present) == len(parts):
            return torch.cat(parts)
        sizes = [get(f"{at}{n}.weight").shape[0] for n in names]
        return torch.cat([p if p is not None else torch.zeros(s, dtype=present[0].dtype) for p, s in zip(parts, sizes, strict=True)])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    both = stacked(qkv, "weight")
    own_norm = get(at + "hidden_norm.weight")
    return Layer(
        qkv_embedding=both[:, :hidden].contiguous() if index == 0 else None,
        qkv_hidden=both[:, hidden:].contiguous() if index == 0 else both,
        qkv_bias=stacked(qkv, "bias"), q_norm=get(at + "self_attn.q_norm.weight"), k_norm=get(at + "self_attn.k_norm.weight"),
        o=get(at + "self_attn.o_proj.weight", True), o_bias=get(at + "self_attn.o_proj.bias"),
        gate_up=stacked(("mlp.gate_proj", "mlp.up_proj"), "weight"), gate_up_bias=stacked(("mlp.gate_proj", "mlp.up_proj"), "bias"),
        down=get(at + "mlp.down_proj.weight", True), down_bias=get(at + "mlp.down_proj.bias"),
        embedding_norm=get(at + "input_layernorm.weight") if index == 0 else None,
        hidden_norm=own_norm if index == 0 or get(at + "input_layernorm.weight") is None else get(at + "input_layernorm.weight"),
        post_norm=get(at + "post_attention_layernorm.weight", True))
