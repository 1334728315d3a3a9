"""The drafter unrolled on recorded sequences from every response position at once: what each chain of a live server predicts.

From position t, step k reads the token x_{t+1+k} and the hidden state of step k-1 at the same t (step 0: fc of the target's
states at t), sits at rotary position t+k, attends the step-0 keys of positions <= t and its own keys of steps 1..k, and predicts
x_{t+2+k}. That is training-time test, and it is serving: after each verify the keys of accepted positions are rebuilt from target
states, those of the chain are thrown away (drafter forward of SGLang's draft extend; EAGLE cnets.py).

The tokens are the *true* ones. Serving feeds the drafter's own tokens instead, which are the same as long as every earlier step
of the chain was right; after the first wrong step the chain's rest is rejected whatever it says. So runs of correct steps, and
with them the walk over verify rounds, come out the same; accuracy of step k alone is the trainers' teacher-forced one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from eagle_forensics.drafter import rope as rotary
from eagle_forensics.drafter.model import Drafter, Layer, mlp, rms_norm
from eagle_forensics.drafter.recorded import Recorded, chain_rows

CHUNK_TOKENS = 2048
"""Tokens run together: enough for full matrix products, few enough for bounded memory."""
SCORE_ELEMENTS = 1 << 24
"""Attention scores held at once (64 MiB in float32)."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A few sequences laid end to end (N tokens in all) with the rows to predict from."""

    sequences: tuple[Recorded, ...]
    tokens: torch.Tensor
    """[N] int64"""
    position: torch.Tensor
    """[N] position inside the own sequence."""
    last: torch.Tensor
    """[N] index of the own sequence's last token."""
    rows: torch.Tensor
    """[R] indices of the positions to predict from (`recorded.chain_rows`), ascending."""
    bounds: tuple[tuple[int, int], ...]
    """(start, stop) of each sequence in N."""
    row_bounds: tuple[tuple[int, int], ...]
    """(start, stop) of each sequence's rows in R."""
    _embedded: dict = field(default_factory=dict, repr=False)

    def planes(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """name -> [N, Ht]. ValueError for a plane that a sequence does not have."""
        for item in self.sequences:
            missing = [n for n in names if n not in item.planes]
            if missing:
                raise ValueError(f"sequence {item.sample_id}: no plane {missing[0]!r}; at hand: {', '.join(item.planes)}")
        return {n: torch.cat([s.planes[n] for s in self.sequences]) for n in names}

    def embedded(self, drafter: Drafter) -> torch.Tensor:
        """[N, (NH + 2 NKV) D]: the embedding's share of q, k, v for every token; the same for all wirings and steps."""
        layer = drafter.layers[0]
        if id(layer) not in self._embedded:
            e = rms_norm(drafter.embedding[self.tokens].to(drafter.dtype), layer.embedding_norm, drafter.eps)
            self._embedded[id(layer)] = F.linear(e, layer.qkv_embedding, layer.qkv_bias)
        return self._embedded[id(layer)]


def chunks(sequences: Sequence[Recorded], steps: int, tokens: int = CHUNK_TOKENS) -> Iterator[Chunk]:
    """The sequences in order, grouped up to `tokens` tokens (a longer one alone), with the rows that `steps` steps predict from."""
    group: list[Recorded] = []
    for item in sequences:
        if group and sum(map(len, group)) + len(item) > tokens:
            yield _chunk(group, steps)
            group = []
        group.append(item)
    if group:
        yield _chunk(group, steps)


def _chunk(group: list[Recorded], steps: int) -> Chunk:
    bounds, row_bounds, rows, at = [], [], [], 0
    for item in group:
        own = chain_rows(item.loss_mask, steps)
        row_bounds.append((sum(map(len, rows)), sum(map(len, rows)) + len(own)))
        rows.append(own + at)
        bounds.append((at, at + len(item)))
        at += len(item)
    lengths = torch.tensor([len(item) for item in group])
    return Chunk(
        tuple(group), torch.cat([item.input_ids for item in group]), torch.cat([torch.arange(n) for n in lengths]),
        torch.repeat_interleave(torch.tensor([stop - 1 for _, stop in bounds]), lengths), torch.cat(rows), tuple(bounds), tuple(row_bounds))


def unroll(drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, *, token_shift: int = 1) -> torch.Tensor:
    """Draft-vocabulary argmax [R, steps] of every response position and step. `hidden`: step 0's state, [N, H].

    `token_shift` 1 is the contract (step k at t reads the embedding of x_{t+1+k}).
    """
    with torch.inference_mode():
        return torch.stack([logit_argmax(drafter, h) for h in states(drafter, chunk, hidden, steps, token_shift=token_shift)], 1)


def states(drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, *, token_shift: int = 1) -> Iterator[torch.Tensor]:
    """The hidden state before the last norm, [R, H], step by step."""
    inverse, factor = rotary.frequencies(drafter.rope, drafter.head_dim, drafter.max_positions)
    cos, sin = rotary.rotation_table(inverse, factor, int(chunk.position.max()) + steps, drafter.dtype)
    embedded = chunk.embedded(drafter)
    sizes = (drafter.heads, drafter.kv_heads, drafter.kv_heads)
    keys: list[tuple[torch.Tensor, torch.Tensor]] = []
    diagonals: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in drafter.layers]
    at, h = torch.arange(len(chunk.tokens)), hidden
    for step in range(steps):
        token = torch.minimum((at + token_shift + step).clamp_min(0), chunk.last[at])
        position = chunk.position[at] + step
        for index, layer in enumerate(drafter.layers):
            normed = rms_norm(h, layer.hidden_norm, drafter.eps)
            if index == 0:
                residual = normed if drafter.flags.norm_before_residual else h
                qkv = F.linear(normed, layer.qkv_hidden) + embedded[token]
            else:
                residual, qkv = h, F.linear(normed, layer.qkv_hidden, layer.qkv_bias)
            q, k, v = qkv.view(len(at), -1, drafter.head_dim).split(sizes, 1)
            q, k = _position(drafter, layer, q, k, cos[position], sin[position])
            if step:
                diagonals[index].append((k, v))
            else:
                keys.append((k, v))
            if step == 0 and index == len(drafter.layers) - 1:
                at, q, residual = chunk.rows, q[chunk.rows], residual[chunk.rows]
            attended = _attend(chunk, at, q, keys[index], diagonals[index])
            h = residual + F.linear(attended, layer.o, layer.o_bias)
            h = h + mlp(layer, rms_norm(h, layer.post_norm, drafter.eps))
        yield h
        if drafter.flags.norm_output:
            h = rms_norm(h, drafter.norm, drafter.eps)


def logit_argmax(drafter: Drafter, h: torch.Tensor) -> torch.Tensor:
    """[R] draft id of the largest logit of states [R, H]; a few rows at a time where the vocabulary is large."""
    rows = max(1, SCORE_ELEMENTS // drafter.head.shape[0])
    normed = rms_norm(h, drafter.norm, drafter.eps)
    return torch.cat([F.linear(part, drafter.head, drafter.head_bias).argmax(-1) for part in normed.split(rows)])


def _position(drafter: Drafter, layer: Layer, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, drafter.eps)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, drafter.eps)
    return rotary.rotate(q, cos, sin), rotary.rotate(k, cos, sin)


def _attend(chunk: Chunk, at: torch.Tensor, q: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor],
            diagonals: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention of rows `at`: causal over step 0 of the own sequence, plus the own key of every later step. [R, NH * D]"""
    heads, dim = q.shape[1:]
    kv_heads = keys[0].shape[1]
    out = torch.empty(len(at), heads * dim, dtype=q.dtype)
    row_bounds = chunk.row_bounds if at is chunk.rows else chunk.bounds
    for (start, stop), (first, end) in zip(chunk.bounds, row_bounds, strict=True):
        block = max(1, SCORE_ELEMENTS // (heads * (stop - start)))
        for low in range(first, end, block):
            part = slice(low, min(low + block, end))
            until = int(at[part][-1]) + 1
            query = q[part].view(-1, kv_heads, heads // kv_heads, dim).transpose(0, 1) * dim ** -0.5
            k, v = (x[start:until].transpose(0, 1) for x in keys)
            scores = (query.reshape(kv_heads, -1, dim) @ k.transpose(1, 2)).view(*query.shape[:3], until - start)
            future = torch.arange(start, until) > at[part][:, None]
            scores.masked_fill_(future[None, :, None], float("-inf"))
            own = [(query * dk[part].transpose(0, 1)[:, :, None]).sum(-1, keepdim=True) for dk, _ in diagonals]
            weights = torch.cat([scores, *own], -1).softmax(-1)
            seen = weights[..., :until - start].reshape(kv_heads, -1, until - start) @ v
            result = seen.view(query.shape)
            for j, (_, dv) in enumerate(diagonals):
                result = result + weights[..., until - start + j, None] * dv[part].transpose(0, 1)[:, :, None]
            out[part] = result.transpose(0, 1).reshape(-1, heads * dim)
    return out
