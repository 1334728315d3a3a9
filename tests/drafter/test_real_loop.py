"""The real pair decodes: a float32 loop of target and drafter in plain torch, and a live SGLang's recorded counts, against the walk."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from eagle_forensics import demo
from eagle_forensics.demo.stage import sequences
from eagle_forensics.drafter.network.model import load_drafter
from eagle_forensics.drafter.prediction.tree import grow_trees
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.targets import read_target

pytestmark = [pytest.mark.demo, pytest.mark.timeout(2400)]

TRAINED, EMBEDDING_FIRST = (2, 15, 27), (0, 2, 15)
LIVE = json.loads((Path(__file__).parent / "live_sglang.json").read_text())
"""Requests to SGLang 0.5.23 (CPU, float32, ids [1, 14, 26], greedy, one at a time), as `steps,topk,draft tokens`: output tokens and its counts."""


class Target:
    """The target with its cache; greedy."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.begin()

    def begin(self) -> None:
        self.cache, self.rows, self.logits = None, {}, None

    @torch.inference_mode()
    def read(self, ids: list[int]) -> None:
        """Run what is new of `ids`, which always grows."""
        new = torch.tensor([ids[len(self.rows.get(0, ())):]])
        if not new.numel():
            return
        out = self.model(new, past_key_values=self.cache, use_cache=True, output_hidden_states=True)
        self.cache, self.logits = out.past_key_values, out.logits[0]
        for b in {*TRAINED, *EMBEDDING_FIRST}:
            self.rows[b] = torch.cat((self.rows[b], out.hidden_states[b][0])) if b in self.rows else out.hidden_states[b][0]

    def next_token(self, ids: list[int]) -> int:
        self.read(ids)
        return int(self.logits[-1].argmax())


class Draft:
    """The drafter one token at a time, keys and values in lists."""

    def __init__(self, folder: Path, embedding: torch.Tensor) -> None:
        self.w = {k: v if k == "d2t" else v.float() for k, v in load_file(folder / "model.safetensors").items()}
        self.embedding, config = embedding.float(), json.loads((folder / "config.json").read_text())
        self.heads, self.kv, self.eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
        self.dim = len(self.w["midlayer.self_attn.q_proj.weight"]) // self.heads
        self.angles = config.get("rope_theta", 10000.0) ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean() + self.eps).sqrt() * self.w[name + ".weight"]

    def turn(self, x: torch.Tensor, position: int) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = (position * self.angles).cos().float(), (position * self.angles).sin().float()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def step(self, token: int, h: torch.Tensor, position: int, shared: list, own: list) -> torch.Tensor:
        """The state before the last norm; the position's key and value are appended to `own`."""
        at = "midlayer."
        z = torch.cat((self.norm(self.embedding[token], at + "input_layernorm"), self.norm(h, at + "hidden_norm")))
        q, k, v = (F.linear(z, self.w[f"{at}self_attn.{n}_proj.weight"]).view(-1, self.dim) for n in "qkv")
        own.append((self.turn(k, position), v))
        keys, values = (torch.stack([pair[i] for pair in (*shared, *own)], 1).repeat_interleave(self.heads // self.kv, 0) for i in (0, 1))
        weights = (torch.einsum("hd,htd->ht", self.turn(q, position), keys) / self.dim ** 0.5).softmax(-1)
        h = h + F.linear(torch.einsum("ht,htd->hd", weights, values).flatten(), self.w[at + "self_attn.o_proj.weight"])
        y = self.norm(h, at + "post_attention_layernorm")
        gate, up = (F.linear(y, self.w[f"{at}mlp.{n}_proj.weight"]) for n in ("gate", "up"))
        return h + F.linear(F.silu(gate) * up, self.w[at + "mlp.down_proj.weight"])

    def likeliest(self, h: torch.Tensor, topk: int) -> list[tuple[float, int]]:
        found = F.linear(self.norm(h, "norm"), self.w["lm_head.weight"]).softmax(-1).topk(topk)
        return [(float(p), int(d + self.w["d2t"][d])) for p, d in zip(found.values, found.indices, strict=True)]


@torch.inference_mode()
def decode(target: Target, draft: Draft, prompt: list[int], length: int, boundaries: tuple[int, ...], steps: int, topk: int, draft_tokens: int) -> tuple[list[int], list[int]]:
    """Text of `length` new tokens and the accepted drafts of every verify round; topk 1 is a chain."""
    target.begin()
    ids, accepted, shared = [*prompt, target.next_token(prompt)], [], []
    while len(ids) < len(prompt) + length:
        for s in range(len(shared), len(ids) - 1):  # draft extend: keys of all accepted positions from the target's states
            h = draft.step(ids[s + 1], F.linear(torch.cat([target.rows[b][s] for b in boundaries]), draft.w["fc.weight"]), s, shared, own := [])
            shared += own
        pool = [(p, (token,)) for p, token in draft.likeliest(h, topk)]
        beam, slots = [(p, path, h) for p, path in pool], [[] for _ in range(topk)]
        for k in range(1, steps):
            grown = []
            for (score, path, parent), own in zip(beam, slots, strict=True):
                state = draft.step(path[-1], parent, len(ids) - 2 + k, shared, own)
                grown += [(score * p, (*path, token), state) for p, token in draft.likeliest(state, topk)]
            pool += [(score, path) for score, path, _ in grown]
            beam = sorted(grown, key=lambda node: -node[0])[:topk]
        verified = {path for _, path in sorted(pool, key=lambda node: -node[0])[:draft_tokens - 1]}
        node, kept = (), 0
        while len(ids) < len(prompt) + length:
            ids.append(target.next_token(ids))
            node = (*node, ids[-1])
            if node not in verified:
                break
            kept += 1
        accepted.append(kept)
        target.read(ids[:-1])
    return ids, accepted


@cache
def pair() -> tuple[Target, Draft, object]:
    demo.prepare(print)
    case = demo.case_file("broken").parent
    target, record = Target(case / "target"), read_target(case / "target")
    draft = Draft(case / "drafter", target.model.get_input_embeddings().weight.data)
    return target, draft, load_drafter(read_draft(case / "drafter"), record, embedding_from="target", device="cpu")


def recorded(target: Target, ids: list[int], prompt: int) -> Recorded:
    target.begin()
    target.read(ids)
    return Recorded({f"b={b}": rows for b, rows in target.rows.items()}, torch.tensor(ids), torch.arange(len(ids)) >= prompt, "loop")


@pytest.mark.parametrize(("prompt", "boundaries", "steps", "topk", "draft_tokens", "several"), [
    (5, TRAINED, 1, 1, 2, True), (35, TRAINED, 3, 1, 4, True), (5, EMBEDDING_FIRST, 3, 1, 4, False), (35, TRAINED, 3, 4, 8, True)])
def test_the_walk_equals_a_real_decode_loop_round_by_round(prompt, boundaries, steps, topk, draft_tokens, several):
    target, draft, model = pair()
    row = sequences()[prompt]
    ids, accepted = decode(target, draft, list(row.prompt_ids), 32, boundaries, steps, topk, draft_tokens)
    trees = grow_trees(model, [recorded(target, ids, len(row.prompt_ids))], [f"b={b}" for b in boundaries], steps, topk)
    assert list(trees.rounds(steps, draft_tokens)[0].lengths) == accepted
    assert (sum(accepted) > len(accepted) / 2) is several


@pytest.mark.parametrize("setting", LIVE)
def test_the_walk_equals_a_live_sglang_request_by_request(setting):
    """Verify calls and the histogram of correct drafts, to the integer."""
    target, _, model = pair()
    steps, topk, draft_tokens = map(int, setting.split(","))
    for request in LIVE[setting]:
        item = recorded(target, request["prompt"] + request["output"], len(request["prompt"]))
        rounds = grow_trees(model, [item], [f"b={b}" for b in TRAINED], steps, topk).rounds(steps, draft_tokens)[0]
        seen = Counter(rounds.lengths)
        assert (rounds.rounds, [seen[k] for k in range(max(seen) + 1)]) == (request["verify_calls"], request["correct_drafts_histogram"])
