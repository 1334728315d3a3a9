"""The session: records, tables, skips, guards, and the findings file from the first moment to the last."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from eagle_forensics.case import CaseError
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.suite import open_run, runfolder
from eagle_forensics.suite.runfolder import RunFolderError
from tests.suite import tiny

NAME = "03_layer_matching"


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_RUNS", str(tmp_path / "runs"))
    return tiny.case(tmp_path / "c", "name: tiny\ntraining: {dump: {path: ./gone}}\n")


def findings_file(run):
    return json.loads((run.run_dir / "findings" / "03.json").read_text())


def test_the_findings_file_is_incomplete_until_finish(case):
    run = open_run(NAME, case=str(case))
    assert findings_file(run) == {"schema_version": 1, "notebook": NAME, "complete": False, "findings": []}
    run.add(tiny.finding(notebook="somewhere"))
    assert not findings_file(run)["complete"] and findings_file(run)["findings"][0]["notebook"] == NAME
    run.finish()
    assert findings_file(run)["complete"]
    assert json.loads((run.run_dir / "findings.json").read_text())["verdict"] == "PASS"
    assert runfolder.open_folder(run.run_dir).manifest.status == "finished"


def test_records_are_plain_json_and_others_can_read_them(case):
    run = open_run(NAME, case=str(case))
    path = run.record("match", {"nan": math.nan, "array": np.arange(3), "scalar": np.float32(0.5), "path": case, "launch": "--api-key sesame"})
    assert path == "evidence/03_match.json"
    other = open_run("04_accept_length", run_dir=str(run.run_dir))
    assert other.read("match") == {"nan": None, "array": [0, 1, 2], "scalar": 0.5, "path": str(case), "launch": "--api-key [redacted]"}
    assert other.read("nothing") is None and other.case.name == "tiny"
    table = run.save_table("errors", pd.DataFrame({"slot": [0], "error": [0.25]}))
    assert (run.run_dir / table).read_text() == "slot,error\n0,0.25\n"
    for wrong in ("../match", "Match", ""):
        with pytest.raises(ValueError, match="record name"):
            run.record(wrong, {})
    with pytest.raises(TypeError, match=r"x\.deep is a object"):
        run.record("x", {"deep": object()})


@pytest.mark.parametrize(("missing", "says"), [
    ("training.dump: the hidden states", "does not exist: correct it"),
    ("`serving.url`, a live server", "Set `serving.url` in case.yaml"),
    ("a profile of the server", "Obtain a profile of the server"),
])
def test_a_skip_says_how_to_supply_what_is_missing(case, missing, says):
    run = open_run(NAME, case=str(case))
    run.skip("layers.dump", "What is it?", missing, "which boundaries the dump holds")
    (skipped,) = run.findings
    assert skipped.status == "skipped" and says in skipped.next_step and "which boundaries the dump holds" in skipped.statement


@pytest.mark.parametrize("error", [EvidenceError("draft.safetensors: the header is cut\nafter 8 bytes"), FileNotFoundError(2, "No such file", "x.pt"),
                                   ValueError("9 planes, expected 4")])
def test_bad_evidence_under_guard_is_one_line_and_the_notebook_goes_on(case, error):
    run = open_run(NAME, case=str(case))
    with run.guard("layers.dump", "What is it?"):
        raise error
    (found,) = run.findings
    assert found.status == "error" and "\n" not in found.statement and "Traceback" not in found.statement
    assert found.statement.split()[0].rstrip(":") in str(error)


def test_a_fault_of_the_suite_is_not_swallowed(case):
    run = open_run(NAME, case=str(case))
    with pytest.raises(KeyError), run.guard("layers.dump", "What is it?"):
        raise KeyError("x")


def test_a_cell_run_again_replaces_its_finding_but_headless_none_is_hidden(case, monkeypatch):
    run = open_run(NAME, case=str(case))
    run.add(tiny.finding(status="fail"))
    run.add(tiny.finding(status="pass"))
    assert [f.status for f in run.findings] == ["pass"]
    monkeypatch.setenv("EAGLE_FORENSICS_RUN", str(run.run_dir))
    with pytest.raises(ValueError, match="added twice"):
        run.add(tiny.finding(status="pass"))


def test_a_finished_run_is_left_alone(case, tmp_path):
    done = tiny.finished(tmp_path / "done")
    before = (done / "findings" / "03.json").read_bytes()
    with pytest.raises(RunFolderError, match="finished run"):
        open_run(NAME, case=str(case), run_dir=str(done))
    assert (done / "findings" / "03.json").read_bytes() == before


def test_a_folder_of_another_case_is_refused(case, tmp_path):
    run = open_run(NAME, case=str(case))
    other = tiny.case(tmp_path / "o", "name: other\n")
    with pytest.raises(RunFolderError, match="'tiny', not of 'other'"):
        open_run("04_accept_length", case=str(other), run_dir=str(run.run_dir))


def test_a_new_path_becomes_a_run_folder_that_further_notebooks_join(case, tmp_path):
    for name in (NAME, "04_accept_length"):
        run = open_run(name, case=str(case), run_dir=str(tmp_path / "mine"))
        run.add(tiny.finding(id=f"layers.n{name[:2]}"))
        run.finish()
    merged = json.loads((tmp_path / "mine" / "findings.json").read_text())
    assert list(merged["notebooks"]) == [NAME, "04_accept_length"] and merged["verdict"] == "PASS"


def test_wrong_names_and_cases_say_so(case, tmp_path):
    with pytest.raises(RunFolderError, match="expected a name like"):
        open_run("layers", case=str(case))
    with pytest.raises(CaseError, match="cannot read"):
        open_run(NAME, case=str(tmp_path / "none.yaml"))
