"""The failure matrix: whatever goes wrong in a notebook ends in ERROR with its name, the cell and what to do."""

import nbformat
import pytest

from eagle_forensics.finding import Verdict
from eagle_forensics.suite import execute as module
from eagle_forensics.suite import runfolder
from eagle_forensics.suite.execute import execute
from eagle_forensics.suite.merge import merge
from eagle_forensics.suite.runner import run_case
from tests.suite import tiny

AFTER = 'open(run_dir + "/logs/{name}.went-on", "w").close()'
FIRST = {
    1: (["import os; os._exit(9)", AFTER, tiny.FINISH], "kernel died", ("cell 3 of 5", "memory")),
    2: (["import sys; sys.exit(0)", AFTER, tiny.FINISH], "exited", ("cell 3 of 5", "sys.exit(0)", "Remove the call")),
    3: (["raise ValueError('boom')", AFTER, tiny.FINISH], "raised", ("cell 3 of 5", "ValueError: boom", "traceback")),
    4: (["import os; os.kill(os.getpid(), 9)", AFTER, tiny.FINISH], "kernel died", ("cell 3 of 5", "memory")),
    5: ([tiny.PASS], "unfinished", ("05_nccl_tuning", "finish()")),
}
SECOND = {
    1: (["import sys; sys.exit(3)", AFTER, tiny.FINISH], "exited", ("cell 3 of 5", "sys.exit(3)")),
    2: (["raise KeyboardInterrupt", AFTER, tiny.FINISH], "raised", ("cell 3 of 5", "interrupted")),
    3: (["input('name? ')", AFTER, tiny.FINISH], "raised", ("cell 3 of 5", "asks for input", "parameter")),
    4: ([("raise ValueError('expected')", ["raises-exception"]), tiny.PASS, tiny.FINISH], "finished", ()),
    5: ([tiny.PASS, ("undefined_name", ["skip-execution"]), tiny.FINISH], "finished", ()),
}


@pytest.fixture(scope="module", params=[FIRST, SECOND], ids=["first", "second"])
def ran(request, tmp_path_factory):
    """Five notebooks that fail in five ways (the last two of the second set do not), in one run."""
    folder = tmp_path_factory.mktemp("run {x}")
    patch = pytest.MonkeyPatch()
    tiny.five(folder / "nb", **{f"nb{n}": cells for n, (cells, *_) in request.param.items()})
    if request.param is SECOND:  # a foreign kernelspec, and none: the kernel is this interpreter all the same
        for name, spec in (("04_accept_length", {"name": "conda-env-other-py", "display_name": "x"}), ("05_nccl_tuning", None)):
            path = folder / "nb" / f"{name}.ipynb"
            node = nbformat.read(path, 4)
            node.metadata.pop("kernelspec")
            if spec:
                node.metadata.kernelspec = spec
            nbformat.write(node, path)
    patch.setenv("EAGLE_FORENSICS_NOTEBOOKS", str(folder / "nb"))
    yield request.param, run_case(tiny.case(folder), out=folder / "runs")
    patch.undo()


def test_every_failure_is_an_error_that_says_where_and_what_to_do(ran):
    expected, result = ran
    for outcome, (number, (_, kind, words)) in zip(result.outcomes, expected.items(), strict=True):
        assert outcome.notebook.startswith(f"0{number}_") and outcome.kind == kind, outcome
        assert outcome.complete == (kind == "finished")
        assert all(word in outcome.reason for word in (outcome.notebook, *words) if kind != "finished"), outcome.reason
        verdict = result.merged["notebooks"][outcome.notebook]["verdict"]
        assert verdict == ("PASS" if kind == "finished" else "ERROR")
        assert not (result.run_dir / "logs" / f"{outcome.notebook}.went-on").exists()
        assert (result.run_dir / "notebooks" / f"{outcome.notebook}.ipynb").is_file()
    assert result.verdict is Verdict.ERROR and result.merged["exit_code"] == 3


def test_the_other_notebooks_went_on_and_the_post_mortem_says_so(ran):
    _, result = ran
    assert len(result.outcomes) == 5 and result.post_mortem.is_file()
    page = result.post_mortem.read_text()
    assert all(o.reason.split(",")[0].split("(")[0] in page for o in result.outcomes if not o.complete)
    assert not list(result.run_dir.rglob("*.tmp"))


def test_a_cell_that_takes_too_long_is_stopped_and_named(tmp_path):
    source = tiny.notebook(tmp_path, "01_config_inspection", ["import time; time.sleep(60)", AFTER], opened=False)
    outcome = execute(source, alone(tmp_path, source), {}, cell_timeout=2)
    assert outcome.kind == "timeout" and not outcome.complete and outcome.cell == 2
    assert all(word in outcome.reason for word in ("01_config_inspection, cell 2 of 3", "limit of 2 s", "EAGLE_FORENSICS_CELL_TIMEOUT="))
    assert not list(tmp_path.rglob("*.went-on"))


def alone(folder, source):
    """A run folder for one notebook."""
    return runfolder.create_at(folder / "run", fingerprint="0" * 64, origin="run", case={"name": "x"}, notebooks=(source.stem,))


def test_what_the_kernels_process_prints_stays_off_the_terminal(tmp_path, capfd):
    source = tiny.notebook(tmp_path, "01_config_inspection", ["import os\nos.write(2, b'Traceback of a dying kernel')\nos.kill(os.getpid(), 9)", tiny.FINISH])
    folder = alone(tmp_path, source)
    assert execute(source, folder, {}).kind == "kernel died"
    assert "dying kernel" not in "".join(capfd.readouterr())
    assert "dying kernel" in (folder.path / "logs" / "01_config_inspection.kernel.log").read_text()


def test_a_kernel_that_does_not_start_is_named(tmp_path, monkeypatch):
    source = tiny.notebook(tmp_path, "01_config_inspection")
    folder = alone(tmp_path, source)
    real = module._manager

    def broken(*given):
        return type("Broken", (real(*given),), {"format_kernel_cmd": lambda self, extra_arguments=None: ["/nowhere/python"]})

    monkeypatch.setattr(module, "_manager", broken)
    outcome = execute(source, folder, {})
    assert outcome.kind == "kernel did not start" and "ipykernel" in outcome.reason and not outcome.complete


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    source = tmp_path / "01_config_inspection.ipynb"
    source.write_text("not json")
    folder = alone(tmp_path, source)
    outcome = execute(source, folder, {})
    assert outcome.kind == "unusable" and "Restore" in outcome.reason


def test_only_a_complete_findings_file_counts(tmp_path):
    run = tiny.finished(tmp_path / "run")
    folder = runfolder.open_folder(run)
    folder.findings_file("03_layer_matching").write_text('{"notebook": "03_layer_matching", "complete": true, "findings": [')
    merged = merge(folder, tiny.Case(name="tiny"))
    assert merged["verdict"] == "ERROR" and "03_layer_matching" in merged["findings"][0]["statement"]
