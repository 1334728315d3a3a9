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


def found(folder, version, ids, recorded=None, modern=False, trainer="speculators"):
    dump = folder / "dump"
    dump.mkdir()
    if modern:
        save_file({"hidden_states": builders.weights(4, 4, builders.H), "token_ids": torch.arange(4)}, dump / "hs_0.safetensors")
    else:
        torch.save({"input_ids": torch.arange(4), "loss_mask": torch.ones(4), "hidden_states": [builders.weights(4, builders.H)] * 4}, dump / "data_0.pt")
    if recorded:
        (dump / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": recorded}}))
    case = papers(folder, trainer=(trainer, version), layer_ids=ids)
    text = (folder / "case.yaml").read_text().replace("training:", "training:\n  dump: {path: dump}")
    (folder / "case.yaml").write_text(text)
    items = extraction_findings(inspect(type(case).model_validate(case.model_dump(by_alias=True) | {"training": case.training.model_dump() | {"dump": {"path": dump}}})))
    return items[0] if items else None


@pytest.mark.parametrize(("version", "ids", "recorded", "status"), [
    ("0.5.0", [2, 15, 27, 30], [2, 15, 27, 29], Status.FAIL), ("0.7.0", [2, 15, 27, 30], [1, 14, 26, 29], Status.PASS), ("0.4.0", [2, 15, 27, 29], [2, 15, 27, 29], Status.PASS),
    ("0.5.0", [2, 15, 27, 30], None, Status.INCONCLUSIVE)])
def test_an_older_dump(tmp_path, version, ids, recorded, status):
    item = found(tmp_path, version, ids, recorded)
    assert item.status is status and item.required
    if status is Status.FAIL:
        assert item.fault == "data.extractor-drift" and item.observed == [3, 16, 28] and item.expected == [2, 15, 27] and item.competitor.fault == "load.architecture"


@pytest.mark.parametrize(("version", "status"), [("0.9.0", Status.PASS), ("0.4.0", Status.INCONCLUSIVE)])
def test_a_newer_dump(tmp_path, version, status):
    assert found(tmp_path, version, [2, 15, 27, 29] if version == "0.4.0" else [2, 15, 27, 30], modern=True).status is status


def test_another_trainer_is_no_question(tmp_path):
    assert found(tmp_path, "0.2.0", [1, 14, 26], trainer="specforge") is None
