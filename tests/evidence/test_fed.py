"""States fetched from servers that imitate SGLang and vLLM; what a server lacks is named."""

import json

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence import fed as fed_module
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.fed import Fed, NotReturned, fetch
from eagle_forensics.evidence.fed_files import write_fed
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence.servers import serving

H, K = 4, 3
IDS = (5, 6, 7, 8, 9)


def states(ids, width=K * H):
    """Row t depends on token t; exact in bfloat16."""
    return torch.tensor([[float(token) + column / 8 for column in range(width)] for token in ids])


def sglang(width=K * H, cached=0, refuse=None, flush=200, hand_out=True):
    def post(path, body):
        if path == "/flush_cache":
            return flush, "Cache flushed."
        if path == "/tokenize":
            return 200, {"tokens": list(range(1, 1 + len(body["prompt"].split())))}
        if path != "/generate":
            return 404, {}
        if refuse:
            return 400, {"error": {"message": refuse}}
        rows = states(body["input_ids"], width).tolist()[cached:]
        return 200, {"text": "x", "output_ids": [3], "meta_info": {"cached_tokens": cached, **({"hidden_states": [rows]} if hand_out else {})}}
    return post


def test_prompt_rows_of_every_plane_one_prompt_at_a_time_after_a_flush():
    with serving(sglang()) as (url, asked):
        found = fetch(url, "sglang", [IDS, "three short words"], hidden=H, most_tokens=4)
    first, second = found.fed
    assert first.ids == IDS[:4] and torch.equal(first.states, states(IDS[:4]).reshape(4, K, H)) and found.notes == ()
    assert second.ids == (1, 2, 3)
    assert [path for path, _ in asked] == ["/flush_cache", "/generate", "/tokenize", "/flush_cache", "/generate"]
    assert asked[1][1]["return_hidden_states"] is True and asked[1][1]["sampling_params"]["max_new_tokens"] == 1


def test_without_the_hidden_size_the_planes_stay_joined():
    with serving(sglang()) as (url, _):
        assert fetch(url, "sglang", [IDS]).fed[0].states.shape == (5, K * H)


@pytest.mark.parametrize(("post", "lacks", "said"), [
    (sglang(refuse="The server is not configured to return hidden states. Please set ..."), "states", "not configured"),
    (sglang(hand_out=False), "states", "no hidden states"), (sglang(width=H), "aux", "last state"), (sglang(cached=2), "rows", "3 rows for a prompt of 5")])
def test_what_a_server_lacks_is_named(post, lacks, said):
    with serving(post) as (url, _), pytest.raises(NotReturned, match=said) as caught:
        fetch(url, "sglang", [IDS], hidden=H)
    assert caught.value.lacks == lacks and url in str(caught.value)


def test_rows_of_another_target_and_a_refusal_for_other_reasons_are_errors():
    with serving(sglang(width=10)) as (url, _), pytest.raises(EvidenceError, match="no multiple"):
        fetch(url, "sglang", [IDS], hidden=H)
    with serving(sglang(refuse="prompt too long")) as (url, _), pytest.raises(EvidenceError, match=r"answered 400.*prompt too long"):
        fetch(url, "sglang", [IDS], hidden=H)


def test_a_cache_that_cannot_be_flushed_is_a_note():
    with serving(sglang(flush=400)) as (url, _):
        assert "was not flushed" in fetch(url, "sglang", [IDS], hidden=H).notes[0]


def vllm(folder, ids=IDS, ranks=1, named=None):
    def post(path, body):
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        if path != "/v1/completions":
            return 404, {}
        for rank in range(ranks):
            name = "cmpl-1.safetensors" if ranks == 1 else f"cmpl-1.rank{rank}of{ranks}.safetensors"
            save_file({"hidden_states": states(ids).reshape(len(ids), K, H) + rank, "token_ids": torch.tensor(ids)}, folder / name)
        path = str(folder / ("cmpl-1.safetensors" if ranks == 1 else f"cmpl-1.rank0of{ranks}.safetensors"))
        return 200, {"choices": [], **({} if named == "" else {"kv_transfer_params": {"hidden_states_path": named or path}})}
    return post


def test_vllm_names_a_file_on_its_host(tmp_path):
    with serving(vllm(tmp_path)) as (url, asked):
        (one,) = fetch(url, "vllm", [IDS], hidden=H).fed
    assert torch.equal(one.states, states(IDS).reshape(5, K, H)) and ("/reset_prefix_cache", None) in asked


def test_every_rank_is_read_and_the_folder_may_be_mounted_elsewhere(tmp_path):
    with serving(vllm(tmp_path, ranks=2, named="/on/the/host/cmpl-1.rank0of2.safetensors")) as (url, _):
        found = fetch(url, "vllm", [IDS], states=tmp_path).fed
    assert [(f.rank, f.ranks, float(f.states[0, 0, 0])) for f in found] == [(0, 2, 5.0), (1, 2, 6.0)]
    samples = read_capture(write_fed(found, tmp_path / "out", {"engine": "vllm"}))
    assert [(s.rank, s.ranks, s.sample_id) for s in samples] == [(0, 2, "prompt000"), (1, 2, "prompt000")]


@pytest.mark.parametrize(("make", "said"), [
    (lambda f: vllm(f, named=""), "names no file"), (lambda f: vllm(f, named="/etc/passwd"), r"ends in \.safetensors"),
    (lambda f: vllm(f, named=str(f / "absent.safetensors")), "no such file"), (lambda f: vllm(f, ids=(5, 6)), "not the 5 of the prompt")])
def test_a_file_that_is_not_the_prompts(tmp_path, monkeypatch, make, said):
    monkeypatch.setattr(fed_module, "WRITTEN_S", 0.2)
    with serving(make(tmp_path)) as (url, _), pytest.raises(EvidenceError, match=said):
        fetch(url, "vllm", [IDS])


def test_a_locked_file_is_waited_for(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(fed_module, "WRITTEN_S", 0.3)
    with (tmp_path / "cmpl-1.safetensors.lock").open("w") as lock, serving(vllm(tmp_path)) as (url, _):
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotReturned):
            fetch(url, "vllm", [IDS])
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert fetch(url, "vllm", [IDS]).fed


def test_a_written_capture_is_read_back_with_its_provenance(tmp_path):
    made = [Fed(IDS, states(IDS).reshape(5, K, H)), Fed(IDS[:3], states(IDS[:3]).reshape(3, K, H))]
    folder = write_fed(made, tmp_path / "out", {"engine": "sglang", "layer_ids": "1 14 26"})
    first, second = read_capture(folder, H)
    assert [torch.equal(p.data.float(), states(IDS)[:, k * H:(k + 1) * H]) for k, p in enumerate(first.planes)] == [True] * K
    assert first.input_ids.tolist() == list(IDS) and len(second.planes[0].data) == 3
    assert (first.provenance.engine, first.provenance.path_kind, first.provenance.dtype) == ("sglang", "eager", "bfloat16")
    told = json.loads((folder / "manifest.json").read_text())
    assert (told["rows"], told["prompts"], told["tokens"], told["shape"], told["layer_ids"]) == ("prefill", 2, 8, [K, H], "1 14 26")


def test_float32_is_kept_where_bfloat16_would_lose(tmp_path):
    exact = torch.tensor([[[1.0001]], [[2.0]]])
    (sample,) = read_capture(write_fed([Fed((1, 2), exact)], tmp_path / "out", {}))
    assert torch.equal(sample.planes[0].data, exact[:, 0])


def test_a_capture_replaces_a_capture_and_nothing_else(tmp_path):
    write_fed([Fed(IDS, states(IDS)), Fed(IDS[:2], states(IDS[:2]))], tmp_path / "out", {})
    assert len(read_capture(write_fed([Fed(IDS, states(IDS))], tmp_path / "out", {}))) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "prompt_of_mine.safetensors").write_text("x")
    with pytest.raises(EvidenceError, match="is not empty and no capture"):
        write_fed([Fed(IDS, states(IDS))], tmp_path / "mine", {})
