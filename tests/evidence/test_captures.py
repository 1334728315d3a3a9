"""Captures: what servers and hooks write, as samples."""

import json

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, read_sample
from eagle_forensics.evidence.records import EvidenceError

T, K, H = 5, 3, 4
STATES = torch.arange(T * K * H, dtype=torch.float32).reshape(T, K, H) / 8
IDS = torch.arange(T) + 20


def reply(decoded=2):
    """An SGLang reply: prompt rows, then a row a decoded token."""
    wide = STATES.flatten(1).tolist()
    return {"text": "x", "output_ids": [23, 24, 9], "meta_info": {"hidden_states": [wide[: T - decoded], *wide[T - decoded :]]}}


def test_a_vllm_extraction_file_and_a_folder_of_them(tmp_path):
    for name in ("a", "b"):
        save_file({"hidden_states": STATES.to(torch.bfloat16), "token_ids": IDS}, tmp_path / f"{name}.safetensors")
    (one,) = read_capture(tmp_path / "a.safetensors")
    assert len(read_capture(tmp_path)) == 2
    assert [p.slot for p in one.planes] == [0, 1, 2]
    assert torch.equal(one.planes[2].data, STATES[:, 2].to(torch.bfloat16))
    assert torch.equal(one.input_ids, IDS)


def test_an_sglang_reply_keeps_prompt_and_decoded_rows_apart(tmp_path):
    (tmp_path / "reply.json").write_text(json.dumps({"input_ids": [20, 21, 22], "response": reply()}))
    (sample,) = read_capture(tmp_path / "reply.json", hidden=H)
    assert len(sample.planes) == K
    for slot, plane in enumerate(sample.planes):
        assert torch.equal(plane.data, STATES[:, slot])
    assert sample.loss_mask.tolist() == [False] * 3 + [True] * 2
    assert sample.input_ids.tolist() == [20, 21, 22, 23, 24]


def test_without_the_prompt_ids_or_the_hidden_size_nothing_is_guessed(tmp_path):
    (tmp_path / "reply.json").write_text(json.dumps([reply(), reply(0)]))
    first, second = read_capture(tmp_path / "reply.json")
    assert first.input_ids is None
    assert [p.data.shape for p in first.planes] == [(T, K * H)]
    assert second.loss_mask.sum() == 0


def test_prompt_ids_of_another_length_are_not_used(tmp_path):
    (tmp_path / "reply.json").write_text(json.dumps({"input_ids": [20, 21], "response": reply()}))
    assert read_capture(tmp_path / "reply.json", hidden=H)[0].input_ids is None


def test_fewer_rows_than_token_ids_keep_all_ids_and_claim_no_place(tmp_path):
    whole = torch.arange(T + 4) + 16
    save_file({"hidden_states": STATES, "token_ids": whole}, tmp_path / "late.safetensors")
    (sample,) = read_capture(tmp_path / "late.safetensors")
    assert sample.input_ids is None and torch.equal(sample.prompt_ids, whole) and len(sample.planes[0].data) == T
    with pytest.raises(EvidenceError, match=f"{T + 4} token ids for {T} rows"):
        read_sample(find_dump(tmp_path), 0)  # a dump that lacks rows is damaged
    save_file({"hidden_states": STATES, "token_ids": whole[:3]}, tmp_path / "late.safetensors")
    with pytest.raises(EvidenceError, match=f"3 token ids for {T} rows"):
        read_capture(tmp_path / "late.safetensors")


@pytest.mark.parametrize("cached, placed", [(2, True), (1, False), (None, False)])
def test_a_reply_behind_a_prefix_cache_is_placed_by_its_cached_tokens(tmp_path, cached, placed):
    held = reply()
    held["meta_info"]["cached_tokens"] = cached
    (tmp_path / "reply.json").write_text(json.dumps({"input_ids": [18, 19, 20, 21, 22], "response": held}))
    (sample,) = read_capture(tmp_path / "reply.json", hidden=H)
    assert len(sample.planes[0].data) == T
    if placed:
        assert sample.input_ids.tolist() == [20, 21, 22, 23, 24] and sample.prompt_ids is None
    else:
        assert sample.input_ids is None and sample.prompt_ids.tolist() == [18, 19, 20, 21, 22, 23, 24]


@pytest.mark.parametrize("content", [STATES, STATES[None, :, 0], [STATES[:, k] for k in range(K)], {"low": STATES[:, 0], "ids": IDS}])
def test_bare_tensors(tmp_path, content):
    torch.save(content, tmp_path / "capture.pt")
    (sample,) = read_capture(tmp_path / "capture.pt")
    assert torch.equal(sample.planes[0].data, STATES[:, 0])
    assert sample.planes[0].label == ("low" if isinstance(content, dict) else None)
    assert len(sample.planes) == (3 if content is STATES or isinstance(content, list) else 1)


def test_a_folder_of_bare_tensors_and_replies(tmp_path):
    torch.save(STATES, tmp_path / "0.pt")
    (tmp_path / "1.json").write_text(json.dumps(reply()))
    assert [s.sample_id for s in read_capture(tmp_path, hidden=H)] == ["0.pt", "1.json[0]"]


def test_a_bad_file_of_a_folder_is_reported_and_the_rest_is_read(tmp_path):
    torch.save(STATES, tmp_path / "0.pt")
    (tmp_path / "1.json").write_text("{")
    with pytest.raises(EvidenceError, match="no readable JSON"):
        read_capture(tmp_path)
    problems: list[str] = []
    assert len(read_capture(tmp_path, problems=problems)) == 1
    assert len(problems) == 1 and "1.json" in problems[0]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.json", "{", "no readable JSON"),
    ("a.json", "{}", "return_hidden_states"),
    ("a.json", '{"meta_info": {"hidden_states": [[1.0, 2.0]]}}', "prompt's states have the shape"),
    ("a.json", '{"meta_info": {"hidden_states": [[[1.0], [2.0, 3.0]]]}}', r"a\.json\[0\]: expected sequence"),
    ("a.pt", "junk", "no zip archive"),
    ("a.safetensors", "junk", "8-byte header"),
])
def test_unusable_captures_say_why(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(EvidenceError, match=message):
        read_capture(tmp_path / name)


@pytest.mark.parametrize("content", [torch.ones(3), torch.ones(3, 4, dtype=torch.int64), {"a": 1}, [torch.ones(3, 4), torch.ones(2, 4)], torch.ones(0, 4)])
def test_tensors_that_are_no_states_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(EvidenceError, match=r"expected states|holds no states"):
        read_capture(tmp_path / "a.pt")


def test_an_absent_or_empty_place(tmp_path):
    with pytest.raises(EvidenceError, match="does not exist"):
        read_capture(tmp_path / "absent")
    with pytest.raises(EvidenceError, match="no sample files"):
        read_capture(tmp_path)
