"""The notebooks under plain `papermill`: the same findings as the suite's runner, and wrong parameter names refused."""

import json
import subprocess
import sys

import pytest

from eagle_forensics.suite.parameters import ParameterError, check_injected
from eagle_forensics.suite.runner import notebook_folder, run_case
from tests.lineup.papers import LLAMA

CELL = 'case: str = ""  # case file\nsamples: int = 20  # samples read'


def papermill(notebook, folder, *parameters):
    given = [x for p in parameters for x in ("-p", *p)]
    return subprocess.run([sys.executable, "-m", "papermill", notebook_folder() / f"{notebook}.ipynb", folder / "out.ipynb", "-k", "python3", *map(str, given)],
                          capture_output=True, text=True, timeout=300)


def test_plain_papermill_finds_what_the_runner_finds(tmp_path):
    (tmp_path / "case").mkdir()
    LLAMA.but(ids=(2, 16, 29))(tmp_path / "case")
    case, run_dir = tmp_path / "case" / "case.yaml", tmp_path / "runs" / "mine"
    done = papermill("01_config_inspection", tmp_path, ("case", case), ("run_dir", run_dir))
    assert done.returncode == 0, done.stderr[-2000:]
    ours = run_case(case, only=[1], out=tmp_path / "runs")
    plain = json.loads((run_dir / "findings.json").read_text())
    assert plain["verdict"] == ours.verdict == "FAIL" and plain["findings"] == ours.merged["findings"]
    wrong = papermill("01_config_inspection", tmp_path, ("case", case), ("run_dri", run_dir))
    assert wrong.returncode != 0 and "Did you mean `run_dir`?" in wrong.stderr


@pytest.mark.parametrize(("injected", "says"), [
    ("sample = 3", "Did you mean `samples`"), ("samples = 'many'", "samples read"), ("samples = 3\ncase = 'x'", None), ("x = float('nan')", None),
])
def test_what_papermill_injects_is_held_against_the_declaration(injected, says):
    history = ["", "import os", CELL, f"# Parameters\n{injected}\n", "open_run()"]
    if says is None:
        check_injected(history, "03_layer_matching")
    else:
        with pytest.raises(ParameterError, match=says):
            check_injected(history, "03_layer_matching")
    check_injected(["", CELL, "open_run()"], "03_layer_matching")
