"""What stages, attention ranks and images keep from the drafter, by release and flags."""

import pytest

from eagle_forensics.config.handover import handover_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import DEEPSEEK_TARGET, GOOD_LAUNCH, LLAMA_TARGET, papers

VLLM = {"engine": "vllm", "place": "top", "ids": [2, 15, 27]}
SPEC = """--speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'"""
DP = f"{GOOD_LAUNCH} --tp 4 --dp-size 4 --enable-dp-attention"
V2 = {"SGLANG_ENABLE_SPEC_V2": "1"}
SEES = LLAMA_TARGET | {"vision_config": {"depth": 32}, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}}


def found(folder, **papers_of):
    return {f.id: f for f in handover_findings(inspect(papers(folder, **papers_of)))}


@pytest.mark.parametrize(("version", "stages", "status", "fault"), [
    ("0.28.0", 2, Status.FAIL, "feature.missing-stage"), ("0.18.1", 4, Status.FAIL, "feature.missing-stage"), ("0.30.0", 2, Status.PASS, None), ("0.32.0", 2, Status.PASS, None),
    ("0.99.0", 2, Status.PASS, None), ("0.16.0", 2, Status.INCONCLUSIVE, "feature.missing-stage")])
def test_pipeline_stages_of_vllm(tmp_path, version, stages, status, fault):
    item = found(tmp_path, version=version, launch=f"--model t --pipeline-parallel-size {stages} {SPEC}", **VLLM)["config.pipeline"]
    assert (item.status, item.fault, item.required) == (status, fault, True)
    if status is Status.FAIL:
        assert item.competitor.fault == "wiring.plane-count" and f"loses at least {{{'2' if stages == 2 else '2, 15'}}}" in item.statement and "0.30.0" in item.remedy


def test_one_stage_is_no_question(tmp_path):
    assert found(tmp_path, version="0.28.0", launch=f"--model t {SPEC}", **VLLM) == {}


def test_a_class_that_hands_nothing_on_is_refused_from_0_30(tmp_path):
    item = found(tmp_path, target=DEEPSEEK_TARGET, version="0.32.0", launch=f"--model t --pipeline-parallel-size 2 {SPEC}", **VLLM | {"ids": [3, 31, 59]})["config.pipeline"]
    assert (item.status, item.fault, item.competitor.fault) == (Status.FAIL, "args.refused", "feature.missing-stage")
    other = found(tmp_path, target=DEEPSEEK_TARGET | {"architectures": ["KimiK25ForConditionalGeneration"]}, version="0.32.0",
                  launch=f"--model t --pipeline-parallel-size 2 {SPEC}", **VLLM | {"ids": [3, 31, 59]})["config.pipeline"]
    assert other.status is Status.INCONCLUSIVE and other.required


def test_a_target_that_names_no_class_is_not_said_to_be_refused(tmp_path):
    item = found(tmp_path, target={k: v for k, v in LLAMA_TARGET.items() if k != "architectures"}, version="0.32.0", launch=f"--model t --pipeline-parallel-size 2 {SPEC}", **VLLM)["config.pipeline"]
    assert item.status is Status.INCONCLUSIVE and item.fault == "feature.missing-stage"


def test_a_split_by_hand_is_not_guessed(tmp_path):
    assert found(tmp_path, version="0.28.0", launch=f"--model t --pipeline-parallel-size 2 {SPEC}", env={"VLLM_PP_LAYER_PARTITION": "2,28"}, **VLLM) == {}


def test_states_of_the_last_stage_alone_are_not_lost(tmp_path):
    item = found(tmp_path, version="0.28.0", launch=f"--model t --pipeline-parallel-size 2 {SPEC}", **VLLM | {"ids": [20, 24, 27]})["config.pipeline"]
    assert item.status is not Status.FAIL


@pytest.mark.parametrize(("version", "env", "flags", "status"), [
    ("0.5.7", V2, "", Status.FAIL), ("0.5.8", V2, "", Status.PASS), ("0.5.7", {}, "", Status.PASS), ("0.5.6", V2, "", Status.PASS), ("0.5.23", None, "", Status.PASS)])
def test_dp_attention_of_the_second_worker(tmp_path, version, env, flags, status):
    item = found(tmp_path, version=version, env=env, launch=DP + flags)["config.dp-attention"]
    assert item.status is status
    if status is Status.FAIL:
        assert item.fault == "runtime.dp-attention" and item.competitor.fault == "wiring.plane-count" and "0.5.8" in item.remedy


@pytest.mark.parametrize(("version", "flags", "target", "status"), [
    ("0.5.9", " --moe-a2a-backend deepep", DEEPSEEK_TARGET, Status.FAIL), ("0.5.10", " --moe-a2a-backend deepep", DEEPSEEK_TARGET, Status.PASS),
    ("0.5.9", " --moe-a2a-backend none", DEEPSEEK_TARGET, Status.PASS), ("0.5.9", " --moe-a2a-backend deepep", LLAMA_TARGET, Status.PASS)])
def test_dp_attention_with_an_expert_all_to_all(tmp_path, version, flags, target, status):
    assert found(tmp_path, version=version, launch=DP + flags, target=target)["config.dp-attention"].status is status


@pytest.mark.parametrize("version", ["0.5.8.post9", "0.6.7"])
def test_a_release_that_was_not_read_is_not_said_to_lose_nothing(tmp_path, version):
    assert found(tmp_path / "a", version="0.5.23", launch=DP)["config.dp-attention"].status is Status.PASS
    for item in (found(tmp_path / "b", version=version, launch=DP)["config.dp-attention"],
                 found(tmp_path / "c", version="0.6.7", target=SEES, draft={"rope_scaling": SEES["rope_scaling"]})["config.images"]):
        assert item.status is Status.INCONCLUSIVE and not item.required and item.fault is None and "was not read" in item.statement and item.next_step


def test_one_attention_rank_is_none(tmp_path):
    assert found(tmp_path, version="0.5.7", env=V2, launch=f"{GOOD_LAUNCH} --enable-dp-attention") == {}


@pytest.mark.parametrize(("version", "draft", "status", "required"), [
    ("0.5.9", {}, Status.INCONCLUSIVE, True), ("0.5.10", {}, Status.INCONCLUSIVE, False), ("0.5.23", {"rope_scaling": SEES["rope_scaling"]}, Status.PASS, True)])
def test_images(tmp_path, version, draft, status, required):
    item = found(tmp_path, version=version, target=SEES, draft=draft)["config.images"]
    assert (item.status, item.required) == (status, required) and (status is Status.PASS or item.fault == "runtime.multimodal")


def test_a_target_without_eyes(tmp_path):
    assert found(tmp_path, version="0.5.9") == {}


def test_another_algorithm_is_no_question(tmp_path):
    assert found(tmp_path, version="0.5.7", env=V2, launch=DP.replace("EAGLE3", "EAGLE")) == {}
