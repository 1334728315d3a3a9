"""Batches: the plan of a matrix, runs at once, exit codes, a Dask cluster that loses a worker."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import distributed
import psutil
import pytest

from eagle_forensics.finding import Verdict
from eagle_forensics.suite import batch, cluster, runfolder
from eagle_forensics.suite.matrix import MatrixError, plan
from tests.suite import tiny

FAILING = ('from eagle_forensics.finding import Finding, Competitor\nrun.add(Finding(id="x.check", question="?", status="fail", statement="Not well.", notebook="{name}", '
           'fault="wiring.layer-offset", refuted_by="y", competitor=Competitor(fault="chance", margin="1", why_rejected="z")))')


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    folder = tiny.five(tmp_path / "nb")
    monkeypatch.setenv("EAGLE_FORENSICS_NOTEBOOKS", str(folder))
    return folder


def matrix(tmp_path, text):
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    return path


def test_a_matrix_is_every_combination_or_a_list_of_points_and_patterns_are_paths_in_their_natural_order(tmp_path):
    for step in (1000, 900, 20):
        (tmp_path / f"ckpt-{step}").mkdir()
    case = tiny.case(tmp_path)
    grid = plan([case], {"seed": 3}, matrix(tmp_path, "steps: [1, 3]\nserving.version: ['0.5.8', '0.5.23']\n"))
    assert [(p.parameters, p.overrides) for p in grid] == [({"seed": 3, "steps": s}, {"serving.version": v}) for s in (1, 3) for v in ("0.5.8", "0.5.23")]
    points = plan([case, case], {}, matrix(tmp_path, "- {drafter.path: ckpt-*, steps: 2}\n- {steps: 5}\n"))
    assert [Path(p.overrides["drafter.path"]).name for p in points if p.overrides] == ["ckpt-20", "ckpt-900", "ckpt-1000"] * 2
    assert points[0].label.startswith(f"{case} drafter.path=") and len(points) == 8
    assert [p.label for p in plan([case], {"seed": 3})] == [str(case)]


@pytest.mark.parametrize(("text", "says"), [
    ("", "empty"), ("[", "cannot be read"), ("steps: 3", "expected"), ("steps: []", "expected"), ("- 3", "expected"),
    ("drafter.path: ['none-*']", "nothing matches"), (f"a.b: {list(range(101))}\nc.d: {list(range(101))}", "more than 10000"),
])
def test_a_matrix_that_cannot_be_used_is_named(tmp_path, text, says):
    with pytest.raises(MatrixError, match=says):
        plan([tiny.case(tmp_path)], {}, matrix(tmp_path, text))


def test_runs_at_once_end_in_one_table_and_the_worst_verdict(tmp_path, notebooks, capsys):
    tiny.notebook(notebooks, "02_drafter_accuracy", ["if samples == 7:\n    " + FAILING.replace("\n", "\n    "), tiny.PASS, tiny.FINISH])
    code = batch.run_cases([tiny.case(tmp_path / "c"), tmp_path / "nowhere.yaml"], only=[2], out=tmp_path / "runs", jobs=2,
                           matrix=matrix(tmp_path, "samples: [5, 6, 7]"))
    said = capsys.readouterr()
    assert code == 1 and said.out.count("post-mortem:") == 3 and "cannot read the case file" in said.err
    rows = said.out[said.out.index("All runs"):]
    assert rows.count("PASS") == 2 and rows.count("FAIL") == 1 and rows.count("unusable") == 3
    assert len(runfolder.all_runs(tmp_path / "runs")) == 3


@pytest.mark.parametrize(("verdicts", "unusable", "fail_on", "code"), [
    (["PASS"], 0, None, 0), (["PASS", "INCONCLUSIVE"], 0, None, 4), (["INCONCLUSIVE", "FAIL"], 1, None, 1), (["PASS"], 1, None, 3), ([], 1, None, 2),
    (["INCONCLUSIVE"], 0, ["FAIL"], 0), (["ERROR"], 0, ["FAIL", "ERROR"], 3), (["FAIL"], 0, ["ERROR"], 0), (["PASS"], 1, ["FAIL"], 3),
])
def test_exit_codes(verdicts, unusable, fail_on, code):
    assert batch._exit_code([Verdict(v) for v in verdicts], unusable, fail_on and [Verdict(v) for v in fail_on]) == code


@pytest.mark.parametrize("how", ["matrix", "notebooks"])
def test_ctrl_c_leaves_no_kernel_of_runs_at_once_and_they_resume(tmp_path, notebooks, how):
    for name in ("02_drafter_accuracy", "03_layer_matching"):
        tiny.notebook(notebooks, name, ["import time\ntime.sleep(300)", tiny.PASS, tiny.FINISH])
    case, runs = tiny.case(tmp_path / "c"), tmp_path / "runs"
    more = ["--matrix", str(matrix(tmp_path, "samples: [5, 6]"))] if how == "matrix" else []
    process = subprocess.Popen([sys.executable, "-m", "eagle_forensics", "run", str(case), "--only", "1,2,3", "--jobs", "2", "--out", str(runs), *more],
                               stderr=subprocess.PIPE, text=True)
    slow = ("*/findings/02.json",) if how == "matrix" else ("*/findings/02.json", "*/findings/03.json")
    deadline = time.monotonic() + 90
    while sum(len(list(runs.glob(p))) for p in slow) < 2:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert len(kernels) >= 2
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "resume" in said, said
    assert not psutil.wait_procs(kernels, timeout=10)[1]
    assert {r.manifest.status for r in runfolder.all_runs(runs)} == {"interrupted"}


def test_a_cluster_that_loses_a_worker_loses_no_run(tmp_path, notebooks, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    tiny.notebook(notebooks, "02_drafter_accuracy", [f"import time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.05)", tiny.PASS, tiny.FINISH])
    planned = plan([tiny.case(tmp_path / "c")], {}, matrix(tmp_path, f"samples: {list(range(8))}"))
    work = partial(batch._run, only=[1, 2], out=tmp_path / "runs")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        ended = []
        for item in cluster.on_cluster(local.scheduler_address, planned, _killing(work, tmp_path)):
            ended.append(item)
    assert len(ended) == 8 and all(r.verdict == "PASS" for _, r in ended), ended
    folders = runfolder.all_runs(tmp_path / "runs")
    assert len(folders) == 8 and {f.manifest.status for f in folders} == {"finished"}
    assert any(f.manifest.resumed_at for f in folders)  # the killed worker's run went on where it stood


class _killing:
    """The work, whose first worker dies by SIGKILL while the second notebook waits."""

    def __init__(self, work, folder):
        self.work, self.folder = work, folder

    def __call__(self, run):
        import threading

        def die():
            while not list((self.folder / "runs").glob("*/findings/02.json")):
                time.sleep(0.05)
            (self.folder / "go").touch()
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            (self.folder / "victim").touch(exist_ok=False)
        except FileExistsError:
            return self.work(run)
        threading.Thread(target=die, daemon=True).start()
        return self.work(run)


def test_a_cluster_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_S", 1)
    with pytest.raises(cluster.ClusterError, match=r"no Dask scheduler answers"):
        list(cluster.on_cluster("tcp://127.0.0.1:1", plan([tiny.case(tmp_path)], {}), str))
