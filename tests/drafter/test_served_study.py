"""When the served text is walked at all, on how much of it, and what is said where it is not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from eagle_forensics.case import Case
from eagle_forensics.drafter.served import study
from eagle_forensics.evidence.answers import ServedAnswer, ServedAnswers
from eagle_forensics.finding import Status
from tests.evidence.test_answers import ABOUT, answer, folder

BARE = Case.model_validate({"name": "bare"})
RECORDS = {"layers": None, "predicted": None}


def said(path, about=ABOUT, **more):
    text = study.walk(BARE, path, answers=folder(path / "live", about=about, answers=[answer("a")], **more), **RECORDS)
    return study.findings(text)[0]


@pytest.mark.parametrize(("change", "words"), [
    ({"temperature": 0.7}, "sampled at temperature 0.7"), ({"adaptive": True}, "changes its number of steps by itself"), ({"steps": None}, "does not say how many steps"),
    ({"topk": 4, "draft_tokens": None}, "does not say of how many tokens"), ({}, "the case names no drafter")])
def test_what_cannot_be_walked_is_skipped_with_its_reason(tmp_path, change, words):
    found = said(tmp_path, ABOUT | change)
    assert found.status is Status.SKIPPED and words in found.statement and not found.required


def test_without_answers_nothing_is_said_and_a_named_folder_without_them_is_an_error(tmp_path):
    nothing = study.walk(BARE, tmp_path, **RECORDS)
    assert study.findings(nothing) == [] and study.table(nothing) is None is study.reproduced(nothing) and study.record(nothing) == {}
    found = study.findings(study.walk(BARE, tmp_path, answers=tmp_path, **RECORDS))[0]
    assert found.status is Status.ERROR and "holds no answers of a live measurement" in found.statement


def test_broken_answers_are_an_error_of_one_line(tmp_path):
    found = said(tmp_path, about="{")
    assert found.status is Status.ERROR and "served.json" in found.statement


def served(n, constrained=(), **more):
    answers = tuple(ServedAnswer(f"a{i}", (1,) * 10, (2,) * 30, 9, i in constrained) for i in range(n))
    return ServedAnswers(None, answers, (), "sglang", "0.5.23", **({"dtype": "float32", "steps": 3, "topk": 1, "draft_tokens": 4, "temperature": 0.0, "adaptive": False} | more))


def target(size, dtype="bfloat16"):
    return SimpleNamespace(tensors={"layers.0.w": SimpleNamespace(shape=(size,)), "embed_tokens.weight": SimpleNamespace(shape=(10 ** 12,))}, config={"torch_dtype": dtype})


def test_answers_are_spread_and_what_is_left_out_is_counted():
    chosen, out = study._chosen(served(48, constrained=(0, 1)), target(1000), 1e6)
    assert len(chosen) == study.MOST and chosen[0].prompt == "a2" and chosen[-1].prompt == "a45"
    assert out == ("2 constrained by a grammar", "30 of 46 answers, to keep it short")


def test_a_large_target_is_walked_on_fewer_answers_or_on_none():
    chosen, out = study._chosen(served(20), target(5 * 10 ** 9), 1e6)
    assert 0 < len(chosen) < study.MOST and "to keep it short" in out[0]
    one_long = replace(served(4), answers=(ServedAnswer("long", (1,) * 10 ** 6, (2,) * 30, 9), *served(3).answers))
    assert [a.prompt for a in study._chosen(one_long, target(5 * 10 ** 6), 1e6)[0]] == ["a0", "a1", "a2"], "one that is too long keeps no other out"
    with pytest.raises(ValueError, match="takes more than 4e"):
        study._chosen(served(20), target(10 ** 13), 1e6)


def test_the_servers_dtype_follows_the_engines_rule():
    assert study._dtype(served(1), target(1), {}) == "float32"
    assert study._dtype(served(1, dtype="auto"), target(1), {}) == "bfloat16" and study._dtype(served(1, dtype="auto"), target(1, "float32"), {}) == "float16"
    assert study._dtype(served(1, dtype=None), target(1), {"dtype": "float32"}) == "float32"
