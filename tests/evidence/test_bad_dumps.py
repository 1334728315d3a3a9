"""Hostile and broken dumps: nothing runs, every bad file is named with its reason and counted, the rest goes on."""

import gzip
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

from eagle_forensics.evidence import listing
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence import recordings as made
from tests.evidence.recordings import IDS, MASK, WRITERS, planes, speculators_v1, v1, write


def write_v1(folder, count=3):
    speculators_v1(folder, count)
    return folder


class Bomb:
    """Unpickling this would leave a file."""

    def __reduce__(self):
        return (os.mkdir, ("it-ran",))


def damaged(folder):
    """Files that are no samples, with what the message must say."""
    good = (folder / "data_0.pt").read_bytes()
    bad = {
        "cut.pt": (good[: len(good) // 2], "damaged or cut off"),
        "flipped.pt": (good[:300] + b"\0" * 40 + good[340:], "damaged or cut off|refused"),
        "empty.pt": (b"", "no zip archive"),
        "text.pt": (b"hello", "no zip archive"),
        "plain_pickle.pt": (pickle.dumps({"a": Bomb()}), "no zip archive"),
        "cut.safetensors": (b"\xff" * 40, "header"),
    }
    for name, (content, _) in bad.items():
        (folder / name).write_bytes(content)
    tensors = {
        "bomb.pt": ({**v1(), "hook": Bomb()}, "refused.*mkdir"),
        "zero.pt": ({**v1(), "hidden_states": [p[:0] for p in planes()], "input_ids": IDS[:0], "loss_mask": MASK[:0]}, "0 tokens"),
        "short_ids.pt": ({**v1(), "input_ids": IDS[:3]}, "3 token ids for 7 rows"),
        "ragged.pt": ({**v1(), "hidden_states": [*planes()[:3], planes()[3][:2]]}, "differ in length"),
        "ints.pt": ({**v1(), "hidden_states": [p.int() for p in planes()]}, "floating-point"),
        "flat.pt": ({**v1(), "hidden_states": [p.flatten() for p in planes()]}, "expected \\[tokens, hidden\\]"),
        "expanded.pt": ({**v1(), "hidden_states": [torch.zeros(1).expand(10**9, 10**4)] * 4}, "more than the 4 bytes"),
        "tensor.pt": (planes()[0], "bare tensor"),
        "foreign.pt": ({"weights": planes()[0]}, "expected speculators_v1"),
    }
    for name, (content, _) in tensors.items():
        torch.save(content, folder / name)
    return {name: message for name, (_, message) in {**bad, **tensors}.items()}


def test_bad_files_are_named_with_their_reason_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = damaged(write_v1(tmp_path, 3))
    info = find_dump(tmp_path)
    problems: list[str] = []
    samples = list(iter_samples(info, problems=problems))
    assert [s.sample_id for s in samples] == ["data_0.pt", "data_1.pt", "data_2.pt"]
    assert len(problems) == len(expected)
    for name, message in expected.items():
        mine = next(p for p in problems if f"/{name}:" in p)
        assert re.search(message, mine.replace("\n", " ")), mine
        assert "Traceback" not in mine
    assert not (tmp_path / "it-ran").exists()


def test_without_a_list_the_first_bad_file_raises(tmp_path):
    damaged(write_v1(tmp_path, 1))
    with pytest.raises(EvidenceError, match=r"bomb\.pt: refused"):
        list(iter_samples(find_dump(tmp_path)))


def test_a_link_back_into_the_dump_is_followed_once(tmp_path):
    write_v1(tmp_path / "real", 2)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "shard").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "up").symlink_to(tmp_path / "dump")
    (tmp_path / "real" / "self").symlink_to(".")
    assert len(find_dump(tmp_path / "dump").files) == 2


def test_a_link_out_into_a_file_system_ends_in_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "BARE_FOLDERS", 5)
    write_v1(tmp_path / "dump", 1)
    for i in range(9):
        (tmp_path / "elsewhere" / str(i)).mkdir(parents=True)
    (tmp_path / "dump" / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="more than 5 folders without a sample"):
        find_dump(tmp_path / "dump")


@pytest.mark.parametrize("name", [n for n in WRITERS if n not in ("vllm_extract", "fed")])
def test_a_bomb_in_any_layout_never_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    WRITERS[name](tmp_path / "dump")
    for file in (tmp_path / "dump").rglob("*"):
        if file.suffix in (".pt", ".ckpt"):
            held = torch.load(file, weights_only=True)
            torch.save({"held": held, "hook": Bomb()} if not isinstance(held, dict) else held | {"hook": Bomb()}, file)
    with pytest.raises(EvidenceError, match=r"refused.*mkdir"):
        find_dump(tmp_path / "dump")
    with pytest.raises(EvidenceError, match=r"refused.*mkdir"):
        read_capture(tmp_path / "dump")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("ending", [".pt", ".ckpt.gz", ".json", ".safetensors", ".bin"])
def test_a_bare_bomb_never_runs_whatever_it_is_called(ending, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Bomb())
    (tmp_path / f"x{ending}").write_bytes(gzip.compress(data) if ending == ".ckpt.gz" else data)
    for reader in (find_dump, read_capture):
        with pytest.raises(EvidenceError):
            reader(tmp_path / f"x{ending}")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", WRITERS)
def test_files_cut_anywhere_are_named(name, tmp_path):
    WRITERS[name](tmp_path / "dump")
    files = [p for p in (tmp_path / "dump").rglob("*") if p.suffix in (".pt", ".ckpt", ".safetensors")]
    for share in (0.0, 0.3, 0.9):
        for file in files:
            os.truncate(file, int(file.stat().st_size * share))
        with pytest.raises(EvidenceError, match=r"damaged or cut off|no zip archive|copy it again|no sample files"):
            find_dump(tmp_path / "dump")


def test_a_mixed_folder_is_said_to_be_mixed_and_read_by_its_majority(tmp_path):
    write_v1(tmp_path, 4)
    made.specforge(tmp_path / "a")
    made.vllm_extract(tmp_path / "b")
    info = find_dump(tmp_path)
    assert info.format == "speculators_v1"
    assert any("mixed" in n and "1 of specforge" in n and "1 of vllm_extract" in n for n in info.notes)
    problems: list[str] = []
    assert len(list(iter_samples(info, problems=problems))) == 4
    assert len(problems) == 2 and all("expected speculators_v1" in p for p in problems)


def test_planes_of_another_width_are_named_and_left_out(tmp_path):
    write_v1(tmp_path, 4)
    write(tmp_path / "data_4.pt", {"input_ids": IDS, "hidden_states": [p.repeat(1, 2) for p in planes()]})
    write(tmp_path / "data_5.pt", {"input_ids": IDS, "hidden_states": planes()[:3]})
    problems: list[str] = []
    assert len(list(iter_samples(find_dump(tmp_path), problems=problems))) == 4
    assert "planes are 4 x 8 wide, those of the dump 4 x 4" in problems[0] and "3 x 4 wide" in problems[1] and len(problems) == 2


def test_a_dump_whose_planes_differ_in_width_is_handed_on(tmp_path):
    """A slice of one plane is for the fingerprint to name."""
    for i in range(3):
        write(tmp_path / f"data_{i}.pt", {"input_ids": IDS, "hidden_states": [*planes(i)[:3], planes(i)[3][:, :2]]})
    info = find_dump(tmp_path)
    assert info.widths == (4, 4, 4, 2) and len(list(iter_samples(info))) == 3


def test_fp8_without_scales_among_sound_files_is_counted(tmp_path):
    made.vllm_fp8(tmp_path)
    made.vllm_fp8(tmp_path, scales=False)
    problems: list[str] = []
    assert len(list(iter_samples(find_dump(tmp_path), problems=problems))) == 1
    assert len(problems) == 1 and "hs_1.safetensors: plane 0 is float8_e4m3fn without scales" in problems[0]


def test_a_file_that_changes_while_its_sample_is_in_use_is_named(tmp_path):
    info = find_dump(write_v1(tmp_path, 3))
    problems: list[str] = []
    for sample in iter_samples(info, problems=problems):
        if sample.sample_id == "data_1.pt":
            exchange = tmp_path / "new"
            torch.save(v1(9), exchange)
            exchange.rename(sample.source)
    assert len(problems) == 1 and "data_1.pt: was changed while its sample was in use" in problems[0]


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch):
    from eagle_forensics.evidence import dumps

    info = find_dump(write_v1(tmp_path, 2))
    real = dumps.read_member

    def touching(layout, member, file, number=None):
        os.utime(file, ns=(1, 1))
        return real(layout, member, file, number)

    monkeypatch.setattr(dumps, "read_member", touching)
    with pytest.raises(EvidenceError, match="was changed while it was read"):
        read_sample(info, 0)


def test_a_file_that_vanishes_is_named(tmp_path):
    info = find_dump(write_v1(tmp_path, 3))
    (tmp_path / "data_1.pt").unlink()
    problems: list[str] = []
    assert len(list(iter_samples(info, problems=problems))) == 2
    assert len(problems) == 1 and "data_1.pt" in problems[0]


def test_a_shard_that_is_exchanged_is_read_anew(tmp_path):
    made.trtllm(tmp_path)
    info = find_dump(tmp_path)
    assert torch.equal(read_sample(info, 0).planes[0].data, planes(0)[0])
    torch.save([{"input_ids": IDS, "hidden_state": planes(5)[3], "aux_hidden_states": made.wide(5)}] * 2, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "eagle_2.pt")
    assert torch.equal(read_sample(info, 0).planes[0].data, planes(5)[0])


def test_links_to_themselves_and_pipes_are_named_and_do_not_hang(tmp_path):
    write_v1(tmp_path, 2)
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    (tmp_path / "gone.pt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.pt")
    problems: list[str] = []
    assert len(list(iter_samples(find_dump(tmp_path), problems=problems))) == 2
    assert {Path(p.split(":")[0]).name for p in problems} == {"loop.pt", "gone.pt", "pipe.pt"}


@pytest.mark.parametrize("content", [
    {"batch": {"input_ids": IDS[None], "hidden_states": made.wide()[None], "attention_mask": torch.ones(3)}},
    {"batch": {"input_ids": IDS[None], "hidden_states": made.wide()[None], "loss_mask": torch.ones(3)}},
    {"samples": [{"hidden_states": "x"}]}, {"samples": [{"hidden_states": [planes()[0]]}, 7]},
    [{"hidden_state": planes()[3], "aux_hidden_states": torch.ones(7, 6)}], [{"hidden_state": planes()[3]}, "x"],
    {"model.embed_tokens": planes()[0], "model.forward_batch_info.input_ids": IDS[:2]},
    {"hidden_states": torch.ones(7, 0, 4), "token_ids": IDS}, {"hidden_states": torch.ones(7, 4, 4), "token_ids": IDS, "hidden_states_scales": "x"},
    {"hidden_states": torch.zeros(1).expand(7, 10**6, 4), "token_ids": IDS}, {"hidden_state": torch.zeros(1).expand(7, 10**6), "target": torch.ones(7, 1)},
    {"aux_0": planes()[0], "final": torch.ones(3)}, {5: planes()[0]}, [], [[]], None, {"samples": []}, {"batch": None},
])
def test_contents_that_nearly_fit_are_refused_with_a_reason(content, tmp_path):
    write(tmp_path / "x.pt", content)
    with pytest.raises(EvidenceError, match=r"x\.pt") as refused:
        for sample in iter_samples(find_dump(tmp_path)):
            assert sample.planes
    assert "Traceback" not in str(refused.value)
