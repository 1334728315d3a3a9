"""Dumps: which files are samples and in which order, what stands beside them, and how samples are drawn."""

import json
import random
import re

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence import containers, dumps
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.listing import natural
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence.recordings import WRITERS, T, planes, speculators_v1, write


def write_v1(folder, count=3):
    speculators_v1(folder, count)
    return folder


def test_a_layout_can_be_forced_and_a_wrong_one_says_so(tmp_path):
    WRITERS["specforge"](tmp_path / "specforge")
    WRITERS["modelopt"](tmp_path / "modelopt")
    assert find_dump(tmp_path / "specforge", "specforge").format == "specforge"
    with pytest.raises(EvidenceError, match="is modelopt, not specforge"):
        find_dump(tmp_path / "modelopt", "specforge")
    with pytest.raises(EvidenceError, match="Did you mean 'speculators_v1'"):
        find_dump(tmp_path / "modelopt", "speculators-v1")


def test_natural_order_is_that_of_numbers_and_text_in_turns():
    names = ["", "7", "10", "10a", "-1", "a", "a2", "a02b", "a10", "a-1", "a.pt", "aa", "b1c2", "b1c10", "b2c1"]
    for seed in range(20):
        assert sorted(random.Random(seed).sample(names, len(names)), key=natural) == names


def test_files_come_in_natural_order_and_side_files_are_no_samples(tmp_path):
    write_v1(tmp_path, 11)
    torch.save({"d2t": torch.arange(3)}, tmp_path / "vocab_mapping.pt")
    torch.save(torch.arange(3), tmp_path / "token_freq.pt")
    assert [f.name for f in find_dump(tmp_path).files] == [f"data_{i}.pt" for i in range(11)]


def test_manifest_labels_and_layer_ids_are_handed_on_as_claims(tmp_path):
    write_v1(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"planes": ["embed", "layer2", "layer15", "final"]}))
    (tmp_path / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 14, 26, 29]}}))
    info = find_dump(tmp_path)
    assert info.labels == ("embed", "layer2", "layer15", "final")
    assert info.layer_ids == (1, 14, 26, 29)
    assert info.notes == ()
    assert [p.label for p in read_sample(info, 1).planes] == ["embed", "layer2", "layer15", "final"]


@pytest.mark.parametrize(("manifest", "note"), [
    ('{"planes": ["a", "b"]}', "names 2 planes .* hold 4"),
    ('{"planes": [1, 2, 3, 4]}', "no list of names"),
    ('{"planes": "embed"}', "no list of names"),
    ('[{"file": "data_0.pt"}]', "names no `planes`"),
    ("{oops", "cannot be read"),
    ("[" * 100_000, "cannot be read"),
])
def test_an_unusable_manifest_becomes_a_note(tmp_path, manifest, note):
    write_v1(tmp_path, 1)
    (tmp_path / "manifest.json").write_text(manifest)
    info = find_dump(tmp_path)
    assert info.labels is None
    assert len(info.notes) == 1
    assert re.search(note, info.notes[0])


def test_concatenated_planes_must_divide_evenly(tmp_path):
    torch.save({"hidden_state": planes()[0], "target": torch.zeros(T, 3)}, tmp_path / "data_0.pt")
    with pytest.raises(EvidenceError, match=r"4 wide, no multiple of the 3"):
        find_dump(tmp_path)


def test_a_dump_that_begins_with_damaged_files_is_still_recognised(tmp_path):
    write_v1(tmp_path, 2)
    (tmp_path / "a_cut.pt").write_bytes(b"x")
    assert find_dump(tmp_path).format == "speculators_v1"


def test_limit_and_seed_draw_reproducibly(tmp_path):
    info = find_dump(write_v1(tmp_path, 12))
    first = [s.sample_id for s in iter_samples(info, limit=3)]
    drawn = [s.sample_id for s in iter_samples(info, limit=3, seed=1)]
    assert first == ["data_0.pt", "data_1.pt", "data_2.pt"]
    assert drawn == [s.sample_id for s in iter_samples(info, limit=3, seed=1)] != first
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("make", [
    lambda p: p / "absent",
    lambda p: p,
    lambda p: (torch.save({"weights": torch.ones(2)}, p / "x.pt"), p)[1],
])
def test_nothing_to_read_says_what_to_do(tmp_path, make):
    with pytest.raises(EvidenceError, match=r"training\.dump\.path"):
        find_dump(make(tmp_path))


def test_a_checkpoint_is_called_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(EvidenceError, match="looks like a model checkpoint"):
        find_dump(tmp_path)


def test_an_index_outside_says_the_range(tmp_path):
    with pytest.raises(EvidenceError, match="no sample 2; the dump has 2"):
        read_sample(find_dump(write_v1(tmp_path, 2)), 2)


def test_a_large_folder_is_listed_without_opening_its_files(tmp_path, monkeypatch):
    write_v1(tmp_path, 40)
    opened: list[str] = []
    real = containers.open_pt
    monkeypatch.setattr(containers, "open_pt", lambda path: (opened.append(path.name), real(path))[1])
    info = find_dump(tmp_path)
    assert len(info.files) == 40 and len(opened) == dumps.VOTES


def test_files_of_several_samples_beyond_a_number_are_not_counted_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "MOST_COUNTED", 2)
    for i in range(6):
        write(tmp_path / f"eagle_{i}.pt", [{"id": i, "hidden_state": planes(i)[3]}] * (2 if i == 4 else 1))
    problems: list[str] = []
    info = find_dump(tmp_path)
    assert len(info.files) == 6
    assert len(list(iter_samples(info, problems=problems))) == 5
    assert len(problems) == 1 and "eagle_4.pt: holds 2 samples, 1 were expected" in problems[0]


def test_tensors_under_an_unknown_ending_are_samples_and_other_files_are_not(tmp_path):
    write(tmp_path / "a.dump", {"input_ids": torch.arange(T), "hidden_states": planes()})
    write(tmp_path / "b.dump", {"input_ids": torch.arange(T), "hidden_states": planes(1)})
    (tmp_path / "log.txt").write_text("x")
    (tmp_path / "sample_lengths.json").write_text('{"0": 7}')
    assert [f.name for f in find_dump(tmp_path).files] == ["a.dump", "b.dump"]
