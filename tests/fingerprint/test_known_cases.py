"""Published and incident cases that tensors decide: labels that lie, one list under three releases, a capture of all layers."""

from __future__ import annotations

import pytest
import torch

from eagle_forensics.case import load_case
from eagle_forensics.engines.layers import resolve_layers
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import study
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.trained import capture_finding

from .tiny import TinyBank, TinyTarget, samples, sequences
from .written import write_case

LAYERS = 61
TARGET = TinyTarget(seed=2, layers=LAYERS)
IDS = sequences(4)


def incident(ids):
    """Outputs of layers 2, 30 and 58 and the state after the final norm."""
    states = TARGET.run(ids)[0]
    return [states[3], states[31], states[59], TARGET.final(states[LAYERS])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("incident")


def notebook_03(folder, version, ids=(2, 30, 58)):
    """Findings of the notebook by id, with what notebook 01 records for this release."""
    case = load_case(write_case(folder, TARGET, IDS, incident, ("embed", "layer3", "layer31", "layer59"), model_type="deepseek_v3", drafter_ids=ids, version=version))
    served = resolve_layers("sglang", version, model_type="deepseek_v3", layers=LAYERS, ids=list(ids)).to_json()
    work = study.begin(case, layers={"served": served, "engine": f"SGLang {version}", "last_expected": "pre", "n_aux": 3}, max_samples=4, seed=0)
    return {f.id: f for f in (*work.opening, *study.slots(work), *study.dump(work), *study.served(work))}


def test_labels_that_lie(folder):
    """A05: the plane called embed is the output of layer 2, `layer3` is neither reading of its number, the last plane is normed."""
    found = notebook_03(folder, "0.5.13")
    labels = found["layers.labels"]
    assert (labels.status, labels.fault, labels.observed) == (Status.FAIL, "wiring.mislabelled-dump", ["b=3", "b=31", "b=59", "b=61+norm"])
    assert labels.statement.startswith("4 of 4 labels are false: slot 0, called `embed`, is b=3 (output of layer 2)")
    assert "embed_tokens[ids]" in labels.competitor.why_rejected and labels.competitor.fault == "wiring.layer-offset"
    assert (labels.edits[0].file, labels.edits[0].value) == ("dump/manifest.json", ["b3", "b31", "b59", "norm"])
    assert "Never change an engine's layer ids because of a label" in labels.remedy
    assert found["layers.trained"].observed == [3, 31, 59], "ascending in the file: the order is that of the engine"
    assert (found["layers.norm-state"].status, found["layers.norm-state"].fault, found["layers.norm-state"].observed) == (Status.FAIL, "data.norm-twice", "post")
    assert "No slot is the embedding" in found["layers.embedding"].statement


@pytest.mark.parametrize("version, fault, served, write", [
    ("0.5.8", "wiring.graph-default-layers", [3, 31, 59], None), ("0.5.13", "wiring.layer-offset", [2, 30, 58], [3, 31, 59]), ("0.5.23", "wiring.layer-offset", [2, 30, 58], [3, 31, 59])])
def test_one_list_under_three_releases(folder, version, fault, served, write):
    """A03: right in the eager path of 0.5.8, where CUDA graphs replay other layers; one layer early from 0.5.13 on."""
    finding = notebook_03(folder, version)["layers.served"]
    assert (finding.status, finding.fault, finding.observed, finding.expected) == (Status.FAIL, fault, served, [3, 31, 59]), finding.statement
    assert [e.value for e in finding.edits] == ([write] if write else [])


def test_the_corrected_list_is_served_right(folder):
    finding = notebook_03(folder, "0.5.23", (3, 31, 59))["layers.served"]
    assert finding.status is Status.PASS, finding.statement


def test_a_capture_of_every_layer_is_no_offset():
    """151552 / 4096 = 37: all states are joined instead of the selected ones."""
    target, last = TinyTarget(layers=36), 36
    capture = identify(samples(lambda ids: [s.to(torch.bfloat16) for s in target.run(ids)[0]], IDS), bank=TinyBank(target, IDS), weights=target.weights(), layers=last)
    finding = capture_finding(0, capture, (3, 18, 33), path_kind="eager")
    assert (finding.status, finding.fault) == (Status.INCONCLUSIVE, "wiring.all-layers"), finding.statement
    assert "all 36 layers" in finding.statement
