"""`resolve_args` against SGLang's own ServerArgs, key by key, over a grid of arguments and targets. Needs `make sglang-env`; no GPU."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from eagle_forensics.engines.arguments import resolve_args
from tests.engines import oracle_grid

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("oracle")]
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
OURS = {  # key of our answer -> ServerArgs field; keys that we leave open are compared only where we say something
    "algorithm": "speculative_algorithm", "num_steps": "speculative_num_steps", "topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens", "max_running_requests": "max_running_requests", "page_size": "page_size",
    "quantization": "quantization", "draft_quantization": "speculative_draft_model_quantization", "dtype": "dtype",
    "draft_model_path": "speculative_draft_model_path", "tp_size": "tp_size", "adaptive": "speculative_adaptive",
    "mixed_chunk": "enable_mixed_chunk", "rejection_sampling": "speculative_use_rejection_sampling",
    "accept_threshold_single": "speculative_accept_threshold_single", "accept_threshold_acc": "speculative_accept_threshold_acc"}
LATER = ("fails later", "not checked at parse")
"""Our words for arguments that ServerArgs accepts and the worker refuses."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    if not PYTHON.exists():
        pytest.skip("no .venv-sglang here: `make sglang-env` makes it (2.8 GB, 2 minutes)")
    folder = tmp_path_factory.mktemp("configs")
    asked = oracle_grid.write(folder)
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", Path(__file__).with_name("oracle_worker.py")], input=json.dumps({name: argv for name, (argv, _) in asked.items()}),
        capture_output=True, text=True, timeout=600, cwd=folder,
        env={**keep, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["answers"].keys() == asked.keys()
    return answer["version"], {name: (asked[name], answer["answers"][name]) for name in asked}


def ours(version, asked):
    argv, architecture = asked
    return resolve_args("sglang", version, argv, architecture=architecture, draft_architecture="LlamaForCausalLMEagle3")


def names():
    return [*oracle_grid.cases(), "llama eagle3", "llama EAGLE", "llama NEXTN", "llama STANDALONE", "llama no speculation", "deepseek_v3 no draft path"]


@pytest.mark.parametrize("name", names())
def test_effective_arguments_are_those_of_the_engine(oracle, name):
    version, answers = oracle
    asked, theirs = answers[name]
    mine = ours(version, asked)
    if theirs["error"]:
        kind = theirs["error"].partition(":")[0]
        assert mine.error is not None and (mine.error.startswith(kind) or (kind == "SystemExit" and mine.error.startswith("argument "))), mine.error
        return
    assert mine.error is None or any(words in mine.error for words in LATER), mine.error
    got = {key: mine.effective[key] for key in OURS}
    assert got == {key: theirs["resolved"][field] for key, field in OURS.items()}
    if mine.effective["algorithm"]:
        assert mine.effective["overlap"] is not theirs["resolved"]["disable_overlap_schedule"]


@pytest.mark.parametrize("name", names())
def test_log_lines_are_those_of_the_engine(oracle, name):
    version, answers = oracle
    asked, theirs = answers[name]
    mine = [m.text for m in ours(version, asked).messages if m.level in ("info", "warning")]
    logged = [" ".join(line.split()) for line in theirs["log"]]
    if theirs["error"] is None:
        speculative = [line for line in logged if re.search(r"[Ss]pec|MTP|Rejection sampling|[Mm]ixed chunk|Max running", line)
                       and not line.startswith(("Attention backend", "SGLANG_"))]
        unexpected = [line for line in speculative if not any(line == " ".join(text.split()) for text in mine)]
        assert [text for text in mine if " ".join(text.split()) not in logged] == []
        assert [line for line in unexpected if line not in UNTOLD] == []


UNTOLD = ("Overlap schedule is not implemented for speculative decoding on CPU.",)
"""Lines of the engine that say nothing our answer does not already say as a key."""


def test_raw_input_and_the_trail_of_overrides_tell_the_trap(oracle):
    _, answers = oracle
    for family in oracle_grid.TARGETS:
        _, theirs = answers[f"{family} trap"]
        assert theirs["raw"]["speculative_num_draft_tokens"] == 16 and theirs["resolved"]["speculative_num_draft_tokens"] == 2
        assert ["_handle_eagle_family", {"speculative_num_draft_tokens": 2}] in theirs["overrides"]


def test_what_the_engine_changed_is_what_we_mark_as_changed(oracle):
    version, answers = oracle
    compared = 0
    for asked, theirs in answers.values():
        if theirs["error"]:
            continue
        answer = ours(version, asked)
        for key, field in OURS.items():
            raw = theirs["raw"][field]
            if field in answer.raw and raw is not None:
                compared += 1
                changed = theirs["resolved"][field] != raw
                assert (key in answer.changed) is changed, (asked, key)
    assert compared > 200
