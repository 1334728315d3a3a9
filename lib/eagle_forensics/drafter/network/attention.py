"""Attention of one draft layer, llama type or MLA: from the normed inputs to queries, keys and values, and the attention over them.

    z = [e, n]                    layer 0 reads embedding and hidden state side by side: W z = W_e e + W_n n
    llama type                    q, k, v = W_q z, W_k z, W_v z; optional norm of each head's q and k; rotary on the head
    MLA (DeepSeek V2/V3, Kimi)    q = W_qb RMS(W_qa z);  [c, r] = W_kva z;  [k, v] = W_kvb RMS(c) per head
                                  rotary, interleaved, on q's last dimensions and on r, which all heads share

Source: SGLang 0.5.23 `llama_eagle3.py`, `kimi_k25_eagle3.py` (which computes MLA in absorbed form: the same numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eagle_forensics.drafter.network.arithmetic import SCORE_ELEMENTS, linear, rms_norm
from eagle_forensics.drafter.network.rope import score_gain
from eagle_forensics.evidence.records import Rope

Bounds = Sequence[tuple[int, int]]
Turn = Callable[[torch.Tensor], torch.Tensor]
"""Rotary embedding of [N, heads, D] at the positions of its rows."""


@dataclass(frozen=True, eq=False)
class Input:
    """A projection of the layer's input. In layer 0 its weight is [out, 2H]: the embedding's half first."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    hidden: int

    def of_embedding(self, e: torch.Tensor) -> torch.Tensor:
        """The embedding's share, with the bias: the same for all steps and wirings."""
        return linear(e, self.weight[:, :self.hidden], self.bias)

    def __call__(self, n: torch.Tensor, share: torch.Tensor | None) -> torch.Tensor:
        """`share`: what `of_embedding` gave for the rows of n; None above layer 0."""
        if share is None:
            return linear(n, self.weight, self.bias)
        return linear(n, self.weight[:, self.hidden:]).add_(share)


@dataclass(frozen=True, eq=False)
class Grouped:
    """Llama type: grouped-query attention."""

    q: Input
    k: Input
    v: Input
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    head_dim: int
    eps: float

    interleaved = False

    @property
    def rotated(self) -> int:
        """Dimensions that the rotary frequencies are made for."""
        return self.head_dim

    def inputs(self) -> tuple[Input, Input, Input]:
        return self.q, self.k, self.v

    def scale(self, rope: Rope) -> float:
        """Factor on the scores."""
        return self.head_dim ** -0.5

    def queries(self, n: torch.Tensor, shares: Sequence[torch.Tensor | None], turn: Turn) -> torch.Tensor:
        """[N, NH, D]"""
        q = self.q(n, shares[0]).unflatten(1, (-1, self.head_dim))
        return turn(q if self.q_norm is None else rms_norm(q, self.q_norm, self.eps))

    def keys(self, n: torch.Tensor, shares: Sequence[torch.Tensor | None], turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, NKV, D] twice"""
        k, v = (p(n, share).unflatten(1, (-1, self.head_dim)) for p, share in ((self.k, shares[1]), (self.v, shares[2])))
        return turn(k if self.k_norm is None else rms_norm(k, self.k_norm, self.eps)), v


@dataclass(frozen=True, eq=False)
class Latent:
    """MLA: queries and keys through low-rank bottlenecks."""

    q_a: Input
    kv_a: Input
    q_a_norm: torch.Tensor
    kv_a_norm: torch.Tensor
    q_b: torch.Tensor
    """[NH (nope + rotated), q_lora]"""
    kv_b: torch.Tensor
    """[NH (nope + v), kv_lora]"""
    heads: int
    rotated: int
    eps: float
    interleaved: bool = True

    def inputs(self) -> tuple[Input, Input]:
        return self.q_a, self.kv_a

    def scale(self, rope: Rope) -> float:
        """Factor on the scores: DeepSeek's yarn sharpens them."""
        return (len(self.q_b) // self.heads) ** -0.5 * score_gain(rope)

    def queries(self, n: torch.Tensor, shares: Sequence[torch.Tensor | None], turn: Turn) -> torch.Tensor:
        """[N, NH, nope + rotated]"""
        q = linear(rms_norm(self.q_a(n, shares[0]), self.q_a_norm, self.eps), self.q_b).unflatten(1, (self.heads, -1))
        return torch.cat((q[..., :-self.rotated], turn(q[..., -self.rotated:])), -1)

    def keys(self, n: torch.Tensor, shares: Sequence[torch.Tensor | None], turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, NH, nope + rotated] and [N, NH, v]"""
        latent, shared = self.kv_a(n, shares[1]).split((len(self.kv_a_norm), self.rotated), 1)
        kv = linear(rms_norm(latent, self.kv_a_norm, self.eps), self.kv_b).unflatten(1, (self.heads, -1))
        nope = len(self.q_b) // self.heads - self.rotated
        return torch.cat((kv[..., :nope], turn(shared[:, None]).expand(-1, self.heads, -1)), -1), kv[..., nope:]


def attend(q: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], own: Sequence[tuple[torch.Tensor, torch.Tensor]], at: torch.Tensor,
           bounds: Bounds, row_bounds: Bounds, scale: float) -> torch.Tensor:
    """[R, NH * Dv]: row r, which stands at token at[r], attends the `keys` [N, NKV, .] of its own sequence up to at[r] and its `own` ones [R, NKV, .].

    `bounds` and `row_bounds`: (start, stop) of each sequence in N and in R. `at` lies in main memory.
    """
    heads, groups = q.shape[1], keys[0].shape[1]
    out = q.new_empty(len(q), heads, keys[1].shape[2])
    for (start, stop), (first, end) in zip(bounds, row_bounds, strict=True):
        rows = max(1, SCORE_ELEMENTS // (heads * max(1, stop - start)))
        for low in range(first, end, rows):
            part = slice(low, min(low + rows, end))
            seen = torch.arange(start, int(at[part].max()) + 1)
            k, v = (x[start:start + len(seen)].transpose(0, 1) for x in keys)
            query = q[part].unflatten(1, (groups, -1)).transpose(0, 1)  # [NKV, rows, NH / NKV, D]
            future = torch.zeros(part.stop - low, len(seen), dtype=q.dtype).masked_fill_(seen > at[part, None], float("-inf")).to(q.device)
            unseen = future.repeat_interleave(query.shape[2], 0)
            scores = torch.baddbmm(unseen.expand(groups, -1, -1), query.flatten(1, 2), k.transpose(1, 2), alpha=scale).unflatten(1, query.shape[1:3])
            if own:
                mine = torch.stack([torch.einsum("grhd,grd->grh", query, dk[part].transpose(0, 1)) for dk, _ in own], -1) * scale
                weights = torch.cat((scores, mine), -1).softmax(-1)
            else:
                weights = scores.softmax(-1)
            result = (weights[..., :len(seen)].flatten(1, 2) @ v).unflatten(1, query.shape[1:3])
            for j, (_, dv) in enumerate(own):
                result += weights[..., len(seen) + j, None] * dv[part].transpose(0, 1)[:, :, None]
            out[part] = result.transpose(0, 1).flatten(1, 2)
    return out.flatten(1)
