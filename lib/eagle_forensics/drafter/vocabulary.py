"""A drafter of a reduced vocabulary without its map: what it will accept as it stands, and whether the map is all it lacks.

Without d2t an engine takes draft ids for target ids. Then nearly every draft is wrong wherever the map was not the identity, and
that looks like bad states. What tells them apart: under a missing map each draft id still stands for one token. The map is learnt
from one half of the sequences (the token most often true where an id is drafted) and tried on the other half. It has to beat the
most frequent token, which needs no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness
from eagle_forensics.drafter.model import Drafter
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Finding, Status

NOTEBOOK = "02_drafter_accuracy"
QUESTION = "Do the draft ids mean the tokens they stand for?"


@dataclass(frozen=True)
class MapTrial:
    """Step 1 under the identity and under the map learnt from the other half of the sequences."""

    identity: stats.Estimate
    learnt: stats.Estimate
    gain: stats.Estimate
    """learnt minus always saying the other half's most frequent token, paired."""


def lacks_map(drafter: Drafter) -> bool:
    """The head is smaller than the vocabulary and nothing says which tokens it holds."""
    return drafter.d2t is None and len(drafter.head) < drafter.vocab


def try_map(correctness: Correctness) -> MapTrial | None:
    """`correctness` of a drafter whose ids were read as they are; None for fewer than two sequences."""
    halves = (correctness.sequences[::2], correctness.sequences[1::2])
    if not all(halves):
        return None
    identity, learnt, constant, sizes = [], [], [], []
    for own, other in (halves, halves[::-1]):
        meaning, frequent = _learn(other)
        for s in own:
            drafts, truth, valid = s.predicted[:, 0], s.truth[:, 0], s.valid[:, 0]
            identity.append(int((drafts == truth)[valid].sum()))
            learnt.append(int(sum(meaning.get(int(d), -1) == t for d, t in zip(drafts[valid], truth[valid], strict=True))))
            constant.append(int((truth[valid] == frequent).sum()))
            sizes.append(int(valid.sum()))
    return MapTrial(stats.ratio_of_sums(identity, sizes), stats.ratio_of_sums(learnt, sizes), stats.paired_difference(learnt, constant, sizes))


def map_finding(drafter: Drafter, trained: Correctness | None) -> Finding:
    """`drafter.map`: is a reduced draft vocabulary mapped? `trained`: correctness fed the dump's states, read as the checkpoint says."""
    common = {"id": "drafter.map", "question": QUESTION, "notebook": NOTEBOOK, "required": False}
    if len(drafter.head) >= drafter.vocab:
        return Finding(**common, status=Status.SKIPPED, statement=f"The draft head holds all {drafter.vocab} tokens of the target: no map is needed.")
    if drafter.d2t is not None:
        return Finding(**common, status=Status.PASS, n=len(drafter.head), statement=f"d2t maps the {len(drafter.head)} draft ids into the target's {drafter.vocab}.")
    entry = fault("vocab.map-missing")
    facts = f"lm_head holds {len(drafter.head)} of {drafter.vocab} tokens and the checkpoint no d2t"
    trial = try_map(trained) if trained else None
    length = trained.accept_length().text() if trained else "not known"
    shown = {} if trial is None else {"observed": round(trial.identity.value, 4), "unit": "accuracy of step 1", "n": trial.identity.n, "interval": trial.identity.bounded,
                                      "expected": f"at least {trial.learnt.value:.3f} with the map"}
    told = "" if trial is None else f" With a map learnt from the other half of the sequences step 1 is right on {trial.learnt.text()} instead of {trial.identity.text()}."
    if trial is not None and trial.gain.low <= 0:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, fault="vocab.map-missing", statement=(
            f"{facts}. As the engine reads it, {length} tokens a round.{told} That is no more than the most frequent token alone: the first ids may be the tokens meant, or the states are wrong as well."),
                       next_step="ask the trainer for its d2t or vocab_mapping file")
    margin = "no recorded text to try it on" if trial is None else f"accuracy of step 1 {trial.gain.value:+.3f} [{trial.gain.low:+.3f}, {trial.gain.high:+.3f}] of a learnt map over the most frequent token"
    why = ("the tensor inventory alone decides that the map is missing; what the states do is not said" if trial is None
           else "wrong states are not mended by renaming draft ids; the same drafts, fed the same states, become right")
    return Finding(**common, **shown, status=Status.FAIL, fault="vocab.map-missing", statement=f"{facts}: an engine takes draft ids for token ids and accepts {length} tokens a round.{told}",
                   competitor=Competitor(fault=entry.rival, margin=margin, why_rejected=why), refuted_by=entry.refuted_if, remedy=entry.remedy,
                   next_step="put the trainer's d2t (offsets) into the checkpoint and run again")


def _learn(sequences: Sequence[SequenceCorrectness]) -> tuple[dict[int, int], int]:
    """Draft id -> the token most often true where it is drafted first; and the most frequent token of all."""
    drafts = np.concatenate([s.predicted[:, 0][s.valid[:, 0]] for s in sequences])
    truth = np.concatenate([s.truth[:, 0][s.valid[:, 0]] for s in sequences])
    return {int(d): _commonest(truth[drafts == d]) for d in np.unique(drafts)}, _commonest(truth)


def _commonest(values: np.ndarray) -> int:
    tokens, counts = np.unique(values, return_counts=True)
    return int(tokens[counts.argmax()])
