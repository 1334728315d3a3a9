"""A live server that says what cannot be: nothing of it becomes a figure, ends the run with a traceback, or takes minutes."""

import json
import time

import pytest

from eagle_forensics.acceptance.clients.counters import from_fields, reached_of
from eagle_forensics.acceptance.clients.sglang import FIELDS
from eagle_forensics.acceptance.live import frames, study
from eagle_forensics.acceptance.live.workload import read_prompts
from eagle_forensics.case import Case
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.transport import KEY_VARIABLE

from .pretend import Handler, Pretend, pretending

NAN, INF = float("nan"), float("inf")


def measured(folder, prompts=2, **what):
    """A whole measurement against such a server, its findings and tables."""
    rows = [{"id": f"p{i}", "input_ids": [1, 2, 10 + i]} for i in range(prompts)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pretending(**what) as (url, _):
        case = Case.model_validate({"name": "x", "serving": {"url": url}})
        work = study.begin(case, folder / "live", prompts=folder / "prompts.jsonl", warm_up=0, half_width=0, progress=None)
    found = [*study.measured(work), *study.reconciled(work), *study.told_apart(work)]
    for make in (frames.definitions_frame, frames.positions_frame, frames.domains_frame, frames.as_run):
        make(work.speculation)
    json.dumps(study.record(work))
    return work.speculation, found[0]


@pytest.mark.parametrize("meta", [
    {"spec_num_correct_drafts": INF}, {"spec_num_correct_drafts": "25"}, {"spec_verify_ct": True, "spec_correct_drafts_histogram": None}, {"spec_verify_ct": 10**400},
    {"spec_verify_ct": 500, "spec_num_proposed_drafts": 1500}, {"spec_correct_drafts_histogram": "abc"}, {"spec_correct_drafts_histogram": [20, -1]},
    {"spec_num_correct_drafts": 900, "spec_num_proposed_drafts": None, "spec_correct_drafts_histogram": None}])
def test_impossible_counts_are_no_accept_length(tmp_path, meta):
    m, finding = measured(tmp_path, meta=meta)
    assert m.accept_length is None and finding.status.name == "INCONCLUSIVE"
    assert any("count" in p for p in m.problems)


def test_more_positions_than_the_servers_own_steps_are_no_accept_length(tmp_path):
    m, _ = measured(tmp_path, steps=1)
    assert m.accept_length is None and any("of at most 2" in p for p in m.problems)


def test_steps_that_change_by_themselves_rule_nothing_out(tmp_path):
    assert measured(tmp_path, steps=1, arguments={"speculative_adaptive": True})[0].accept_length is not None


@pytest.mark.parametrize("meta", [{"completion_tokens": v} for v in ("60", [1], -60, NAN, 10**400)] + [{"prompt_tokens": [3]}, {"cached_tokens": "x"}, {"finish_reason": {"type": [1]}}])
def test_other_fields_that_are_no_counts_are_left_out(tmp_path, meta):
    m, _ = measured(tmp_path, meta=meta)
    assert len(m.good) == 2 and m.accept_length is not None


@pytest.mark.parametrize("ids", [[[1]] * 60, ["a"] * 60, [NAN] * 60, [-1] * 60, {"a": 1}])
def test_ids_that_are_none_are_left_out(tmp_path, ids):
    m, _ = measured(tmp_path, last={"output_ids": ids})
    assert [a.output_ids for a in m.answers] == [None, None] and m.accept_length is not None


def test_an_answer_far_longer_than_asked_for_is_refused(tmp_path):
    m, _ = measured(tmp_path, last={"output_ids": list(range(5000))})
    assert not m.good and "5000 tokens came where at most 128" in m.answers[0].error


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_half_a_character_neither_loses_the_measurement_nor_the_kept_answers(tmp_path, engine):
    m, _ = measured(tmp_path, engine=engine, last={"text": "\ud800 half"})
    assert len(m.good) == 2 and "half" in (tmp_path / "live" / "answers_speculation.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("last, meta", [({"text": [5]}, {}), ({"token_ids": "abc"}, {}), ({"finish_reason": [1]}, {}), ({}, {"usage": [1]}), ({}, {"metrics": {"speculative_decoding": 5}}),
                                        ({}, {"usage": {"prompt_tokens_details": [1], "completion_tokens": "x"}})])
def test_events_of_vllm_with_other_types_end_no_run(tmp_path, last, meta):
    measured(tmp_path, engine="vllm", last=last, meta=meta)


@pytest.mark.parametrize("said", [{"speculative_num_steps": "3"}, {"speculative_num_steps": [3]}, {"version": [1]}, {"speculative_num_draft_tokens": "x"}])
def test_a_server_that_describes_itself_in_other_types_is_measured(tmp_path, said):
    assert measured(tmp_path, arguments=said)[0].accept_length is not None


def test_arguments_nested_without_end_are_cut(tmp_path):
    deep = {}
    for _ in range(400):
        deep = {"a": deep}
    assert measured(tmp_path, arguments={"x": deep})[0].accept_length is not None


def test_no_algorithm_is_no_speculation(tmp_path):
    for i, said in enumerate((False, "", "NONE")):
        (folder := tmp_path / str(i)).mkdir()
        assert measured(folder, arguments={"speculative_algorithm": said})[1].status.name == "SKIPPED"


def test_a_drafter_that_never_hits_has_an_accept_length_of_one(tmp_path):
    m, _ = measured(tmp_path, meta={"spec_verify_ct": 59, "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": 177, "spec_correct_drafts_histogram": [59]})
    assert m.accept_length.value == 1.0


def test_a_histogram_without_end_is_read_in_one_pass():
    began = time.perf_counter()
    assert reached_of([3, 2, 1]) == (3, 1)
    from_fields({"spec_verify_ct": 3, "spec_num_correct_drafts": 2, "spec_correct_drafts_histogram": [2, 0, 1] + [0] * 200_000}, FIELDS, "x")
    assert time.perf_counter() - began < 2


def test_a_server_that_echoes_the_key_it_was_sent_does_not_get_it_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-my-own-key")
    measured(tmp_path, last={"text": "you sent sk-my-own-key", "meta_info": {"finish_reason": None}})
    measured(tmp_path, last={"text": "you sent sk-my-own-key"})
    kept = "".join(p.read_text(encoding="utf-8") for p in (tmp_path / "live").iterdir())
    assert "sk-my-own-key" not in kept and "you sent" in kept


@pytest.mark.parametrize("field", ['"temperature": NaN', '"temperature": Infinity', '"temperature": -1', '"temperature": true', f'"temperature": 1{"0" * 400}', '"max_tokens": -5', '"max_tokens": true',
                                   '"max_tokens": 99999999999', '"max_tokens": "8"', '"temperature": "hot"'])
def test_a_prompt_with_settings_that_no_server_takes_is_named(tmp_path, field):
    (tmp_path / "p.jsonl").write_text('{"input_ids": [1], ' + field + "}\n")
    with pytest.raises(EvidenceError, match="line 1"):
        read_prompts(tmp_path / "p.jsonl")


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(b'\xef\xbb\xbf{"input_ids": [1]}\n')
    assert read_prompts(tmp_path / "p.jsonl")[0].ids == (1,)


@pytest.mark.parametrize("given", [{"temperature": (NAN,)}, {"temperature": (INF,)}, {"max_tokens": 0}, {"limit": -1}, {"half_width": NAN}, {"half_width": -1.0}, {"prompt_lengths": (8, 10**10)}])
def test_parameters_outside_their_range_are_refused_in_words(tmp_path, given):
    (tmp_path / "p.jsonl").write_text('{"input_ids": [1]}\n')
    case = Case.model_validate({"name": "x", "serving": {"url": "http://127.0.0.1:9"}})
    work = study.begin(case, tmp_path / "live", prompts=tmp_path / "p.jsonl", progress=None, **given)
    assert "expected" in work.opening[0].statement


class Standing(list):
    """Counters that no answer moves."""

    def __setitem__(self, at, value):
        pass


def test_counters_that_do_not_move_are_no_accept_length(tmp_path, monkeypatch):
    monkeypatch.setattr(Pretend, "histogram", lambda self, ids: [0, 0, 0, 0])
    m, finding = measured(tmp_path, engine="vllm")
    assert m.counted.rounds == 0 and m.accept_length is None and finding.status.name == "INCONCLUSIVE"


def test_counters_of_vllm_that_contradict_each_other_are_left_out(tmp_path):
    m, _ = measured(tmp_path, engine="vllm", reached=Standing([0, 0, 0]))
    assert m.accept_length is None and any("the running counters contradict" in p for p in m.problems)


def test_metrics_that_are_none_are_said_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(Handler, "metrics", lambda self: "vllm:spec_decode_num_drafts_total{ 5\n")
    (tmp_path / "p.jsonl").write_text('{"input_ids": [1]}\n')
    with pretending(engine="vllm") as (url, _):
        work = study.begin(Case.model_validate({"name": "x", "serving": {"url": url}}), tmp_path / "live", prompts=tmp_path / "p.jsonl", progress=None)
    assert "/metrics is not in the format" in work.opening[0].statement
