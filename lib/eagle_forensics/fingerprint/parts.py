"""Parts of the target that single tests need, read from its files: the output head in blocks, the MLP of one layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from eagle_forensics.evidence.records import Target, TensorInfo

BLOCK_BYTES = 64 << 20
"""Float32 bytes of head rows held at once."""
MLP_BYTES = 1 << 30
"""Float32 bytes of one layer's MLP above which it is not loaded."""

@dataclass(frozen=True)
class Head:
    """The output head, read block by block."""

    table: TensorInfo

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(first row, `[rows, H]` float32), one block after the other."""
        from eagle_forensics.evidence.tensors import load_tensor

        rows, width = self.table.shape
        step = max(1, BLOCK_BYTES // (4 * width))
        for start in range(0, rows, step):
            yield start, load_tensor(self.table, rows=range(start, min(start + step, rows))).to(torch.float32)


@dataclass(frozen=True)
class GatedMlp:
    """`down(silu(gate(x)) * up(x))` behind its own root-mean-square norm, as in Llama, Qwen and Mistral."""

    norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    eps: float

    @property
    def width(self) -> int:
        """Inner width, which tensor parallelism splits."""
        return self.gate.shape[0]

    def __call__(self, states: torch.Tensor, columns: slice = slice(None)) -> torch.Tensor:
        """What it adds to `[N, H]` states after the attention; with `columns` only one rank's share of the inner width."""
        x = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm
        inner = torch.nn.functional.silu(x @ self.gate[columns].T) * (x @ self.up[columns].T)
        return inner @ self.down[:, columns].T


def head_of(target: Target) -> Head | None:
    """The output head (the embedding where both are tied); None without one."""
    name = "lm_head.weight" if "lm_head.weight" in target.tensors else "embed_tokens.weight" if target.config.get("tie_word_embeddings") else None
    table = target.tensors.get(name) if name else None
    return Head(table) if table is not None and len(table.shape) == 2 else None


def gated_mlp(target: Target, layer: int) -> GatedMlp | None:
    """The MLP of one layer; None where the layer has another kind (experts, biases, further norms, quantised) or is too large."""
    names = {"norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    infos = {part: target.tensors.get(f"layers.{layer}.{name}.weight") for part, name in names.items()}
    odd = any(name.startswith(f"layers.{layer}.") and ((name.endswith("proj.bias") and ".mlp." in name) or "feedforward_layernorm" in name or "_scale" in name)
              for name in target.tensors)
    if odd or target.norm_plus_one or target.config.get("hidden_act", "silu") != "silu" or not all(infos.values()):
        return None
    if not all(info.dtype in ("F32", "F16", "BF16") for info in infos.values()) or sum(4 * info.shape[0] * info.shape[-1] for info in infos.values()) > MLP_BYTES:
        return None
    from eagle_forensics.evidence.tensors import load_tensor

    return GatedMlp(**{part: load_tensor(info).to(torch.float32) for part, info in infos.items()}, eps=target.eps)
