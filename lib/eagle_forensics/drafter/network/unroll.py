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

from eagle_forensics.drafter.network import rope as rotary
from eagle_forensics.drafter.network.arithmetic import largest, rms_norm
from eagle_forensics.drafter.network.attention import Bounds, Turn, attend
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import Recorded, chain_rows

CHUNK_TOKENS = 2048
"""Tokens run together: enough for full matrix products, few enough for bounded memory."""
CHUNK_VALUES = 3 << 20
"""Values of one plane run together, for wide targets: 438 tokens of 7168 (the states, keys and products of a token take about 60 times its plane)."""


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
    _shares: dict = field(default_factory=dict, repr=False)

    def planes(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """name -> [N, Ht]. ValueError for a plane that a sequence does not have."""
        for item in self.sequences:
            missing = [n for n in names if n not in item.planes]
            if missing:
                raise ValueError(f"sequence {item.sample_id}: no plane {missing[0]!r}; at hand: {', '.join(item.planes)}")
        return {n: torch.cat([s.planes[n] for s in self.sequences]) for n in names}

    def text(self, drafter: Drafter, at: torch.Tensor, shift: int) -> list[torch.Tensor]:
        """`embedding_shares` of the text's tokens `shift` after positions `at`, those beyond a sequence's end held at its last token.

        Computed once a token: they are the same for all wirings and steps.
        """
        layer = drafter.layers[0]
        if layer not in self._shares:
            self._shares[layer] = embedding_shares(drafter, self.tokens)
        token = torch.minimum((at + shift).clamp_min(0), self.last[at])
        return [share[token] for share in self._shares[layer]]


def chunks(sequences: Sequence[Recorded], steps: int, tokens: int = CHUNK_TOKENS) -> Iterator[Chunk]:
    """The sequences in order, grouped up to `tokens` tokens or CHUNK_VALUES (a longer one alone), with the rows that `steps` steps predict from."""
    group: list[Recorded] = []
    for item in sequences:
        room = min(tokens, CHUNK_VALUES // max(plane.shape[1] for plane in item.planes.values()))
        if group and sum(map(len, group)) + len(item) > room:
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


def unroll(drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, *, token_shift: int = 1, own: torch.Tensor | None = None) -> torch.Tensor:
    """Draft-vocabulary argmax [R, steps] of every response position and step, in main memory. `hidden`: step 0's state, [N, H].

    `token_shift` 1 is the contract (step k at t reads the embedding of x_{t+1+k}). `own` None feeds the text's tokens (teacher-forced);
    the target ids [Vd] of all draft ids feed the chain its own tokens from step 1 on, as a server does.
    """
    with torch.inference_mode():
        found = []
        for h in states(drafter, chunk, hidden, steps, token_shift=token_shift, own=own):
            found.append(draft_ids(drafter, h)[:, 0])
        return torch.stack(found, 1).cpu()


def draft_ids(drafter: Drafter, h: torch.Tensor, count: int = 1) -> torch.Tensor:
    """[R, count] draft ids of the largest logits of states [R, H], falling."""
    return largest(rms_norm(h, drafter.norm, drafter.eps), drafter.head, drafter.head_bias, count)[1]


def states(drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, *, token_shift: int = 1, own: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
    """The hidden state before the last norm, [R, H], step by step; arguments as of `unroll`."""
    chains = Chains(drafter, chunk, hidden, steps, chunk.text(drafter, torch.arange(len(chunk.tokens)), token_shift))
    yield chains.state
    for step in range(1, steps):
        if own is None:
            chains.step(shares=chunk.text(drafter, chunk.rows, token_shift + step))
        else:
            chains.step(tokens=own[draft_ids(drafter, chains.state)[:, 0].cpu()])
        yield chains.state


class Chains:
    """The chains of all rows of a chunk, one step at a time. Keys of step 0 are shared, those of later steps are each chain's own."""

    def __init__(self, drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, token_shares: Sequence[torch.Tensor]) -> None:
        """Step 0 of all tokens: `hidden` [N, H] from `fuse`, `token_shares` as of `Chunk.text`. `steps`: as many will be taken at most."""
        self.drafter, self._chunk, self.at = drafter, chunk, chunk.rows
        first = drafter.layers[0].attention
        inverse, factor = rotary.frequencies(drafter.rope, first.rotated, drafter.max_positions)
        table = rotary.rotation_table(inverse, factor, int(chunk.position.max()) + steps, drafter.dtype)
        self._cos, self._sin = (t.to(drafter.device) for t in table)
        self._keys: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._own: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in drafter.layers]
        self.taken = 0
        everyone = torch.arange(len(chunk.tokens))
        h = hidden
        for index, layer in enumerate(drafter.layers):
            normed, residual, shares = self._entry(index, h, token_shares)
            turn = self._turn(chunk.position)
            self._keys.append(layer.attention.keys(normed, shares, turn))
            at, bounds = everyone, chunk.bounds
            if index == len(drafter.layers) - 1:  # the last layer's state is asked for at the rows alone
                at, bounds, turn = chunk.rows, chunk.row_bounds, self._turn(chunk.position[chunk.rows])
                normed, residual, shares = normed[at], residual[at], [None if s is None else s[at] for s in shares]
            h = self._layer(index, normed, residual, shares, turn, at, bounds)
        self.state = h
        """[R, H] before the last norm."""

    def step(self, *, tokens: torch.Tensor | None = None, shares: Sequence[torch.Tensor] | None = None) -> None:
        """One step further with the embedding of `tokens` [R] (target ids), or with their `shares` of layer 0 where they are at hand."""
        self.taken += 1
        shares = embedding_shares(self.drafter, tokens) if shares is None else shares
        h = rms_norm(self.state, self.drafter.norm, self.drafter.eps) if self.drafter.flags.norm_output else self.state
        turn = self._turn(self._chunk.position[self.at] + self.taken)
        for index, layer in enumerate(self.drafter.layers):
            normed, residual, mine = self._entry(index, h, shares)
            self._own[index].append(layer.attention.keys(normed, mine, turn))
            h = self._layer(index, normed, residual, mine, turn, self.at, self._chunk.row_bounds)
        self.state = h

    def _entry(self, index: int, h: torch.Tensor, shares: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor | None]]:
        """What a layer's attention reads, its residual, and the embedding's shares (none above layer 0)."""
        layer = self.drafter.layers[index]
        normed = h if layer.hidden_norm is None else rms_norm(h, layer.hidden_norm, self.drafter.eps)
        if index:
            return normed, h, [None] * len(shares)
        return normed, normed if self.drafter.flags.norm_before_residual else h, shares

    def _layer(self, index: int, normed: torch.Tensor, residual: torch.Tensor, shares: Sequence[torch.Tensor | None], turn: Turn,
               at: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        layer = self.drafter.layers[index]
        q = layer.attention.queries(normed, shares, turn)
        attended = attend(q, self._keys[index], self._own[index], at, self._chunk.bounds, bounds, layer.attention.scale(self.drafter.rope))
        return layer.after_attention(residual, attended, self.drafter.eps)

    def _turn(self, position: torch.Tensor) -> Turn:
        cos, sin = self._cos[position], self._sin[position]
        interleaved = self.drafter.layers[0].attention.interleaved
        return lambda x: rotary.rotate(x, cos, sin, interleaved=interleaved)


def embedding_shares(drafter: Drafter, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the embedding of `tokens` [N] adds to each projection of layer 0's input, [N, out] each."""
    layer = drafter.layers[0]
    e = drafter.embedding[tokens].to(drafter.device, drafter.dtype)
    if layer.embedding_norm is not None:
        e = rms_norm(e, layer.embedding_norm, drafter.eps)
    return tuple(entry.of_embedding(e) for entry in layer.attention.inputs())
