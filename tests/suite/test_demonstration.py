"""The demo's live part: what each case is given, and what is said where no SGLang is."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle_forensics.acceptance.serve import ServeError
from eagle_forensics.demo import cases
from eagle_forensics.suite import demonstration


@pytest.fixture
def told(monkeypatch):
    """What the story is given instead of being told."""
    given = []
    monkeypatch.setattr(demonstration, "_tell", lambda console, out, more: given.append(more) or 0)
    return given


def test_without_an_environment_it_says_how_to_get_one_and_goes_on(monkeypatch, told, capsys):
    monkeypatch.setattr(demonstration.servers, "sglang_python", lambda: None)
    assert demonstration.demonstrate(live=True) == 0 and told == [{}]
    assert "make sglang-env" in capsys.readouterr().out
    assert demonstration.demonstrate() == 0 and "sglang-env" not in capsys.readouterr().out


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setattr(demonstration.servers, "sglang_python", lambda: Path("sglang-python"))
    monkeypatch.setattr(demonstration, "root", lambda: tmp_path)
    monkeypatch.setattr(cases, "prepare", lambda progress: None)
    monkeypatch.setattr(cases, "case_file", lambda name: tmp_path / "cases" / name / "case.yaml")


def test_each_drafter_is_served_beside_one_server_without_speculation(monkeypatch, told, environment):
    started = []

    @contextmanager
    def serving(command, log, env):
        started.append(command)
        yield SimpleNamespace(url="http://127.0.0.1:5", ready_s=1.0)

    monkeypatch.setattr(demonstration, "serving", serving)
    assert demonstration.demonstrate(live=True) == 0
    assert len(started) == 1 and not any("speculative" in word for word in started[0])
    (more,) = told
    assert set(more) == {"broken", "fixed"}
    for name, given in more.items():
        assert given["overrides"] == {"serving.baseline_url": "http://127.0.0.1:5"}
        assert f"cases/{name}/drafter" in given["parameters"]["launch"] and "PYTHONPATH=" in given["parameters"]["launch"]
        assert len(Path(given["parameters"]["prompts"]).read_text().splitlines()) == demonstration.PROMPTS


def test_a_server_that_does_not_start_is_an_error_of_one_line(monkeypatch, told, environment, capsys):
    @contextmanager
    def serving(command, log, env):
        raise ServeError("the server ended with status 1")
        yield

    monkeypatch.setattr(demonstration, "serving", serving)
    assert demonstration.demonstrate(live=True) == 3 and told == [] and "ended with status 1" in capsys.readouterr().out
