"""Accept length at a temperature above 0, as far as a recorded greedy text can tell.

Two rules of verification are in use (a round drafts a chain x'_1..x'_K at positions whose prefixes are p_1..p_K):

    target-only   the drafter proposes its argmax; it is accepted with the target's probability of it. SGLang without
                  --speculative-use-rejection-sampling, vLLM with its default greedy draft.
    rejection     the drafter samples from its own distribution q at the same temperature; accepted with min(1, p/q), which
                  accepts with sum min(p, q) whatever was drawn. SGLang with --speculative-use-rejection-sampling.

On a text that the target itself sampled, the walk is exact under target-only: a draft is accepted exactly where the emitted token
equals it. On a greedy text the probabilities are known along the text alone. While the drafts equal the text the round is followed
exactly; a draft off the text is accepted with a known probability, and what follows it is bounded: nothing more, or all of the
rest. Rounds start where they start at temperature 0. Under rejection later steps use the distributions along the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.network.arithmetic import linear, rms_norm
from eagle_forensics.drafter.network.feed import feed
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.network.unroll import Chains, Chunk, chunks
from eagle_forensics.drafter.recorded import Recorded, spans
from eagle_forensics.drafter.teacher import Head
from eagle_forensics.drafter.walk import runs, walk_lengths

POSITIONS = 256
"""Positions whose distribution over the target's whole vocabulary is held at once: 50 MB for 49,152 tokens, 168 MB for 163,840."""


@dataclass(frozen=True)
class SampledPrediction:
    """Expected tokens per verify round of a chain at one temperature."""

    steps: int
    temperature: float
    rule: str
    """`target-only` or `rejection`."""
    low: stats.Estimate
    """Nothing is accepted behind a draft that leaves the text."""
    high: stats.Estimate
    """All of the rest is. The same as `low` under rejection, which is an approximation instead of a bound."""


@dataclass(frozen=True, eq=False)
class SequenceChances:
    """Along one response: what a chain from each row would meet."""

    accepted: np.ndarray
    """[P, K] the target's probability of the draft token."""
    overlap: np.ndarray
    """[P, K] sum of min(p, q)."""
    follows: np.ndarray
    """[P, K] the draft token is the text's."""

    def expected(self, steps: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        """Accepted drafts of a round from each row, [P] twice: lower and upper bound."""
        room = np.minimum(steps, len(self.accepted) - np.arange(len(self.accepted)))
        step = np.arange(steps)
        within = step < room[:, None]
        if rule == "rejection":
            mean = (np.cumprod(self.overlap[:, :steps], 1) * within).sum(1)
            return mean, mean
        reach = np.cumprod(self.accepted[:, :steps], 1)
        on_text = np.cumprod(self.follows[:, :steps], 1).astype(bool)
        before = np.concatenate((np.ones((len(reach), 1), bool), on_text[:, :-1]), 1)
        low = (reach * before * within).sum(1)
        leaves = before & ~on_text & within
        return low, low + (reach * leaves * (room[:, None] - 1 - step)).sum(1)


def sampled_predictions(drafter: Drafter, head: Head, sequences: Sequence[Recorded], planes: Sequence[str], last: str, *, normed: bool,
                        temperatures: Sequence[float], steps: int) -> tuple[SampledPrediction, ...]:
    """Predictions for chains of 1..`steps`, under both rules, at each temperature. `last`: plane of the target's last state, `normed` if after its final norm.

    ValueError for a temperature that is not above 0 (at 0 the walk is the prediction).
    """
    if not all(t > 0 for t in temperatures):
        raise ValueError(f"temperatures {list(temperatures)}: expected above 0; at 0 the walk is the prediction")
    with torch.inference_mode():
        found = [c for chunk in chunks(sequences, steps) for c in _chances(drafter, head, chunk, planes, last, normed, temperatures, steps)]
    if not any(found):
        raise ValueError("no response holds more than the token that prefill gives")
    return tuple(_predict([[c[i] for c in responses] for responses in found], k, t, rule)
                 for i, t in enumerate(temperatures) for rule in ("target-only", "rejection") for k in range(1, steps + 1))


def _predict(found: Sequence[Sequence[SequenceChances]], steps: int, temperature: float, rule: str) -> SampledPrediction:
    low, high, count = [], [], []
    for responses in found:
        sums = np.zeros(3)
        for c in responses:
            at = list(walk_lengths(runs(c.follows[:, :steps]), steps).starts)
            least, most = c.expected(steps, rule)
            sums += (least[at].sum() + len(at), most[at].sum() + len(at), len(at))
        for column, value in zip((low, high, count), sums, strict=True):
            column.append(value)
    return SampledPrediction(steps, temperature, rule, stats.ratio_of_sums(low, count), stats.ratio_of_sums(high, count))


def _chances(drafter: Drafter, head: Head, chunk: Chunk, planes: Sequence[str], last: str, normed: bool, temperatures: Sequence[float],
             steps: int) -> list[list[tuple[SequenceChances, ...]]]:
    """One list a sequence, one entry a response, in it one a temperature."""
    meaning = drafter.target_ids().cpu()
    chains = Chains(drafter, chunk, feed(drafter, chunk, planes), steps, chunk.text(drafter, torch.arange(len(chunk.tokens)), 1))
    logits = []
    for step in range(steps):
        if step:
            chains.step(shares=chunk.text(drafter, chunk.rows, 1 + step))
        logits.append(linear(rms_norm(chains.state, drafter.norm, drafter.eps), drafter.head, drafter.head_bias).float().cpu())
    drafted = torch.stack([x.argmax(-1) for x in logits], 1)
    accepted, overlap = (torch.zeros(len(temperatures), *drafted.shape) for _ in range(2))
    row_of = torch.full((len(chunk.tokens),), -1)
    row_of[chunk.rows] = torch.arange(len(chunk.rows))
    state = chunk.planes([last])[last]
    for at in torch.arange(len(chunk.tokens)).split(POSITIONS):
        x = state[at].float() if normed else head.normed(state[at])
        theirs = head.logits(x)
        sayable = theirs[:, meaning]
        for i, temperature in enumerate(temperatures):
            total = (theirs / temperature).logsumexp(-1, keepdim=True)
            p = (sayable / temperature - total).exp()
            for step in range(steps):
                source = at - 1 - step
                row = torch.where(chunk.position[at] > step, row_of[source.clamp_min(0)], -1)
                mine = row >= 0
                row = row[mine]
                accepted[i, row, step] = p[mine].gather(1, drafted[row, step][:, None])[:, 0]
                overlap[i, row, step] = torch.minimum(p[mine], (logits[step][row] / temperature).softmax(-1)).sum(1)
    text = chunk.tokens[torch.minimum(chunk.rows[:, None] + 2 + torch.arange(steps), chunk.last[chunk.rows][:, None])]
    follows = (meaning[drafted] == text).numpy()
    found = []
    for item, (start, stop), (first, _) in zip(chunk.sequences, chunk.row_bounds, chunk.bounds, strict=True):
        positions = chunk.rows[start:stop].numpy() - first
        mine = []
        for span in spans(item.loss_mask):
            rows = start + np.flatnonzero((positions >= span.live) & (positions < span.stop))
            if len(rows):
                inside = np.arange(len(rows))[:, None] + np.arange(steps) < len(rows)
                mine.append(tuple(SequenceChances(a[rows].double().numpy(), o[rows].double().numpy(), follows[rows] & inside)
                                  for a, o in zip(accepted, overlap, strict=True)))
        found.append(mine)
    return found
