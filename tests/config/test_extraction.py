"""The dump's extractor against the trainer whose convention reads its ids."""

import json

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.config.extraction import extraction_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import papers
from tests.evidence import builders


def found(folder, version, ids, recorded=None, modern=False, trainer="speculators", stamped=None):
    dump = folder / "dump"
    dump.mkdir()
    if modern:
        save_file({"hidden_states": builders.weights(4, 4, builders.H), "token_ids": torch.arange(4)}, dump / "hs_0.safetensors")
    else:
        torch.save({"input_ids": torch.arange(4), "loss_mask": torch.ones(4), "hidden_states": [builders.weights(4, builders.H)] * 4}, dump / "data_0.pt")
    if recorded:
        (dump / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": recorded}}))
    case = papers(folder, trainer=(trainer, version), layer_ids=ids, draft={"speculators_version": stamped} if stamped else None)
    text = (folder / "case.yaml").read_text().replace("training:", "training:\n  dump: {path: dump}")
    (folder / "case.yaml").write_text(text)
    items = extraction_findings(inspect(type(case).model_validate(case.model_dump(by_alias=True) | {"training": case.training.model_dump() | {"dump": {"path": dump}}})))
    return items[0] if items else None


@pytest.mark.parametrize(("version", "ids", "recorded", "status"), [
    ("0.5.0", [2, 15, 27, 30], [2, 15, 27, 29], Status.INCONCLUSIVE), ("0.7.0", [2, 15, 27, 30], [1, 14, 26, 29], Status.PASS), ("0.4.0", [2, 15, 27, 29], [2, 15, 27, 29], Status.PASS),
    ("0.5.0", [2, 15, 27, 30], None, Status.INCONCLUSIVE)])
def test_an_older_dump(tmp_path, version, ids, recorded, status):
    item = found(tmp_path, version, ids, recorded)
    assert item.status is status and item.required
    assert status is Status.PASS or item.fault == "data.extractor-drift"


@pytest.mark.parametrize(("stamped", "status"), [("0.5.0", Status.FAIL), ("0.9.0", Status.FAIL), ("0.4.0", Status.INCONCLUSIVE), (None, Status.INCONCLUSIVE), ("main", Status.INCONCLUSIVE)])
def test_only_the_checkpoints_own_stamp_tells_drift_from_a_mistyped_version(tmp_path, stamped, status):
    item = found(tmp_path, "0.5.0", [2, 15, 27, 30], [2, 15, 27, 29], stamped=stamped)
    assert (item.status, item.fault, item.observed, item.expected) == (status, "data.extractor-drift", [3, 16, 28], [2, 15, 27])
    if status is Status.FAIL:
        assert item.competitor.fault == "load.architecture" and f"speculators_version {stamped}" in item.statement
    else:
        assert "training.trainer.version" in item.next_step


def test_a_stamp_accuses_nobody_where_the_dump_recorded_no_ids(tmp_path):
    assert found(tmp_path, "0.5.0", [2, 15, 27, 30], None, stamped="0.5.0").status is Status.INCONCLUSIVE


@pytest.mark.parametrize(("version", "status"), [("0.9.0", Status.PASS), ("0.4.0", Status.INCONCLUSIVE)])
def test_a_newer_dump(tmp_path, version, status):
    assert found(tmp_path, version, [2, 15, 27, 29] if version == "0.4.0" else [2, 15, 27, 30], modern=True).status is status


def test_another_trainer_is_no_question(tmp_path):
    assert found(tmp_path, "0.2.0", [1, 14, 26], trainer="specforge") is None
