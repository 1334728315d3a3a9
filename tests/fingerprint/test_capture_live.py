"""Captures from the real SGLang 0.5.23 and vLLM 0.32.0 on the CPU: the planes are the boundaries of the ids that each server was given.

Needs `make sglang-env` and `make vllm-env`; what is missing is skipped.
"""

import json
import os
from pathlib import Path

import pytest

from eagle_forensics.acceptance.live import serve
from eagle_forensics.demo import servers
from eagle_forensics.demo.stage import DATA, sequences
from eagle_forensics.demo.target import DemoError, target_folder
from eagle_forensics.engines.returning import ONHOST
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import capturing
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.pairs import pair
from eagle_forensics.fingerprint.ranks import Agreement, by_rank, compare_ranks
from eagle_forensics.fingerprint.trained import capture_finding, trained_boundaries

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang-server"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
TRAINED = (2, 15, 27)
PROMPTS = [list(row.prompt_ids + row.gen_ids) for row in sequences()[::20]]
HAND_OUT = ("--enable-return-hidden-states", "--disable-radix-cache")


@pytest.fixture(scope="module")
def target():
    try:
        return read_target(target_folder())
    except DemoError as error:
        pytest.skip(f"the demo's target cannot be had: {error}")


def sglang(target, folder, ids, *more):
    python = servers.sglang_python(ROOT)
    if python is None:
        pytest.skip("no .venv-sglang here: `make sglang-env` makes it (2.8 GB, 2 minutes)")
    drafter = servers.with_ids(DATA / "drafter", ids, folder / "drafter")
    served = servers.sglang(python, target.path, drafter, dtype="bfloat16", extra=more)
    env = {**served.env, "PYTHONPATH": f"{served.env['PYTHONPATH']}:{ONHOST}"}
    return serve.serving(served.command, folder / "server.log", env=env)


def errors(found):
    """Relative error of every plane, and how many times as far the next boundary is, for the report of the run."""
    print([(s.equals.index if s.equals else None, round(s.match.error.value, 4), round(s.match.ratio, 1)) for s in found.slots])
    return [s.match.error.value for s in found.slots]


def test_sglang_hands_out_what_its_drafter_is_fed(target, tmp_path):
    """By the reply and by the hook on fc: the same states, the boundaries of the trained ids."""
    hooks = [{"name": "fed", "target_modules": ["model.fc", "model.embed_tokens"], "hook_factory": "fed_hook:factory", "config": {"folder": str(tmp_path / "fc"), "calls": 6, "min_rows": 16}}]
    with sglang(target, tmp_path, [1, 14, 26], *HAND_OUT, "--forward-hooks", json.dumps(hooks)) as server:
        done = capturing.capture(server.url, tmp_path / "fed", prompts=PROMPTS, hidden=target.hidden)
    found = capturing.identify_fed(done, target)
    assert trained_boundaries(found) == TRAINED and max(errors(found)) < THRESHOLDS["clean_error"]
    verdict = capture_finding(0, found, TRAINED, path_kind="eager")
    assert verdict.status is Status.PASS and "eager path only" in verdict.statement and "--disable-cuda-graph" in verdict.next_step
    hooked = read_capture(tmp_path / "fc", target.hidden)
    wanted = {tuple(p[:32]) for p in PROMPTS}
    hooked = [s for s in hooked if s.input_ids is not None and tuple(s.input_ids.tolist()) in wanted]
    assert len(hooked) == len(PROMPTS)
    both = pair(read_capture(done.folder, target.hidden), hooked)
    assert both.equal and max(e.value for e in both.estimates) == 0, "the reply holds what reaches fc, bit for bit"


def test_wrong_ids_show_in_the_capture(target, tmp_path):
    with sglang(target, tmp_path, [-1, 1, 14], *HAND_OUT) as server:
        done = capturing.capture(server.url, tmp_path / "fed", prompts=PROMPTS, hidden=target.hidden)
    found = capturing.identify_fed(done, target)
    assert trained_boundaries(found) == (0, 2, 15) and max(errors(found)) < THRESHOLDS["clean_error"]
    verdict = capture_finding(0, found, TRAINED, path_kind="eager")
    assert (verdict.status, verdict.fault) == (Status.FAIL, "wiring.layer-offset")


def test_vllm_writes_the_boundaries_of_its_ids_on_every_rank(target, tmp_path):
    """SGLang's spelling moved to vLLM unchanged: one boundary off. Three tensor-parallel ranks (gloo): the target has 9 heads and 3 of keys."""
    python, ranks = servers.vllm_python(ROOT), 3
    if python is None:
        pytest.skip("no .venv-vllm here: `make vllm-env` makes it (2.5 GB, 2 minutes)")
    spec = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}}
    connector = {"kv_connector": "EveryRankStates", "kv_connector_module_path": "vllm_states", "kv_role": "kv_producer",
                 "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "states")}}
    served = servers.vllm(python, target.path, dtype="bfloat16", extra=("--no-enable-prefix-caching", "--tensor-parallel-size", str(ranks), "--speculative-config", json.dumps(spec),
                                                                         "--kv-transfer-config", json.dumps(connector)))
    env = {**served.env, "PYTHONPATH": str(ONHOST), "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank % os.cpu_count()) for rank in range(ranks))}
    with serve.serving(served.command, tmp_path / "server.log", env=env) as server:
        done = capturing.capture(server.url, tmp_path / "fed", prompts=PROMPTS)
    found = capturing.identify_fed(done, target)
    assert trained_boundaries(found) == (1, 14, 26) and max(errors(found)) < THRESHOLDS["clean_error"]
    verdict = capture_finding(0, found, TRAINED, path_kind="eager")
    assert (verdict.status, verdict.fault) == (Status.FAIL, "wiring.layer-offset") and "-1 each" in verdict.statement
    results = compare_ranks(by_rank(read_capture(done.folder)), layers=target.layers)
    assert [r.agreement for r in results] == [Agreement.EQUAL] * 3 and results[0].ranks == (0, 1, 2)
