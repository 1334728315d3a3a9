"""What the recorded answers of a server tell by their tokens alone: is the text fit to measure on, and can the draft vocabulary write it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eagle_forensics import stats
from eagle_forensics.acceptance.live import sanity
from eagle_forensics.acceptance.live.findings import MOST_DEGENERATE
from eagle_forensics.acceptance.live.measure import LOOK
from eagle_forensics.acceptance.tabled.fall import SMALLEST
from eagle_forensics.acceptance.words import NOTEBOOK, plural, spread
from eagle_forensics.case import Case
from eagle_forensics.evidence.answers import ServedAnswer, ServedAnswers, read_answers
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.tensors import load_array
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

STUCK_TOKENS = 16
"""Length from which an answer of one token repeated says something: real answers of one character (ruled lines) end earlier."""
ENOUGH = 0.99
"""Coverage above which the draft vocabulary is not what holds acceptance back (position 0 can lose 1 % at most)."""


@dataclass(frozen=True)
class Recorded:
    """Answers of the case, and the target ids that its drafter can write; empty without them."""

    served: ServedAnswers | None = None
    writable: np.ndarray | None = None
    """Target ids of the draft vocabulary; None: the whole vocabulary, or not known."""
    whole: bool | None = None
    """The draft vocabulary is the target's; None: not known."""
    opening: tuple[Finding, ...] = ()

    @cached_property
    def by_domain(self) -> Mapping[str, tuple[ServedAnswer, ...]]:
        found: dict[str, list[ServedAnswer]] = {}
        for a in self.served.answers if self.served else ():
            found.setdefault(a.domain, []).append(a)
        return {d: tuple(v) for d, v in found.items()}

    def coverage(self, answers: Sequence[ServedAnswer]) -> stats.Estimate | None:
        """Share of the answers' tokens that the drafter can write; None where its vocabulary is not known or there are too few answers."""
        if self.writable is None or len(answers) < 2:
            return None
        return stats.ratio_of_sums([int(np.isin(a.output_ids, self.writable).sum()) for a in answers], [len(a.output_ids) for a in answers])

    @property
    def written(self) -> frozenset[str]:
        """Domains whose tokens the drafter can write nearly all."""
        return frozenset(d for d, answers in self.by_domain.items() if (c := self.coverage(answers)) is not None and c.low > ENOUGH)


def read(case: Case) -> Recorded:
    """The answers that the case names beside its drafter's vocabulary; bad evidence becomes the opening finding."""
    whole, writable = _vocabulary(case)
    if case.answers is None:
        return Recorded(None, writable, whole)
    try:
        found = read_answers(case.answers)
        if found is None:
            raise EvidenceError(f"{case.answers}: holds no answers of a live measurement. Name a run folder whose notebook 04 measured a server.")
        return Recorded(found, writable, whole)
    except (EvidenceError, OSError) as error:
        return Recorded(opening=(Finding(id="acceptance.recorded", question="What do the recorded answers tell?", notebook=NOTEBOOK, status=Status.ERROR,
                                         statement=" ".join(str(error).split()), next_step="Correct `answers` in the case, then run again."),))


def _vocabulary(case: Case) -> tuple[bool | None, np.ndarray | None]:
    """Whether the draft vocabulary is whole, and its target ids where it is not; of an unreadable checkpoint notebook 01 tells."""
    try:
        draft = read_draft(case.drafter.path) if case.drafter else None
        if draft is None:
            return None, None
        info = draft.tensors.get("d2t")
        if info is None:
            return (True if draft.vocab is not None and draft.draft_vocab == draft.vocab else None), None
        offsets = load_array(info).astype(np.int64)
        return False, np.unique(np.arange(len(offsets)) + offsets)
    except (EvidenceError, OSError, ValueError):
        return None, None


def findings(found: Recorded) -> list[Finding]:
    """Nothing where the case names no answers."""
    if found.served is None:
        return list(found.opening)
    text = sane(found.served.answers)
    return [text, *([coverage(found)] if text.status is not Status.FAIL else [])]


def sane(answers: Sequence[ServedAnswer]) -> Finding:
    """Is the recorded text real, and if not, does one token fill it whatever was asked?"""
    common: dict[str, Any] = {"id": "acceptance.recorded-sanity", "question": "Are the recorded answers fit to measure acceptance on?", "notebook": NOTEBOOK, "unit": "share of answers",
                              "n": len(answers), "threshold": MOST_DEGENERATE, "threshold_why": "of 982 real greedy answers of a small model 5 % are behind the same gates"}
    if not answers:
        return Finding(**common, status=Status.SKIPPED, statement="No recorded answer has text and counts.", next_step="Measure again.")
    bad = [(a, why) for a in answers if (why := sanity.gates(a.output_ids, ""))]
    share = len(bad) / len(answers)
    shown = {"observed": share, "expected": f"below {MOST_DEGENERATE:g}", "interval": stats.wilson(len(bad), len(answers)).interval,
             "evidence": tuple(Evidence(note=f"{a.prompt}: {'; '.join(why)}") for a, why in bad[:8])}
    if share < MOST_DEGENERATE:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{len(answers) - len(bad)} of {len(answers)} recorded answers pass every gate.")
    if len(answers) < LOOK:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{len(bad)} of {plural(len(answers), 'recorded answer')} are loops: too few answers to say more.", next_step=f"Record {LOOK} or more.")
    stuck = [a for a in answers if len(a.output_ids) >= STUCK_TOKENS and len(set(a.output_ids[1:])) == 1]  # prefill's own token may still be right
    tokens = {a.output_ids[-1] for a in stuck}
    if len(tokens) == 1 and len(stuck) > len(answers) / 2:
        token = tokens.pop()
        return Finding(
            **common, **shown, status=Status.FAIL, fault="feature.non-finite",
            statement=f"{len(stuck)} of {len(answers)} answers to different prompts are token {token} over and over: the target's logits no longer depend on what it is asked, as where they are NaN and the first id wins.",
            competitor=Competitor(fault="measure.degenerate-output", margin=f"one token id in {len(stuck)} answers", why_rejected="a loop holds what was asked, another one for another prompt; here every prompt ends in the same token"),
            refuted_by="finite logits on one of these prompts, or other text with another dtype or backend that is as repetitive",
            remedy="Mend the target's numerics first (dtype, quantization, attention backend); acceptance means nothing until then.", next_step="Ask one prompt without speculation in bfloat16 and look for NaN in its logits.")
    return Finding(
        **common, **shown, status=Status.FAIL, fault="measure.degenerate-output", statement=f"{len(bad)} of {len(answers)} recorded answers are loops: acceptance on them means nothing.",
        competitor=Competitor(fault="a very good drafter", margin=f"{share:.0%} of the answers behind a gate", why_rejected="a good drafter does not change what the target says"),
        refuted_by="The answers read as normal sentences.", remedy="Look at the answers; take real prompts through the chat template.", next_step="Ask the same prompts without speculation and compare the text.")


def coverage(found: Recorded) -> Finding:
    """Can the draft vocabulary write what the server says? No first draft is right where it lacks the token."""
    common: dict[str, Any] = {"id": "acceptance.coverage", "question": "Can the draft vocabulary write what the server says?", "notebook": NOTEBOOK, "unit": "share of output tokens"}
    steps = found.served.steps
    if found.writable is None or not steps:
        why = "the draft vocabulary is whole" if found.whole else "the drafter's d2t is not at hand" if found.writable is None else "the number of draft steps is not recorded"
        return Finding(**common, status=Status.PASS if found.whole else Status.SKIPPED, required=False, statement=f"{why[0].upper()}{why[1:]}.",
                       next_step=None if found.whole else "Give the drafter's weights, and answers of a server with its steps.")
    rows = []
    for domain, answers in found.by_domain.items():
        covered = found.coverage(answers)
        if covered is not None:
            al = stats.ratio_of_sums([a.decoded for a in answers], [a.rounds for a in answers])
            rows.append((_gain(al.value, covered.high, steps), domain or "the answers", covered, al))
    if not rows:
        return Finding(**common, status=Status.SKIPPED, required=False, statement="Fewer than two answers a domain.", next_step="Record more answers.")
    gain, domain, covered, al = max(rows, key=lambda r: r[0])
    shown = {"observed": covered.value, "expected": 1.0, "interval": covered.interval, "n": covered.n,
             "evidence": tuple(Evidence(note=f"{d}: {spread(c)} of the tokens, accept length {spread(a)}, at most {g:.0%} to gain") for g, d, c, a in rows)}
    text = f"The draft vocabulary of {len(found.writable)} ids holds {spread(covered)} of the tokens of {domain}, whose accept length is {spread(al)}"
    if gain < SMALLEST:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: a whole vocabulary would add less than 5 % to it.")
    return Finding(
        **common, **shown, status=Status.FAIL, fault="vocab.coverage", threshold=SMALLEST,
        threshold_why="accept length that a vocabulary with these tokens would add, at the upper end of the coverage; a pruned vocabulary was published at 8 to 11 % (2.39 to 2.13 - 2.19)",
        statement=f"{text}: no first draft is right where the vocabulary lacks the token, so at most {covered.high:.0%} are.",
        competitor=Competitor(fault="wiring.layer-offset", margin=f"up to {gain:.0%} of the accept length", why_rejected="whatever it is fed, the drafter cannot write these tokens; wrong states also cost text that its vocabulary holds"),
        refuted_by="the same answers counted again with the map that the server loaded hold nearly all tokens", remedy="Rebuild the draft vocabulary from the served traffic and train the head on it, or use the whole vocabulary.",
        predicted_effect=f"accept length up to {al.value * (1 + gain):.2f} on {domain}", next_step="Count the most frequent tokens that are lacking: a language, code or a reasoning mode that training did not hold.")


def _gain(al: float, covered: float, steps: int) -> float:
    """Share by which the accept length would grow if no draft failed for want of its token: one conditional acceptance a at every position, a / covered without the gap."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _of(middle, steps) < al else (low, middle)
    return _of(min(1.0, low / covered), steps) / al - 1 if covered > 0 else 0.0


def _of(a: float, steps: int) -> float:
    return sum(a**i for i in range(steps + 1))
