"""Recordings out of all proportion: absurd scales, foreign tokens, ranks of nothing, planes without columns. None is called what it is not."""

import math

import pytest
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.case import load_case
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import measure, study
from eagle_forensics.fingerprint.findings import slot_findings
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences
from .written import write_case

TARGET, IDS = TinyTarget(), sequences(12)


def look(samples_, target=TARGET):
    return identify(samples_, bank=TinyBank(target, IDS), weights=target.weights(), layers=LAYERS)


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


def states(*boundaries):
    return lambda ids: [TARGET.run(ids)[0][b] for b in boundaries]


def work(folder, captures=None, change=None):
    """The notebook's steps on a written case whose dump holds b=1, 3, 5."""
    file = write_case(folder, TARGET, IDS[:4], states(1, 3, 5), "abc", drafter_ids=(0, 2, 4), captures=captures)
    if change:
        change(folder)
    found = study.begin(load_case(file), layers=None, max_samples=50, seed=0)
    return {f.id: f for f in (*found.opening, *study.slots(found), *study.dump(found), *study.served(found))}


def test_a_capture_one_layer_late_whose_last_plane_is_the_last_layer_is_an_offset(tmp_path):
    finding = work(tmp_path, {0: states(2, 4, 6)})["layers.capture-0"]
    assert finding.fault == "wiring.layer-offset" and finding.observed == [2, 4, 6]


@pytest.mark.parametrize("value, text", [(math.nan, "not finite"), (0.0, "50 zero")])
def test_a_rank_of_nothing_is_no_share_of_the_tokens(tmp_path, value, text):
    finding = work(tmp_path, {0: states(1, 3, 5), 1: lambda ids: [torch.full_like(p, value) for p in states(1, 3, 5)(ids)]})["layers.ranks-0"]
    assert finding.status is Status.INCONCLUSIVE and finding.fault == "feature.partial-sum" and text in finding.statement


def resaved(folder, i, change):
    file = folder / "dump" / f"data_{i}.pt"
    torch.save(change(torch.load(file)), file)


def test_one_sample_with_tokens_of_another_model_does_not_end_the_run(tmp_path):
    def foreign(folder):
        resaved(folder, 0, lambda d: d | {"input_ids": d["input_ids"] + 10**6})
        case = folder / "case.yaml"
        case.write_text(case.read_text().replace("reference: {path: ./bank}\n", ""))
    found = work(tmp_path, change=foreign)
    assert "layers.evidence" not in found and "equal tokens have unequal rows" in found["layers.slot-0"].statement


def test_states_that_were_saved_with_their_gradient_flag_are_read(tmp_path):
    found = work(tmp_path, change=lambda folder: [resaved(folder, i, lambda d: d | {"hidden_states": [p.float().requires_grad_() for p in d["hidden_states"]]}) for i in range(4)])
    assert found["layers.trained"].observed == [1, 3, 5]


def test_planes_without_columns_are_named(tmp_path):
    found = work(tmp_path, change=lambda folder: [resaved(folder, i, lambda d: d | {"hidden_states": [p[:, :0].clone() for p in d["hidden_states"]]}) for i in range(4)])
    assert "no columns" in found["layers.evidence"].statement


def test_one_sample_in_twelve_from_another_layer_is_named(tmp_path):
    file = write_case(tmp_path, TARGET, IDS, states(1, 3, 5), "abc", drafter_ids=(0, 2, 4))
    resaved(tmp_path, 4, lambda d: d | {"hidden_states": [p.bfloat16().clone() for p in states(2, 4, 6)(d["input_ids"])]})
    finding = study.begin(load_case(file), layers=None, max_samples=50, seed=0).opening[-1]
    assert finding.status is Status.INCONCLUSIVE and "data_4.pt: slot 0 holds b=2" in finding.statement
