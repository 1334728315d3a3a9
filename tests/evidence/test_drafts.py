"""The drafter in every published layout: one canonical record, and a note for every claim the weights contradict."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle_forensics.evidence import tensors
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.records import ClaimedIds, EvidenceError
from tests.evidence.builders import (
    EAGLE,
    HEADS,
    IDS,
    LLAMA,
    MLA,
    VD,
    D,
    F,
    H,
    V,
    fused_head,
    head,
    mla_head,
    weights,
    write_config,
    write_draft,
    write_shards,
)

CANONICAL = {
    "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight", *(f"layers.0.self_attn.{p}_proj.weight" for p in "qkvo"),
    *(f"layers.0.mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
}  # fmt: skip


def without(config, *keys, **changes):
    return {k: v for k, v in config.items() if k not in keys} | changes


def speculators_config():
    layer = without(LLAMA, "architectures", "draft_vocab_size")
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0", "draft_vocab_size": VD,
        "eagle_aux_hidden_state_layer_ids": [2, 5, 8], "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "target_hidden_size": None, "transformer_layer_config": layer,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x/y"}},
    }  # fmt: skip


def renamed(tensors_in, **prefix):
    return {prefix.get("to", "") + k: v for k, v in tensors_in.items()}


LAYOUTS = {
    "specforge": (LLAMA | {"eagle_config": EAGLE}, head()),
    "speculators": (speculators_config(), head("layers.0.") | {"embed_tokens.weight": weights(V, H)}),
    "modelopt": (LLAMA | {"eagle_config": EAGLE | {"has_lm_head": True, "next_layer_regular": True, "use_last_layernorm": True}}, head("layers.0.")),
    "angelslim": (LLAMA | {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3", "modal_type": "LLM"}, head()),
    "torchspec": (LLAMA | {"_torchspec_version": "0.1", "eagle_config": EAGLE}, head("model.layers.0.")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_canonical_head(tmp_path, layout):
    config, made = LAYOUTS[layout]
    draft = read_draft(write_draft(tmp_path, config, made))
    assert draft.source_format == layout and draft.family == "eagle3_llama"
    assert set(draft.tensors) - {"embed_tokens.weight"} == CANONICAL and draft.unknown_tensors == ()
    assert (draft.hidden, draft.target_hidden, draft.n_aux, draft.layers, draft.heads, draft.kv_heads, draft.head_dim) == (H, H, 3, 1, HEADS, 2, D)
    assert (draft.intermediate, draft.vocab, draft.draft_vocab, draft.eps, draft.max_positions) == (F, V, VD, 1e-5, 2048)
    assert draft.rope.theta == 1e5 and draft.config["hidden_size"] == H


@pytest.mark.parametrize("prefix", ["eagle_module.", "draft_model.", "module.", "model.", "module.draft_model.model."])
def test_prefixes_fall_away(tmp_path, prefix):
    draft = read_draft(write_draft(tmp_path, LLAMA, {prefix + k: v for k, v in head().items()}))
    assert set(draft.tensors) == CANONICAL and draft.tensors["fc.weight"].name == f"{prefix}fc.weight"


def test_official_eagle_in_a_torch_archive(tmp_path):
    config = without(LLAMA, "rope_theta", "head_dim", architectures=["LlamaForCausalLM"])
    made = head()
    torch.save(made, write_config(tmp_path, config) / "pytorch_model.bin")
    draft = read_draft(tmp_path)
    assert (draft.source_format, draft.family, draft.head_dim) == ("eagle", "eagle3_llama", D)
    assert (draft.rope.theta, draft.rope.origin) == (1e4, "default 10000")
    assert np.array_equal(tensors.load_array(draft.tensors["fc.weight"], [0]), made["fc.weight"][:1].float().numpy())


def test_sharded_safetensors_and_sharded_archives(tmp_path):
    made = head()
    assert set(read_draft(write_shards(write_config(tmp_path / "a", LLAMA), made)).tensors) == CANONICAL
    folder = write_config(tmp_path / "b", LLAMA)
    names = sorted(made)
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        torch.save({k: made[k] for k in part}, folder / f"pytorch_model-0000{i}-of-00002.bin")
    index = {k: f"pytorch_model-0000{1 + names.index(k) % 2}-of-00002.bin" for k in names}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert set(read_draft(folder).tensors) == CANONICAL
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(EvidenceError, match=r"names 'pytorch_model-00002-of-00002.bin', which is not in the folder; .* fetch it again"):
        read_draft(folder)


def test_a_specforge_training_state(tmp_path):
    torch.save({"draft_state_dict": head(), "epoch": 3}, write_config(tmp_path, LLAMA) / "training_state.pt")
    draft = read_draft(tmp_path)
    assert draft.source_format == "specforge_state" and set(draft.tensors) == CANONICAL


def test_kimi_mla(tmp_path):
    draft = read_draft(write_draft(tmp_path, MLA | {"eagle_config": EAGLE}, mla_head()))
    assert (draft.family, draft.n_aux, draft.head_dim, draft.draft_vocab) == ("eagle3_mla", 3, 5, V)
    assert draft.rope.scaling == {"type": "yarn", "factor": 64.0} and draft.unknown_tensors == ()


def test_eagle_3_1_flags_and_legacy_norm_names(tmp_path):
    config = LLAMA | {"use_aux_norm": True, "norm_output": True, "num_aux_hidden_states": 3, "eagle_config": EAGLE | {"norm_before_fc": True}}
    made = head() | {f"aux_norm_{n}.weight": weights(H) for n in ("low", "mid", "high")} | {"input_norm.weight": weights(3 * H), "fc.bias": weights(H)}
    draft = read_draft(write_draft(tmp_path, config, made))
    assert set(draft.tensors) - CANONICAL == {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight", "input_norm.weight", "fc.bias"}
    assert draft.tensors["fc_norm.2.weight"].name == "aux_norm_high.weight"
    flags = draft.flags
    assert (flags.fc_norm, flags.norm_output, flags.norm_before_fc, flags.norm_before_residual) == (True, True, True, None)


def test_the_nested_norm_before_fc_wins_as_in_both_engines(tmp_path):
    config = LLAMA | {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}
    assert read_draft(write_draft(tmp_path, config, head())).flags.norm_before_fc is False


def test_speculators_flags_are_kept_apart_from_absent_ones(tmp_path):
    flags = read_draft(write_draft(tmp_path, speculators_config(), head("layers.0."))).flags
    assert (flags.norm_before_residual, flags.norm_before_fc, flags.fc_norm, flags.norm_output) == (True, False, False, False)


def test_fused_projections_are_row_ranges_of_one_tensor(tmp_path):
    apart = head("layers.0.")
    draft = read_draft(write_draft(tmp_path, LLAMA, fused_head()))
    assert set(draft.tensors) == CANONICAL and sum("is fused" in note for note in draft.notes) == 2
    for name, want in apart.items():
        info = draft.tensors[name]
        assert info.shape == tuple(want.shape) and info.nbytes == want.numel() * want.element_size()
        assert torch.equal(tensors.load_tensor(info), want), name
        assert torch.equal(tensors.load_tensor(info, [1]), want[[1]]), name
    assert draft.tensors["layers.0.self_attn.v_proj.weight"].name == "layers.0.self_attn.qkv_proj.weight"


def test_fused_projections_of_an_archive(tmp_path):
    apart = head("layers.0.")
    torch.save(fused_head(), write_config(tmp_path, LLAMA) / "pytorch_model.bin")
    info = read_draft(tmp_path).tensors["layers.0.mlp.up_proj.weight"]
    assert torch.equal(tensors.load_tensor(info), apart["layers.0.mlp.up_proj.weight"])
    assert torch.equal(tensors.load_tensor(info, [2]), apart["layers.0.mlp.up_proj.weight"][[2]])


def test_a_fused_mla_projection(tmp_path):
    made = mla_head()
    attention = "layers.0.self_attn."
    made[f"{attention}fused_qkv_a_proj_with_mqa.weight"] = torch.cat([made.pop(f"{attention}q_a_proj.weight"), made.pop(f"{attention}kv_a_proj_with_mqa.weight")])
    draft = read_draft(write_draft(tmp_path, MLA, made))
    assert draft.tensors[f"{attention}q_a_proj.weight"].shape == (6, 2 * H)
    assert draft.tensors[f"{attention}kv_a_proj_with_mqa.weight"].row_start == 6


def test_a_fused_projection_that_does_not_add_up_is_kept_whole(tmp_path):
    draft = read_draft(write_draft(tmp_path, LLAMA | {"num_key_value_heads": 3}, fused_head()))
    assert "layers.0.self_attn.qkv_proj.weight" in draft.tensors and any("kept whole" in note for note in draft.notes)
    assert draft.family == "eagle3_llama"


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, ClaimedIds()),
        ({"eagle_config": EAGLE}, ClaimedIds(nested=tuple(IDS), eagle_config="object", use_aux_hidden_state=True)),
        ({"eagle_aux_hidden_state_layer_ids": IDS}, ClaimedIds(top_level=tuple(IDS))),
        ({"eagle_config": {"layer_ids": [2, 5, 8]}}, ClaimedIds(nested_layer_ids=(2, 5, 8), eagle_config="object")),
        ({"eagle_config": None}, ClaimedIds(eagle_config="null")),
        ({"eagle_config": [1, 2]}, ClaimedIds(eagle_config="malformed")),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,4,7"}}, ClaimedIds(eagle_config="malformed")),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["1", 4.0, -1]}}, ClaimedIds(nested=("1", 4.0, -1), eagle_config="object")),
    ],
)
def test_ids_are_claimed_where_they_stand_and_as_spelled(tmp_path, config, ids):
    assert read_draft(write_draft(tmp_path, LLAMA | config, head())).ids == ids


@pytest.mark.parametrize(
    ("value", "said"),
    [("1,4,7", "is '1,4,7'; expected a list of integers"), (["1", 4, 7], "holds '1', which is no integer"), ([1, 1, 7], "an id stands twice"), ([1, True, 7], "holds True")],
)
def test_odd_ids_are_noted(tmp_path, value, said):
    draft = read_draft(write_draft(tmp_path, LLAMA | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": value}}, head()))
    assert any(said in note for note in draft.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 36}, "says num_hidden_layers 36, the weights hold 1"),
        ({"hidden_size": 32}, "says hidden_size 32, the weights say 16"),
        ({"intermediate_size": 99}, "says intermediate_size 99, the weights say 24"),
        ({"vocab_size": 50}, "says vocab_size 50, the weights say 48"),
        ({"draft_vocab_size": 31}, "says draft_vocab_size 31, the weights say 32"),
        ({"num_aux_hidden_states": 4}, "says num_aux_hidden_states 4, fc was built for 3"),
        ({"target_hidden_size": 7}, "no multiple of the target's hidden size 7"),
    ],
)
def test_the_weights_win_and_the_claim_is_noted(tmp_path, changes, said):
    draft = read_draft(write_draft(tmp_path, LLAMA | changes, head()))
    assert any(said in note for note in draft.notes)
    assert (draft.hidden, draft.layers, draft.intermediate, draft.vocab, draft.draft_vocab) == (H, 1, F, V, VD)


def test_a_healthy_head_has_no_notes(tmp_path):
    assert read_draft(write_draft(tmp_path, LLAMA | {"eagle_config": EAGLE}, head())).notes == ()


def test_llama4_keeps_its_mlp_width_under_another_key(tmp_path):
    draft = read_draft(write_draft(tmp_path, LLAMA | {"intermediate_size": 8, "intermediate_size_mlp": F}, head()))
    assert draft.intermediate == F and draft.notes == ()


def test_another_target_width_and_plane_count(tmp_path):
    made = head() | {"fc.weight": weights(H, 5 * 8)}
    draft = read_draft(write_draft(tmp_path, LLAMA | {"target_hidden_size": 8}, made))
    assert (draft.target_hidden, draft.n_aux) == (8, 5)


def test_families_are_told_by_weights_not_by_architectures(tmp_path):
    mislabelled = LLAMA | {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}
    assert read_draft(write_draft(tmp_path / "a", mislabelled, head())).family == "eagle3_llama"
    eagle1 = {"fc.weight": weights(H, 2 * H), "layers.0.self_attn.q_proj.weight": weights(HEADS * D, H)}
    assert read_draft(write_draft(tmp_path / "b", LLAMA, eagle1)).family == "eagle1"
    assert read_draft(write_draft(tmp_path / "c", LLAMA, head() | {"mask_hidden": weights(1, 3 * H)})).family == "peagle"
    assert read_draft(write_draft(tmp_path / "d", LLAMA | {"architectures": ["LlamaForCausalLMEagle4"]}, head())).family == "eagle4"
    mtp = {"eh_proj.weight": weights(H, 2 * H), "enorm.weight": weights(H)}
    unknown = read_draft(write_draft(tmp_path / "e", LLAMA, mtp))
    assert unknown.family == "unknown" and set(unknown.unknown_tensors) == set(mtp)


def test_unknown_and_doubled_names_are_listed(tmp_path):
    made = head() | {"layers.0.mlp.up_proj.weight": weights(F, H), "surprise.weight": weights(2)}
    draft = read_draft(write_draft(tmp_path, LLAMA, made))
    assert set(draft.unknown_tensors) == {"midlayer.mlp.up_proj.weight", "surprise.weight"}
    assert any("are both layers.0.mlp.up_proj.weight" in note for note in draft.notes)


def test_two_layers_are_counted(tmp_path):
    second = {k.replace("layers.0", "layers.1"): v for k, v in head("layers.0.").items() if k.startswith("layers.0")}
    assert read_draft(write_draft(tmp_path, LLAMA | {"num_hidden_layers": 2}, head("layers.0.") | second)).layers == 2


def test_a_config_without_weights_is_evidence_too(tmp_path):
    draft = read_draft(write_draft(tmp_path, MLA | {"eagle_config": EAGLE | {"eagle_aux_hidden_state_layer_ids": [2, 30, 58, 60]}}, None))
    assert (draft.family, draft.tensors, draft.n_aux, draft.layers, draft.hidden) == ("eagle3_mla", {}, 4, 1, H)
    assert any("holds no weights" in note for note in draft.notes) and any("aux planes is the config's: 4" in note for note in draft.notes)
    assert read_draft(tmp_path / "config.json").n_aux == 4
    assert read_draft(write_draft(tmp_path / "b", LLAMA, None)).n_aux == 3


def test_provenance_is_noted(tmp_path):
    draft = read_draft(write_draft(tmp_path, speculators_config(), head("layers.0."), producer="spec 1"))
    assert "stamped speculators_version 0.9.0, producer spec 1." in draft.notes


def test_folders_that_are_no_drafter(tmp_path):
    with pytest.raises(EvidenceError, match=r"no drafter checkpoint; .*found an empty folder. Name the folder that holds config.json"):
        read_draft(tmp_path)
    with pytest.raises(EvidenceError, match="the drafter does not exist"):
        read_draft(tmp_path / "nowhere")
    with pytest.raises(EvidenceError, match=r"holds a JSON string; expected an object"):
        read_draft(write_config(tmp_path / "s", "hello"))
    with pytest.raises(EvidenceError, match=r"no `hidden_size` and no weights that show it"):
        read_draft(write_config(tmp_path / "h", {}))


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "draft_vocab_size", "rms_norm_eps", "norm_output", "architectures", "rope_scaling", "transformer_layer_config"])
def test_a_field_of_the_wrong_type_is_named(tmp_path, key):
    with pytest.raises(EvidenceError, match=rf"config.json: `{key}` is .*expected"):
        read_draft(write_draft(tmp_path, LLAMA | {key: "surprise" if key != "architectures" else 7}, head()))


def test_a_corrupt_shard_and_a_hostile_archive_are_refused(tmp_path):
    folder = write_draft(tmp_path / "a", LLAMA, head())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(EvidenceError, match=r"model.safetensors: tensor .* copy it again"):
        read_draft(folder)
    (write_config(tmp_path / "b", LLAMA) / "pytorch_model.bin").write_bytes(b"junk")
    with pytest.raises(EvidenceError, match="no torch archive"):
        read_draft(tmp_path / "b")


def test_safetensors_win_over_an_archive_beside_them(tmp_path):
    folder = write_draft(tmp_path, LLAMA, head())
    save_file(head(), folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert any("pytorch_model.bin lies beside the safetensors" in note for note in read_draft(folder).notes)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=2), max_leaves=5)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_any_config_field_gives_a_traceback(tmp_path, data):
    keys = [*LLAMA, *MLA, "eagle_config", "eagle_aux_hidden_state_layer_ids", "transformer_layer_config", "text_config", "rope_parameters", "fc_norm",
            "target_hidden_size", "num_aux_hidden_states", "partial_rotary_factor", "rotary_dim", "_torchspec_version", "speculators_version"]  # fmt: skip
    nested = st.fixed_dictionaries({}, optional={"eagle_aux_hidden_state_layer_ids": JSON, "layer_ids": JSON, "use_aux_hidden_state": JSON, "hidden_size": JSON, "rope_theta": JSON})
    changes = data.draw(st.dictionaries(st.sampled_from(keys), JSON | nested, min_size=1, max_size=4))
    try:
        draft = read_draft(write_draft(tmp_path / "d", LLAMA | changes, head() if data.draw(st.booleans()) else fused_head()))
        assert draft.layers == 1 and all(isinstance(note, str) for note in draft.notes)
    except EvidenceError as error:
        assert "config.json" in str(error)
