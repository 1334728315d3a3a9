"""Notebook 01's findings on layers and arguments: the right fault, the right list to write, no accusation without a claim."""

import pytest

from eagle_forensics.config.checks import argument_findings, boundary_findings, problem_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import DEEPSEEK_TARGET, papers


def one(findings, id):
    return next(f for f in findings if f.id == id)


def test_a_healthy_case_passes(tmp_path):
    found = inspect(papers(tmp_path))
    item = one(boundary_findings(found), "config.served-boundaries")
    assert item.status is Status.PASS and item.expected == [2, 15, 27]
    assert {f.status for f in argument_findings(found)} == {Status.PASS}
    assert not problem_findings(found)


def test_the_same_spelling_on_vllm_is_one_layer_early(tmp_path):
    found = inspect(papers(tmp_path, engine="vllm", version="0.32.0", env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
                           launch="--speculative-config '{\"method\": \"eagle3\", \"num_speculative_tokens\": 3}'"))
    item = one(boundary_findings(found), "config.served-boundaries")
    assert item.fault == "wiring.layer-offset" and item.observed["eager"] == [1, 14, 26]
    assert "1 boundary earlier" in item.statement
    edit = item.edits[0]
    assert (edit.file, edit.key, edit.value) == ("drafter/config.json", "eagle_aux_hidden_state_layer_ids", [2, 15, 27])


def test_vllms_v2_runner_does_not_read_the_nested_list(tmp_path):
    found = inspect(papers(tmp_path, engine="vllm", version="0.33.0", ids=[4, 10, 20], launch=None, layer_ids=[4, 10, 20, 29]))
    item = one(boundary_findings(found), "config.served-boundaries")
    assert item.fault == "wiring.ids-ignored" and item.observed["eager"] == [2, 15, 27]


@pytest.mark.parametrize(("version", "fault", "eager", "write"), [
    ("0.5.8", "wiring.graph-default-layers", [3, 31, 59], None), ("0.5.12.post1", None, [3, 31, 59], None),
    ("0.5.13", "wiring.layer-offset", [2, 30, 58], [3, 31, 59]), ("0.5.23", "wiring.layer-offset", [2, 30, 58], [3, 31, 59]),
])
def test_one_config_three_verdicts_by_version(tmp_path, version, fault, eager, write):
    """Known case A03: ids [2, 30, 58], trained on the outputs of layers 2, 30, 58."""
    found = inspect(papers(tmp_path, target=DEEPSEEK_TARGET, ids=[2, 30, 58], version=version, layer_ids=[2, 30, 58, 60]))
    item = one(boundary_findings(found), "config.served-boundaries")
    assert item.fault == fault and item.expected == [3, 31, 59]
    assert item.observed["eager"] == eager
    assert [e.value for e in item.edits] == ([write] if write else [])


def test_graphs_switched_off_clear_the_graph_fault(tmp_path):
    from tests.config.papers import GOOD_LAUNCH

    found = inspect(papers(tmp_path, target=DEEPSEEK_TARGET, ids=[2, 30, 58], version="0.5.8", layer_ids=[2, 30, 58, 60], launch=GOOD_LAUNCH + " --disable-cuda-graph"))
    assert one(boundary_findings(found), "config.served-boundaries").status is Status.PASS


def test_the_id_minus_one_loses_a_plane_from_0_5_13_on(tmp_path):
    """Known case A04."""
    found = inspect(papers(tmp_path, target=DEEPSEEK_TARGET, ids=[-1, 2, 30], version="0.5.13", layer_ids=[2, 30, 58, 60]))
    assert one(boundary_findings(found), "config.captured").fault == "wiring.plane-count"


def test_labels_alone_accuse_nobody(tmp_path):
    case = papers(tmp_path, layer_ids=None, ids=[-1, 1, 14])
    items = boundary_findings(inspect(case))
    assert [(f.status, f.required) for f in items] == [(Status.INCONCLUSIVE, True)], "the question that matters is open: no PASS"
    assert "training.layer_ids" in items[0].next_step


def test_without_an_engine_the_question_is_skipped(tmp_path):
    case = papers(tmp_path)
    bare = case.model_copy(update={"serving": case.serving.model_copy(update={"engine": None})})
    assert [f.status for f in boundary_findings(inspect(bare))] == [Status.SKIPPED]


def test_sixteen_asked_two_made(tmp_path):
    """Known case A01."""
    launch = "--speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
    item = one(argument_findings(inspect(papers(tmp_path, version="0.5.8", launch=launch))), "config.draft-budget")
    assert item.fault == "args.draft-budget-overridden" and (item.observed, item.expected) == (2, 16)
    assert "exceed 2" in item.statement and "--speculative-num-steps 15" in item.remedy


def test_eagle_with_an_eagle3_head(tmp_path):
    from tests.evidence import builders

    launch = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    found = inspect(papers(tmp_path, launch=launch, weights=builders.head()))
    assert one(argument_findings(found), "config.algorithm").fault == "args.algorithm-mismatch"


def test_arguments_the_engine_refuses_are_quoted(tmp_path):
    found = inspect(papers(tmp_path, launch="--speculative-algorithm EAGLE3 --speculative-num-steps 3"))
    item = one(argument_findings(found), "config.arguments")
    assert item.status is Status.FAIL and "TypeError" in item.statement and item.fault == "args.refused"


@pytest.mark.parametrize(("line", "fault", "words"), [
    ("--speculative-num-steps abc", "args.refused", "argument --speculative-num-steps: invalid int value: 'abc'"),
    ("--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 16", "args.tree-capacity", "6 nodes"),
])
def test_a_wrong_value_is_no_tree_that_does_not_fit(tmp_path, line, fault, words):
    item = one(argument_findings(inspect(papers(tmp_path, launch=f"--speculative-algorithm EAGLE3 {line}"))), "config.arguments")
    assert item.fault == fault and words in item.statement


@pytest.mark.parametrize(("break_it", "key"), [
    (lambda d: (d / "drafter" / "config.json").write_text("[1, 2]"), "drafter.path"),
    (lambda d: (d / "target" / "config.json").unlink(), "target.path"),
])
def test_unreadable_evidence_is_an_error_of_its_own(tmp_path, break_it, key):
    case = papers(tmp_path)
    break_it(tmp_path)
    found = inspect(case)
    items = problem_findings(found)
    assert [f.status for f in items] == [Status.ERROR] and key in items[0].question
    assert str(tmp_path) in items[0].statement


def test_ids_that_are_no_layers_are_bad_input_not_an_accusation(tmp_path):
    found = inspect(papers(tmp_path, layer_ids=[10**30, -5]))
    assert "training.layer_ids" in found.problems and found.trained is None
    assert not [f for f in boundary_findings(found) if f.status is Status.FAIL]


def test_values_that_only_the_shell_knows_accuse_nobody(tmp_path):
    from tests.config.papers import GOOD_LAUNCH

    found = inspect(papers(tmp_path, launch=f"--tp $(nproc) --port $PORT {GOOD_LAUNCH}"))
    assert {f.status for f in argument_findings(found)} == {Status.PASS}
    assert any("$" in note for note in found.launch.notes)


def test_a_version_that_is_none_is_one_error(tmp_path):
    found = inspect(papers(tmp_path, version="banana"))
    assert list(found.problems) == ["serving.version"] and "banana" in found.problems["serving.version"]
    assert found.served is None and found.arguments is None


@pytest.mark.parametrize(("ids", "served"), [("[2, 15, 27]", (3, 16, 28)), (None, (2, 15, 27))])
def test_tensorrt_llm_takes_its_ids_from_the_launch(tmp_path, ids, served):
    spec = '{"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "drafter"' + (f', "eagle3_layers_to_capture": {ids}' if ids else "") + "}"
    found = inspect(papers(tmp_path, engine="trtllm", version="1.4.0rc4", launch=f"--speculative_config '{spec}'", ids=[5, 6, 7]))
    assert found.served.boundaries["eager"] == served and found.arguments.error is None


@pytest.mark.parametrize(("engine", "version", "launch", "status"), [
    ("vllm", "0.32.0", "--model t --speculative-algorithm EAGLE3 --speculative-num-steps 3", Status.INCONCLUSIVE),
    ("sglang", "0.5.23", "--model t --speculative-config '{\"method\": \"eagle3\", \"num_speculative_tokens\": 3}'", Status.INCONCLUSIVE),
    ("vllm", "0.32.0", "--model t --speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3", Status.PASS),
    ("sglang", "0.5.23", "--model-path t", Status.PASS)])
def test_a_launch_line_of_another_engine_takes_no_effect(tmp_path, engine, version, launch, status):
    found = argument_findings(inspect(papers(tmp_path, engine=engine, version=version, launch=launch)))
    assert {f.status for f in found} == {status}
    assert engine == "sglang" or status is Status.INCONCLUSIVE or "steps 3" in one(found, "config.draft-budget").statement
