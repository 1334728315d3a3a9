"""Tokenizers by what their ids mean, not by bytes; ids in a config are only noted."""

import json

from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.tokens import tokenizer_findings
from eagle_forensics.finding import Status
from tests.config.papers import LLAMA_TARGET, papers

WORDS = {"a": 0, "b": 1, "c": 2}


def finding(folder, ours=None, theirs=None, **papers_of):
    case = papers(folder, **papers_of)
    for name, content in (("drafter", ours), ("target", theirs)):
        if content is not None:
            (folder / name / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return tokenizer_findings(inspect(case))[0]


def test_the_same_ids_in_other_bytes_are_the_same_tokenizer(tmp_path):
    item = finding(tmp_path, {"model": {"vocab": WORDS}, "added_tokens": []}, {"version": "1.0", "model": {"vocab": dict(reversed(WORDS.items()))}})
    assert item.status is Status.PASS and item.n == 3


def test_ids_that_mean_another_text(tmp_path):
    item = finding(tmp_path, {"model": {"vocab": WORDS}}, {"model": {"vocab": WORDS | {"x": 1, "b": 5}}})
    assert item.fault == "vocab.tokenizer" and "1 is 'b' for the draft, 'x' for the target" in item.statement


def test_more_tokens_on_one_side_are_no_conflict(tmp_path):
    item = finding(tmp_path, {"model": {"vocab": WORDS}}, {"model": {"vocab": [["a", 0.0], ["b", -1.0], ["c", -2.0]]}, "added_tokens": [{"id": 3, "content": "<s>"}]})
    assert item.status is Status.PASS


def test_special_ids_of_a_config_are_only_noted(tmp_path):
    item = finding(tmp_path, {"model": {"vocab": WORDS}}, {"model": {"vocab": WORDS}}, target=LLAMA_TARGET | {"eos_token_id": 7}, draft={"eos_token_id": 2})
    assert item.status is Status.PASS and "target 7, draft config 2" in item.evidence[0].note


def test_without_files_only_sizes_speak(tmp_path):
    assert finding(tmp_path / "a").status is Status.SKIPPED
    padded = finding(tmp_path / "b", draft={"vocab_size": 64})
    assert padded.status is Status.INCONCLUSIVE and not padded.required


def test_a_broken_file_is_named(tmp_path):
    item = finding(tmp_path, "{", {"model": {"vocab": WORDS}})
    assert item.status is Status.INCONCLUSIVE and "tokenizer.json" in item.statement


def test_a_reserved_token_that_was_named_later_is_no_other_tokenizer(tmp_path):
    vocab = {f"t{i}": i for i in range(40)}
    named, reserved = ({"model": {"vocab": vocab}, "added_tokens": [{"id": 40, "content": text}]} for text in ("<tool>", "<reserved_1>"))
    item = finding(tmp_path, reserved, named)
    assert item.status is Status.INCONCLUSIVE and "added tokens" in item.statement
    moved = {"model": {"vocab": {**vocab, "t0": 1, "t1": 0}}, "added_tokens": [{"id": 40, "content": "<reserved_1>"}]}
    (tmp_path / "moved").mkdir()
    assert finding(tmp_path / "moved", moved, named).status is Status.FAIL
