"""The retraining script: it learns, writes the layout that is read back, and scores the committed drafter as recorded."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_forensics.demo.stage import DATA, TRAINED, Row, sequences
from eagle_forensics.demo.target import target_folder
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.states import target_states
from eagle_forensics.evidence.targets import read_target
from tests.retrain.train_drafter import Drafter, Head, accuracies, make_batch, read_head, rms_norm, train


@pytest.fixture
def target(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                 vocab_size=64, tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained(tmp_path / "target")
    return read_target(tmp_path / "target")


def rows(count):
    return [Row("train", "x", "", (1, 2, 3), tuple((seed * 7 + i) % 5 + 10 for i in range(9))) for seed in range(count)]


def test_two_updates_write_a_drafter_that_is_read_back(target, tmp_path):
    accuracy = train(target, rows(4), rows(2), tmp_path / "out", boundaries=(1, 2, 3), updates=2, batch=2, draft_vocab=16)
    assert len(accuracy) == 3 and all(0 <= a <= 1 for a in accuracy)
    draft = read_draft(tmp_path / "out")
    assert (draft.family, draft.n_aux, draft.draft_vocab, draft.ids.nested) == ("eagle3_llama", 3, 16, (0, 1, 2))
    weights = load_file(tmp_path / "out/model.safetensors")
    committed = load_file(DATA / "drafter/model.safetensors")
    assert set(weights) == set(committed)
    assert torch.equal(weights["t2d"].nonzero().flatten(), weights["d2t"] + torch.arange(16))


def test_training_lowers_the_loss(target, tmp_path):
    train(target, rows(8), rows(2), tmp_path / "out", boundaries=(1, 2, 3), updates=40, batch=4, draft_vocab=16)
    log = json.loads((tmp_path / "out/train_log.json").read_text())["log"]
    assert log[-1]["loss"] < log[0]["loss"]


def test_a_training_time_step_equals_drafting_one_token_at_a_time(target):
    """Step k at position t is what a decoder computes that has read t+1 pairs and then feeds back its own state k times."""
    torch.manual_seed(1)
    head = read_head(target, rows(4), 16)
    drafter = Drafter(target, head).eval()
    row = rows(1)[0]
    states = target_states(target, [row.ids], [1, 2, 3, 4], cache=False)
    batch = make_batch([row], [[states.plane(0, b) for b in (1, 2, 3, 4)]])
    with torch.no_grad():
        logits = drafter(batch, head.embedding, 3)
        layer, t = drafter.midlayer, 5
        hidden = list(drafter.fc(batch.features[0, : t + 1]))
        tokens = list(row.ids[1: t + 2])
        for k in range(3):
            state = causal(layer, torch.stack(hidden), head.embedding[tokens])[-1]
            assert torch.allclose(drafter.lm_head(drafter.norm(state)), logits[k][0, t], atol=1e-5), k
            hidden.append(state)
            tokens.append(row.ids[t + 2 + k])


def causal(layer, hidden, embedded):
    """The layer as an ordinary causal decoder over pairs, position by position."""
    from tests.retrain.train_drafter import rotate

    x = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], -1)
    q, k, v = (layer.self_attn[n](x).view(len(x), -1, layer.size).transpose(0, 1) for n in ("q_proj", "k_proj", "v_proj"))
    positions = torch.arange(len(x))
    q, k = rotate(q[None], positions, layer.theta)[0], rotate(k[None], positions, layer.theta)[0]
    k, v = (y.repeat_interleave(layer.heads // layer.kv_heads, 0) for y in (k, v))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = hidden + layer.self_attn["o_proj"](mixed.transpose(0, 1).reshape(len(x), -1))
    y = rms_norm(out, layer.post_attention_layernorm.weight, layer.eps)
    return out + layer.mlp["down_proj"](torch.nn.functional.silu(layer.mlp["gate_proj"](y)) * layer.mlp["up_proj"](y))


@pytest.mark.demo
def test_the_committed_drafter_scores_what_its_training_log_says():
    target, test = read_target(target_folder(print)), sequences("test")
    weights = load_file(DATA / "drafter/model.safetensors")
    vocabulary = weights.pop("d2t") + torch.arange(4096)
    weights.pop("t2d")
    full = read_head(target, test, 16)
    head = Head(full.embedding, full.norm, full.embedding[vocabulary], vocabulary, target.eps)
    drafter = Drafter(target, head)
    drafter.load_state_dict({name: value.float() for name, value in weights.items()})
    states = target_states(target, [r.ids for r in test], [*TRAINED, target.layers])
    batches = [make_batch([row], [[states.plane(i, b) for b in (*TRAINED, target.layers)]]) for i, row in enumerate(test)]
    recorded = json.loads((DATA / "drafter/train_log.json").read_text())["log"][-1]["test_acc"]
    assert accuracies(drafter, batches, head) == pytest.approx(recorded, abs=0.005)
