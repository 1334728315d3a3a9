"""The real target taken apart: states, mid-layer states and MLP inputs of SmolLM2-135M for a few token sequences, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.fingerprint.rows import weights_of


class Run:
    """States, mid-layer states and MLP inputs of one model on one sequence, float32."""

    def __init__(self, model: LlamaForCausalLM, ids: torch.Tensor) -> None:
        self.states, self.middle, self.active = [], [], []
        hooks = [model.model.norm.register_forward_hook(lambda _, i, o: self.states.extend([i[0][0].float(), o[0].float()]))]
        for layer in model.model.layers:
            hooks += [layer.register_forward_pre_hook(lambda _, i: self.states.append(i[0][0].float())),
                      layer.post_attention_layernorm.register_forward_pre_hook(lambda _, i: self.middle.append(i[0][0].float())),
                      layer.mlp.down_proj.register_forward_pre_hook(lambda _, i: self.active.append(i[0][0].float()))]
        with torch.inference_mode():
            model.model(ids[None], use_cache=False)
        for hook in hooks:
            hook.remove()


class Bank:
    """The runs as a bank at every boundary."""

    def __init__(self, runs: Sequence[Run], ids: Sequence[torch.Tensor]) -> None:
        last = len(runs[0].states) - 2
        self.boundaries = (*map(Boundary, range(last + 1)), Boundary(last, True))
        self.sequences, self.runs = list(ids), list(runs)

    def plane(self, i: int, boundary: Boundary) -> torch.Tensor:
        return self.runs[i].states[boundary.index + boundary.normed]


class Real:
    """One Llama-class checkpoint and everything a damaged dump of it can be made of."""

    def __init__(self, folder: Path, ids: Sequence[torch.Tensor]) -> None:
        self.folder, self.ids = folder, list(ids)
        self.target = read_target(folder)
        self.weights = weights_of(self.target)
        self.layers = self.target.layers
        self.model = self._load(torch.float32)
        self.runs = [Run(self.model, s) for s in self.ids]
        self.bank = Bank(self.runs, self.ids)
        self._quantised: dict[tuple[int, int], list[Run]] = {}

    def _load(self, dtype: torch.dtype) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(self.folder, dtype=dtype).eval()

    @cached_property
    def in_bfloat16(self) -> list[Run]:
        """The same states as a bfloat16 engine computes them."""
        model = self._load(torch.bfloat16)
        return [Run(model, s) for s in self.ids]

    def quantised(self, bits: int, group: int) -> list[Run]:
        """The same states with the layers' weights rounded to `bits`; `group` weights share a scale (0: a row)."""
        if (bits, group) not in self._quantised:
            self._quantised[bits, group] = self._rounded(bits, group)
        return self._quantised[bits, group]

    def forget(self) -> None:
        """Frees the states of quantised weights."""
        self._quantised.clear()

    def _rounded(self, bits: int, group: int) -> list[Run]:
        model = self._load(torch.float32)
        for name, p in model.named_parameters():
            if "layers" in name and p.ndim == 2:
                p.data = rounded(p.data, bits, group)
        return [Run(model, s) for s in self.ids]

    def state(self, i: int, boundary: int, runs: Sequence[Run] | None = None) -> torch.Tensor:
        """`[T, H]` of sequence i; `layers + 1` is the state after the final norm."""
        return (runs or self.runs)[i].states[boundary]

    def partial(self, i: int, boundary: int, rank: int, ranks: int) -> torch.Tensor:
        """What one rank holds before the MLP's all-reduce: the state after the attention plus its share of the down projection."""
        weight = self.model.model.layers[boundary - 1].mlp.down_proj.weight.detach()
        width = weight.shape[1] // ranks
        columns = slice(rank * width, (rank + 1) * width)
        return self.runs[i].middle[boundary - 1] + self.runs[i].active[boundary - 1][:, columns] @ weight[:, columns].T


def rounded(w: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Weights on a symmetric grid, to nearest."""
    rows = w.reshape(-1, group) if group else w
    step = rows.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((rows / step).round() * step).reshape(w.shape)
