"""Recorded answers: broken logits against loops, and a draft vocabulary that lacks what is said."""

import random

import numpy as np
import pytest

from eagle_forensics.acceptance import recorded
from eagle_forensics.acceptance.recorded import Recorded, coverage, sane
from eagle_forensics.case import Case, Checkpoint
from eagle_forensics.evidence.answers import ServedAnswer, ServedAnswers
from eagle_forensics.finding import Status
from tests.evidence import builders


def answers(texts, length=2.4, domain="chat"):
    return tuple(ServedAnswer(f"{domain}-{i}", (1,), tuple(ids), rounds := round(len(ids) / length), domain=domain, accepted=len(ids) - rounds) for i, ids in enumerate(texts))


def text(tokens, n=12, size=60):
    draw = random.Random(1)
    return [[draw.choice(tokens) for _ in range(size)] for _ in range(n)]


@pytest.mark.parametrize(("texts", "status", "fault"), [
    (text(range(40)), Status.PASS, None),
    ([[0] * 80] * 12, Status.FAIL, "feature.non-finite"),
    ([[5 + i, *[0] * 79] for i in range(12)], Status.FAIL, "feature.non-finite"),
    ([[i] * 80 for i in range(12)], Status.FAIL, "measure.degenerate-output"),
    ([[i, i + 1] * 40 for i in range(12)], Status.FAIL, "measure.degenerate-output"),
    ([[i, i + 1] * 40 for i in range(4)], Status.INCONCLUSIVE, None),
    ([[3, 4] * 8] * 12, Status.PASS, None),
])
def test_text_by_its_tokens(texts, status, fault):
    found = sane(answers(texts))
    assert (found.status, found.fault) == (status, fault)


def known(*parts, writable=range(40), steps=3):
    served = ServedAnswers(None, tuple(a for p in parts for a in p), (), "sglang", "0.5.23", "bfloat16", steps, 1, steps and steps + 1, 0.0, False)
    return Recorded(served, None if writable is None else np.array(writable), None)


def test_a_vocabulary_that_lacks_a_domains_tokens():
    english, other = answers(text(range(40)), 2.6, "english"), answers(text(range(30, 60)), 1.2, "other")
    found = coverage(known(english, other))
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "vocab.coverage", "wiring.layer-offset") and "other" in found.statement
    assert coverage(known(english)).status is Status.PASS
    assert known(english, other).written == {"english"}
    assert coverage(known(english, writable=None)).status is coverage(known(english, steps=None)).status is Status.SKIPPED


def test_rare_tokens_cost_little():
    """One token in sixty lacking: at accept length 2.4 a whole vocabulary would add some 2 %."""
    assert coverage(known(answers([[*t[:59], 50] for t in text(range(40))]))).status is Status.PASS


@pytest.mark.parametrize(("al", "covered", "gain"), [(2.0, 1.0, 0.0), (1.875, 0.95, 0.0396), (1.2, 0.5, 0.2367)])
def test_what_a_whole_vocabulary_would_add(al, covered, gain):
    assert recorded._gain(al, covered, 3) == pytest.approx(gain, abs=2e-3)


def test_the_map_is_read_as_offsets(tmp_path):
    builders.write_config(tmp_path, builders.LLAMA)
    from safetensors.torch import save_file

    save_file(builders.head(), tmp_path / "model.safetensors")
    found = recorded.read(Case(name="c", drafter=Checkpoint(path=tmp_path)))
    assert found.whole is False and list(found.writable) == [i + i // 2 for i in range(builders.VD)] and found.served is None


def test_a_folder_without_answers_is_named(tmp_path):
    (found,) = recorded.findings(recorded.read(Case(name="c", answers=tmp_path)))
    assert found.status is Status.ERROR and "holds no answers" in found.statement
