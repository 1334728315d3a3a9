"""States: equal to Hugging Face's hidden states at every boundary, cached per boundary, robust against a damaged cache."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence import forward
from eagle_forensics.evidence import states as module
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.states import fits, read_states, target_key, target_states, write_states
from eagle_forensics.evidence.targets import read_target

L = 4
NORMED = Boundary(L, normed=True)
SEQUENCES = [list(range(1, 9)), [5, 3, 5, 3, 60], [7] * 12]
ALL = [*range(L + 1), NORMED]


def make_target(folder, seed=0, dtype=torch.float32, **config):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4,
                                         num_key_value_heads=2, vocab_size=64, tie_word_embeddings=True, **config)).to(dtype)
    with torch.no_grad():
        model.model.norm.weight.add_(torch.rand(32).to(dtype))
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path):
    return make_target(tmp_path / "target")


@pytest.fixture
def target(model, tmp_path):
    return read_target(tmp_path / "target")


@pytest.fixture
def passes(monkeypatch):
    """Boundaries of every forward pass that is run."""
    seen = []
    real = forward.TargetRunner.states
    monkeypatch.setattr(forward.TargetRunner, "states", lambda self, tokens, asked: (seen.append(tuple(map(str, asked))), real(self, tokens, asked))[1])
    return seen


@pytest.mark.parametrize("cache", [True, False])
def test_states_equal_hugging_face_at_every_boundary(model, target, cache):
    states = target_states(target, SEQUENCES, ALL, cache=cache)
    for index, ids in enumerate(SEQUENCES):
        with torch.no_grad():
            hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for b in range(L):
            assert torch.equal(states.plane(index, b), hidden[b][0]), b
        assert torch.equal(states.plane(index, NORMED), hidden[L][0])
        last = states.plane(index, L)
        assert torch.equal(model.model.norm(last), hidden[L][0]) and not torch.equal(last, hidden[L][0])
        assert torch.equal(states.plane(index, 0), model.model.embed_tokens.weight[ids])


def test_the_stored_dtype_is_kept(tmp_path):
    make_target(tmp_path / "half", dtype=torch.bfloat16)
    assert target_states(read_target(tmp_path / "half"), SEQUENCES[:1], [2]).plane(0, 2).dtype == torch.bfloat16


def test_states_do_not_depend_on_the_company_of_a_sequence(tmp_path):
    make_target(tmp_path / "half", dtype=torch.bfloat16)
    target = read_target(tmp_path / "half")
    together = target_states(target, SEQUENCES, [L], cache=False)
    for index, ids in enumerate(SEQUENCES):
        assert torch.equal(together.plane(index, L), target_states(target, [ids], [L], cache=False).plane(0, L))


def test_only_missing_boundaries_and_sequences_are_computed(target, passes):
    target_states(target, SEQUENCES[:2], [1, 2])
    assert passes == [("b=1", "b=2")] * 2
    passes.clear()
    target_states(target, SEQUENCES[:2], [2, 1])
    assert passes == []
    target_states(target, SEQUENCES, [1, 2, 4])
    assert passes == [("b=4",), ("b=4",), ("b=1", "b=2", "b=4")]


def test_the_pass_ends_at_the_deepest_boundary(model, target):
    runner = forward.TargetRunner(target)
    ran = []
    for index, layer in enumerate(runner.layers):
        layer.register_forward_hook(lambda *args, index=index: ran.append(index))
    runner.states(SEQUENCES[0], [Boundary(0), Boundary(2)])
    assert ran == [0, 1]


def test_a_damaged_cache_is_recomputed(target, passes, own_cache):
    good = target_states(target, SEQUENCES[:1], [1, 2, 3])
    want = [good.plane(0, b).clone() for b in (1, 2, 3)]
    one, two, three = (next(own_cache.rglob(f"b{b}.safetensors")) for b in (1, 2, 3))
    flipped = bytearray(one.read_bytes())
    flipped[-1] ^= 1
    one.write_bytes(flipped)
    two.write_bytes(two.read_bytes()[:100])
    three.write_bytes(b"")
    with pytest.raises(EvidenceError, match="damaged while in use"):
        good.plane(0, 1)
    passes.clear()
    again = target_states(target, SEQUENCES[:1], [1, 2, 3])
    assert passes == [("b=1", "b=2", "b=3")]
    for b, plane in zip((1, 2, 3), want, strict=True):
        assert torch.equal(again.plane(0, b), plane)
    assert not list(own_cache.rglob(".*"))


def test_a_fine_tune_of_equal_shape_has_its_own_key(tmp_path, model, target):
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[40:].mul_(1.01)
    model.save_pretrained(tmp_path / "tuned")
    tuned = read_target(tmp_path / "tuned")
    sizes = {(t.path / "model.safetensors").stat().st_size for t in (target, tuned)}
    assert len(sizes) == 1
    assert target_key(target) != target_key(tuned)
    a, b = (target_states(t, SEQUENCES[:1], [3]).plane(0, 3) for t in (target, tuned))
    assert not torch.equal(a, b)


def test_a_changed_rope_is_another_target(tmp_path, target):
    make_target(tmp_path / "rope")
    config = json.loads((tmp_path / "rope/config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 123.0
    (tmp_path / "rope/config.json").write_text(json.dumps(config))
    assert target_key(read_target(tmp_path / "rope")) != target_key(target)


@pytest.mark.parametrize(("sequences", "boundaries", "message"), [
    ([[1, 64]], [1], "token 64, outside the target's vocabulary of 64"),
    ([[1, -1]], [1], "token -1, outside"),
    ([[]], [1], "no tokens"),
    ([[1]], [5], "boundaries are 0 to 4"),
    ([[1]], [-1], "does not exist"),
    ([[1]], [Boundary(2, normed=True)], "does not exist"),
])
def test_impossible_questions_say_why(target, sequences, boundaries, message):
    with pytest.raises(EvidenceError, match=message):
        target_states(target, sequences, boundaries)


def test_a_plane_that_is_not_held_is_named(target):
    states = target_states(target, SEQUENCES[:1], [1])
    with pytest.raises(ValueError, match="no states at b=2; held: b=1"):
        states.plane(0, 2)
    with pytest.raises(ValueError, match="no sequence 1"):
        states.plane(1, 1)


def test_fits_says_why_not(tmp_path, target, monkeypatch):
    assert fits(target) is None
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text((target.path / "config.json").read_text())
    bare = read_target(tmp_path / "bare")
    assert "holds no weights" in fits(bare)
    with pytest.raises(EvidenceError, match="cannot be computed here"):
        target_states(bare, SEQUENCES, [1])
    monkeypatch.setattr(module, "available_bytes", lambda: 1 << 20)
    assert "GiB of memory" in fits(target)


def test_fits_sees_missing_layers_and_quantisation(tmp_path, target):
    from dataclasses import replace

    half = replace(target, tensors={n: i for n, i in target.tensors.items() if not n.startswith(("layers.2.", "layers.3."))})
    assert "2 of 4 layers" in fits(half)
    assert "quantised" in fits(replace(target, config={**target.config, "quantization_config": {"bits": 4}}))


def test_a_target_that_needs_remote_code_is_refused_without_running_it(tmp_path, target):
    config = json.loads((target.path / "config.json").read_text())
    config |= {"model_type": "made_up", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (target.path / "config.json").write_text(json.dumps(config))
    (target.path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(EvidenceError, match="transformers cannot build"):
        target_states(read_target(target.path), SEQUENCES, [1])
    assert not (tmp_path / "ran").exists()


def test_a_bank_is_read_as_it_was_written(target, tmp_path):
    states = target_states(target, SEQUENCES, [0, L, NORMED])
    bank = read_states(write_states(states, tmp_path / "bank", about="a tiny random Llama"))
    assert bank.boundaries == (Boundary(0), Boundary(L), NORMED)
    assert bank.sequences == tuple(map(tuple, SEQUENCES))
    assert "a tiny random Llama" in bank.origin
    for index in range(3):
        for b in bank.boundaries:
            assert torch.equal(bank.plane(index, b), states.plane(index, b))


@pytest.mark.parametrize(("break_it", "message"), [
    (lambda p: (p / "bank.json").unlink(), "not a reference bank"),
    (lambda p: (p / "bank.json").write_text("[]"), "not a reference bank"),
    (lambda p: (p / "bank.json").write_text('{"boundaries": ["layer3"], "sequences": 1, "origin": ""}'), "names no boundary"),
    (lambda p: (p / "bank.json").write_text('{"boundaries": ["b3"], "sequences": 1, "origin": ""}'), "promises b3"),
    (lambda p: (p / "bank.json").write_text('{"boundaries": ["b0"], "sequences": -1, "origin": ""}'), "holds -1 sequences"),
    (lambda p: (p / "states_0.safetensors").write_bytes(b"x"), "8-byte header"),
])
def test_a_broken_bank_is_named(target, tmp_path, break_it, message):
    path = write_states(target_states(target, SEQUENCES[:1], [0]), tmp_path / "bank")
    break_it(path)
    with pytest.raises(EvidenceError, match=message):
        read_states(path)


def test_a_bank_with_values_that_are_no_numbers_is_named(target, tmp_path):
    real = target_states(target, SEQUENCES[:1], [0])
    spoiled = module.States(real.boundaries, real.sequences, "spoiled", lambda i, b: real.plane(i, b) * float("nan"))
    bank = read_states(write_states(spoiled, tmp_path / "bank"))
    with pytest.raises(EvidenceError, match="b0 holds NaN"):
        bank.plane(0, 0)


def test_damaged_weights_of_the_target_are_named(tmp_path):
    model = make_target(tmp_path / "spoiled")
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "spoiled")
    target = read_target(tmp_path / "spoiled")
    assert target_states(target, SEQUENCES[:1], [2]).plane(0, 2).isfinite().all()
    with pytest.raises(EvidenceError, match="NaN or infinite values at b=3"):
        target_states(target, SEQUENCES[:1], [3])


def test_a_cache_that_cannot_be_written_says_what_to_set(target, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "file"))
    with pytest.raises(EvidenceError, match="Set EAGLE_FORENSICS_CACHE to a folder that can be written"):
        target_states(target, SEQUENCES[:1], [0])
