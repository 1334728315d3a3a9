"""Findings of notebook 03: true labels pass, false ones fail with the edit, and nobody is accused without proof."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.case import Capture, Case
from eagle_forensics.evidence.tensors import read_header
from eagle_forensics.finding import Finding, Status
from eagle_forensics.fingerprint.findings import (
    dump_findings,
    label_finding,
    norm_state_finding,
    slot_findings,
)
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.rows import weights_of
from eagle_forensics.fingerprint.served import served_finding
from eagle_forensics.fingerprint.sources import captures
from eagle_forensics.fingerprint.trained import (
    Rule,
    capture_finding,
    record,
    trained_boundaries,
    trained_finding,
)

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences(4)
TARGET = TinyTarget(sink=400.0)


def dump(boundaries=(1, 3, 5, 6), labels=None, *, bank=True, weights=True, last=None):
    def planes(ids):
        states = [TARGET.run(ids)[0][b].bfloat16() for b in boundaries]
        return [*states, last(TARGET.run(ids)[0][LAYERS]).bfloat16()] if last else states

    return identify(samples(planes, IDS), bank=TinyBank(TARGET, IDS) if bank else None, weights=TARGET.weights() if weights else None,
                    layers=LAYERS, labels=labels)


def by_id(findings: list[Finding]) -> dict[str, Finding]:
    return {f.id: f for f in findings}


def test_a_healthy_dump_gets_no_accusation():
    findings = by_id(dump_findings(dump(labels=["b1", "layer2", "layers.5", "final"]), claimed=(1, 3, 5), last_expected="pre", trainer="speculators 0.4.0"))
    assert {f.status for f in findings.values()} == {Status.PASS}
    assert set(findings) == {"layers.slot-0", "layers.slot-1", "layers.slot-2", "layers.slot-3", "layers.alias", "layers.embedding",
                             "layers.labels", "layers.norm-state", "layers.trained"}
    assert findings["layers.trained"].observed == [1, 3, 5]
    assert findings["layers.slot-1"].n == sum(len(s) - 1 for s in IDS), "the sink tokens are left out"


def test_false_labels_are_unmasked_by_the_embedding_test_and_edited():
    finding = label_finding(dump(labels=["embed", "layer1", "layer3", "final"]), "dump/manifest.json")
    assert (finding.status, finding.fault) == (Status.FAIL, "wiring.mislabelled-dump")
    assert finding.statement.startswith("3 of 4 labels are false: slot 0, called `embed`, is b=1 (output of layer 0)")
    assert (finding.competitor.fault, finding.edits[0].file, finding.edits[0].key) == ("wiring.layer-offset", "dump/manifest.json", "planes")
    assert finding.edits[0].value == ["b1", "b3", "b5", "b6"]
    assert "differs from embed_tokens[ids] by 0.61" in finding.competitor.why_rejected


def test_the_edit_makes_the_labels_true():
    edits = label_finding(dump(labels=["embed", "layer1", "layer3", "final"]), "m.json").edits
    assert label_finding(dump(labels=edits[0].value), "m.json").status is Status.PASS


def test_a_false_embed_label_fails_even_without_a_bank():
    finding = label_finding(dump(labels=["embed", "layer1", "layer3", "final"], bank=False), "m.json")
    assert finding.status is Status.FAIL
    assert finding.edits == (), "without a bank the right names are not known"


def test_labels_that_cannot_be_checked_accuse_nobody():
    assert label_finding(dump(labels=["x", "layer1", "layer3", "final"], bank=False)).status is Status.SKIPPED
    assert label_finding(dump(labels=["aux_0", "aux_1", "aux_2", "whatever"])).status is Status.SKIPPED


def test_labels_that_all_miss_by_one_shift_do_not_reject_the_rival():
    finding = label_finding(dump((3, 5, 6), labels=["b2", "b4", "b5"]))
    assert finding.status is Status.FAIL
    assert "not rejected: all false labels miss by +1" in finding.competitor.why_rejected


@pytest.mark.parametrize("expected, last, status, bank", [
    ("pre", None, Status.PASS, True), ("post", None, Status.FAIL, True), (None, None, Status.PASS, True), ("pre", None, Status.PASS, False),
    ("post", None, Status.FAIL, False), ("post", TARGET.final, Status.PASS, True), ("pre", TARGET.final, Status.FAIL, True),
    (None, TARGET.final, Status.PASS, True), ("pre", TARGET.final, Status.FAIL, False),
    ("post", lambda h: TARGET.final(TARGET.final(h)), Status.FAIL, True), ("pre", lambda h: TARGET.final(TARGET.final(h)), Status.FAIL, False),
    ("post", TARGET.final, Status.INCONCLUSIVE, False), (None, TARGET.final, Status.INCONCLUSIVE, False),
    ("post", lambda h: TARGET.final(TARGET.final(h)), Status.INCONCLUSIVE, False)])
def test_norm_state_of_the_last_plane(expected, last, status, bank):
    found = dump((1, 3, 5), last=last, bank=bank) if last else dump((1, 3, 5, 6), bank=bank)
    finding = norm_state_finding(found, expected, "speculators 0.4.0")
    assert finding.status is status, finding.statement
    assert finding.fault == ("data.norm-twice" if status is Status.FAIL else None)


def test_norm_state_refuses_an_unknown_expectation():
    with pytest.raises(ValueError, match="expected 'pre', 'post' or None"):
        norm_state_finding(dump(), "after")


def test_a_dump_without_a_last_state_is_a_plane_short_for_its_trainer():
    assert norm_state_finding(dump((1, 3, 5))).status is Status.SKIPPED
    assert norm_state_finding(dump((1, 3, 5)), "pre", "speculators 0.4.0").status is Status.INCONCLUSIVE, "how many planes fc reads is not known"
    assert norm_state_finding(dump((1, 3, 5)), "pre", "speculators 0.4.0", n_aux=3).status is Status.INCONCLUSIVE, "a plane is missing, or the teacher was computed elsewhere"
    finding = norm_state_finding(dump((1, 3, 5)), "pre", "speculators 0.4.0", n_aux=2)
    assert (finding.status, finding.fault) == (Status.FAIL, "wiring.plane-count")
    assert trained_boundaries(dump((1, 3, 5))) == (1, 3, 5)


def test_claimed_ids_that_contradict_the_planes():
    finding = trained_finding(dump((2, 4, 5, 6)), claimed=(1, 3, 4))
    assert (finding.status, finding.fault) == (Status.FAIL, "wiring.layer-offset")
    assert "1 boundary later" in finding.statement


def test_a_dump_in_another_order_is_suspected_only():
    finding = trained_finding(dump((5, 3, 1, 6)))
    assert (finding.status, finding.fault) == (Status.INCONCLUSIVE, "wiring.plane-order")
    assert finding.observed == [5, 3, 1]


def test_ids_in_another_order_than_the_planes_are_no_offset():
    finding = trained_finding(dump((1, 3, 5, 6)), claimed=(5, 1, 3))
    assert (finding.status, finding.fault) == (Status.INCONCLUSIVE, "wiring.plane-order")


def test_an_aux_plane_at_the_last_layer_is_no_aliased_buffer():
    found = dump((1, 3, 6, 6))
    assert by_id(dump_findings(found))["layers.alias"].status is Status.INCONCLUSIVE
    assert by_id(dump_findings(found, claimed=(1, 3, 6)))["layers.alias"].status is Status.PASS


def test_an_unknown_last_plane_has_no_norm_state_to_accuse():
    noise = torch.Generator().manual_seed(5)
    found = dump((1, 3, 5), last=lambda h: h + h.norm(dim=-1, keepdim=True) * torch.randn(h.shape, generator=noise) / 5)
    assert not found.slots[-1].sure and found.slots[-1].norm.holds is False
    assert norm_state_finding(found, "post", "specforge").status is Status.INCONCLUSIVE


def served(boundaries, planes=(1, 3, 5, 6)):
    layers = {"engine": "vLLM 0.33.0", "served": {"boundaries": {"eager": list(boundaries)}, "sources": []}}
    return served_finding(dump(planes), layers, Case(name="a"), None)


def test_the_engine_is_held_against_the_tensors_and_their_order():
    assert served((1, 3, 5)).status is Status.PASS
    assert (served((0, 2, 4)).status, served((0, 2, 4)).fault) == (Status.FAIL, "wiring.layer-offset")
    assert (served((1, 3, 5), (5, 3, 1, 6)).status, served((1, 3, 5), (5, 3, 1, 6)).fault) == (Status.INCONCLUSIVE, "wiring.plane-order")
    assert served(()).status is Status.SKIPPED


def test_joined_planes_of_a_capture_are_split(tmp_path):
    wide = torch.cat([TARGET.run(IDS[0])[0][b] for b in (1, 3, 5)], dim=-1)
    torch.save(wide, tmp_path / "prefill.pt")
    case = Case(name="a", captures=(Capture(path=tmp_path / "prefill.pt"),))
    assert [len(captures(case, hidden)[0][3][0].planes) for hidden in (None, wide.shape[1] // 3)] == [1, 3]


def test_a_final_norm_with_a_bias_is_not_taken_for_an_rms_norm(tmp_path):
    save_file({"norm.weight": torch.ones(4), "norm.bias": torch.zeros(4)}, tmp_path / "m.safetensors")
    header = read_header(tmp_path / "m.safetensors")
    about = SimpleNamespace(embedding_factor=1.0, norm_plus_one=False, eps=1e-6, config={})
    assert weights_of(SimpleNamespace(tensors=header, **vars(about))).norm is None
    assert weights_of(SimpleNamespace(tensors={"norm.weight": header["norm.weight"]}, **vars(about))).norm is not None


def test_without_a_bank_slots_are_skipped_with_the_next_step():
    finding = slot_findings(dump((1, 6), bank=False))[0]
    assert finding.status is Status.SKIPPED
    assert "reference.path" in finding.next_step


def test_a_damaged_slot_fails_and_a_partial_sum_only_abstains():
    def planes(ids):
        states, middle, active = TARGET.run(ids)
        return [states[3].roll(1, 0), middle[2] + active[2][:, :16] @ TARGET.down[2][:16], states[2][:, :16]]

    found = identify(samples(planes, IDS), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)
    assert [s.sure for s in found.slots] == [True, False, True]
    findings = slot_findings(found)
    assert [(f.status, f.fault) for f in findings] == [(Status.FAIL, "data.hidden-shift"), (Status.INCONCLUSIVE, "feature.partial-sum"), (Status.FAIL, "feature.tp-slice")]
    assert "rank" in findings[1].next_step


def test_equal_slots_fail_with_both_explanations_open():
    finding = by_id(dump_findings(dump((1, 3, 3, 6))))["layers.alias"]
    assert (finding.status, finding.fault, finding.competitor.fault) == (Status.FAIL, "feature.aliased-buffer", "wiring.plane-count")
    assert "not rejected" in finding.competitor.why_rejected


@pytest.mark.parametrize("served, kind, status, fault", [
    ((1, 3, 5), "eager", Status.PASS, None), ((0, 1, 3), "eager", Status.FAIL, "wiring.layer-offset"),
    ((2, 4, 6), "graph", Status.INCONCLUSIVE, "wiring.layer-offset"), ((0, 1, 3, 5), "eager", Status.INCONCLUSIVE, None),
    ((1, 3), "eager", Status.INCONCLUSIVE, None), ((0, 2), "eager", Status.FAIL, "wiring.plane-count")])
def test_captures_against_training(served, kind, status, fault):
    def planes(ids):
        return [TARGET.run(ids)[0][b].bfloat16() for b in served]

    capture = identify(samples(planes, IDS), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=99 if 6 in served else LAYERS)
    finding = capture_finding(0, capture, (1, 3, 5), path_kind=kind)
    assert (finding.status, finding.fault) == (status, fault), finding.statement
    assert finding.id == "layers.capture-0"
    if kind == "eager" and status is Status.PASS:
        assert "eager path only" in finding.statement


RIGHT, OFF = Rule((1, 3, 5), (2, 4, 6)), Rule((2, 4, 6), (0, 3, 5))


@pytest.mark.parametrize("served, rule, eager_right, status, fault", [
    ((2, 4, 6), RIGHT, None, Status.FAIL, "wiring.graph-default-layers"), ((2, 4, 6), RIGHT, True, Status.FAIL, "wiring.graph-default-layers"),
    ((2, 4, 6), None, True, Status.FAIL, "wiring.graph-default-layers"), ((2, 4, 6), OFF, None, Status.FAIL, "wiring.layer-offset"),
    ((2, 4, 6), RIGHT, False, Status.INCONCLUSIVE, "wiring.layer-offset"), ((0, 4, 6), RIGHT, True, Status.INCONCLUSIVE, "wiring.graph-default-layers"),
    ((0, 4, 6), None, None, Status.INCONCLUSIVE, "wiring.graph-default-layers")])
def test_a_graph_capture_accuses_the_graph_only_of_the_engines_default(served, rule, eager_right, status, fault):
    capture = identify(samples(lambda ids: [TARGET.run(ids)[0][b].bfloat16() for b in served], IDS), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=99)
    finding = capture_finding(0, capture, (1, 3, 5), path_kind="graph", rule=rule, eager_right=eager_right)
    assert (finding.status, finding.fault) == (status, fault), finding.statement
    assert status is Status.FAIL or finding.next_step


def test_the_record_is_json_with_the_trained_boundaries():
    text = json.dumps(record(dump(labels=["embed", "layer1", "layer3", "final"])), allow_nan=False)
    assert json.loads(text)["trained_boundaries"] == [1, 3, 5]
    assert json.loads(text)["slots"][0]["boundary"] == 1
    assert record(dump((1, 6), bank=False))["trained_boundaries"] is None


def test_findings_survive_json_with_an_exact_match_and_one_sample():
    ids = IDS[:1]
    found = identify(samples(lambda s: [TARGET.run(s)[0][b] for b in (1, 3, 6)], ids), bank=TinyBank(TARGET, ids), weights=TARGET.weights(), layers=LAYERS)
    for finding in dump_findings(found):
        Finding.model_validate_json(finding.model_dump_json())
    assert by_id(slot_findings(found))["layers.slot-0"].interval is None, "one sample gives no interval"


def test_nothing_is_said_about_a_slot_of_nan():
    found = identify(samples(lambda s: [torch.full((len(s), 64), float("nan")), TARGET.run(s)[0][6]], IDS), bank=TinyBank(TARGET, IDS),
                     weights=TARGET.weights(), layers=LAYERS, labels=["embed", "final"])
    findings = by_id(dump_findings(found, manifest="m.json", last_expected="pre"))
    assert findings["layers.slot-0"].fault == "feature.non-finite"
    assert findings["layers.labels"].status is not Status.FAIL
