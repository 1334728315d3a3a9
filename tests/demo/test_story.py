"""The main job end to end on the real case: named, proven, mended as printed, compared. Figures against the known ones."""

import json
import re

import pytest

from eagle_forensics.suite.demonstration import demonstrate
from eagle_forensics.suite.runfolder import all_runs

pytestmark = [pytest.mark.demo, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    assert demonstrate(out=out) == 0
    return {r.manifest.case["name"].split("-", 1)[1]: r for r in all_runs(out)} | {"out": out}


def merged(run):
    return json.loads((run.path / "findings.json").read_text())


def finding(run, id):
    return next(f for f in merged(run)["findings"] if f["id"] == id)


def test_the_broken_link_is_named_first_and_by_three_lines_of_evidence(runs):
    diagnosis = merged(runs["broken"])["diagnosis"]
    assert [f["slug"] for f in diagnosis["faults"]] == ["wiring.layer-offset", "wiring.mislabelled-dump"]
    assert diagnosis["faults"][0]["findings"] == ["layers.served", "drafter.served-wiring", "acceptance.prediction"]
    assert "{2, 15, 27}" in diagnosis["headline"] and "{0, 2, 15}" in diagnosis["headline"]


def test_the_printed_fix_is_the_known_one_and_it_mends_the_case(runs):
    edits = {e["key"]: e["value"] for f in merged(runs["broken"])["diagnosis"]["faults"] for e in f["edits"]}
    assert edits == {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 14, 26], "planes": ["b2", "b15", "b27", "b30"]}
    fixed = merged(runs["fixed"])
    assert fixed["verdict"] == "PASS" and fixed["diagnosis"]["faults"] == []


def test_accuracies_and_accept_lengths_are_the_known_ones(runs):
    """Known: .606 and .078 at step 1, accept length 2.065 and 1.098 with 3 steps, on 10,879 tokens of 79 sequences."""
    record = json.loads((runs["broken"].path / "evidence" / "02_prediction.json").read_text())
    trained, served = record["trained"], record["served"]
    assert trained["accuracy"]["n"] == 10879 and trained["accuracy"]["clusters"] == 79
    assert trained["accuracy"]["value"] == pytest.approx(0.606, abs=0.005) and served["accuracy"]["value"] == pytest.approx(0.078, abs=0.005)
    assert trained["accept_length"]["low"] < 2.065 < trained["accept_length"]["high"]
    assert served["accept_length"]["value"] == pytest.approx(1.098, abs=0.01)


def test_every_slot_is_identified_and_the_embedding_label_refuted(runs):
    record = json.loads((runs["broken"].path / "evidence" / "03_trained.json").read_text())
    assert [s["boundary"] for s in record["slots"]] == [2, 15, 27, 30] and all(s["sure"] for s in record["slots"])
    assert all(s["second_error"] > 0.2 for s in record["slots"])
    assert finding(runs["broken"], "layers.labels")["status"] == "fail"


def test_one_layer_off_is_a_small_loss_that_pairing_sees(runs):
    item = finding(runs["vllm-shift"], "drafter.served-wiring")
    assert item["status"] == "fail" and -0.05 < item["observed"] < -0.02 and item["interval"][1] < 0
    record = json.loads((runs["vllm-shift"].path / "evidence" / "02_prediction.json").read_text())
    assert record["served"]["accuracy"]["high"] > record["trained"]["accuracy"]["low"], "two separate intervals would not have seen it"
    edits = [e for f in merged(runs["vllm-shift"])["diagnosis"]["faults"] for e in f["edits"]]
    assert [(e["key"], e["value"]) for e in edits] == [("eagle_aux_hidden_state_layer_ids", [2, 15, 27])]


def test_the_incident_could_not_be_won(runs):
    slugs = [f["slug"] for f in merged(runs["k2.5-incident"])["diagnosis"]["faults"]]
    assert slugs[0] == "cost.cannot-win" and {"args.draft-budget-overridden", "wiring.graph-default-layers"} <= set(slugs)
    item = finding(runs["k2.5-incident"], "acceptance.ceiling")
    assert item["observed"] == pytest.approx(2.535, abs=0.01) and item["threshold"] == 2


@pytest.mark.parametrize("name", ["broken", "fixed", "vllm-shift", "k2.5-incident"])
def test_a_post_mortem_is_one_small_offline_page(runs, name):
    page = (runs[name].path / "post_mortem.html").read_text(encoding="utf-8")
    assert len(page) < 2_000_000
    assert not re.findall(r'(?:src|href)\s*=\s*["\']?(?:https?:)?//|@import|url\(\s*["\']?https?:', page)
    assert "Content-Security-Policy" in page and all('alt="' in tag for tag in re.findall(r"<img[^>]*>", page))
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_comparison_shows_what_the_fix_changed(runs):
    page = (runs["out"] / "demo-comparison.html").read_text(encoding="utf-8")
    assert "smollm2-broken" in page and "smollm2-fixed" in page and "verdict" in page.lower()
