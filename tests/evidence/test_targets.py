"""The target: nested configs, norm and embedding conventions, optional weights."""

import json
import math

import pytest
from safetensors.torch import save_file

from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.targets import read_target
from tests.evidence.builders import H, weights, write_config, write_shards

PLAIN = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 30, "hidden_size": H, "vocab_size": 48,
    "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": True,
}  # fmt: skip


def target(tmp_path, **changes):
    return read_target(write_config(tmp_path / "t", {k: v for k, v in (PLAIN | changes).items() if v is not ...}))


def test_a_tied_llama_has_no_lm_head(tmp_path):
    folder = write_config(tmp_path, PLAIN)
    save_file({"model.embed_tokens.weight": weights(48, H), "model.norm.weight": weights(H), "model.layers.0.mlp.up_proj.weight": weights(4, H)}, folder / "model.safetensors")
    read = read_target(folder)
    assert (read.layers, read.hidden, read.vocab, read.eps, read.model_type) == (30, H, 48, 1e-5, "llama")
    assert set(read.tensors) == {"embed_tokens.weight", "norm.weight", "layers.0.mlp.up_proj.weight"}
    assert (read.norm_plus_one, read.embedding_factor) == (False, 1.0)


def test_kimi_is_read_out_of_its_text_config(tmp_path):
    text = {"model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840, "rms_norm_eps": 1e-6,
            "rope_theta": 50000.0, "rope_scaling": {"type": "yarn", "factor": 64.0}, "architectures": ["DeepseekV3ForCausalLM"]}  # fmt: skip
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    folder = write_shards(write_config(tmp_path, config), {"language_model.model.norm.weight": weights(8), "language_model.lm_head.weight": weights(4, 8), "vision_tower.x": weights(2)})
    read = read_target(folder)
    assert (read.layers, read.hidden, read.vocab) == (61, 7168, 163840)
    assert read.model_type == "kimi_k25" and read.architectures == ("KimiK25ForConditionalGeneration",)
    assert (read.config["model_type"], read.config["architectures"]) == ("kimi_k25", ["KimiK25ForConditionalGeneration"])
    assert read.config["text_model_type"] == "kimi_k2" and read.config["num_hidden_layers"] == 61
    assert read.rope.theta == 50000 and read.rope.scaling == {"type": "yarn", "factor": 64.0} and read.rope.origin == "rope_theta"
    assert set(read.tensors) == {"norm.weight", "lm_head.weight", "vision_tower.x"}


@pytest.mark.parametrize(
    ("model_type", "plus_one", "factor"),
    [("gemma3_text", True, math.sqrt(H)), ("gemma3n", False, math.sqrt(H)), ("qwen3_next", True, 1.0), ("llama", False, 1.0)],
)
def test_norm_and_embedding_conventions(tmp_path, model_type, plus_one, factor):
    read = target(tmp_path, model_type=model_type)
    assert (read.norm_plus_one, read.embedding_factor) == (plus_one, pytest.approx(factor))


def test_a_nested_gemma_keeps_its_conventions(tmp_path):
    read = target(tmp_path, model_type="gemma3", text_config={"model_type": "gemma3_text", "num_hidden_layers": 3})
    assert read.norm_plus_one and read.embedding_factor == pytest.approx(4.0) and read.layers == 3


@pytest.mark.parametrize("key", ["embedding_multiplier", "scale_emb"])
def test_an_embedding_factor_of_the_config(tmp_path, key):
    read = target(tmp_path, **{key: 12})
    assert read.embedding_factor == 12 and any("12" in note for note in read.notes)


def test_missing_weights_and_missing_shards_are_notes(tmp_path):
    assert "config only" in target(tmp_path).notes[-1]
    folder = write_shards(write_config(tmp_path / "s", PLAIN), {"model.norm.weight": weights(4), "model.embed_tokens.weight": weights(4)})
    (folder / "model-00001-of-00002.safetensors").unlink()
    read = read_target(folder)
    assert set(read.tensors) == {"norm.weight"} and "1 shards of the index are not in the folder" in read.notes[-1]
    assert read_target(folder / "config.json").tensors == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": ...}, "no `num_hidden_layers`; expected an integer"),
        ({"hidden_size": "576"}, "`hidden_size` is '576'; expected an integer of at least 1"),
        ({"vocab_size": -1}, "`vocab_size` is -1"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` is True"),
        ({"rms_norm_eps": "small"}, "`rms_norm_eps` is 'small'; expected a positive number"),
        ({"rope_theta": 0}, "`rope_theta` is 0"),
        ({"partial_rotary_factor": 1.5}, "rotates 1.5 of the head dimension; expected at most 1"),
        ({"rope_scaling": "yarn"}, "`rope_scaling` is a string; expected an object or null"),
        ({"architectures": [1]}, "`architectures` is [1]; expected a list of strings"),
        ({"text_config": []}, "`text_config` is []; expected an object"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, changes, said):
    with pytest.raises(EvidenceError) as caught:
        target(tmp_path, **changes)
    assert said in str(caught.value) and "config.json" in str(caught.value)


def test_folders_that_are_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    cases = [(tmp_path / "nowhere", "does not exist"), (tmp_path, "no config.json.*found notes.txt"), (tmp_path / "notes.txt", "is a file; expected a model folder")]
    for path, said in cases:
        with pytest.raises(EvidenceError, match=said):
            read_target(path)
    (tmp_path / "config.json").write_text(json.dumps([PLAIN]))
    with pytest.raises(EvidenceError, match="holds a JSON list; expected an object"):
        read_target(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1')
    with pytest.raises(EvidenceError, match="not valid JSON at line 1, column 8"):
        read_target(tmp_path)


@pytest.mark.parametrize(
    ("changes", "theta", "scaling", "partial", "origin"),
    [
        ({"rope_theta": ...}, 1e4, None, 1.0, "default 10000"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 5e4, "rope_type": "default"}}, 5e4, None, 1.0, "rope_parameters"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 5e4, "rope_type": "yarn", "factor": 2.0}}, 5e4, {"rope_type": "yarn", "factor": 2.0}, 1.0, "rope_parameters"),
        ({"rope_theta": ..., "rope_parameters": {"full_attention": {"rope_theta": 7e4, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}}, 7e4, None, 1.0, "rope_parameters"),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, 1e6, {"type": "default", "mrope_section": [1, 2]}, 1.0, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, 1e5, None, 0.5, "rope_theta"),
        ({"rotary_dim": 32, "head_dim": 128}, 1e5, None, 0.25, "rope_theta"),
    ],
)
def test_rope(tmp_path, changes, theta, scaling, partial, origin):
    rope = target(tmp_path, **changes).rope
    assert (rope.theta, rope.scaling, rope.partial, rope.origin) == (theta, scaling, partial, origin)


def test_two_rope_bases_are_a_note(tmp_path):
    read = target(tmp_path, rope_parameters={"rope_theta": 5e4, "rope_type": "default"})
    assert read.rope.theta == 5e4 and any("50000 but rope_theta is 100000" in note for note in read.notes)
