"""Dumps: every layout is recognised by content and read into the same planes; damaged and hostile files are named."""

import gzip
import io
import json
import pickle
import re

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence import listing
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.records import EvidenceError

T, H = 7, 4
IDS = torch.arange(10, 10 + T)
MASK = torch.tensor([0, 0, 1, 1, 1, 1, 0])


def planes(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(T, H, generator=generator).to(torch.bfloat16) for _ in range(count)]


def v1(seed=0):
    return {"input_ids": IDS, "loss_mask": MASK, "hidden_states": planes(seed)}


def write_v1(folder, count=3):
    folder.mkdir(exist_ok=True)
    for i in range(count):
        torch.save(v1(i), folder / f"data_{i}.pt")
    return folder


def write_layouts(root):
    """The same four planes in every layout: name of the layout to the folder."""
    a, b, c, last = planes()
    wide = torch.cat([a, b, c], -1)
    ids, mask = IDS, MASK
    content = {
        "speculators_v1": ("data_0.pt", v1()),
        "specforge": ("rows_0-2000/data_0.ckpt", {"input_ids": ids, "loss_mask": mask, "hidden_state": last[None], "aux_hidden_state": wide[None]}),
        "modelopt": ("conv-1.pt", {"input_ids": ids, "hidden_states": last, "aux_hidden_states": wide, "conversation_id": "conv-1"}),
        "angelslim": ("rank_0/rows_0/data_0.ckpt", {"input_ids": ids[None], "loss_mask": mask[None], "hidden_states": wide[None], "target_hiddens": last[None]}),
        "speculators_v0": ("data_0.pt", {"input_ids": ids, "loss_mask": mask, "hidden_state": wide, "target": last}),
    }
    folders = {}
    for name, (file, sample) in content.items():
        (root / name / file).parent.mkdir(parents=True)
        torch.save(sample, root / name / file)
        folders[name] = root / name
    (root / "vllm_extract").mkdir()
    save_file({"hidden_states": torch.stack([a, b, c, last], 1), "token_ids": ids}, root / "vllm_extract/hs_0.safetensors")
    (root / "plane_folder").mkdir()
    for name, plane in zip(["aux_0", "aux_1", "aux_2", "final"], planes(), strict=True):
        torch.save(plane, root / f"plane_folder/{name}.pt")
    return {**folders, **{n: root / n for n in ("vllm_extract", "plane_folder")}}


def test_every_layout_gives_the_same_planes_in_slot_order(tmp_path):
    for name, folder in write_layouts(tmp_path).items():
        info = find_dump(folder)
        assert info.format == name
        assert len(info.files) == 1
        sample = read_sample(info, 0)
        assert [p.slot for p in sample.planes] == [0, 1, 2, 3], name
        for plane, expected in zip(sample.planes, planes(), strict=True):
            assert plane.data.dtype == torch.bfloat16 and torch.equal(plane.data, expected), (name, plane.slot)
        if name != "plane_folder":
            assert torch.equal(sample.input_ids, IDS), name
        if name in ("speculators_v1", "specforge", "angelslim", "speculators_v0"):
            assert torch.equal(sample.loss_mask, MASK.bool()), name


def test_a_layout_can_be_forced_and_a_wrong_one_says_so(tmp_path):
    folders = write_layouts(tmp_path)
    assert find_dump(folders["specforge"], "specforge").format == "specforge"
    with pytest.raises(EvidenceError, match="is modelopt, not specforge"):
        find_dump(folders["modelopt"], "specforge")
    with pytest.raises(EvidenceError, match="Did you mean 'speculators_v1'"):
        find_dump(folders["modelopt"], "speculators-v1")


def test_fp8_planes_are_scaled_per_token(tmp_path):
    states = torch.stack(planes(), 1).float()
    scales = states.abs().amax((1, 2), keepdim=True) / 448
    save_file({"hidden_states": (states / scales).to(torch.float8_e4m3fn), "hidden_states_scales": scales, "token_ids": IDS},
              tmp_path / "hs_0.safetensors")
    sample = read_sample(find_dump(tmp_path), 0)
    assert torch.allclose(sample.planes[2].data, planes()[2].float(), rtol=0.07, atol=0.02)


def test_gzipped_samples_are_read(tmp_path):
    buffer = io.BytesIO()
    torch.save(v1(), buffer)
    (tmp_path / "data_0.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue()))
    assert torch.equal(read_sample(find_dump(tmp_path), 0).planes[3].data, planes()[3])


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


class Bomb:
    def __reduce__(self):
        return (print, ("this must never run",))


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
        "bomb.pt": ({**v1(), "hook": Bomb()}, "refused.*print"),
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


def test_bad_files_are_named_with_their_reason_and_the_rest_goes_on(tmp_path, capsys):
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
    assert "never run" not in capsys.readouterr().out


def test_concatenated_planes_must_divide_evenly(tmp_path):
    torch.save({"hidden_state": planes()[0], "target": torch.zeros(T, 3)}, tmp_path / "data_0.pt")
    with pytest.raises(EvidenceError, match=r"4 wide, no multiple of the 3"):
        find_dump(tmp_path)


def test_without_a_list_the_first_bad_file_raises(tmp_path):
    damaged(write_v1(tmp_path, 1))
    with pytest.raises(EvidenceError, match=r"bomb\.pt: refused"):
        list(iter_samples(find_dump(tmp_path)))


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
