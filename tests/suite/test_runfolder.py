"""A run folder that cannot be opened says which file, what was read and what to do."""

import json

import pytest

from eagle_forensics.suite import runfolder
from eagle_forensics.suite.compare import compare_runs
from eagle_forensics.suite.report import post_mortem
from eagle_forensics.suite.runfolder import RunFolderError, open_folder
from eagle_forensics.suite.show_run import show_run
from tests.suite import tiny


def written(folder, **changes):
    runfolder.create_at(folder, fingerprint="f", origin="run", case={"name": "c"}, notebooks=("01_config_inspection",)).unlock()
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


@pytest.mark.parametrize(("content", "said"), [
    (b"", "its 0 bytes are no JSON object"), (b'{"run_id": ', "its 11 bytes are no JSON object"), (b"[1]", "no JSON object"), (b"\xff\xfe", "no JSON object"),
    (b"{}", "`run_id`: Field required"), (b'{"run_id": 3}', "`run_id`")])
def test_a_damaged_manifest(tmp_path, content, said):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(RunFolderError) as caught:
        open_folder(tmp_path)
    assert said in str(caught.value) and str(tmp_path / "manifest.json") in str(caught.value) and "un the case again" in str(caught.value)


def test_a_manifest_of_a_later_release(tmp_path):
    file = written(tmp_path, schema_version=2, suite={"version": "9.1"}, shape_of_things="new")
    with pytest.raises(RunFolderError, match=r"written by another release \(version 9\.1, schema 2\); this one, version .*, reads schema 1\. Open it with that release"):
        open_folder(tmp_path)
    assert json.loads(file.read_text())["shape_of_things"] == "new"


def test_a_folder_that_is_no_run_and_one_that_is_not_there(tmp_path):
    with pytest.raises(RunFolderError, match=r"it has no manifest\.json"):
        open_folder(tmp_path)
    with pytest.raises(RunFolderError, match="there is no such folder"):
        open_folder(tmp_path / "none")


@pytest.fixture
def run(tmp_path):
    return tiny.finished(tmp_path / "r")


def rewritten(run, **changes):
    file = run / "findings.json"
    merged = json.loads(file.read_text())
    file.write_text(json.dumps(merged | {"diagnosis": merged["diagnosis"] | changes}))


@pytest.mark.parametrize("read", [show_run, lambda run: compare_runs([run, run]), lambda run: post_mortem(open_folder(run))], ids=["show", "compare", "post-mortem"])
@pytest.mark.parametrize(("changes", "place"), [
    ({"story": ["One paragraph of plain text."]}, r"diagnosis\.story\.0"), ({"chain": [{"name": "launch"}]}, r"diagnosis\.chain\.0\.asks"), ({"deciders": None}, r"diagnosis\.deciders"), ({"story": []}, r"diagnosis\.story")])
def test_a_diagnosis_of_another_build_is_no_traceback(run, read, changes, place):
    rewritten(run, **changes)
    with pytest.raises(RunFolderError, match=rf"findings\.json: .*another build.*\({place}.*Run the case again"):
        read(run)


def test_what_a_later_build_adds_is_passed_over(run):
    rewritten(run, mood="calm", chain=[{"name": "launch", "asks": "?", "state": "holds", "because": "so", "findings": [], "colour": "green"}])
    assert "launch" in show_run(run) and "Launch</b>" in post_mortem(open_folder(run))
