"""What follows from the launch line: paths, units, limits, hazards; a hazard is never an accusation."""

import pytest

from eagle_forensics.config.checks import argument_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.launching import launching_findings, upgrade_findings
from eagle_forensics.finding import Status
from tests.config.papers import DEEPSEEK_TARGET, GOOD_LAUNCH, papers
from tests.evidence import builders

KIMI = DEEPSEEK_TARGET | {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}


def findings(folder, **papers_of):
    return {f.id: f for f in launching_findings(inspect(papers(folder, **papers_of)))}


@pytest.mark.parametrize(("flags", "status"), [
    ("--model-path /m --speculative-draft-model-path /m", Status.FAIL), ("--model-path /m", Status.FAIL), ("--model-path /m --speculative-draft-model-path /d", Status.PASS)])
def test_the_drafters_path(tmp_path, flags, status):
    item = findings(tmp_path, launch=f"{GOOD_LAUNCH} {flags}")["config.draft-path"]
    assert item.status is status and (status is Status.PASS or item.fault == "args.algorithm-mismatch")


def test_an_excerpt_without_paths_says_nothing_about_paths(tmp_path):
    assert "config.draft-path" not in findings(tmp_path)


def test_one_folder_as_target_and_drafter(tmp_path):
    case = papers(tmp_path)
    same = case.model_copy(update={"drafter": case.target})
    assert {f.id: f.fault for f in launching_findings(inspect(same))}["config.draft-path"] == "args.algorithm-mismatch"


def test_vllm_takes_an_unnamed_method_for_a_draft_model(tmp_path):
    launch = "--speculative-config '{\"model\": \"./drafter\", \"num_speculative_tokens\": 3}'"
    found = inspect(papers(tmp_path, engine="vllm", version="0.33.0", launch=launch, weights=builders.head(), draft={"architectures": ["LlamaForCausalLM"]}))
    item = next(f for f in argument_findings(found) if f.id == "config.algorithm")
    assert item.fault == "args.algorithm-mismatch" and "method" in item.remedy


def runs(*rows: str) -> str:
    return "label,engine,draft_tokens,accept_length,concurrency\n" + "\n".join(rows) + "\n"


@pytest.mark.parametrize(("rows", "status"), [
    (("a,sglang,4,2.0,1", "b,vllm,4,2.2,1"), Status.FAIL), (("a,sglang,4,2.0,1", "b,vllm,3,2.0,1"), Status.PASS)])
def test_units_across_engines(tmp_path, rows, status):
    item = findings(tmp_path, measurements=runs(*rows))["config.units"]
    assert item.status is status
    if status is Status.FAIL:
        assert item.fault == "args.unit-confusion" and "K = [3] in SGLang and K = [4] in vLLM" in item.statement and item.competitor.fault == "measure.definition"


def test_one_engine_has_no_units_to_confuse(tmp_path):
    assert "config.units" not in findings(tmp_path, measurements=runs("a,sglang,4,2.0,1"))


@pytest.mark.parametrize(("version", "capability", "flags", "status"), [
    ("0.5.10", "9.0", "--tp 8", Status.INCONCLUSIVE), ("0.5.10", "12.0", "--tp 8", Status.PASS), ("0.5.10", "9.0", "--tp 1", Status.PASS), ("0.5.14", "9.0", "--tp 8", Status.PASS),
    ("0.5.10", None, "--tp 8", Status.INCONCLUSIVE)])
def test_fused_all_reduce_is_a_hazard_with_its_test(tmp_path, version, capability, flags, status):
    item = findings(tmp_path, target=KIMI, version=version, launch=f"{GOOD_LAUNCH} {flags}", serving={"hardware": {"compute_capability": capability}})["config.fused-all-reduce"]
    assert item.status is status
    if status is Status.INCONCLUSIVE:
        assert item.fault == "feature.partial-sum" and item.required is (capability is not None) and "enforce-disable" in item.next_step


def test_the_upgrade_hazard_is_its_own_finding(tmp_path):
    right = upgrade_findings(inspect(papers(tmp_path / "a", target=KIMI, ids=[2, 30, 58], version="0.5.12.post1", layer_ids=[2, 30, 58, 60])))[0]
    assert right.status is Status.INCONCLUSIVE and not right.required
    assert "{3, 31, 59} today (right)" in right.statement and "0.5.13" in right.statement and "[2, 30, 58]" in right.statement
    new = upgrade_findings(inspect(papers(tmp_path / "b", target=KIMI, ids=[3, 31, 59], version="0.5.13", layer_ids=[2, 30, 58, 60])))[0]
    assert new.status is Status.PASS and "no release" in new.statement
