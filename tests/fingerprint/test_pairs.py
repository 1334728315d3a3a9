"""One prompt recorded twice: equal states pair up without a bank, others do not, and only the graph path accuses."""

from __future__ import annotations

import pytest
import torch

from eagle_forensics.case import Capture, Case
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.fed import Fed
from eagle_forensics.evidence.fed_files import write_fed
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import study
from eagle_forensics.fingerprint.consistency import graph_finding, paths_finding, rows_finding
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.pairs import pair
from eagle_forensics.fingerprint.trained import Rule

from .side_by_side import SGLANG_STATES, VLLM_STATES
from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences(4)
TARGET = TinyTarget(sink=400.0)
NOISE = torch.Generator().manual_seed(2)


def recording(boundaries, noise=0.0):
    def planes(ids):
        states = [TARGET.run(ids)[0][b] for b in boundaries]
        return [h + noise * h.norm(dim=-1, keepdim=True) / 8 * torch.randn(h.shape, generator=NOISE) for h in states]

    return samples(planes, IDS)


def test_two_engines_that_round_differently_hold_the_same_states():
    pairing = pair(recording((1, 3, 5)), recording((1, 3, 5), noise=0.02))
    assert pairing.equal and pairing.n == sum(len(s) - 1 for s in IDS), "the sinks are left out"
    assert paths_finding(pairing, "layers.paths", "eager", "graph").status is Status.PASS


@pytest.mark.parametrize("second, status", [((1, 3, 5), Status.PASS), ((2, 4, 6), Status.INCONCLUSIVE)])
def test_two_engines_captures_of_one_prompt_are_laid_side_by_side(tmp_path, second, status):
    held = []
    for engine, boundaries in (("sglang", (1, 3, 5)), ("vllm", second)):
        fed = [Fed(tuple(s.input_ids.tolist()), torch.stack([p.data for p in s.planes], 1)) for s in recording(boundaries, noise=0.01)]
        held.append(Capture(path=write_fed(fed, tmp_path / engine, {"engine": engine}), path_kind="eager"))
    finding, = study.engine_findings(study.Work(Case(name="a", captures=tuple(held)), None, None, None, ()))
    assert finding.status is status and "sglang's capture and vllm's capture" in finding.statement, finding.statement
    assert not study.engine_findings(study.Work(Case(name="a", captures=tuple(held[:1])), None, None, None, ()))


def test_the_slots_are_paired_in_any_order():
    pairing = pair(recording((1, 3, 5)), recording((5, 1)))
    assert pairing.same == (1, None, 0) and not pairing.equal


def test_other_layers_accuse_nobody_without_a_bank():
    pairing = pair(recording((1, 3, 5)), recording((0, 2, 4)))
    for finding, fault in ((paths_finding(pairing, "layers.paths", "eager", "graph"), "wiring.layer-offset"), (graph_finding(pairing, None, None), "wiring.graph-default-layers")):
        assert (finding.status, finding.fault) == (Status.INCONCLUSIVE, fault)


def identified(found):
    return identify(found, bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)


def stale(ids):
    """Two sound planes and one whose rows belong to other tokens."""
    states = TARGET.run(ids)[0]
    return [states[1], states[3], states[5][torch.randperm(len(ids), generator=torch.Generator().manual_seed(3))]]


@pytest.mark.parametrize("graph, status, fault, rival", [
    (recording((0, 2, 4)), Status.FAIL, "wiring.graph-default-layers", "wiring.layer-offset"),
    (samples(stale, IDS), Status.FAIL, "runtime.graph-dtype", "wiring.graph-default-layers"),
    (samples(lambda ids: [TARGET.run(ids)[0][b] * f for b, f in ((1, 1), (3, 1), (5, 4))], IDS), Status.INCONCLUSIVE, "runtime.graph-dtype", None),
    (recording((1, 3, 5)), Status.PASS, None, None)])
def test_a_bank_tells_other_layers_from_a_damaged_graph(graph, status, fault, rival):
    eager = recording((1, 3, 5))
    finding = graph_finding(pair(eager, graph), identified(eager), identified(graph), trained=(1, 3, 5))
    assert (finding.status, finding.fault, finding.competitor and finding.competitor.fault) == (status, fault, rival), finding.statement


OURS = Rule((1, 3, 5), (2, 4, 5))
"""The configured ids mean the trained planes; the engine's default is another list."""
FOUR = recording((1, 3, 5)), recording((2, 4, 5)), recording((0, 2, 4)), recording((5, 3, 1))
RIGHT, DEFAULT, OTHER, TURNED = range(4)


@pytest.mark.parametrize("eager, graph, trained, rule, status, fault, words", [
    (RIGHT, DEFAULT, (1, 3, 5), OURS, Status.FAIL, "wiring.graph-default-layers", "default"),
    (RIGHT, OTHER, (1, 3, 5), None, Status.FAIL, "wiring.graph-default-layers", "trained"),
    (RIGHT, DEFAULT, None, OURS, Status.FAIL, "wiring.graph-default-layers", "default"),
    (RIGHT, DEFAULT, (0, 2, 4), OURS, Status.FAIL, "wiring.graph-default-layers", "configured ids"),
    (RIGHT, OTHER, (1, 3, 5), OURS, Status.INCONCLUSIVE, "wiring.graph-default-layers", "neither"),
    (RIGHT, DEFAULT, None, None, Status.INCONCLUSIVE, "wiring.graph-default-layers", "not known"),
    (OTHER, RIGHT, (1, 3, 5), OURS, Status.INCONCLUSIVE, "wiring.layer-offset", "eager path is the other one"),
    (OTHER, RIGHT, (1, 3, 5), None, Status.INCONCLUSIVE, "wiring.layer-offset", "eager path is the other one"),
    (OTHER, RIGHT, (1, 3, 5), Rule((0, 2, 4), (1, 3, 5)), Status.FAIL, "wiring.layer-offset", "configured ids"),
    (OTHER, DEFAULT, (1, 3, 5), OURS, Status.INCONCLUSIVE, "wiring.graph-default-layers", "neither"),
    (RIGHT, TURNED, (1, 3, 5), OURS, Status.INCONCLUSIVE, "wiring.plane-order", "order"),
])
def test_which_path_is_the_wrong_one_is_asked_before_the_graph_is_accused(eager, graph, trained, rule, status, fault, words):
    finding = graph_finding(pair(FOUR[eager], FOUR[graph]), identified(FOUR[eager]), identified(FOUR[graph]), trained=trained, rule=rule)
    assert (finding.status, finding.fault) == (status, fault) and words in finding.statement, finding.statement
    assert finding.next_step if status is Status.INCONCLUSIVE else finding.competitor.fault != fault


def test_another_order_needs_no_bank():
    assert graph_finding(pair(FOUR[RIGHT], FOUR[TURNED]), None, None).fault == "wiring.plane-order"


def test_an_eager_path_that_is_damaged_itself_accuses_no_graph():
    eager, graph = samples(stale, IDS), recording((0, 2, 4))
    assert graph_finding(pair(eager, graph), identified(eager), identified(graph)).status is Status.INCONCLUSIVE


def test_other_tokens_cannot_be_paired():
    with pytest.raises(EvidenceError, match="Make the bank from the tokens"):
        pair(recording((1, 3)), samples(lambda ids: [TARGET.run(ids)[0][1]], sequences(4, seed=9)))


def test_a_cached_prefix_that_was_not_recorded_is_noticed_and_the_rest_identified():
    def late(ids):
        return [h[20:] for h in (TARGET.run(ids)[0][3], TARGET.run(ids)[0][6])]

    from dataclasses import replace
    cut = [replace(s, input_ids=s.input_ids[20:]) for s in samples(late, IDS)]
    found = identify(cut, bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)
    assert [s.equals.index for s in found.slots] == [3, 6]
    assert any("cached prefix" in note and "position 20" in note for note in found.notes)


@pytest.mark.parametrize("value, status, fault", [(float("nan"), Status.FAIL, "feature.non-finite"), (0.0, Status.INCONCLUSIVE, "feature.missing-stage"),
                                                  (None, Status.PASS, None)])
def test_a_few_unusable_rows_are_counted(value, status, fault):
    def planes(ids):
        h = TARGET.run(ids)[0][3].clone()
        if value is not None:
            h[5:8] = value
        return [h]

    finding = rows_finding(identify(samples(planes, IDS), bank=TinyBank(TARGET, IDS), layers=LAYERS))
    assert (finding.status, finding.fault) == (status, fault)
    assert value is None or finding.observed == 12


def test_two_real_servers_of_one_target_hold_the_same_states_where_they_were_given_the_same_boundaries():
    """One prompt through SGLang 0.5.23 at boundaries 2, 15, 27 and vLLM 0.32.0 at 0, 2, 15, 27, 30, both in bfloat16 on a CPU."""
    pairing = pair(read_capture(SGLANG_STATES), read_capture(VLLM_STATES))
    assert pairing.same == (1, 2, 3) and pairing.n == 46
    assert [round(e.value, 4) for e in pairing.estimates] == [0.0051, 0.0127, 0.0195]
    assert paths_finding(pairing, "layers.capture-0-dump", "SGLang", "vLLM").fault == "wiring.layer-offset", "vLLM returned two states more"
