"""Does the loss mask lie on the responses? Told by where the prompts' common ending stands, without tokenizer or model.

Prompts of a chat template end alike (`<|im_start|>assistant\\n`), responses begin differently. At every distance from the start of
the mask the most frequent three tokens are counted: under a right mask they are the same in nearly every sequence at distance 0,
under a mask rolled by s tokens at distance -s. The target's own choices, where at hand, tell as a second witness who wrote the
tokens in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.teacher import Teacher
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

NOTEBOOK = "02_drafter_accuracy"
QUESTION = "Does the loss mask lie on the target's responses?"
ENDING = 3
"""Tokens compared: the shortest common ending of a chat template in use (`<|assistant|>`, newline and the one before)."""
REACH = 64
"""Distances tried on each side of the mask's start."""
COMMON = 0.9
"""Share of responses with the same tokens from which they count as common. Measured on the built-in case (79 responses to four
kinds of prompts): 1.00 at the distances 0 to -3, 0.86 at -4, at most 0.30 at all others from -64 to 64."""
LEAST = 8
"""Responses below which nothing is concluded: eight of eight alike have a Wilson interval of 0.68 to 1."""
SLACK = 2
"""Tokens of shift that count as a convention (trainers index a mask by the token it reads or by the one it predicts), not as a fault."""


@dataclass(frozen=True)
class MaskEdge:
    """Where the prompts' common ending stands, measured from the start of the masks."""

    responses: int
    shares: np.ndarray
    """[2 REACH + 1] share of responses with the most frequent three tokens right before start + d, d = -REACH..REACH."""
    ends: tuple[int, ...]
    """Distances at which a common stretch ends."""
    ending: tuple[int, ...]
    """Token ids of the common ending; empty if there is none or several."""

    @property
    def at_start(self) -> float:
        """Share of responses whose mask starts right after the most frequent ending."""
        return float(self.shares[REACH])

    @property
    def shift(self) -> int | None:
        """Tokens by which the masks start after the prompts' end (negative: before); None if nothing common tells."""
        if self.at_start >= COMMON:
            return 0
        return -self.ends[0] if len(self.ends) == 1 else None


def mask_edge(sequences: Sequence[Recorded]) -> MaskEdge | None:
    """The common ending around the masks' starts; None without a response that starts inside its sequence."""
    starts = [(item.input_ids.numpy(), start) for item in sequences for start, _ in _stretches(item.loss_mask.numpy()) if start >= ENDING]
    if not starts:
        return None
    shares, commonest = np.zeros(2 * REACH + 1), []
    for d in range(-REACH, REACH + 1):
        seen = Counter(tuple(ids[p + d - ENDING:p + d].tolist()) for ids, p in starts if p + d >= ENDING and p + d <= len(ids))
        tokens, count = seen.most_common(1)[0] if seen else ((), 0)
        shares[d + REACH] = count / len(starts)
        commonest.append(tokens)
    ends = tuple(d for d in range(-REACH, REACH) if shares[d + REACH] >= COMMON > shares[d + 1 + REACH])
    return MaskEdge(len(starts), shares, ends, commonest[ends[0] + REACH] if len(ends) == 1 else ())


def mask_finding(sequences: Sequence[Recorded], teacher: Teacher | None = None) -> Finding:
    """`drafter.mask`: do the masks start where the prompts end, and did the target write what they cover?"""
    edge = mask_edge(sequences)
    common = {"id": "drafter.mask", "question": QUESTION, "notebook": NOTEBOOK, "required": False}
    if edge is None:
        return Finding(**common, status=Status.SKIPPED, statement="Every mask starts with its sequence, so no prompt is there to tell.",
                       next_step="if prompts are part of the samples, mask them")
    examined = stats.wilson(round(edge.at_start * edge.responses), edge.responses)
    common |= {"observed": round(edge.at_start, 4), "unit": "share of responses", "n": edge.responses, "interval": examined.interval, "threshold": COMMON,
               "threshold_why": "right before the response the same tokens stand in 100 % of the built-in case's prompts; beyond the prompts' ending the commonest stand in 30 %"}
    if edge.shift == 0 and edge.responses >= LEAST:
        return Finding(**common, status=Status.PASS, statement=(
            f"{edge.at_start:.0%} of {edge.responses} masks start right after the same {ENDING} tokens, the prompts' common ending{_said(edge)}."))
    if edge.shift is None or edge.responses < LEAST or abs(edge.shift) <= SLACK:
        why = (f"{edge.responses} response(s) are too few" if edge.responses < LEAST else f"the common ending stands {abs(edge.shift)} token(s) away, which may be the trainer's way of counting"
               if edge.shift is not None else f"no {ENDING} tokens stand at one distance from the mask's start in most sequences (looked at {-REACH} to {REACH}, most frequent {edge.shares.max():.0%})"
               if not edge.ends else f"several common stretches stand near the mask's start (at {', '.join(map(str, edge.ends))})")
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"Whether the masks lie on the responses cannot be told: {why}.",
                       next_step="decode one sample with its mask and look at the first and last token that carry loss")
    return _shifted(common, edge, sequences, teacher)


def _shifted(common: dict, edge: MaskEdge, sequences: Sequence[Recorded], teacher: Teacher | None) -> Finding:
    late = edge.shift > 0
    entry = fault("data.mask-shift")
    distance = abs(edge.shift)
    facts = (f"{edge.shares[-edge.shift + REACH]:.0%} of {edge.responses} prompts end with the tokens {list(edge.ending)}, and the masks start {distance} tokens "
             f"{'after' if late else 'before'} that place ({edge.at_start:.0%} start right at it)")
    wrapped = sum(bool(item.loss_mask[0]) and not bool(item.loss_mask[distance]) for item in sequences if len(item) > distance) if late else 0
    own = _written_by_target(sequences, teacher, edge.shift) if teacher else None
    witness = () if own is None else (Evidence(note=f"tokens between the prompts' end and the masks' start that are the target's own choice: {own.text()}"),)
    unmasked = sum(not bool(item.loss_mask[-distance:].any()) for item in sequences) / len(sequences)
    if not late and unmasked < COMMON:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.mask-shift", evidence=witness, statement=(
            f"{facts}; but only {unmasked:.0%} of the sequences end with {distance} tokens without loss, as masks that were moved would: the prompts' ending may carry loss on purpose."),
                       next_step="decode one sample with its mask: is the role marker meant to be learnt?")
    if late and not wrapped and (own is None or not _like_the_text(own, teacher)):
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.mask-shift", evidence=witness, statement=f"{facts}; a template may leave out a fixed beginning on purpose.",
                       next_step="decode one sample with its mask: are the tokens before its start part of the response?")
    what = (f"The first {distance} tokens of the responses carry no loss" if late else f"The last {distance} tokens of the prompts, their role marker among them, carry loss, and the ends of the responses none")
    also = f" {wrapped} masks begin with a stretch of {distance} tokens at the start of the sequence: they were rolled." if wrapped else ""
    return Finding(**common, status=Status.FAIL, fault="data.mask-shift", expected=0, evidence=witness, statement=f"{facts}. {what}.{also}",
                   competitor=Competitor(fault=entry.rival, margin=f"{edge.at_start:.0%} of the masks at the prompts' end against {edge.shares[-edge.shift + REACH]:.0%} at distance {-edge.shift}",
                                         why_rejected="too little data leaves every mask on its response; here all start equally far from it"),
                   refuted_by=entry.refuted_if, remedy=entry.remedy + f" Move the masks {distance} tokens {'back' if late else 'on'} and train again.",
                   next_step="decode one sample with its mask and read what stands around its start")


def _written_by_target(sequences: Sequence[Recorded], teacher: Teacher, shift: int) -> stats.Estimate | None:
    """Share of the tokens between prompt end and mask start that are the target's own choice."""
    hits, sizes = [], []
    for item in sequences:
        choice = teacher.choices.get(item.sample_id)
        if choice is None:
            continue
        ids = item.input_ids.numpy()
        at = np.concatenate([np.arange(max(1, min(p, p - shift)), max(p, p - shift)) for p, _ in _stretches(item.loss_mask.numpy()) if p >= ENDING] or [np.arange(0)])
        at = at[at < len(ids)]
        hits.append(int((choice.greedy[at - 1] == ids[at]).sum()))
        sizes.append(len(at))
    return stats.ratio_of_sums(hits, sizes) if any(sizes) else None


def _like_the_text(own: stats.Estimate, teacher: Teacher | None) -> bool:
    return teacher is not None and own.high >= teacher.agreement.low


def _said(edge: MaskEdge) -> str:
    later = [d for d in edge.ends if d > 0]
    return f"; {later[0]} more tokens, the first of the mask, are the same in nearly all" if later else ""


def _stretches(mask: np.ndarray) -> list[tuple[int, int]]:
    change = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    return list(zip(np.flatnonzero(change == 1).tolist(), np.flatnonzero(change == -1).tolist(), strict=True))
