"""Train an EAGLE-3 drafter like the committed one, from nothing, with plain torch.

    python tests/retrain/train_drafter.py --out OUT                  # about 35 minutes on two cores
    python tests/retrain/train_drafter.py --out OUT --updates 120    # a weaker one in about 9 minutes

Recipe: 903 sequences that the target itself generated; boundaries {2, 15, 27}; AdamW 1.5e-3 with a cosine, batches of 8
sequences, 940 updates, clipping at 1.0, bf16 autocast; training-time test with 3 steps weighted 0.8^k; soft cross-entropy
against the target's distribution over the draft vocabulary (the 4,096 most frequent response tokens). `lm_head` starts from
the target's rows, `norm` from 0.3 times the target's, `fc` from N(0, .003) plus 24/558 of the identity on the deepest plane: a
plain random start needs several times the updates. Writes the SpecForge/SGLang layout and train_log.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_forensics.demo.stage import TRAINED, Row, sequences
from eagle_forensics.demo.target import target_folder
from eagle_forensics.evidence.records import Target
from eagle_forensics.evidence.states import target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.evidence.tensors import load_tensor

STEPS, DECAY, LEARNING_RATE = 3, 0.8, 1.5e-3


@dataclass
class Head:
    """What the drafter borrows from the target."""

    embedding: Tensor
    """[V, H]"""
    norm: Tensor
    rows: Tensor
    """[Vd, H]: rows of the target's head for the draft vocabulary."""
    vocabulary: Tensor
    """[Vd] token ids, ascending."""
    eps: float


@dataclass
class Batch:
    """Sequences padded to one length."""

    ids: Tensor
    """[B, T]"""
    response: Tensor
    """[B, T] bool: tokens the target generated."""
    features: Tensor
    """[B, T, 3H]"""
    last: Tensor
    """[B, T, H] before the final norm."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding, halves layout; x [B, heads, T, D], positions [T]."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() * theta ** (-torch.arange(half).float() / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    """The one decoder layer; its input is `[embedding, hidden]`, 2H wide."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        config, hidden = target.config, target.hidden
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or hidden // self.heads
        self.theta, self.eps = target.rope.theta, target.eps
        shapes = {"q_proj": (2 * hidden, self.heads), "k_proj": (2 * hidden, self.kv_heads), "v_proj": (2 * hidden, self.kv_heads)}
        self.self_attn = nn.ModuleDict({n: nn.Linear(i, h * self.size, bias=False) for n, (i, h) in shapes.items()})
        self.self_attn["o_proj"] = nn.Linear(self.heads * self.size, hidden, bias=False)
        inner = config["intermediate_size"]
        self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(hidden, inner, bias=False), "up_proj": nn.Linear(hidden, inner, bias=False),
                                  "down_proj": nn.Linear(inner, hidden, bias=False)})
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            setattr(self, name, nn.RMSNorm(hidden, self.eps))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, embedded: Tensor, hidden: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One training-time-test step: `past` holds keys and values of the steps before and gets this step's."""
        step, (batch, length, _) = len(past), hidden.shape
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        q, k, v = (self.self_attn[n](x).view(batch, length, -1, self.size).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        positions = torch.arange(length) + step
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        repeat = self.heads // self.kv_heads
        past.append((k.repeat_interleave(repeat, 1), v.float().repeat_interleave(repeat, 1)))
        first_k, first_v = past[0]
        scores = [(q @ first_k.transpose(2, 3)).masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in past[1:]]
        share = (torch.cat(scores, -1) / self.size**0.5).softmax(-1)
        mixed = share[..., :length] @ first_v
        for j, (_, value) in enumerate(past[1:]):
            mixed = mixed + share[..., length + j, None] * value
        hidden = hidden + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(batch, length, -1))
        x = self.post_attention_layernorm(hidden)
        return hidden + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x))


class Drafter(nn.Module):
    """EAGLE-3 head with the names of the SpecForge layout; the embedding stays the target's."""

    def __init__(self, target: Target, head: Head) -> None:
        super().__init__()
        hidden = target.hidden
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = Layer(target)
        self.norm = nn.RMSNorm(hidden, target.eps)
        self.lm_head = nn.Linear(hidden, len(head.vocabulary), bias=False)
        with torch.no_grad():
            nn.init.normal_(self.fc.weight, std=0.003)
            self.fc.weight[:, 2 * hidden:] += 24 / 558 * torch.eye(hidden)
            self.norm.weight.copy_(0.3 * head.norm)
            self.lm_head.weight.copy_(head.rows)

    def forward(self, batch: Batch, embedding: Tensor, steps: int) -> list[Tensor]:
        """Logits [B, T-1-k, Vd] of steps k = 0..: entry t of step k predicts token t+2+k."""
        hidden, past, logits = self.fc(batch.features[:, :-1]), [], []
        for k in range(steps):
            tokens = F.pad(batch.ids[:, 1 + k:], (0, k))
            hidden = self.midlayer(embedding[tokens], hidden, past)
            logits.append(self.lm_head(self.norm(hidden))[:, : batch.ids.shape[1] - 1 - k])
        return logits


def make_batch(rows: list[Row], planes: list[list[Tensor]]) -> Batch:
    pad = lambda tensors: nn.utils.rnn.pad_sequence(tensors, batch_first=True)  # noqa: E731
    response = [torch.tensor([False] * len(r.prompt_ids) + [True] * len(r.gen_ids)) for r in rows]
    return Batch(pad([torch.tensor(r.ids) for r in rows]), pad(response), pad([torch.cat(p[:3], -1) for p in planes]).float(),
                 pad([p[3] for p in planes]).float())


def loss_of(drafter: Drafter, batch: Batch, head: Head) -> Tensor:
    """Weighted mean over steps of the cross-entropy to the target's distribution on the draft vocabulary."""
    with torch.no_grad():
        teacher = (rms_norm(batch.last, head.norm, head.eps) @ head.rows.T).softmax(-1)
    total = torch.zeros(())
    for k, logits in enumerate(drafter(batch, head.embedding, STEPS)):
        mask = F.pad(batch.response, (0, 1))[:, 2 + k:]
        entropy = -(teacher[:, 1 + k:] * logits.float().log_softmax(-1)).sum(-1)
        total = total + DECAY**k * (entropy * mask).sum() / mask.sum()
    return total


@torch.no_grad()
def accuracies(drafter: Drafter, batches: list[Batch], head: Head, steps: int = STEPS) -> list[float]:
    """Share of response tokens that step k predicts, teacher-forced; tokens outside the draft vocabulary are misses."""
    right, count = torch.zeros(steps), torch.zeros(steps)
    for batch in batches:
        for k, logits in enumerate(drafter(batch, head.embedding, steps)):
            mask = batch.response[:, 2 + k:]
            guess = head.vocabulary[logits.argmax(-1)][:, : mask.shape[1]]
            right[k] += ((guess == batch.ids[:, 2 + k:]) & mask).sum()
            count[k] += mask.sum()
    return (right / count).tolist()


def read_head(target: Target, rows: list[Row], size: int) -> Head:
    """The draft vocabulary (most frequent response tokens) and the target's rows for it."""
    counts = collections.Counter(t for row in rows for t in row.gen_ids)
    vocabulary = torch.tensor(sorted(t for t, _ in counts.most_common(size)))
    if len(vocabulary) < size:
        rest = [t for t in range(target.vocab) if t not in counts][: size - len(vocabulary)]
        vocabulary = torch.tensor(sorted([*vocabulary.tolist(), *rest]))
    embedding = load_tensor(target.tensors["embed_tokens.weight"]).float()
    lm_head = load_tensor(target.tensors["lm_head.weight"]).float() if "lm_head.weight" in target.tensors else embedding
    return Head(embedding, load_tensor(target.tensors["norm.weight"]).float(), lm_head[vocabulary], vocabulary, target.eps)


def save(drafter: Drafter, target: Target, head: Head, boundaries: tuple[int, ...], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in drafter.state_dict().items()}
    tensors["d2t"] = head.vocabulary - torch.arange(len(head.vocabulary))
    tensors["t2d"] = torch.zeros(target.vocab, dtype=torch.bool).index_fill(0, head.vocabulary, True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps",
            "max_position_embeddings", "hidden_act", "bos_token_id", "eos_token_id", "pad_token_id")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **{k: target.config[k] for k in keys if k in target.config},
              "num_hidden_layers": 1, "draft_vocab_size": len(head.vocabulary), "rope_theta": target.rope.theta, "attention_bias": False,
              "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "target_hidden_size": target.hidden,
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": [b - 1 for b in boundaries], "use_aux_hidden_state": True}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def train(target: Target, rows: list[Row], held_out: list[Row], out: Path, *, boundaries: tuple[int, ...] = TRAINED, updates: int = 940,
          batch: int = 8, draft_vocab: int = 4096, seed: int = 0) -> list[float]:
    """Train, save, and return the held-out accuracy of each step."""
    torch.manual_seed(seed)
    began, head = time.monotonic(), read_head(target, rows, draft_vocab)
    states = target_states(target, [r.ids for r in [*rows, *held_out]], [*boundaries, target.layers], cache=False, progress=print)
    planes = [[states.plane(i, b) for b in (*boundaries, target.layers)] for i in range(len(rows) + len(held_out))]
    test = [make_batch([row], [planes[len(rows) + i]]) for i, row in enumerate(held_out)]
    drafter = Drafter(target, head)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    order, log = [], []
    for update in range(1, updates + 1):
        if len(order) < batch:
            order = torch.randperm(len(rows)).tolist()
        chosen, order = order[:batch], order[batch:]
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(drafter, make_batch([rows[i] for i in chosen], [planes[i] for i in chosen]), head)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update == updates or len(order) < batch:
            log.append({"update": update, "seconds": time.monotonic() - began, "loss": loss.item(), "test_acc": accuracies(drafter, test, head)})
            print("update {update}: loss {loss:.3f}, held-out accuracy {acc} after {seconds:.0f} s".format(
                **log[-1], acc=" ".join(f"{a:.3f}" for a in log[-1]["test_acc"])), flush=True)
    save(drafter, target, head, boundaries, out)
    (out / "train_log.json").write_text(json.dumps({"log": log, "seed": seed, "params": sum(p.numel() for p in drafter.parameters())}, indent=1))
    return log[-1]["test_acc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="target folder (default: the built-in one, downloaded once)")
    parser.add_argument("--updates", type=int, default=940)
    parser.add_argument("--batch", type=int, default=8, help="sequences an update")
    parser.add_argument("--limit", type=int, help="use only so many training sequences")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    target = read_target(args.target or target_folder(print))
    train(target, sequences("train")[: args.limit], sequences("test"), args.out, updates=args.updates, batch=args.batch, seed=args.seed)


if __name__ == "__main__":
    main()
