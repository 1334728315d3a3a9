"""A tiny random drafter, a tiny target, and a dense drafter written position by position in float64: the yardstick of the fast one."""

from __future__ import annotations

import numpy as np
import torch

from eagle_forensics.drafter.network.model import Drafter, build
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.evidence.records import DraftFlags

HIDDEN, TARGET, HEADS, KV, DIM, FFN, VOCAB, DRAFT_VOCAB, AUX = 16, 12, 4, 2, 6, 24, 11, 7, 3
Q_RANK, KV_RANK, NOPE, TURNED, VALUE = 10, 8, 6, 4, 5
"""MLA: ranks of the bottlenecks, and the parts of a head."""
EPS = 1e-5


def weights(seed: int = 0, *, layers: int = 1, bias: bool = False, norms: bool = True, mla: bool = False, vocab: int = VOCAB, draft_vocab: int = DRAFT_VOCAB, n_aux: int = AUX) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=rng, dtype=torch.float64) * scale / columns ** 0.5

    def gain(size: int) -> torch.Tensor:
        return torch.rand(size, generator=rng, dtype=torch.float64) + 0.5

    w = {"fc.weight": matrix(HIDDEN, n_aux * TARGET), "norm.weight": gain(HIDDEN), "lm_head.weight": matrix(draft_vocab, HIDDEN, 3), "embed_tokens.weight": matrix(vocab, HIDDEN, 4)}
    if norms:
        w |= {"input_norm.weight": gain(n_aux * TARGET)} | {f"fc_norm.{i}.weight": gain(TARGET) for i in range(n_aux)}
    for i in range(layers):
        at, width = f"layers.{i}.", 2 * HIDDEN if i == 0 else HIDDEN
        w |= {at + "input_layernorm.weight": gain(HIDDEN), at + "post_attention_layernorm.weight": gain(HIDDEN)}
        if i == 0:
            w[at + "hidden_norm.weight"] = gain(HIDDEN)
        entries = (("q_a_proj", Q_RANK), ("kv_a_proj_with_mqa", KV_RANK + TURNED)) if mla else (("q_proj", HEADS * DIM), ("k_proj", KV * DIM), ("v_proj", KV * DIM))
        for name, rows in entries:
            w[f"{at}self_attn.{name}.weight"] = matrix(rows, width, 2)
            if bias:
                w[f"{at}self_attn.{name}.bias"] = gain(rows)
        if mla:
            w |= {at + "self_attn.q_a_layernorm.weight": gain(Q_RANK), at + "self_attn.q_b_proj.weight": matrix(HEADS * (NOPE + TURNED), Q_RANK, 2),
                  at + "self_attn.kv_a_layernorm.weight": gain(KV_RANK), at + "self_attn.kv_b_proj.weight": matrix(HEADS * (NOPE + VALUE), KV_RANK, 2)}
        w |= {at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * (VALUE if mla else DIM)), at + "mlp.gate_proj.weight": matrix(FFN, HIDDEN), at + "mlp.up_proj.weight": matrix(FFN, HIDDEN),
              at + "mlp.down_proj.weight": matrix(HIDDEN, FFN)}
        if bias:
            w |= {at + "self_attn.o_proj.bias": gain(HIDDEN), at + "mlp.gate_proj.bias": gain(FFN), at + "mlp.up_proj.bias": gain(FFN), at + "mlp.down_proj.bias": gain(HIDDEN)}
    if bias:
        w["fc.bias"] = gain(HIDDEN)
    if draft_vocab < vocab:
        used = torch.randperm(vocab, generator=rng)[:draft_vocab].sort().values
        w["d2t"] = used - torch.arange(draft_vocab)
    return w


def drafter(w: dict[str, torch.Tensor], flags: DraftFlags | None = None, dtype: torch.dtype = torch.float64) -> Drafter:
    return build(w, heads=HEADS, kv_heads=KV, head_dim=None if "layers.0.self_attn.kv_b_proj.weight" in w else DIM, target_hidden=TARGET, flags=flags or DraftFlags(False, False, False, False), dtype=dtype)


def sequence(seed: int, length: int = 13, prompt: int = 4, planes: int = AUX, vocab: int = VOCAB) -> Recorded:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(length) >= prompt
    return Recorded({f"p{i}": torch.randn(length, TARGET, generator=rng, dtype=torch.float64) * (i + 1) for i in range(planes)},
                    torch.randint(0, vocab, (length,), generator=rng), mask, f"s{seed}")


class Dense:
    """The drafter as a server runs it: one position after the other, a list of keys and values, numpy in float64."""

    def __init__(self, w: dict[str, torch.Tensor], flags: DraftFlags, theta: float = 10000.0, *, lacks: tuple[str, ...] = (), above: int = 0, layers: int | None = None) -> None:
        """`lacks`: of `attention residual`, `mlp residual`, `hidden norm`, `embedding norm` what is left out, in layers from `above` on; `layers`: as many are run."""
        self.w = {k: v.numpy() for k, v in w.items()}
        self.flags, self.theta, self.lacks, self.above = flags, theta, lacks, above
        self.layers = layers or len({k.split(".")[1] for k in w if k.startswith("layers.")})

    def fuse(self, planes: list[np.ndarray]) -> np.ndarray:
        """fc of the planes of one position, each [Ht]."""
        parts = planes
        if self.flags.norm_before_fc:
            joined = self._rms(np.concatenate(parts), "input_norm.weight")
            parts = np.split(joined, len(planes))
        if self.flags.fc_norm:
            parts = [self._rms(p, f"fc_norm.{i}.weight") for i, p in enumerate(parts)]
        return self.w["fc.weight"] @ np.concatenate(parts) + self.w.get("fc.bias", 0)

    def step(self, token: int, h: np.ndarray, position: int, cache: list[list]) -> np.ndarray:
        """One position through all layers; appends to `cache` (a list of (key, value) a layer) and returns the state before the last norm."""
        for i in range(self.layers):
            at, lacks = f"layers.{i}.", self.lacks if i >= self.above else ()
            if i == 0:
                normed = h if "hidden norm" in lacks else self._rms(h, at + "hidden_norm.weight")
                residual = normed if self.flags.norm_before_residual else h
                e = self.w["embed_tokens.weight"][token]
                x = np.concatenate([e if "embedding norm" in lacks else self._rms(e, at + "input_layernorm.weight"), normed])
            else:
                residual, x = h, h if "hidden norm" in lacks else self._rms(h, at + "input_layernorm.weight")
            q, k, v = (self._linear(x, f"{at}self_attn.{n}_proj").reshape(-1, DIM) for n in "qkv")
            cache[i].append((self._rope(k, position), v))
            q, out = self._rope(q, position), []
            for head in range(HEADS):
                score = np.array([q[head] @ key[head * KV // HEADS] for key, _ in cache[i]]) / DIM ** 0.5
                p = np.exp(score - score.max())
                out.append(sum(a * value[head * KV // HEADS] for a, (_, value) in zip(p / p.sum(), cache[i], strict=True)))
            h = self._linear(np.concatenate(out), at + "self_attn.o_proj") + (0 if "attention residual" in lacks else residual)
            y = self._rms(h, at + "post_attention_layernorm.weight")
            gate = self._linear(y, at + "mlp.gate_proj")
            h = (0 if "mlp residual" in lacks else h) + self._linear(gate / (1 + np.exp(-gate)) * self._linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
        return h

    def draft_id(self, h: np.ndarray) -> int:
        return int(np.argmax(self.w["lm_head.weight"] @ self._rms(h, "norm.weight")))

    def target_id(self, draft_id: int) -> int:
        return draft_id + int(self.w["d2t"][draft_id]) if "d2t" in self.w else draft_id

    def chain(self, ids: list[int], planes: list[np.ndarray], t: int, steps: int, *, own_tokens: bool = False) -> tuple[list[np.ndarray], list[int]]:
        """States and draft ids of the chain from position t. `ids` must hold token t+1; further tokens are the text's, or the own drafts."""
        cache: list[list] = [[] for _ in range(self.layers)]
        for s in range(t):
            self.step(ids[s + 1], self.fuse([p[s] for p in planes]), s, cache)
        h, token, states, drafts = self.fuse([p[t] for p in planes]), ids[t + 1], [], []
        for k in range(steps):
            h = self.step(token, h, t + k, cache)
            states.append(h)
            drafts.append(self.draft_id(h))
            if self.flags.norm_output:
                h = self._rms(h, "norm.weight")
            if own_tokens:
                token = self.target_id(drafts[-1])
            elif t + 2 + k < len(ids):
                token = ids[t + 2 + k]
            else:
                break
        return states, drafts

    def _rms(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x) + EPS) * self.w[name]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.w[name + ".weight"] @ x + self.w.get(name + ".bias", 0)

    def _rope(self, x: np.ndarray, position: int) -> np.ndarray:
        half = DIM // 2
        out = x.copy()
        for j in range(half):
            angle = position * self.theta ** (-2 * j / DIM)
            out[:, j] = x[:, j] * np.cos(angle) - x[:, j + half] * np.sin(angle)
            out[:, j + half] = x[:, j + half] * np.cos(angle) + x[:, j] * np.sin(angle)
        return out


class TinyTarget:
    """A deterministic language model whose states depend on the whole prefix; V small, so that a random drafter is often right."""

    def __init__(self, seed: int, vocab: int) -> None:
        rng = np.random.default_rng(seed)
        self.mix, self.read = rng.normal(0, 0.4, (TARGET, TARGET)), rng.normal(0, 1, (vocab, TARGET))
        self.embed = rng.normal(0, 1, (vocab, TARGET))
        self.views = [rng.normal(0, 1, (TARGET, TARGET)) / TARGET ** 0.5 for _ in range(AUX)]

    def states(self, ids: list[int]) -> list[np.ndarray]:
        h, rows = np.zeros(TARGET), []
        for token in ids:
            h = np.tanh(self.mix @ h + self.embed[token])
            rows.append(h)
        return [np.stack(rows) @ view.T for view in self.views]

    def next_token(self, ids: list[int]) -> int:
        h = np.zeros(TARGET)
        for token in ids:
            h = np.tanh(self.mix @ h + self.embed[token])
        return int(np.argmax(self.read @ h))
