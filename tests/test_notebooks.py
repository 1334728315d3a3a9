"""The five real notebooks on cases that lack things: every one reaches its last cell and says what is missing or broken."""

import json
import struct

import pytest
import yaml

from eagle_forensics.finding import Status, Verdict
from eagle_forensics.suite.runner import run_case
from tests.config.papers import papers
from tests.evidence import builders


def run(folder, out, **more):
    return run_case(folder, out=out, resume=False, **more)


def by_id(result):
    return {f.id: f for f in result.findings}


def test_a_case_with_nothing_but_a_name_is_inconclusive(tmp_path):
    (tmp_path / "case.yaml").write_text("name: bare\n")
    result = run(tmp_path, tmp_path / "runs")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert all(o.complete for o in result.outcomes)
    assert {f.status for f in result.findings} <= {Status.SKIPPED, Status.INCONCLUSIVE}
    page = result.post_mortem.read_text(encoding="utf-8")
    assert "Not enough evidence" in page and "Not examined" in page


def test_configs_alone_name_a_wrong_list(tmp_path):
    papers(tmp_path, engine="vllm", version="0.32.0", env={"VLLM_USE_V2_MODEL_RUNNER": "0"}, launch=None)
    result = run(tmp_path, tmp_path / "runs")
    assert result.verdict is Verdict.FAIL and [f["slug"] for f in result.merged["diagnosis"]["faults"]] == ["wiring.layer-offset"]
    assert all(o.complete for o in result.outcomes)
    assert by_id(result)["drafter.evidence"].status is Status.SKIPPED


def test_broken_evidence_is_named_and_the_rest_goes_on(tmp_path):
    """A drafter with a lying header, a dump folder that is no dump, a table that is no table: three errors, five finished notebooks."""
    papers(tmp_path, weights=builders.head())
    weights = tmp_path / "drafter" / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", 1 << 40) + weights.read_bytes()[8:])
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "notes.txt").write_text("nothing here")
    (tmp_path / "runs.csv").write_text("no,label\n1,2\n")
    case = yaml.safe_load((tmp_path / "case.yaml").read_text())
    case["training"]["dump"] = {"path": "dump"}
    case["measurements"] = "runs.csv"
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    result = run(tmp_path, tmp_path / "runs")
    found = by_id(result)
    assert result.verdict in (Verdict.ERROR, Verdict.FAIL) and all(o.complete for o in result.outcomes)
    for id, names in (("config.read.drafter-path", "model.safetensors"), ("layers.evidence", "dump"), ("acceptance.evidence", "runs.csv")):
        assert found[id].status is Status.ERROR and names in found[id].statement, id
        assert "Traceback" not in found[id].statement
    json.loads((result.run_dir / "findings.json").read_text())


def test_a_dump_that_runs_code_is_refused(tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    papers(tmp_path)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "data_0.pt").write_bytes(pickle.dumps({"input_ids": Bomb()}))
    case = yaml.safe_load((tmp_path / "case.yaml").read_text())
    case["training"]["dump"] = {"path": "dump"}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    result = run(tmp_path, tmp_path / "runs", only=[3])
    assert not (tmp_path / "exploded").exists()
    assert by_id(result)["layers.evidence"].status is Status.ERROR


@pytest.mark.parametrize("only", [[1], [4, 5]])
def test_a_part_of_the_suite_runs_alone(tmp_path, only):
    papers(tmp_path)
    result = run(tmp_path, tmp_path / "runs", only=only)
    assert [int(o.notebook[:2]) for o in result.outcomes] == only and all(o.complete for o in result.outcomes)
