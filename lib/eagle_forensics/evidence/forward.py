"""Running a target from its weights for its residual stream alone: hooks at the asked boundaries, no head, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.archives import torch_dtype
from eagle_forensics.evidence.records import EvidenceError, Target


class _Reached(Exception):
    """The deepest asked boundary has been recorded; the rest of the forward pass is not needed."""


class TargetRunner:
    """A loaded target that gives its states at any boundaries, in its stored dtype or in `float32`. EvidenceError if transformers cannot build it."""

    def __init__(self, target: Target, *, float32: bool = False) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        dtype = torch.float32 if float32 else torch_dtype(target.tensors["embed_tokens.weight"].dtype)
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(target.path, dtype=dtype, trust_remote_code=False, local_files_only=True,
                                                         use_safetensors=True)
        except Exception as error:  # unknown types, remote code, missing keys: transformers raises many kinds
            raise EvidenceError(f"{target.path}: transformers cannot build this target ({type(error).__name__}: {' '.join(str(error).split())[:200]}). "
                                "Capture its states on the serving host and name them as `reference` in the case.") from None
        finally:
            if bars:
                logging.enable_progress_bar()
        self.decoder: Any = model.get_decoder().eval()
        self.layers = getattr(self.decoder, "layers", None)
        self.norm = getattr(self.decoder, "norm", None)
        if self.layers is None or len(self.layers) != target.layers or self.norm is None:
            raise EvidenceError(f"{target.path}: {type(self.decoder).__name__} has no `layers` (x{target.layers}) and `norm` to hook. "
                                "Capture its states on the serving host and name them as `reference` in the case.")

    def states(self, tokens: Sequence[int], boundaries: Sequence[Boundary]) -> dict[Boundary, torch.Tensor]:
        """States [T, H] of one sequence at each boundary; the pass ends at the deepest of them.

        One sequence a pass: a batch is no faster on a CPU, and in bf16 a sequence's states would depend on its company
        (per-token relative error up to 0.07 at boundary 15 of SmolLM2-135M between a batch of 5 and alone).
        """
        found: dict[Boundary, torch.Tensor] = {}
        deepest = max(boundaries)

        def keep(boundary: Boundary, state: torch.Tensor) -> None:
            found[boundary] = state[0].clone()
            if boundary == deepest:
                raise _Reached

        hooks = [self._hook(boundary, keep) for boundary in boundaries]
        try:
            with torch.no_grad():
                self.decoder(input_ids=torch.tensor([list(tokens)]), use_cache=False)
        except _Reached:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _hook(self, boundary: Boundary, keep: Any) -> Any:
        if boundary.normed:
            return self.norm.register_forward_hook(lambda module, args, output: keep(boundary, output))
        place = self.layers[boundary.index] if boundary.index < len(self.layers) else self.norm

        def before(module: Any, args: tuple, kwargs: dict) -> None:
            keep(boundary, args[0] if args else kwargs["hidden_states"])

        return place.register_forward_pre_hook(before, with_kwargs=True)
