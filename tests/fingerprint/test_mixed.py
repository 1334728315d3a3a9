"""Dumps that no median gives away: a minority of foreign samples, values out of all proportion."""

import pytest
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.records import Plane, Sample
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.consistency import mixed_finding
from eagle_forensics.fingerprint.findings import slot_findings
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

TARGET, IDS = TinyTarget(), sequences(12)


def look(samples_, target=TARGET):
    return identify(samples_, bank=TinyBank(target, IDS), weights=target.weights(), layers=LAYERS)


def mixed(other):
    """Planes b=1 and b=3; `other(i)` layers later in sample i."""
    from pathlib import Path
    return [Sample(tuple(Plane(k, None, TARGET.run(s)[0][b + other(i)].bfloat16()) for k, b in enumerate((1, 3))), s, None, Path(f"data_{i}.pt"), f"data_{i}") for i, s in enumerate(IDS)]


def test_one_sample_in_twelve_from_another_layer_is_named():
    found = look(mixed(lambda i: int(i == 4)))
    assert [s.boundary.index for s in found.slots if s.sure] == [1, 3]
    finding = mixed_finding(found.strangers, found.samples)
    assert finding.status is Status.INCONCLUSIVE and finding.required and "1 of 12 samples" in finding.statement and "data_4" in finding.statement


@pytest.mark.parametrize("target", [TARGET, TinyTarget(sink=400.0)], ids=["plain", "sink"])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.04])
def test_a_dump_of_one_run_has_no_strangers(target, noise):
    g = torch.Generator().manual_seed(0)

    def planes(ids):
        return [h + noise * h.norm(dim=1, keepdim=True) / 8 * torch.randn(h.shape, generator=g) for h in (target.run(ids)[0][b].bfloat16().float() for b in (1, 3, 5))]

    found = look(samples(planes, IDS), target)
    assert found.strangers == () and mixed_finding(found.strangers, found.samples) is None


@pytest.mark.parametrize("factor", [1e20, 1e30])
def test_values_whose_squares_float32_cannot_hold_are_equal_to_nothing(factor):
    found = look(samples(lambda ids: [TARGET.run(ids)[0][3] * factor], IDS))
    assert not found.slots[0].sure and found.slots[0].embedding.holds is not True


@pytest.mark.parametrize("factor", [1e6, 1e3, 1.3, 0.7])
def test_a_factor_that_is_no_number_of_ranks_accuses_nobody(factor):
    found = look(samples(lambda ids: [TARGET.run(ids)[0][3] * factor], IDS))
    assert slot_findings(found)[0].status is Status.INCONCLUSIVE


@pytest.mark.parametrize("factor", [2.0, 8.0, 0.5, 0.125])
def test_a_number_of_ranks_is_named(factor):
    slot = look(samples(lambda ids: [TARGET.run(ids)[0][3] * factor], IDS)).slots[0]
    assert (slot.sure, slot.state, slot.boundary) == (True, State.SCALED, Boundary(3))


def test_an_embedding_scaled_as_some_models_do_accuses_no_reduction():
    assert slot_findings(look(samples(lambda ids: [TARGET.embed[ids] * 8], IDS)))[0].status is not Status.FAIL


def test_a_plane_of_one_column_is_not_constant():
    assert measure.health(torch.tensor([[1.0], [2.0]])).constant == 0
