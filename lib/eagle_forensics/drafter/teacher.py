"""What the target itself would have said next: the argmax of its own head on a recorded last state.

Trainers count against this choice (the verifier's argmax), dumps hold tokens: the two are the same only where the target wrote
the text greedily. The last plane of a dump is the last state before or after the final norm; which one is read off the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import NO_TOKEN, Correctness, SequenceCorrectness
from eagle_forensics.drafter.recorded import Recorded, spread
from eagle_forensics.evidence.records import Target

WORK = 2.4e11
"""Floating-point operations of the head by default: 4,200 positions of a 576-wide target with 49,152 tokens, whole sequences spread over the dump."""
FEWEST = 1024
"""Positions that are worth their time whatever the head's size."""
PROBE = 400
"""Response tokens on which the two readings of the last plane are compared first."""
VOCABULARY_ROWS = 4096
"""Rows of the head converted at once: a 7168-wide one takes 112 MiB."""
SCORES = 1 << 25
"""Logits held at once where the rows are picked (128 MiB)."""


@dataclass(frozen=True, eq=False)
class Head:
    """The target's way from its last state to logits."""

    norm: torch.Tensor
    """[H], the +1 of Gemma-type norms already added."""
    weight: torch.Tensor
    """[V, H] in its stored dtype."""
    eps: float
    scale: float = 1.0
    """Factor on the logits (Granite divides by logits_scaling, Cohere multiplies by logit_scale)."""
    cap: float | None = None
    """final_logit_softcapping of Gemma 2: cap * tanh(logits / cap)."""

    def normed(self, state: torch.Tensor) -> torch.Tensor:
        """[N, H] float32 after the final norm."""
        x = state.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.norm

    def logits(self, normed: torch.Tensor, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """[N, rows] float32 of the vocabulary's `rows` (all by default) for states after the norm."""
        found = normed @ self.weight[rows].float().T * self.scale
        return found if self.cap is None else self.cap * torch.tanh(found / self.cap)


def read_head(target: Target) -> Head:
    """The target's final norm and head (its embedding where they are tied). ValueError naming what the weights lack."""
    from eagle_forensics.evidence.tensors import load_tensor

    head = target.tensors.get("lm_head.weight", target.tensors.get("embed_tokens.weight"))
    norm = target.tensors.get("norm.weight")
    if head is None or norm is None:
        raise ValueError(f"{target.path}: no {'norm.weight' if norm is None else 'lm_head.weight'}, so the target's own choice is not known")
    divisor, factor = target.config.get("logits_scaling"), target.config.get("logit_scale")
    scale = 1 / divisor if divisor else factor if factor else 1.0
    return Head(load_tensor(norm).float() + float(target.norm_plus_one), load_tensor(head), target.eps, scale, target.config.get("final_logit_softcapping"))


@dataclass(frozen=True, eq=False)
class Choices:
    """The target's choices along one sequence; -1 where none was computed."""

    greedy: np.ndarray
    """[T] token that the target puts after position t."""
    restricted: np.ndarray
    """[T] the same among the tokens that the draft vocabulary holds."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """The target's choices on some of the recorded sequences."""

    choices: Mapping[str, Choices]
    """By sample id."""
    agreement: stats.Estimate
    """Share of response tokens that are the target's own choice: near 1 for text it wrote greedily."""
    normed: bool | None
    """Whether the plane was read as the state after the final norm; None if both readings give the same choices."""
    plane: str

    @property
    def text(self) -> str:
        state = "before or after" if self.normed is None else "after" if self.normed else "before"
        return f"{self.plane} read as the last state {state} the final norm: the target's own choice is the recorded token at {self.agreement.text()} response tokens"

    def judge(self, correctness: Correctness, truth: str) -> Correctness:
        """The same drafts held against the target's `greedy` or `restricted` choice, on the sequences that have one. ValueError if none has."""
        found = [self._judged(s, getattr(self.choices[s.sample_id], truth)) for s in correctness.sequences if s.sample_id in self.choices]
        if not found:
            raise ValueError("no sequence of these has the target's own choices")
        return Correctness(tuple(found), correctness.steps)

    def tokens(self, correctness: Correctness) -> Correctness:
        """The sequences that have choices, held against their tokens as before."""
        return Correctness(tuple(s for s in correctness.sequences if s.sample_id in self.choices), correctness.steps)

    def _judged(self, s: SequenceCorrectness, choice: np.ndarray) -> SequenceCorrectness:
        at = s.positions[:, None] + 1 + np.arange(s.truth.shape[1])
        truth = np.where(s.valid, choice[np.minimum(at, len(choice) - 1)], NO_TOKEN)
        return replace(s, truth=truth, in_vocabulary=np.isin(truth, s.vocabulary) & (truth != NO_TOKEN))


def read_teacher(head: Head, sequences: Sequence[Recorded], plane: str, vocabulary: np.ndarray, *, most: int | None = None) -> Teacher:
    """Choices of the target on sequences spread over `sequences`, from their `plane`. `vocabulary`: target ids that the drafter can say.
    `most` positions are read.

    ValueError if the plane does not fit the head, the sequences are too long, nothing tells whether it is the state before or after
    the norm, or it says no more about the text than the most frequent token does.
    """
    chosen = spread(sequences, most or max(FEWEST, int(WORK / (2 * head.weight.numel()))))
    width = chosen[0].planes[plane].shape[1]
    if width != head.weight.shape[1]:
        raise ValueError(f"{plane} is {width} wide, the target's head reads {head.weight.shape[1]}")
    normed = _after_the_norm(head, chosen, plane)
    states = torch.cat([item.planes[plane][:-1] for item in chosen])
    greedy, restricted = _choices(head, states.float() if normed else head.normed(states), torch.as_tensor(vocabulary))
    choices, at, hits, constant, sizes = {}, 0, [], [], []
    frequent = int(torch.cat([item.input_ids[item.loss_mask] for item in chosen]).mode().values)
    for item in chosen:
        part = slice(at, at + len(item) - 1)
        at += len(item) - 1
        last = np.array([NO_TOKEN])
        choices[item.sample_id] = Choices(np.concatenate([greedy[part], last]), np.concatenate([restricted[part], last]))
        mask = item.loss_mask[1:].numpy()
        truth = item.input_ids[1:].numpy()[mask]
        hits.append(int((greedy[part][mask] == truth).sum()))
        constant.append(int((truth == frequent).sum()))
        sizes.append(int(mask.sum()))
    agreement = stats.ratio_of_sums(hits, sizes)
    if not stats.paired_difference(hits, constant, sizes).low > 0 and len(chosen) > 1:
        raise ValueError(f"{plane}: through the target's head it says the text's token at {agreement.text()}, no more than the most frequent token does: it is not the last state")
    return Teacher(choices, agreement, normed, plane)


def _after_the_norm(head: Head, sequences: Sequence[Recorded], plane: str) -> bool | None:
    hits: dict[bool, list[int]] = {True: [], False: []}
    sizes: list[int] = []
    left = max(2, PROBE // max(2, len(sequences)))
    for item in sequences:
        at = item.loss_mask[1:].nonzero()[:left, 0]
        state, truth = item.planes[plane][at], item.input_ids[at + 1].numpy()
        sizes.append(len(at))
        for normed in (True, False):
            hits[normed].append(int((_choices(head, state.float() if normed else head.normed(state))[0] == truth).sum()))
    if hits[True] == hits[False]:
        return None
    lead = stats.paired_difference(hits[True], hits[False], sizes)
    if not (lead.low > 0 or lead.high < 0):
        raise ValueError(f"{plane}: {sum(sizes)} response tokens do not tell whether it is the state before or after the final norm "
                         f"(right on {sum(hits[False])} and {sum(hits[True])} of them)")
    return lead.value > 0


def _choices(head: Head, normed: torch.Tensor, vocabulary: torch.Tensor | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Argmax [N] over the whole vocabulary, a block of rows at a time, and over `vocabulary`."""
    best = torch.full((len(normed),), -torch.inf)
    token = torch.zeros(len(normed), dtype=torch.long)
    with torch.inference_mode():
        for start in range(0, head.weight.shape[0], VOCABULARY_ROWS):
            value, at = head.logits(normed, slice(start, start + VOCABULARY_ROWS)).max(-1)
            better = value > best
            best, token = torch.where(better, value, best), torch.where(better, at + start, token)
        if vocabulary is None:
            return token.numpy(), None
        known = vocabulary[(vocabulary >= 0) & (vocabulary < head.weight.shape[0])]
        rows = max(1, SCORES // len(known))
        return token.numpy(), known[torch.cat([head.logits(part, known).argmax(-1) for part in normed.split(rows)])].numpy()
