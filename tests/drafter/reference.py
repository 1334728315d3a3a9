"""Training-time test written out densely in float64: every row of every step in one attention matrix, no cache, no sharing.

The yardstick of the fast drafter beside `tiny.Dense`, which runs like a server; and the same computation in ModelOpt's layout.
Sources: EAGLE `cnets.py`, SpecForge `eagle3.py` (step k attends step 0 causally and itself and steps 1..k on the diagonal);
ModelOpt `hf_eagle.py` (embeddings rolled once, hidden states rolled right by one a step).
"""

from __future__ import annotations

import math

import torch

from eagle_forensics.evidence.records import DraftFlags, Rope

EPS = 1e-5
Weights = dict[str, torch.Tensor]


def fuse(w: Weights, flags: DraftFlags, planes: torch.Tensor) -> torch.Tensor:
    """fc of planes [n, T, Ht]."""
    count = len(planes)
    x = torch.cat(list(planes), -1)
    if flags.norm_before_fc:
        x = _rms(x, w["input_norm.weight"])
    if flags.fc_norm:
        x = torch.cat([_rms(part, w[f"fc_norm.{i}.weight"]) for i, part in enumerate(x.chunk(count, -1))], -1)
    return x @ w["fc.weight"].T + w.get("fc.bias", 0)


def rows(w: Weights, flags: DraftFlags, h: torch.Tensor, tokens: list[torch.Tensor], positions: list[torch.Tensor], seen: list[torch.Tensor],
         heads: int, rope: Rope, feed=lambda h: h) -> list[torch.Tensor]:
    """States [T, H] of each step. Step k reads `tokens[k]` [T] at `positions[k]` [T]; `seen[k]` [T, (k+1) T] says which keys its queries attend.

    `feed` turns what a step returns into what the next one reads.
    """
    depth = len({name.split(".")[1] for name in w if name.startswith("layers.")})
    keys, values, found = [[] for _ in range(depth)], [[] for _ in range(depth)], []
    for token, position, mask in zip(tokens, positions, seen, strict=True):
        for i in range(depth):
            at = f"layers.{i}."
            if i == 0:
                e, n = _rms(w["embed_tokens.weight"][token], w[at + "input_layernorm.weight"]), _rms(h, w[at + "hidden_norm.weight"])
                z, residual = torch.cat((e, n), -1), n if flags.norm_before_residual else h
            else:
                z, residual = _rms(h, w[at + "input_layernorm.weight"]), h
            q, k, v, scale = (_mla if at + "self_attn.kv_b_proj.weight" in w else _llama)(w, at + "self_attn.", z, position, heads, rope)
            keys[i].append(k)
            values[i].append(v)
            every_k, every_v = (torch.cat(x, 0).repeat_interleave(heads // x[0].shape[1], 1) for x in (keys[i], values[i]))
            score = torch.einsum("qhd,khd->hqk", q, every_k) * scale
            weight = score.masked_fill(~mask[None], float("-inf")).softmax(-1)
            a = torch.einsum("hqk,khd->qhd", weight, every_v).flatten(1)
            h = residual + _linear(w, at + "self_attn.o_proj", a)
            y = _rms(h, w[at + "post_attention_layernorm.weight"])
            gate = _linear(w, at + "mlp.gate_proj", y)
            h = h + _linear(w, at + "mlp.down_proj", gate * torch.sigmoid(gate) * _linear(w, at + "mlp.up_proj", y))
        found.append(h)
        h = feed(_rms(h, w["norm.weight"]) if flags.norm_output else h)
    return found


def training_time_test(w: Weights, flags: DraftFlags, planes: torch.Tensor, ids: torch.Tensor, steps: int, heads: int, rope: Rope, first_position: int = 0) -> list[torch.Tensor]:
    """EAGLE's layout: row t of step k reads token t + 1 + k (the last one where the text ends) at position t + k."""
    count = len(ids)
    at = torch.arange(count)
    causal, own = at[:, None] >= at[None], torch.eye(count, dtype=torch.bool)
    return rows(w, flags, fuse(w, flags, planes), [ids[(at + 1 + k).clamp_max(count - 1)] for k in range(steps)], [at + k + first_position for k in range(steps)],
                [torch.cat([causal] + [own] * k, 1) for k in range(steps)], heads, rope)


def modelopt(w: Weights, flags: DraftFlags, planes: torch.Tensor, ids: torch.Tensor, steps: int, heads: int, rope: Rope) -> list[torch.Tensor]:
    """ModelOpt's layout: tokens rolled left once and fixed, states rolled right by one each step, every position at its own place.

    Row q of step k sees step 0 up to q - k and step i on the diagonal q - (k - i). Row t + k equals row t of the other layout.
    """
    count = len(ids)
    q, kv = torch.arange(count)[:, None], torch.arange(count)[None]
    masks = [torch.cat([kv <= q - k] + [kv == q - (k - i) for i in range(1, k + 1)], 1) for k in range(steps)]
    for k, mask in enumerate(masks):
        mask[:k, 0] = True  # rows before the chain's start hold nothing: any key, so that softmax is defined
    token = ids.roll(-1)
    token[-1] = ids[-1]
    return rows(w, flags, fuse(w, flags, planes), [token] * steps, [torch.arange(count)] * steps, masks, heads, rope, feed=lambda h: h.roll(1, 0))


def _llama(w: Weights, at: str, z: torch.Tensor, position: torch.Tensor, heads: int, rope: Rope):
    dim = len(w[at + "q_proj.weight"]) // heads
    q, k, v = (_linear(w, f"{at}{n}_proj", z).unflatten(1, (-1, dim)) for n in "qkv")
    q, k = (_rms(x, w[f"{at}{n}_norm.weight"]) if f"{at}{n}_norm.weight" in w else x for n, x in (("q", q), ("k", k)))
    turned = int(dim * rope.partial)
    angle = _angle(position, turned, rope)

    def turn(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(x[..., :turned // 2], x[..., turned // 2:turned]) * angle[:, None]
        return torch.cat((pairs.real, pairs.imag, x[..., turned:]), -1)

    return turn(q), turn(k), v, dim ** -0.5


def _mla(w: Weights, at: str, z: torch.Tensor, position: torch.Tensor, heads: int, rope: Rope):
    rank = len(w[at + "kv_a_layernorm.weight"])
    turned = len(w[at + "kv_a_proj_with_mqa.weight"]) - rank
    q = (_rms(_linear(w, at + "q_a_proj", z), w[at + "q_a_layernorm.weight"]) @ w[at + "q_b_proj.weight"].T).unflatten(1, (heads, -1))
    joint = _linear(w, at + "kv_a_proj_with_mqa", z)
    up = (_rms(joint[:, :rank], w[at + "kv_a_layernorm.weight"]) @ w[at + "kv_b_proj.weight"].T).unflatten(1, (heads, -1))
    nope = q.shape[2] - turned
    angle = _angle(position, turned, rope)

    def turn(x: torch.Tensor) -> torch.Tensor:  # neighbours are the pairs
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * angle[:, None]).flatten(-2)

    shared = turn(joint[:, None, rank:]).repeat(1, heads, 1)
    sharpen = 1.0
    if rope.scaling and rope.scaling.get("mscale_all_dim"):
        sharpen = (0.1 * rope.scaling["mscale_all_dim"] * math.log(rope.scaling["factor"]) + 1) ** 2
    return torch.cat((q[..., :nope], turn(q[..., nope:])), -1), torch.cat((up[..., :nope], shared), -1), up[..., nope:], sharpen / math.sqrt(q.shape[2])


def _angle(position: torch.Tensor, turned: int, rope: Rope) -> torch.Tensor:
    """e^(i p f) as complex [T, turned/2]; frequencies are plain, or linear-scaled. Yarn's own are held against transformers elsewhere."""
    frequency = rope.theta ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    if rope.scaling and rope.scaling.get("rope_type") == "linear":
        frequency = frequency / rope.scaling["factor"]
    phase = position[:, None] * frequency
    return torch.polar(torch.ones_like(phase), phase)


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def _linear(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)
