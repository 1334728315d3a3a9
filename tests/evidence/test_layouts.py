"""Every format of hidden states, as its own writer lays it out, becomes the same record."""

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.layouts import LAYOUTS
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence import recordings as made
from tests.evidence.recordings import IDS, MASK, WRITERS, H, T, planes

WITHOUT_MASK = ("modelopt", "vllm_extract", "plane_folder", "trtllm", "sglang_passes", "sglang_dumper", "fed")


def same(sample, seed=0, rows=T, order=(0, 1, 2, 3)):
    """Whether the sample holds the planes of `seed` in slot order."""
    assert [p.slot for p in sample.planes] == [0, 1, 2, 3]
    return all(torch.equal(p.data, planes(seed)[k][:rows]) and p.data.dtype == torch.bfloat16 for p, k in zip(sample.planes, order, strict=True))


def labels(sample):
    return [p.label for p in sample.planes]


@pytest.mark.parametrize("name", WRITERS)
def test_every_layout_gives_the_same_record(name, tmp_path):
    WRITERS[name](tmp_path / "dump")
    info = find_dump(tmp_path / "dump")
    assert info.format == name
    assert info.widths == (H,) * 4
    sample = read_sample(info, 0)
    order = (0, 1, 3, 2) if name == "sglang_passes" else (0, 1, 2, 3)
    assert same(sample, order=order)
    assert sample.provenance.dtype == "bfloat16"
    assert (sample.input_ids is None) == (name == "plane_folder")
    assert sample.input_ids is None or torch.equal(sample.input_ids, IDS)
    assert (sample.loss_mask is None) == (name in WITHOUT_MASK)
    assert sample.loss_mask is None or torch.equal(sample.loss_mask, MASK.bool())


@pytest.mark.parametrize("name", WRITERS)
def test_the_extension_says_nothing(name, tmp_path):
    WRITERS[name](tmp_path / "dump")
    for file in [p for p in (tmp_path / "dump").rglob("*") if p.is_file() and p.suffix in (".pt", ".ckpt", ".safetensors")]:
        file.rename(file.with_suffix(".bin"))
    assert find_dump(tmp_path / "dump").format == name


def test_every_layout_has_a_writer_here():
    assert {layout.name for layout in LAYOUTS} <= {*WRITERS, "sglang_reply"}


def test_specforge_gzipped(tmp_path):
    made.specforge_gzip(tmp_path / "dump")
    info = find_dump(tmp_path / "dump")
    assert info.format == "specforge" and same(read_sample(info, 0))


def test_fp8_planes_are_scaled_by_token(tmp_path):
    made.vllm_fp8(tmp_path / "dump")
    sample = read_sample(find_dump(tmp_path / "dump"), 0)
    assert sample.provenance.dtype == "float8_e4m3fn" and sample.provenance.engine == "vllm"
    for plane, expected in zip(sample.planes, planes(), strict=True):
        assert torch.allclose(plane.data, expected.float(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize(("scales", "message"), [
    (None, "without scales"), (torch.ones(T - 1, 1, 1), "for 7 tokens"), (torch.zeros(T, 1, 1), "not positive"), (torch.full((T, 1, 1), torch.nan), "not positive"),
    (torch.ones(T, 1, 1, dtype=torch.int64), "for 7 tokens"),
])
def test_fp8_without_sound_scales_is_refused(tmp_path, scales, message):
    tensors = {"hidden_states": torch.ones(T, 4, H).to(torch.float8_e4m3fn), "token_ids": IDS} | ({} if scales is None else {"hidden_states_scales": scales})
    save_file(tensors, tmp_path / "hs_0.safetensors")
    with pytest.raises(EvidenceError, match=message):
        find_dump(tmp_path)


def test_a_mask_beside_vllm_states_is_read(tmp_path):
    save_file({"hidden_states": torch.ones(T, 4, H), "token_ids": IDS, "loss_mask": MASK}, tmp_path / "hs_0.safetensors")
    assert torch.equal(read_sample(find_dump(tmp_path), 0).loss_mask, MASK.bool())


def test_trtllm_files_hold_a_list(tmp_path):
    made.trtllm(tmp_path / "dump")
    info = find_dump(tmp_path / "dump")
    assert len(info.files) == 3 and info.members == (0, 1, 0)
    read = list(iter_samples(info))
    assert [s.sample_id for s in read] == ["eagle_2.pt[0]", "eagle_2.pt[1]", "eagle_3.pt[0]"]
    assert all(same(s, seed) for seed, s in enumerate(read))
    assert labels(read[0])[-1] == "hidden_state"


def test_trtllm_with_one_layer_has_the_last_state_only(tmp_path):
    made.write(tmp_path / "eagle_1.pt", [{"id": 1, "input_ids": IDS, "hidden_state": planes()[3]}])
    assert labels(read_sample(find_dump(tmp_path), 0)) == ["hidden_state"]


def test_torchspec_padding_is_left_out(tmp_path):
    made.torchspec(tmp_path / "dump")
    info = find_dump(tmp_path / "dump")
    first, second = iter_samples(info)
    assert same(first, 0) and same(second, 1, rows=T - 3)
    assert second.input_ids.tolist() == IDS[: T - 3].tolist() and second.loss_mask.tolist() == MASK[: T - 3].bool().tolist()


def test_torchspec_evaluation_cache(tmp_path):
    made.torchspec(tmp_path / "dump")
    batch = torch.load(tmp_path / "dump/batch_1_0_rank0.pt", weights_only=True)["batch"]
    made.write(tmp_path / "cache/eval_rank_0.pt", [batch, batch])
    read = list(iter_samples(find_dump(tmp_path / "cache")))
    assert [s.planes[0].data.shape[0] for s in read] == [T, T - 3, T, T - 3]


def test_torchspec_with_a_hole_in_the_mask_is_named(tmp_path):
    batch = {"input_ids": IDS[None], "attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1]]), "hidden_states": made.wide()[None]}
    made.write(tmp_path / "b.pt", {"batch": batch})
    with pytest.raises(EvidenceError, match="has a gap"):
        find_dump(tmp_path)


def test_verl_shards_are_counted_by_their_manifest(tmp_path):
    made.verl_speco(tmp_path / "dump")
    with (tmp_path / "dump/manifest.jsonl").open("a") as file:
        file.write('{"path": "shard_000009.pt", "num_samples": 4}\nnonsense\n')
    info = find_dump(tmp_path / "dump")
    assert info.members == (0, 1, 0)
    assert all(same(s, seed) for seed, s in enumerate(iter_samples(info)))
    assert any("1 shards that are not there: shard_000009.pt" in n for n in info.notes)
    assert any("1 lines" in n for n in info.notes)


def test_a_stale_manifest_is_named(tmp_path):
    made.verl_speco(tmp_path / "dump")
    (tmp_path / "dump/manifest.jsonl").write_text('{"path": "shard_000000.pt", "num_samples": 1}\n{"path": "shard_000001.pt", "num_samples": 3}\n')
    problems: list[str] = []
    read = list(iter_samples(find_dump(tmp_path / "dump"), problems=problems))
    assert [s.sample_id for s in read] == ["shard_000001.pt[0]"]
    assert len(problems) == 3 and "holds 2 samples, 1 were expected" in problems[0] and "holds 1 samples, 2 were expected" in problems[1]


def test_verl_lists_of_planes_and_a_last_token_that_was_never_run(tmp_path):
    longer = torch.arange(10, 11 + T)
    made.write(tmp_path / "shard_000000.pt", {"samples": [{"input_ids": longer, "loss_mask": torch.ones(T + 1), "hidden_states": planes()[:3], "target": planes()[3]}]})
    sample = read_sample(find_dump(tmp_path), 0)
    assert same(sample) and torch.equal(sample.input_ids, IDS) and sample.loss_mask.shape == (T,)
    assert labels(sample) == ["hidden_states[0]", "hidden_states[1]", "hidden_states[2]", "last_hidden_states"]


def test_a_plane_folder_with_ids_and_without_a_final_plane(tmp_path):
    made.plane_folder(tmp_path / "dump")
    (tmp_path / "dump/final.pt").unlink()
    made.write(tmp_path / "dump/input_ids.pt", IDS)
    made.write(tmp_path / "dump/notes.pt", {"anything": 1})
    sample = read_sample(find_dump(tmp_path / "dump"), 0)
    assert labels(sample) == ["aux_0", "aux_1", "aux_2"] and torch.equal(sample.input_ids, IDS)


def test_plane_folders_of_several_sequences(tmp_path):
    for i in range(3):
        made.plane_folder(tmp_path / f"seq_{i}")
    save_file({"x": planes()[0]}, tmp_path / "seq_1/aux_0.safetensors")
    (tmp_path / "seq_1/aux_0.pt").unlink()
    info = find_dump(tmp_path)
    assert len(info.files) == 3 and all(same(s) for s in iter_samples(info))


def test_sglang_passes_keep_the_residual_stream_of_whole_prompts(tmp_path):
    made.sglang_passes(tmp_path / "dump", ranks=2)
    info = find_dump(tmp_path / "dump")
    read = list(iter_samples(info))
    assert [(s.sample_id, s.rank) for s in read] == [("Pass00000.pt[0]", 0), ("Pass00000.pt[1]", 0), ("Pass00000.pt[0]", 1), ("Pass00000.pt[1]", 1)]
    assert labels(read[0]) == ["model.embed_tokens", "model.layers.1.input_layernorm[1]", "model.norm[0]", "model.norm[1]"]
    assert same(read[1], 1, order=(0, 1, 3, 2)) and read[1].input_ids.tolist() == IDS.tolist()
    assert read[0].provenance.path_kind == "eager" and read[0].provenance.forward_pass == 0 and read[0].provenance.engine == "sglang"
    assert any("2 of 4 recordings hold no sequence from its first token" in n for n in info.notes)


def test_target_and_draft_passes_are_told_apart_by_their_place(tmp_path):
    made.sglang_passes(tmp_path / "target")
    assert read_sample(find_dump(tmp_path), 0).sample_id == "target/Pass00000.pt[0]"


def test_sglang_dumper_files_of_a_step_and_rank_are_one_sample(tmp_path):
    made.sglang_dumper(tmp_path / "dump", ranks=2)
    info = find_dump(tmp_path / "dump")
    first, second = iter_samples(info)
    assert same(first) and same(second)
    assert labels(first) == [f"hidden[layer {i}]" for i in range(4)]
    assert (first.sample_id, first.rank, first.ranks, second.sample_id, second.rank) == ("step=3[0]", 0, 2, "step=3[0]", 1)
    assert first.provenance.forward_pass == 3


def test_sglang_dumper_of_whole_modules_keeps_the_residual_stream(tmp_path):
    made.sglang_modules(tmp_path / "dump")
    sample = read_sample(find_dump(tmp_path / "dump"), 0)
    head = "non_intrusive__model."
    assert labels(sample) == [f"{head}embed_tokens.output", f"{head}layers.1.input_layernorm.output.1", f"{head}norm.output.1", f"{head}norm.output.0"]
    assert same(sample)


def test_sglang_dumper_before_its_rewrite_held_bare_tensors(tmp_path):
    for index, plane in enumerate(planes()):
        made.write(tmp_path / f"forward_pass_id=5___rank=1___name=hidden___dump_index={index}.pt", plane)
    sample = read_sample(find_dump(tmp_path), 0)
    assert same(sample) and sample.rank == 1 and sample.provenance.forward_pass == 5
    assert labels(sample) == ["hidden#0", "hidden#1", "hidden#2", "hidden#3"]


def test_an_sglang_reply_as_a_dump_and_as_a_capture(tmp_path):
    made.sglang_reply(tmp_path / "dump")
    info = find_dump(tmp_path / "dump")
    assert info.format == "sglang_reply" and info.widths == (4 * H,)
    (sample,) = read_capture(tmp_path / "dump", hidden=H)
    assert all(torch.equal(p.data, q.float()) for p, q in zip(sample.planes, planes(), strict=True))
    assert sample.loss_mask.tolist() == [False] * (T - 2) + [True] * 2 and sample.input_ids.tolist() == [*range(10, 15), 15, 16]


@pytest.mark.parametrize("name", ["sglang_passes", "sglang_dumper", "vllm_extract", "trtllm"])
def test_captures_read_every_layout(name, tmp_path):
    WRITERS[name](tmp_path / "c")
    assert [p.data.shape[1] for p in read_capture(tmp_path / "c")[0].planes] == [H] * 4


def test_captures_of_several_kinds_in_one_folder(tmp_path):
    made.vllm_extract(tmp_path / "a")
    made.sglang_passes(tmp_path / "b")
    assert {s.provenance.engine for s in read_capture(tmp_path)} == {"vllm", "sglang"}
