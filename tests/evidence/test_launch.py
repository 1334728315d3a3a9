"""Launch lines out of strings, scripts, logs, /server_info and YAML: flag by flag, secrets gone, nothing executed."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_forensics.evidence import reprs, shell
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.records import EvidenceError

INCIDENT = "--tp 8 --speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
WANTED = {"tp": "8", "speculative_algorithm": "EAGLE3", "speculative_num_steps": "1", "speculative_eagle_topk": "1", "speculative_num_draft_tokens": "16"}


def test_arguments_as_a_string():
    line = read_launch(INCIDENT)
    assert line.arguments == WANTED and line.argv == tuple(INCIDENT.split()) and (line.origin, line.notes) == ("case", ())


def test_kinds_of_values():
    line = read_launch("--disable-cuda-graph --mem-fraction-static=0.8 --cuda-graph-bs 1 2 4 --bias -1 --name 'two words' --tail")
    assert line.arguments == {
        "disable_cuda_graph": True, "mem_fraction_static": "0.8", "cuda_graph_bs": "1 2 4", "bias": "-1", "name": "two words", "tail": True,
    }  # fmt: skip


SCRIPT = """#!/bin/bash
# don't run this twice
MODEL=/models/kimi   # the target
export NCCL_ALGO=Ring HF_TOKEN=hf_abc
python warm.py --tp 1
NCCL_PROTO=LL CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server \\
    --model-path $MODEL \\
    --tp 8 --speculative-num-steps 1 \\
    --api-key sk-very-secret --port ${PORT} 2>&1 | tee server.log &
"""


def test_a_shell_script(tmp_path):
    (tmp_path / "serve.sh").write_text(SCRIPT)
    line = read_launch("serve.sh", tmp_path)
    assert line.arguments == {"model_path": "/models/kimi", "tp": "8", "speculative_num_steps": "1", "api_key": "(redacted)", "port": "${PORT}"}
    assert line.env == {"NCCL_ALGO": "Ring", "HF_TOKEN": "(redacted)", "NCCL_PROTO": "LL", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert "sk-very-secret" not in repr(line) and "hf_abc" not in repr(line)
    assert line.origin.endswith("serve.sh") and any("${PORT}" in note for note in line.notes)


@pytest.mark.parametrize(
    "text",
    [
        f"python -m sglang.launch_server {INCIDENT}",
        f"nohup python3 -u -m sglang.launch_server {INCIDENT} > log 2>&1 &",
        f"cd /x && sglang serve {INCIDENT}; echo done",
        f"docker run --gpus all -p 1:1 lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server {INCIDENT}",
        f"docker run --rm vllm/vllm-openai:v0.11.0 {INCIDENT}",
        f"python3 /sgl/python/sglang/launch_server.py {INCIDENT}",
        f"ARGS=(--tp 8\n  --speculative-algorithm EAGLE3 # three\n)\nARGS+=({' '.join(INCIDENT.split()[4:])})\nsglang serve \"${{ARGS[@]}}\"",
        f"A='{INCIDENT}'\nvllm serve $A",
        INCIDENT.replace(" --", "\n--"),
        INCIDENT.replace(" --", " \\\r\n--"),
    ],
)
def test_ways_to_start_a_server(text):
    assert read_launch(text).arguments == WANTED


def test_what_is_no_comment_and_no_descriptor():
    line = read_launch("sglang serve --model org/m#1 --name x16>log --tp 8>log # --tp 4")
    assert line.arguments == {"model": "org/m#1", "name": "x16", "tp": True}


def test_the_model_of_vllm_serve_is_named():
    assert read_launch("vllm serve org/model --tp 2").arguments == {"model": "org/model", "tp": "2"}


@pytest.mark.parametrize(
    "text",
    [
        """vllm serve m --speculative-config '{"method": "eagle3",\n  "num_speculative_tokens": 3}'""",
        """vllm serve m --speculative_config={\\"method\\":\\"eagle3\\",\\"num_speculative_tokens\\":3}""",
        "vllm serve m --speculative-config.method eagle3 --speculative-config.num-speculative-tokens 3",
        """vllm serve m -sc '{"method": "eagle3", "num_speculative_tokens": 3}'""",
    ],
)
def test_the_speculative_config_of_vllm_is_a_dict(text):
    assert read_launch(text).arguments == {"model": "m", "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}


def test_a_speculative_config_that_is_no_json():
    with pytest.raises(EvidenceError, match=r"case: --speculative-config: not valid JSON at line 1, column 2"):
        read_launch("vllm serve m --speculative-config '{method: eagle3}'")


def test_container_environment():
    line = read_launch("docker run -e NCCL_P2P_LEVEL=SYS --env=HF_TOKEN=abc -e PASSED_ON vllm/vllm-openai --tp 2")
    assert line.env == {"NCCL_P2P_LEVEL": "SYS", "HF_TOKEN": "(redacted)"}


def test_of_several_launches_the_speculative_one_is_read():
    line = read_launch("sglang serve --tp 1\nsglang serve --tp 8 --speculative-num-steps 3\nsglang serve --tp 2")
    assert line.arguments["tp"] == "8" and "3 launch commands; the one at line 2 is read." in line.notes


def test_a_flag_given_twice_is_noted():
    line = read_launch("--tp 8 --tp 4")
    assert line.arguments == {"tp": "4"} and line.notes == ("--tp stands twice; the last one counts.",)


def test_a_missing_backslash_in_a_script_is_a_note_not_a_guess(tmp_path):
    (tmp_path / "s.sh").write_text("sglang serve --tp 8\n  --speculative-num-steps 3\n")
    line = read_launch(tmp_path / "s.sh")
    assert line.arguments == {"tp": "8"} and "does not end in a backslash" in line.notes[0]
    assert read_launch("sglang serve --tp 8\n  --speculative-num-steps 3").arguments == {"tp": "8", "speculative_num_steps": "3"}


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("--tp 8 'oops", 1, 8), ('--tp 8 \\\n --name "oops', 2, 9), ("# it's fine\necho 'a\nb' \"", 3, 4)],
)
def test_an_unclosed_quote_is_placed(text, line, column):
    with pytest.raises(EvidenceError, match=rf"case: the quote .* line {line}, column {column} is never closed; expected a matching"):
        read_launch(text)


@pytest.mark.parametrize("text", ["hello world", "python train.py", "echo $X"])
def test_text_without_a_launch_line(text):
    with pytest.raises(EvidenceError, match="no launch line found; expected arguments such as --speculative-algorithm"):
        read_launch(text)


def test_sources_that_do_not_exist_or_are_empty(tmp_path):
    for source in ("serve.sh", "logs/server.log", "/nowhere/at/all"):
        with pytest.raises(EvidenceError, match="does not exist; expected launch arguments or the path"):
            read_launch(source, tmp_path)
    with pytest.raises(EvidenceError, match=r"serving.launch is empty"):
        read_launch("  ")
    (tmp_path / "x.sh").write_bytes(b"sglang serve --a \xff")
    with pytest.raises(EvidenceError, match="not UTF-8 at byte 17"):
        read_launch(tmp_path / "x.sh")
    with pytest.raises(EvidenceError, match=r"no flags|no launch"):
        read_launch("sglang serve")


SGLANG_LOG = (
    "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='/m, (x)', tp_size=8, api_key='sk-1', speculative_algorithm='EAGLE3', "
    "speculative_num_steps=1, speculative_eagle_topk=1, speculative_num_draft_tokens=2, cuda_graph_bs=[1, 2, 4], disable_cuda_graph=False, "
    "trust_remote_code=True, quantization=None, mode=<Mode.AUTO: 'auto'>, json_model_override_args='{}', extra={'a': 1})\n"
)


def test_the_server_args_of_an_sglang_log(tmp_path):
    (tmp_path / "server.log").write_text("banner: don't panic\n" + SGLANG_LOG + "more\n")
    line = read_launch("server.log", tmp_path)
    assert line.arguments == {
        "model_path": "/m, (x)", "tp_size": "8", "api_key": "(redacted)", "speculative_algorithm": "EAGLE3", "speculative_num_steps": "1",
        "speculative_eagle_topk": "1", "speculative_num_draft_tokens": "2", "cuda_graph_bs": "1 2 4", "trust_remote_code": True,
        "mode": "<Mode.AUTO: 'auto'>", "json_model_override_args": "{}", "extra": '{"a": 1}',
    }  # fmt: skip
    assert line.notes == ("values as the engine printed them after its own adjustments; what was typed may differ.",)


def test_the_last_start_counts_and_a_cut_line_is_noted(tmp_path):
    (tmp_path / "server.log").write_text(SGLANG_LOG + "server_args=ServerArgs(tp_size=4, speculative_num_steps=3, model_pa")
    line = read_launch(tmp_path / "server.log")
    assert line.arguments == {"tp_size": "4", "speculative_num_steps": "3"}
    assert "2 server starts in the log; the last is read." in line.notes and "cut off" in line.notes[-1]


@pytest.mark.parametrize(
    "text",
    [
        "INFO [utils.py:233] non-default args: {'model': 'm', 'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}}\n",
        "INFO args: Namespace(model='m', quantization=None, speculative_config={'method': 'eagle3', 'num_speculative_tokens': 3})\n",
        "INFO args: Namespace(model='m', speculative_config=SpeculativeConfig(method='eagle3', num_speculative_tokens=3))\n",
    ],
)
def test_the_arguments_of_a_vllm_log(tmp_path, text):
    (tmp_path / "v.log").write_text(text)
    assert read_launch(tmp_path / "v.log").arguments == {"model": "m", "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}


def test_a_log_is_never_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text("server_args=ServerArgs(tp_size=__import__('os').mkdir('pwned'), x=9**9**9, deep=" + "[" * 5000 + ")\n")
    line = read_launch(tmp_path / "server.log")
    assert line.arguments["tp_size"] == "__import__('os').mkdir('pwned')" and not (tmp_path / "pwned").exists()


def test_a_200_mb_log_is_streamed(tmp_path):
    """Sparse, with one line of 200 MB of zeros: read in seconds, held a megabyte at a time."""
    import tracemalloc

    path = tmp_path / "server.log"
    with path.open("wb") as file:
        file.write(SGLANG_LOG.encode())
        file.truncate(200_000_000)
    tracemalloc.start()
    began = time.perf_counter()
    line = read_launch(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line.arguments["speculative_num_steps"] == "1" and peak < 20e6
    assert time.perf_counter() - began < 30
    with path.open("wb") as file:
        file.truncate(5_000_000)
    with pytest.raises(EvidenceError, match=r"5000000 bytes without a launch line; expected `server_args=ServerArgs"):
        read_launch(path)


def test_server_info(tmp_path):
    reply = {"tp_size": 8, "speculative_num_steps": 3, "disable_cuda_graph": False, "api_key": "sk", "internal_states": [{"x": 1}], "version": "0.5.9", "nothing": None}
    (tmp_path / "info.json").write_text(json.dumps(reply))
    line = read_launch("info.json", tmp_path)
    assert line.arguments == {"tp_size": "8", "speculative_num_steps": "3", "api_key": "(redacted)"} and "printed them" in line.notes[0]
    for command in (f"python -m sglang.launch_server {INCIDENT}", ["python", "-m", "sglang.launch_server", *INCIDENT.split()]):
        (tmp_path / "info.json").write_text(json.dumps(reply | {"launch_command": command}))
        assert read_launch("info.json", tmp_path).arguments == WANTED
    (tmp_path / "info.json").write_text("{}")
    with pytest.raises(EvidenceError, match="no launch arguments in this JSON object"):
        read_launch("info.json", tmp_path)


COMPOSE = """
services:
  db: {image: postgres, command: postgres -c x=1}
  llm:
    image: lmsysorg/sglang:v0.5.9
    environment: [NCCL_PROTO=LL, "HF_TOKEN=abc"]
    command: >
      python3 -m sglang.launch_server --tp 8
      --speculative-num-steps 1
"""
POD = """
spec:
  containers:
    - name: llm
      env: [{name: NCCL_PROTO, value: LL}, {name: HF_TOKEN, value: abc}]
      command: ["bash", "-c"]
      args: ["vllm serve m --speculative-num-steps 1 --tp 8"]
"""


SPLIT_POD = POD.replace('["bash", "-c"]', '["vllm", "serve", "m"]').replace(
    '["vllm serve m --speculative-num-steps 1 --tp 8"]', '["--speculative-num-steps", 1, "--tp", "8"]')


@pytest.mark.parametrize("text", [COMPOSE, POD, SPLIT_POD])
def test_yaml_with_a_command(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    line = read_launch("c.yaml", tmp_path)
    assert line.env == {"NCCL_PROTO": "LL", "HF_TOKEN": "(redacted)"}
    assert line.arguments == {"tp": "8", "speculative_num_steps": "1"} | ({} if text is COMPOSE else {"model": "m"})


def test_yaml_of_flags(tmp_path):
    (tmp_path / "c.yml").write_text("tp: 8\nspeculative-num-steps: 1\nenforce-eager: true\nspeculative-config: {method: eagle3}\n")
    assert read_launch("c.yml", tmp_path).arguments == {"tp": "8", "speculative_num_steps": "1", "enforce_eager": True, "speculative_config": {"method": "eagle3"}}


@pytest.mark.parametrize(("text", "said"), [("a: [", "not valid YAML"), ("- 1", "holds a YAML list"), ("db: {image: postgres, command: run}", "no service with a launch command"), ("!!python/object/apply:os.mkdir [x]", "not valid YAML")])
def test_yaml_without_a_launch_line(tmp_path, text, said):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(EvidenceError, match=said):
        read_launch("c.yaml", tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["--tp", "8", "'", '"', "\\", "\n", " ", "#", "$X", "(", ")", "|", ">", "=", "A=(", "sglang serve ", "{", "--speculative-config", "é"]), max_size=15).map("".join))
def test_no_text_gives_a_traceback(text):
    try:
        read_launch(text)
    except EvidenceError:
        pass


def test_quotes_inside_reprs():
    fields = {"a": "it's \"so\", (b=1)", "b": "\\"}
    assert reprs.read_fields(f"X(a={fields['a']!r}, b={fields['b']!r})") == (fields, True)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=6))
def test_reprs_are_read_back(fields):
    call = f"ServerArgs({', '.join(f'{k}={v!r}' for k, v in fields.items())}) tail"
    assert reprs.read_fields(call) == (fields, True)
    assert reprs.read_fields(repr(fields)) == (fields, True)


def test_a_word_without_end_is_refused_at_once():
    with pytest.raises(EvidenceError, match="a word of more than 100000 characters"):
        shell.commands("--speculative-algorithm " + "x" * 1_000_000, "case")


ASKED = "python3 -m sglang.launch_server --model-path /t --speculative-algorithm EAGLE3 --speculative-num-steps 3"


@pytest.mark.parametrize("text", [
    f"bash -c '{ASKED}'", f'/bin/bash -lc "cd /srv && source venv/bin/activate && exec {ASKED}"', f"docker run -e A=1 --gpus all image sh -c \"{ASKED}\"",
    f"bash -c \"bash -c '{ASKED}'\"", json.dumps(ASKED.split()), json.dumps(["/bin/sh", "-c", ASKED])])
def test_a_command_inside_of_a_shell_or_a_list_of_words(text):
    found = read_launch(text)
    assert found.arguments == {"model_path": "/t", "speculative_algorithm": "EAGLE3", "speculative_num_steps": "3"}
    assert found.env == ({"A": "1"} if "docker" in text else {})
