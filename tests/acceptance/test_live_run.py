"""A whole run of notebook 04 on live servers: no secret in its folder, what was measured before a fault kept, nothing left running however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle_forensics.evidence.transport import KEY_VARIABLE
from eagle_forensics.finding import Verdict
from eagle_forensics.suite.runner import run_case
from tests.acceptance.pretend import pretending
from tests.acceptance.test_live_serve import alive, gone

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = 16


def case(tmp_path, **urls):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"id": f"p{i}", "domain": "chat", "input_ids": [i, i * i % 31, 3]}) + "\n" for i in range(PROMPTS)))
    file = tmp_path / "case.yaml"
    file.write_text(json.dumps({"name": "live", "serving": {"engine": "sglang", "version": "0.5.23", **urls}}))
    return file


def run(file, tmp_path, **parameters):
    return run_case(file, only=[4], out=tmp_path / "runs", parameters={"prompts": str(tmp_path / "prompts.jsonl"), "max_tokens": 40, "half_width": 0.0, **parameters})


def finding(result, id):
    return next(f for f in result.findings if f.id == id)


def served(*words, fault="", after=0):
    """A launch line of the hostile server."""
    return f"env PYTHONPATH={ROOT} {sys.executable} -m tests.acceptance.pretend --fault '{fault}' --after {after} {' '.join(words)}"


def test_no_secret_of_a_live_run_is_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-of-the-user-0123456789")
    with pretending() as (url, p):
        result = run(case(tmp_path, url=url.replace("//", "//me:hunter22@")), tmp_path,
                     launch_baseline=served("--plain", "--api-key", "launchsecret1", "--admin-api-key=launchsecret2"))
    assert finding(result, "acceptance.live").observed and any("authorization" in headers for _, _, headers in p.asked)
    files = [f for f in result.run_dir.rglob("*") if f.is_file()]
    assert {"answers_baseline.jsonl", "baseline.log", "post_mortem.html", "04_accept_length.ipynb"} <= {f.name for f in files}
    for file in files:
        text = file.read_bytes()
        for secret in (b"sk-of-the-user", b"hunter22", b"launchsecret", b"sk-very-secret"):
            assert secret not in text, f"{secret} in {file.relative_to(result.run_dir)}"


def test_a_server_that_dies_in_a_run_leaves_a_partial_measurement(tmp_path):
    result = run(case(tmp_path), tmp_path, launch=served(fault="exit", after=12))
    said = finding(result, "acceptance.live")
    assert said.statement.startswith("Partial: ") and said.observed is not None and result.verdict is not Verdict.PASS
    kept = (result.run_dir / "evidence" / "04_live" / "answers_speculation.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["error"] is None for line in kept) == 10


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running_when_a_run_is_ended(tmp_path, how):
    file = case(tmp_path)
    code = f"import sys; from pathlib import Path; from tests.acceptance.test_live_run import *; run(Path({str(file)!r}), Path({str(tmp_path)!r}), launch=served(fault='slow'), launch_baseline=served('--plain'))"
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = []
    try:
        until = time.monotonic() + 90
        while not list(tmp_path.glob("runs/*/evidence/04_live/answers_baseline.jsonl")):
            assert time.monotonic() < until and runner.poll() is None
            time.sleep(0.1)
        pids = below(runner.pid)
        assert sum(b"tests.acceptance.pretend" in commandline(p) for p in pids) == 2
        runner.send_signal(how)
        runner.wait(60)
        assert gone(pids, 30)
    finally:
        for pid in filter(alive, [runner.pid, *pids]):
            os.kill(pid, signal.SIGKILL)


def below(pid):
    """Process ids of everything that a process started, and they."""
    children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    return [x for c in children for x in (c, *below(c))]


def commandline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
