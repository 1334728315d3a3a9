"""The command line as a user meets it: exit codes, messages, no traceback."""

import json
import os
import subprocess
import sys

import pytest


def cli(*args, cwd=None):
    env = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-m", "eagle_forensics", *map(str, args)], capture_output=True, text=True, cwd=cwd, env=env, timeout=120)


def test_help_names_every_command_and_the_exit_codes():
    done = cli("--help")
    assert done.returncode == 0
    for word in ("demo", "run", "init", "show", "compare", "index", "bundle", "faults", "capture", "layers", "args", "0 pass", "4 inconclusive"):
        assert word in done.stdout


def test_layers_as_json_has_the_documented_fields():
    done = cli("layers", "--engine", "sglang", "--version", "0.5.13", "--model-type", "kimi_k2", "--layers", 61, "--ids", "2,30,58", "--json")
    answer = json.loads(done.stdout)
    assert {"engine", "version", "model_type", "layers", "ids", "boundaries", "write_as", "notes", "sources", "assumed"} <= set(answer)
    assert answer["boundaries"] == {"eager": [2, 30, 58], "graph": [2, 30, 58]}
    assert answer["write_as"]["sglang 0.5.12.post1"] == [1, 29, 57]


def test_layers_for_people_names_outputs_of_layers():
    done = cli("layers", "--engine", "sglang", "--version", "0.5.9", "--model-type", "deepseek_v3", "--layers", 61, "--ids=2,30,58")
    assert "b=3 (output of layer 2)" in done.stdout and done.returncode == 0


def test_negative_ids_are_ids_not_flags():
    done = cli("layers", "--engine", "sglang", "--version", "0.5.23", "--model-type", "llama", "--layers", 30, "--ids=-1,1,14", "--json")
    assert json.loads(done.stdout)["boundaries"]["eager"] == [0, 2, 15]


def test_args_as_json_has_the_documented_fields():
    done = cli("args", "--engine", "sglang", "--version", "0.5.9", "--json", "--", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", 1,
               "--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", 16)
    answer = json.loads(done.stdout)
    assert {"engine", "version", "raw", "effective", "messages", "error", "sources"} <= set(answer)
    assert answer["effective"]["num_draft_tokens"] == 2 and answer["raw"]["speculative_num_draft_tokens"] in (16, "16")
    assert any("adjusted to speculative_num_steps + 1" in m["text"] for m in answer["messages"])


@pytest.mark.parametrize(("args", "says"), [
    (("layers", "--engine", "sglag", "--version", "0.5.13", "--model-type", "llama", "--layers", 30), "sglang"),
    (("layers", "--engine", "sglang", "--version", "new", "--model-type", "llama", "--layers", 30), "new"),
    (("run", "nowhere.yaml"), "cannot read the case file"),
    (("run", "nowhere.yaml", "--only", "7"), "1 to 5"),
    (("run", "nowhere.yaml", "--set", "steps"), "KEY=VALUE"),
    (("show", "."), "manifest"),
    (("compare", "."), "two"),
    (("init", "x", "--drafter", "nowhere"), "nowhere"),
])
def test_bad_input_ends_with_a_message_and_code_2(tmp_path, args, says):
    done = cli(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


SPEC = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps")


@pytest.mark.parametrize(("args", "code", "says"), [
    (("layers", "--engine", "sglang", "--version", "0.5.23", "--model-type", "llama", "--layers", 30, "--ids=1,14,26"), 0, "b=27"),
    (("layers", "--engine", "sglang", "--version", "0.5.23", "--model-type", "llama", "--layers", 30, "--ids=1,14,99"), 1, "never captured: [100]"),
    (("layers", "--engine", "vllm", "--version", "0.33.0", "--model-type", "llama", "--layers", 30, "--ids=1,x,3"), 1, "must be integers"),
    (("layers", "--engine", "sglang", "--version", "0.5.23", "--model-type", "llama", "--layers", 0), 2, ""),
    (("args", "--engine", "sglang", "--version", "0.5.23", "--", *SPEC, 3, "--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", 4), 0, "num_steps"),
    (("args", "--engine", "sglang", "--version", "0.5.23", "--", *SPEC, 2, "--speculative-eagle-topk", 2, "--speculative-num-draft-tokens", 16), 1, "out of range"),
    (("args", "--engine", "sglang", "--version", "0.5.23", "--", *SPEC, "abc"), 2, "argument --speculative-num-steps: invalid int value: 'abc'"),
    (("args", "--engine", "vllm", "--version", "0.33.0", "--", "--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 0}'), 1, "greater than zero"),
    (("args", "--engine", "nonesuch", "--version", "1", "--"), 2, ""),
])
def test_impossible_input_of_layers_and_args_is_an_exit_code(args, code, says):
    done = cli(*args)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout and "Traceback" not in done.stderr


def test_a_mistyped_key_gets_a_suggestion(tmp_path):
    (tmp_path / "case.yaml").write_text("name: a\n")
    done = cli("run", tmp_path / "case.yaml", "--set", "drafter.pth=x", cwd=tmp_path)
    assert done.returncode == 2 and "drafter.path" in done.stderr.replace("`path`", "drafter.path")


def test_init_writes_a_case_that_loads(tmp_path):
    from eagle_forensics.case import load_case
    from tests.config.papers import papers
    from tests.evidence import builders

    papers(tmp_path / "there", weights=builders.head())
    done = cli("init", tmp_path / "new", "--drafter", tmp_path / "there/drafter", "--target", tmp_path / "there/target")
    assert done.returncode == 0, done.stderr
    case = load_case(tmp_path / "new")
    assert case.drafter.path.resolve() == (tmp_path / "there/drafter").resolve() and "llama, 30 layers" in done.stdout
    again = cli("init", tmp_path / "new")
    assert again.returncode == 2 and "exists" in again.stderr


def test_the_lines_to_fill_in_stand_under_their_key_once(tmp_path):
    """Removing the # of the hints must give a case file that loads, also where the key is already written."""
    import re

    from eagle_forensics.case import load_case
    from tests.config.papers import papers
    from tests.evidence import builders

    papers(tmp_path / "there", weights=builders.head())
    assert cli("init", tmp_path / "new", "--drafter", tmp_path / "there/drafter", "--server", "http://localhost:1").returncode == 0
    file = tmp_path / "new" / "case.yaml"
    filled = re.sub(r"^#   ", "  ", file.read_text(), flags=re.MULTILINE).replace("# training:", "training:")
    for blank, value in (("NAME,", "speculators,"), ("VERSION AS THE ENGINE PRINTS IT", "0.5.23"), ("VERSION", "0.4.0"),
                         ("IDS AS THE TRAINER WROTE THEM", "1, 14"), ("NAME_OF_METRIC: VALUE", "full_acc_0: 0.5")):
        filled = filled.replace(blank, value)
    file.write_text(filled)
    case = load_case(file)
    assert case.serving.engine == "sglang" and str(case.serving.url).startswith("http://localhost") and case.training.layer_ids == (1, 14)
