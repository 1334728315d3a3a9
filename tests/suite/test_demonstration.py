"""The demo's live part: what each case is given, and what is said where no SGLang is or none starts."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle_forensics.acceptance.live.serve import ServeError
from eagle_forensics.demo import cases
from eagle_forensics.suite import demonstration


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What each variant's run is given, instead of being run, and whether the server without speculation was up then."""
    given = {"up": [], "serving": False}

    def run(console, name, out, edits, more):
        given[name] = more
        given["up"].append(given["serving"])
        return SimpleNamespace(run_dir=tmp_path / "runs" / name, verdict=demonstration.EXPECTED[name], seconds=1.0)

    for name, instead in (("_run", run), ("_fix", lambda *_: []), ("write_comparison", lambda *_: "page"), ("_table", lambda _: ""), ("_live", lambda _: {}),
                          ("root", lambda: tmp_path)):
        monkeypatch.setattr(demonstration, name, instead)
    monkeypatch.setattr(cases, "prepare", lambda progress: None)
    monkeypatch.setattr(cases, "case_file", lambda name: tmp_path / "cases" / name / "case.yaml")
    return given


def served(monkeypatch, told, command=lambda argv: None):
    """A serving environment in which `command` sees what is started."""
    @contextmanager
    def serving(argv, log, env):
        command(argv)
        told["serving"] = True
        try:
            yield SimpleNamespace(url="http://127.0.0.1:5", ready_s=1.0)
        finally:
            told["serving"] = False

    monkeypatch.setattr(demonstration.servers, "sglang_python", lambda: Path("sglang-python"))
    monkeypatch.setattr(demonstration, "serving", serving)


def test_without_an_environment_it_says_how_to_get_one_and_goes_on(monkeypatch, told, capsys):
    monkeypatch.setattr(demonstration.servers, "sglang_python", lambda: None)
    assert demonstration.demonstrate(live=True) == 0 and all(told[name] == {} for name in demonstration.EXPECTED)
    assert "make sglang-env" in capsys.readouterr().out
    assert demonstration.demonstrate() == 0 and "sglang-env" not in capsys.readouterr().out


def test_each_drafter_is_served_beside_one_server_without_speculation(monkeypatch, told):
    started = []
    served(monkeypatch, told, started.append)
    assert demonstration.demonstrate(live=True) == 0
    assert len(started) == 1 and not any("speculative" in word for word in started[0]) and "--sleep-on-idle" in started[0]
    assert told["vllm-shift"] == told["incident"] == {} and told["up"] == [True, True, False, False]
    for name in demonstration.LIVE:
        assert told[name]["overrides"] == {"serving.baseline_url": "http://127.0.0.1:5"}
        parameters = told[name]["parameters"]
        assert f"cases/{name}/drafter" in parameters["launch"] and "PYTHONPATH=" in parameters["launch"] and "--sleep-on-idle" in parameters["launch"]
        assert len(Path(parameters["prompts"]).read_text().splitlines()) == demonstration.PROMPTS


def test_offline_starts_nothing(monkeypatch, told):
    served(monkeypatch, told, lambda argv: pytest.fail("a server was started"))
    assert demonstration.demonstrate() == 0 and told["broken"] == {}


def test_a_server_that_does_not_start_leaves_the_offline_story(monkeypatch, told, capsys):
    def fail(argv):
        raise ServeError("the server ended with status 1.")

    served(monkeypatch, told, fail)
    assert demonstration.demonstrate(live=True) == 0 and all(told[name] == {} for name in demonstration.EXPECTED)
    said = capsys.readouterr().out
    assert "ended with status 1. The demo goes on without a real server." in said and "measured on a real server" not in said


def test_an_interrupted_run_ends_the_server_and_the_demo(monkeypatch, told, tmp_path):
    served(monkeypatch, told)

    def interrupted(*_):
        raise demonstration.RunInterrupted(tmp_path)

    monkeypatch.setattr(demonstration, "_run", interrupted)
    assert demonstration.demonstrate(live=True) == 130 and told["serving"] is False
