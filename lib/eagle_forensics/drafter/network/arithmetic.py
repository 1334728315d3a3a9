"""The four operations of the drafter: norm, product, feed-forward, argmax over the head. Large weights stay as their file holds them.

A weight of another dtype than the activations (a bf16 checkpoint evaluated in float32) is converted a few rows at a time inside
the product, so a mapped checkpoint is never copied as a whole; at a few hundred tokens that costs nothing measurable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BLOCK_VALUES = 1 << 21
"""Weight values converted at once (8 MiB in float32: one block stays in the last-level cache until it is used)."""
SCORE_ELEMENTS = 1 << 24
"""Logits, attention scores or feed-forward values held at once (64 MiB in float32)."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.rsqrt(size.square_().div_(x.shape[-1]).add_(eps))).mul_(weight)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b, `[N, in]` to `[N, out]`, in the dtype of x."""
    if weight.dtype == x.dtype:
        return F.linear(x, weight, bias)
    out = x.new_empty(len(x), len(weight))
    step = max(1, BLOCK_VALUES // weight.shape[1])
    for low in range(0, len(weight), step):
        torch.mm(x, weight[low:low + step].to(x.dtype).T, out=out[:, low:low + step])
    return out if bias is None else out.add_(bias)


def feed_forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, biases: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)), a bounded number of rows at a time."""
    rows = max(1, SCORE_ELEMENTS // len(gate))
    return torch.cat([
        linear(F.silu(linear(part, gate, biases[0]), inplace=True).mul_(linear(part, up, biases[1])), down, biases[2]) for part in x.split(rows)])


def largest(x: torch.Tensor, head: torch.Tensor, bias: torch.Tensor | None, count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits of x `[R, H]` under head `[V, H]`: values and ids, both `[R, count]`, falling. One pass over the head."""
    values = x.new_full((len(x), count), float("-inf"))
    ids = torch.zeros(len(x), count, dtype=torch.long, device=x.device)
    step = max(count, SCORE_ELEMENTS // max(1, len(x)))
    for low in range(0, len(head), step):
        logits = linear(x, head[low:low + step], None if bias is None else bias[low:low + step])
        best, at = logits.max(-1, keepdim=True) if count == 1 else logits.topk(min(count, logits.shape[1]))
        joined, where = torch.cat((values, best), 1), torch.cat((ids, at + low), 1)
        values, order = joined.max(-1, keepdim=True) if count == 1 else joined.topk(count)
        ids = where.gather(1, order)
    return values, ids


def choose_device(name: str, weight_bytes: int) -> torch.device:
    """`auto`: the GPU if there is one whose free memory holds the weights twice over (weights, states, scores), else the CPU; or the one named.

    Raises ValueError for a name that is none of auto, cpu, cuda, or for cuda where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device {name!r} is not known; known: auto, cpu, cuda")
    present = torch.cuda.is_available()
    if name == "cuda" and not present:
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU; use auto or cpu")
    if name == "auto":
        name = "cuda" if present and torch.cuda.mem_get_info()[0] > 2 * weight_bytes else "cpu"
    return torch.device(name)

