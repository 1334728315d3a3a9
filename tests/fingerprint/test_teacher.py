"""The head as judge: three readings of a slot, the right one agrees with the next token; nothing is decided on inner states or few tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from eagle_forensics.finding import Status
from eagle_forensics.fingerprint.findings import norm_state_finding
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.rows import Weights

from .tiny import HIDDEN, LAYERS, samples

VOCAB = 40
G = torch.Generator().manual_seed(11)
TABLE = torch.randn(VOCAB, HIDDEN, generator=G)
NORM = (1.5 * torch.randn(HIDDEN, generator=G)).exp()
IDS = [torch.randint(0, VOCAB, (60,), generator=G) for _ in range(5)]


@dataclass
class Table:
    shape: tuple[int, int] = (VOCAB, HIDDEN)


class Head:
    table = Table()

    def blocks(self):
        for start in range(0, VOCAB, 16):
            yield start, TABLE[start:start + 16]


def last(ids):
    """A state that the head reads as the next token once the norm's weight is applied."""
    noise = torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(int(ids[0])))
    return (TABLE[torch.cat([ids[1:], ids[:1]])] + 2.2 * noise) / NORM


WEIGHTS = Weights(norm=NORM, head=Head())
READINGS = {"pre": last, "post": lambda ids: WEIGHTS.normed(last(ids)), "twice": lambda ids: WEIGHTS.normed(WEIGHTS.normed(last(ids)))}


@pytest.mark.parametrize("state", READINGS)
def test_the_norm_state_is_read_off_the_head(state):
    found = identify(samples(lambda ids: [READINGS[state](ids)], IDS), weights=WEIGHTS, layers=LAYERS)
    slot = found.slots[0]
    assert slot.teacher.state == state, slot.sentence
    assert not slot.sure, "which boundary it is only a bank can tell"


def test_a_state_normed_twice_fails_the_trainer_even_without_a_bank():
    found = identify(samples(lambda ids: [READINGS["twice"](ids)], IDS), weights=WEIGHTS, layers=LAYERS)
    finding = norm_state_finding(found, "post", "specforge")
    assert (finding.status, finding.fault) == (Status.FAIL, "data.norm-twice")


def test_a_state_that_predicts_nothing_decides_nothing():
    found = identify(samples(lambda ids: [torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(3))], IDS), weights=WEIGHTS, layers=LAYERS)
    assert found.slots[0].teacher.state is None and found.slots[0].norm.holds is False


def test_depth_is_ordered_by_what_the_head_reads_and_without_a_head_by_norms():
    def planes(ids):
        noise = torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(4))
        return [last(ids), 200 * noise, last(ids) + 10 * noise]

    assert identify(samples(planes, IDS), weights=WEIGHTS, layers=LAYERS).depth_order == (1, 2, 0)
    assert identify(samples(planes, IDS), layers=LAYERS).depth_order[-1] == 1


def test_too_few_tokens_are_not_asked():
    found = identify(samples(lambda ids: [last(ids)], [IDS[0][:20]]), weights=WEIGHTS, layers=LAYERS)
    assert found.slots[0].teacher is None
