"""Rotation: accused only where engine and trainer would rotate differently; another base than the target's is no fault."""

import pytest

from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.rotary import rope_frame, rotary_findings
from eagle_forensics.finding import Status
from tests.config.papers import GOOD_LAUNCH, LLAMA_TARGET, papers

NEW = {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}


def one(case, id="config.rope"):
    return next(f for f in rotary_findings(inspect(case)) if f.id == id)


def test_the_trainer_rotates_the_whole_head_and_the_engine_a_quarter(tmp_path):
    """Known case A10: 256 dimensions against 64; theta has nothing to do with it."""
    partial = {"head_dim": 256, "rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    target = LLAMA_TARGET | {"head_dim": 256, "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    case = papers(tmp_path, target=target, draft=partial, engine="vllm", version="0.24.0", launch=None, trainer=("speculators", "0.5.0"))
    item = one(case)
    assert item.fault == "drafter.rope" and "256 dimensions against 64" in item.statement
    assert item.competitor.fault == "another theta" and "partial_rotary_factor to 1" in item.remedy
    fixed = papers(tmp_path / "fixed", target=target, draft=partial, engine="vllm", version="0.24.0", launch=None, trainer=("speculators", "0.8.0"))
    assert one(fixed).status is Status.PASS, "0.8.0 drops the factor: what its config says is what it trained"


@pytest.mark.parametrize(("version", "status"), [("0.5.9", Status.FAIL), ("0.5.12", Status.PASS), ("0.5.23", Status.PASS)])
def test_a_new_style_config_loses_its_base_on_an_old_release(tmp_path, version, status):
    item = one(papers(tmp_path, draft=NEW, version=version))
    assert item.status is status
    if status is Status.FAIL:
        assert "theta 10000" in item.observed and "rope_theta: 500000" in item.remedy


def test_the_eagle_trainer_ignores_the_base(tmp_path):
    assert one(papers(tmp_path / "a", trainer=("eagle", "1"), draft={"rope_theta": 500000.0})).fault == "drafter.rope"
    assert one(papers(tmp_path / "b", trainer=("eagle", "1"), draft={"rope_theta": ...})).status is Status.PASS


@pytest.mark.parametrize("draft", [{"rope_theta": 10000.0}, {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}}, NEW])
def test_another_base_than_the_target_is_no_fault(tmp_path, draft):
    item = one(papers(tmp_path, draft=draft))
    assert item.status is Status.PASS and "may differ" in item.statement


def test_a_scaling_written_at_export_is_not_an_accusation(tmp_path):
    case = papers(tmp_path, trainer=("modelopt", "0.47.0"), layer_ids=None, draft={"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}})
    item = one(case)
    assert item.status is Status.INCONCLUSIVE and item.fault == "drafter.rope" and not item.required


def test_a_scaling_without_its_numbers_is_undecided_only_if_the_sides_differ(tmp_path):
    broken = {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}
    assert one(papers(tmp_path / "a", draft=broken)).status is Status.PASS
    assert one(papers(tmp_path / "b", draft=broken | {"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5, "rope_type": "longrope"}}, version="0.5.9")).status is Status.INCONCLUSIVE


def test_short_drafts_are_a_hazard_by_length_not_a_fault(tmp_path):
    item = one(papers(tmp_path / "a", launch=GOOD_LAUNCH + " --context-length 20480"), "config.context")
    assert item.status is Status.INCONCLUSIVE and item.fault == "drafter.rope" and (item.observed, item.expected) == (2048, 20480)
    assert one(papers(tmp_path / "b", launch=GOOD_LAUNCH + " --context-length 2048"), "config.context").status is Status.PASS
    assert one(papers(tmp_path / "c"), "config.context").status is Status.SKIPPED


def test_both_sides_stand_in_the_table(tmp_path):
    frame = rope_frame(inspect(papers(tmp_path, draft=NEW, version="0.5.9")))
    assert list(frame["theta"]) == ["100000", "500000", "10000"]
    assert frame["rotated of head"].iloc[1] == "4 of 4"
