"""Runs: resume after Ctrl-C and kill -9, refusals before anything runs, what a run folder holds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eagle_forensics.case import CaseError
from eagle_forensics.suite import provenance, runfolder
from eagle_forensics.suite.batch import run_cases
from eagle_forensics.suite.parameters import ParameterError
from eagle_forensics.suite.runfolder import RunFolderError
from eagle_forensics.suite.runner import RunInterrupted, run_case
from tests.suite import tiny

SCRIPT = """
import sys
from pathlib import Path
from eagle_forensics.suite import provenance
from eagle_forensics.suite.runner import RunInterrupted, run_case
provenance.source_sha256 = lambda: "source"
try:
    run_case(Path(sys.argv[1]), out=Path(sys.argv[2]), only=[1, 2])
except RunInterrupted as stop:
    print(stop)
    raise SystemExit(130)
"""


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """Five passing notebooks."""
    folder = tiny.five(tmp_path / "nb")
    monkeypatch.setenv("EAGLE_FORENSICS_NOTEBOOKS", str(folder))
    return folder


def test_a_stopped_or_killed_run_resumes_and_keeps_what_is_finished(tmp_path, notebooks, monkeypatch):
    monkeypatch.setattr(provenance, "source_sha256", lambda: "source")
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.05)"
    tiny.notebook(notebooks, "02_drafter_accuracy", [wait, tiny.PASS, tiny.FINISH])
    case, runs = tiny.case(tmp_path / "c"), tmp_path / "runs"
    stopped = []
    for stop in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(case), str(runs)], stdout=subprocess.PIPE, text=True)
        folder = _wait_for(lambda: next((r for r in runs.glob("*") if (r / "findings" / "02.json").is_file()
                                         and json.loads((r / "manifest.json").read_text())["status"] == "started"), None))
        process.send_signal(stop)
        said = process.communicate(timeout=30)[0]
        stopped.append((process.returncode, json.loads((folder / "manifest.json").read_text())["status"], said))
        (folder / "findings" / "02.json").unlink()
    assert stopped[0][:2] == (130, "interrupted") and "resume" in stopped[0][2] and str(folder) in stopped[0][2]
    assert stopped[1][:2] == (-signal.SIGKILL, "started")
    first = (folder / "findings" / "01.json").stat().st_mtime_ns
    (tmp_path / "go").touch()
    result = run_case(case, out=runs, only=[1, 2])
    assert result.run_dir == folder and [o.resumed for o in result.outcomes] == [True, False]
    assert (folder / "findings" / "01.json").stat().st_mtime_ns == first
    manifest = runfolder.open_folder(folder).manifest
    assert manifest.status == "finished" and len(manifest.resumed_at) == 2 and result.verdict == "PASS"


def test_errors_of_evidence_and_an_interruption_are_said_on_the_console(tmp_path, notebooks, capfd, monkeypatch):
    broken = tiny.PASS.replace('status="pass"', 'status="error"').replace("It is well.", "drafter.path: nowhere does not exist")
    tiny.notebook(notebooks, "01_config_inspection", [broken, tiny.FINISH])
    assert run_cases([tiny.case(tmp_path / "c")], only=[1], out=tmp_path / "runs") == 3
    assert "error  configinspection.check: drafter.path: nowhere does not exist" in capfd.readouterr().err

    def stop(*_, **__):
        raise RunInterrupted(tmp_path / "here")

    monkeypatch.setattr("eagle_forensics.suite.batch.run_case", stop)
    assert run_cases([tiny.case(tmp_path / "c")]) == 130
    assert "Give the same command again to resume" in capfd.readouterr().err


def _wait_for(ask, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := ask():
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def test_a_run_folder_says_what_it_was_made_of(tmp_path, notebooks, monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "topsecret")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setattr(sys, "argv", ["eagle-forensics", "run", "--api-key", "sesame"])
    (tmp_path / "c" / "draft").mkdir(parents=True)
    (tmp_path / "c" / "draft" / "config.json").write_text("{}")
    case = tiny.case(tmp_path / "c", "name: tiny\ndrafter: {path: ./draft}\n")
    steps = []
    result = run_case(case, out=tmp_path / "runs", only=[3], parameters={"samples": "7"},
                      overrides={"serving.url": "http://me:hunter2@host:1"}, progress=steps.append)
    text = (result.run_dir / "manifest.json").read_text() + (result.run_dir / "params.yaml").read_text() + result.post_mortem.read_text()
    assert not any(secret in text for secret in ("topsecret", "sesame", "hunter2"))
    manifest = runfolder.open_folder(result.run_dir).manifest
    assert manifest.parameters["03_layer_matching"]["samples"] == {"value": 7, "source": "given"}
    assert manifest.env["NCCL_PROTO"] == "LL" and manifest.env["SGLANG_API_KEY"] == "[redacted]"
    assert manifest.inputs[0]["key"] == "drafter.path" and manifest.inputs[0]["bytes"] == 2 and "contents" in manifest.inputs[0]["method"]
    assert {"version", "source_sha256", "notebooks"} <= set(manifest.suite) and "python" in manifest.versions
    assert str(steps[0]).startswith("[1/1] 03_layer_matching  cell 1/4") and steps[-1].outcome.complete
    suites = ElementTree.parse(result.run_dir / "junit.xml").getroot()
    assert suites.attrib["tests"] == "1" and suites[0][0].attrib["name"] == "layermatching.check"
    assert result.table()[0] | {"seconds": 0} == {"notebook": "03_layer_matching", "verdict": "PASS", "pass": 1, "fail": 0, "inconclusive": 0,
                                                  "skipped": 0, "error": 0, "seconds": 0, "reason": ""}


@pytest.mark.parametrize(("given", "error", "says"), [
    ({"parameters": {"sample": 3}}, ParameterError, "Did you mean `samples`?"),
    ({"parameters": {"samples": "many"}}, ParameterError, "samples read"),
    ({"parameters": {"case": "x"}}, ParameterError, "set by the runner"),
    ({"overrides": {"drafter.pth": "x"}}, CaseError, "path"),
    ({"only": [7]}, RunFolderError, "no notebook 7"),
])
def test_what_cannot_be_run_is_refused_before_anything_runs(tmp_path, notebooks, given, error, says):
    with pytest.raises(error, match=says.replace("?", r"\?")):
        run_case(tiny.case(tmp_path / "c"), out=tmp_path / "runs", **given)
    assert not (tmp_path / "runs").exists()


def test_a_limit_that_is_no_number_is_refused(tmp_path, notebooks, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_CELL_TIMEOUT", "soon")
    with pytest.raises(RunFolderError, match="number of seconds"):
        run_case(tiny.case(tmp_path / "c"), out=tmp_path / "runs")


def test_absent_notebooks_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_NOTEBOOKS", str(tmp_path / "none"))
    with pytest.raises(RunFolderError, match=r"03_layer_matching\.ipynb"):
        run_case(tiny.case(tmp_path / "c"), only=[3])


def test_two_runs_never_share_a_folder(tmp_path):
    fields = {"origin": "run", "case": {"name": "x"}, "notebooks": ("03_layer_matching",)}
    one = runfolder.create(tmp_path, "x", "a" * 64, **fields)
    two = runfolder.create(tmp_path, "x", "a" * 64, **fields)
    assert one.path != two.path
    assert runfolder.resume(tmp_path, "a" * 64) is None, "both are held"
    one.unlock()
    taken = runfolder.resume(tmp_path, "a" * 64)
    assert taken and taken.path == one.path
    assert runfolder.resume(tmp_path, "a" * 64) is None and runfolder.resume(tmp_path, "b" * 64) is None
    taken.update(status="finished")
    taken.unlock()
    assert runfolder.resume(tmp_path, "a" * 64) is None, "a finished run is not resumed"


def test_a_folder_with_other_files_is_not_taken(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="neither a run folder nor empty"):
        runfolder.create_at(tmp_path, fingerprint="0" * 64, origin="run", case={"name": "x"}, notebooks=())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_runs_folder_can_be_set(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_RUNS", str(tmp_path))
    assert runfolder.runs_root() == tmp_path
    monkeypatch.delenv("EAGLE_FORENSICS_RUNS")
    assert runfolder.runs_root() == Path(os.path.abspath(__file__)).parents[2] / "runs"  # noqa: PTH100
