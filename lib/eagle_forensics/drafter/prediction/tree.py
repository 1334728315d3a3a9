"""Verify rounds with a draft tree, as SGLang's EAGLE worker grows and cuts it, for every budget of draft tokens at once.

Level 1 holds the `topk` likeliest first tokens with their probabilities. Every further step expands the `topk` nodes of the beam by
their `topk` likeliest tokens; a node's score is the product of probabilities along its path; the `topk` best of the topk^2 new
nodes are the next beam. In the end the draft_tokens - 1 best nodes of all levels are verified (the root is the token already
known). Greedy verify accepts the path whose tokens are the target's, so on a recorded text a round's length is the number of
levels whose text node is among the verified ones. The beam's nodes read their parent's hidden state, but the keys of the steps
before lie in the slot's own cache, whatever its ancestry: so does SGLang's decode. With topk 1 there is no choice: draft_tokens
is steps + 1, a chain.

Source: SGLang 0.5.23 eagle_worker_v2.py draft_forward, spec_utils.py select_top_k_tokens, eagle_utils.py organize_draft_results and
per_step_draft_out_cache_loc, verify_tree_greedy. vLLM drafts chains only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.network.arithmetic import SCORE_ELEMENTS, linear, rms_norm
from eagle_forensics.drafter.network.feed import feed
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.network.unroll import Chains, Chunk, chunks
from eagle_forensics.drafter.recorded import Recorded, chain_rows, spans
from eagle_forensics.drafter.walk import Rounds, added, walk_lengths

ABSENT = 1 << 30
"""Rank of a text node that the tree does not hold at all."""


@dataclass(frozen=True, eq=False)
class SequenceTree:
    """One sequence: how far down the ranking of the tree's nodes the text's own path lies, from every position."""

    sample_id: str
    group: str | None
    positions: np.ndarray
    """[P]"""
    ranks: np.ndarray
    """[P, S, S] rank of the text's node at level j + 1 among all nodes of a tree of s + 1 steps: [:, s, j]; ABSENT below the beam."""
    room: np.ndarray
    """[P] response tokens that a round from here can still accept."""
    live: tuple[tuple[int, int], ...]
    """(first, stop) positions of each response's rounds."""

    def lengths(self, steps: int, draft_tokens: int) -> np.ndarray:
        """[P] accepted draft tokens of a round from each position."""
        held = self.ranks[:, steps - 1, :steps] < draft_tokens - 1
        return np.minimum(np.cumprod(held, axis=1).sum(1), self.room)

    def rounds(self, steps: int, draft_tokens: int) -> Rounds | None:
        """The walk over every response, added up."""
        lengths = self.lengths(steps, draft_tokens)
        responses = ((self.positions >= first) & (self.positions < stop) for first, stop in self.live)
        return added(walk_lengths(lengths[mine], steps) for mine in responses if mine.any())


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees of one topk over all sequences."""

    sequences: tuple[SequenceTree, ...]
    steps: int
    """Most steps grown."""
    topk: int

    def rounds(self, steps: int, draft_tokens: int) -> list[Rounds]:
        """Walked rounds, one entry a sequence that has any. ValueError for more steps than grown or a budget the engine refuses."""
        most = nodes(steps, self.topk) + 1
        if not 1 <= steps <= self.steps or not 2 <= draft_tokens <= most or (self.topk == 1 and draft_tokens != steps + 1):
            raise ValueError(f"steps {steps}, draft tokens {draft_tokens}: trees of topk {self.topk} hold 1 to {self.steps} steps and "
                             f"{'steps + 1' if self.topk == 1 else f'2 to {most}'} draft tokens")
        return [r for s in self.sequences if (r := s.rounds(steps, draft_tokens)) is not None]

    def accept_length(self, steps: int, draft_tokens: int) -> stats.Estimate:
        """Tokens per verify round by the walk, bonus token included; n counts rounds."""
        walked = self.rounds(steps, draft_tokens)
        if not walked:
            raise ValueError("no response holds more than the token that prefill gives")
        return stats.ratio_of_sums([r.tokens for r in walked], [r.rounds for r in walked])


def nodes(steps: int, topk: int) -> int:
    """Nodes that a tree grows: topk at level 1, topk^2 at every further one."""
    return topk + (steps - 1) * topk * topk


def grow_trees(drafter: Drafter, sequences: Sequence[Recorded], planes: Sequence[str], steps: int, topk: int) -> Trees:
    """Trees of `topk` from every response position, fed the `planes` in fc order; `steps`: the most to be asked for (fewer are contained).

    The cost is about steps x topk that of one step of the chain. ValueError if topk exceeds the draft vocabulary.
    """
    if steps < 1 or not 1 <= topk <= len(drafter.head):
        raise ValueError(f"steps {steps}, topk {topk}: expected at least 1 step and a topk of 1 to the draft vocabulary's {len(drafter.head)}")
    found: list[SequenceTree] = []
    with torch.inference_mode():
        for chunk in chunks(sequences, steps):
            found += _sequence_trees(chunk, _ranks(drafter, chunk, feed(drafter, chunk, planes), steps, topk), steps)
    return Trees(tuple(found), steps, topk)


def _ranks(drafter: Drafter, chunk: Chunk, hidden: torch.Tensor, steps: int, topk: int) -> np.ndarray:
    """[R, steps, steps] as in SequenceTree."""
    meaning = drafter.target_ids().cpu()
    slots = replace(chunk, rows=chunk.rows.repeat_interleave(topk), row_bounds=tuple((a * topk, b * topk) for a, b in chunk.row_bounds))
    chains = Chains(drafter, slots, hidden, steps, chunk.text(drafter, torch.arange(len(chunk.tokens)), 1))
    count = len(chunk.rows)
    truth = chunk.tokens[torch.minimum(chunk.rows[:, None] + 2 + torch.arange(steps), chunk.last[chunk.rows][:, None])]
    levels: list[torch.Tensor] = []
    scores, tokens = _likeliest(drafter, chains.state.view(count, topk, -1)[:, 0], meaning, topk)
    levels.append(scores)
    beam_scores, beam_tokens, slot = scores, tokens, _slot(tokens == truth[:, :1])
    text = [torch.where(slot >= 0, scores.gather(1, slot.clamp_min(0)[:, None])[:, 0], -1.0)]
    for step in range(1, steps):
        chains.step(tokens=beam_tokens.reshape(-1))
        probability, tokens = _likeliest(drafter, chains.state, meaning, topk)
        scores = (beam_scores.flatten()[:, None] * probability).view(count, topk * topk)
        tokens = tokens.view(count, topk * topk)
        levels.append(scores)
        mine = (tokens == truth[:, step, None]) & (torch.arange(topk * topk) // topk == slot[:, None]) & (slot >= 0)[:, None]
        node = _slot(mine)
        text.append(torch.where(node >= 0, scores.gather(1, node.clamp_min(0)[:, None])[:, 0], -1.0))
        beam_scores, picked = scores.topk(topk)
        beam_tokens = tokens.gather(1, picked)
        slot = torch.where(node >= 0, _slot(picked == node[:, None]), -1)
        parent = (torch.arange(count)[:, None] * topk + picked // topk).flatten()
        chains.state = chains.state[parent.to(chains.state.device)]
    return _ranked(levels, text)


def _ranked(levels: list[torch.Tensor], text: list[torch.Tensor]) -> np.ndarray:
    """How many nodes of a tree of s + 1 levels beat the text's node of level j + 1, for all s, j."""
    steps, rows = len(levels), len(text[0])
    ranks = np.full((rows, steps, steps), ABSENT, np.int64)
    for j, score in enumerate(text):
        beaten = np.cumsum([(level > score[:, None]).sum(1).numpy() for level in levels], axis=0)
        for s in range(j, steps):
            ranks[:, s, j] = np.where(score.numpy() >= 0, beaten[s], ABSENT)
    return ranks


def _likeliest(drafter: Drafter, state: torch.Tensor, meaning: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and target ids [N, topk] of the likeliest tokens, falling."""
    found = []
    for part in state.split(max(1, SCORE_ELEMENTS // len(drafter.head))):
        found.append(linear(rms_norm(part, drafter.norm, drafter.eps), drafter.head, drafter.head_bias).float().softmax(-1).topk(topk))
    ids = torch.cat([f.indices for f in found]).cpu()
    return torch.cat([f.values for f in found]).cpu(), meaning[ids]


def _slot(mine: torch.Tensor) -> torch.Tensor:
    """Index of the True in each row of `mine`; -1 where there is none."""
    return torch.where(mine.any(1), mine.int().argmax(1), -1)


def _sequence_trees(chunk: Chunk, ranks: np.ndarray, steps: int) -> Iterator[SequenceTree]:
    for item, (start, stop) in zip(chunk.sequences, chunk.row_bounds, strict=True):
        positions = chain_rows(item.loss_mask, steps).numpy()
        responses = spans(item.loss_mask)
        room = np.zeros(len(positions), int)
        for span in responses:
            inside = (positions >= span.first) & (positions < span.stop)
            room[inside] = span.stop - positions[inside]
        yield SequenceTree(item.sample_id, item.group, positions, ranks[start:stop], room, tuple((s.live, s.stop) for s in responses))
