"""A drafter of a reduced vocabulary without its map: what it will accept as it stands, and whether the map is all it lacks.

Without d2t an engine takes draft ids for target ids. Then nearly every draft is wrong wherever the map was not the identity, and
that looks like bad states. What tells them apart: under a missing map each draft id still stands for one token. The map is learnt
from one half of the sequences (the token most often true where an id is drafted) and tried on the other half. It has to beat the
ids as they are, which are right where the head is only shorter than a padded embedding, and the most frequent token, which needs
no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness, SequenceCorrectness
from eagle_forensics.drafter.network.model import Drafter
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
    lead: stats.Estimate
    """learnt minus identity, paired."""
    sense: stats.Estimate
    """identity minus the most frequent token, paired: above 0 the ids mean something as they are."""


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
    return MapTrial(stats.ratio_of_sums(identity, sizes), stats.ratio_of_sums(learnt, sizes), stats.paired_difference(learnt, constant, sizes),
                    stats.paired_difference(learnt, identity, sizes), stats.paired_difference(identity, constant, sizes))


def map_finding(drafter: Drafter, trained: Correctness | None) -> Finding:
    """`drafter.map`: is a reduced draft vocabulary mapped? `trained`: correctness fed the dump's states, read as the checkpoint says."""
    common = {"id": "drafter.map", "question": QUESTION, "notebook": NOTEBOOK, "required": False}
    if len(drafter.head) >= drafter.vocab:
        return Finding(**common, status=Status.SKIPPED, statement=f"The draft head holds all {drafter.vocab} tokens of the target: no map is needed.")
    if drafter.d2t is not None:
        return Finding(**common, status=Status.PASS, n=len(drafter.head), statement=f"d2t maps the {len(drafter.head)} draft ids into the target's {drafter.vocab}.")
    facts = f"lm_head holds {len(drafter.head)} of {drafter.vocab} tokens and the checkpoint no d2t"
    trial = try_map(trained) if trained else None
    if trial is None:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="vocab.map-missing", statement=f"{facts}; whether its ids are those of the target's first tokens takes two recorded texts to tell.",
                       next_step="ask the trainer for its d2t or vocab_mapping file")
    shown = {"observed": round(trial.identity.value, 4), "unit": "accuracy of step 1", "n": trial.identity.n, "interval": trial.identity.bounded}
    told = f"with a map learnt from the other half of the sequences step 1 is right on {trial.learnt.text()}, with the ids as they are on {trial.identity.text()}"
    if trial.lead.low > 0 and trial.gain.low > 0:
        return _missing(common | shown, facts, told, trial, trained)
    if trial.sense.low > 0:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{facts}, but {told}: its ids are those of the target's first tokens, the rest may be padding.")
    return Finding(**common, **shown, status=Status.INCONCLUSIVE, fault="vocab.map-missing", statement=(
        f"{facts}; {told}. That is no more than the ids as they are, or the most frequent token alone: the first ids may be the tokens meant, or the states are wrong as well."),
                   next_step="ask the trainer for its d2t or vocab_mapping file")


def _missing(common: dict[str, Any], facts: str, told: str, trial: MapTrial, trained: Correctness) -> Finding:
    entry, lead = fault("vocab.map-missing"), trial.lead
    return Finding(**common, expected=f"at least {trial.learnt.value:.3f} with the map", status=Status.FAIL, fault="vocab.map-missing", statement=(
        f"{facts}: an engine takes draft ids for token ids and accepts {trained.accept_length().text()} tokens a round; {told}."),
                   competitor=Competitor(fault=entry.rival, margin=f"accuracy of step 1 {lead.value:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}] of a learnt map over the ids as they are",
                                         why_rejected="wrong states are not mended by renaming draft ids; the same drafts, fed the same states, become right"),
                   refuted_by=entry.refuted_if, remedy=entry.remedy, next_step="put the trainer's d2t (offsets) into the checkpoint and run again")


def _learn(sequences: Sequence[SequenceCorrectness]) -> tuple[dict[int, int], int]:
    """Draft id -> the token most often true where it is drafted first; and the most frequent token of all."""
    drafts = np.concatenate([s.predicted[:, 0][s.valid[:, 0]] for s in sequences])
    truth = np.concatenate([s.truth[:, 0][s.valid[:, 0]] for s in sequences])
    return {int(d): _commonest(truth[drafts == d]) for d in np.unique(drafts)}, _commonest(truth)


def _commonest(values: np.ndarray) -> int:
    tokens, counts = np.unique(values, return_counts=True)
    return int(tokens[counts.argmax()])
