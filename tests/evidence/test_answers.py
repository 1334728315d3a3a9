"""Answers that a measurement left: read back whole, and named where they are of another form."""

import json

import pytest

from eagle_forensics.evidence.answers import read_answers
from eagle_forensics.evidence.records import EvidenceError

ABOUT = {"engine": "sglang", "version": "0.5.23", "dtype": "float32", "steps": 3, "topk": 1, "draft_tokens": 4, "temperature": 0.0}


def folder(tmp_path, *, about=ABOUT, answers=(), prompts=({"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [3], "json_schema": "{}"})):
    tmp_path.mkdir(exist_ok=True)
    for name, rows in (("prompts.jsonl", prompts), ("answers_speculation.jsonl", answers)):
        (tmp_path / name).write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    (tmp_path / "served.json").write_text(about if isinstance(about, str) else json.dumps(about))
    return tmp_path


def answer(prompt, **more):
    return {"prompt": prompt, "output_ids": [5, 6, 7], "completion_tokens": 3, "acceptance": {"rounds": 2}} | more


def test_answers_are_joined_with_their_prompts(tmp_path):
    found = read_answers(folder(tmp_path, answers=[answer("a"), answer("b")]))
    assert [(a.prompt, a.prompt_ids, a.output_ids, a.rounds, a.constrained) for a in found.answers] == [("a", (1, 2), (5, 6, 7), 2, False), ("b", (3,), (5, 6, 7), 2, True)]
    assert (found.engine, found.dtype, found.steps, found.topk, found.draft_tokens, found.temperature, found.adaptive) == ("sglang", "float32", 3, 1, 4, 0.0, False)


def test_a_run_folder_leads_to_its_measurement(tmp_path):
    folder_of_run = tmp_path / "evidence"
    folder_of_run.mkdir()
    folder(folder_of_run / "04_live", answers=[answer("a")])
    assert len(read_answers(tmp_path).answers) == 1
    assert read_answers(tmp_path / "nothing") is None


def test_answers_that_cannot_be_walked_are_named(tmp_path):
    found = read_answers(folder(tmp_path, answers=[answer("a", error="500"), answer("x"), answer("a", output_ids=None), answer("a", acceptance=None), answer("a", completion_tokens=9)]))
    assert not found.answers and [r.partition(": ")[2] for r in found.left_out] == [
        "the answer failed", "prompts.jsonl holds no token ids of its prompt", "the server gave no token ids", "the server gave no count of its rounds", "9 tokens counted, 3 given"]


@pytest.mark.parametrize("change, message", [({"about": "{"}, "served.json, line 1: expected a JSON object"), ({"about": {"engine": "sglang"}}, "expected `engine` and `temperature`"),
                                             ({"answers": ["[1]"]}, "answers_speculation.jsonl, line 1"), ({"answers": [answer("a")], "prompts": ["nope"]}, "prompts.jsonl, line 1")])
def test_another_form_is_refused_by_file_and_line(tmp_path, change, message):
    with pytest.raises(EvidenceError, match=message):
        read_answers(folder(tmp_path, **change))
