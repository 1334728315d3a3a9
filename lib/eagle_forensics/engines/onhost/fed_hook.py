"""For the serving host: writes what the drafter's `fc` is fed, a file a call and rank. Needs torch and safetensors, nothing of this suite.

Put the folder of this file on PYTHONPATH of the served process. SGLang 0.5.6 and later:

    --forward-hooks '[{"name": "fed", "target_modules": ["model.fc", "model.embed_tokens"], "hook_factory": "fed_hook:factory",
                       "config": {"folder": "/var/tmp/fed", "calls": 8, "min_rows": 8}}]'

Any other server that runs torch modules: `model.fc.register_forward_hook(fed_hook.factory({"folder": "/var/tmp/fed"}))`.

`callNNNN.rankRofN.safetensors` holds `fed` [T, n*H] as it reached `fc`, and `input_ids` [T] where the target's own embedding was seen in the same pass.
Only calls of at least `min_rows` rows count: give prompts longer than that and more draft tokens than none. Python hooks do not run when a CUDA
graph is replayed, so this shows the eager path only.
"""

import threading
from pathlib import Path

import torch
from safetensors.torch import save_file

_embedded = {}
"""Hook -> token ids of its last embedding call: target and drafter each have one, in one process."""


def factory(config):
    """A forward hook for the modules `fc` and `embed_tokens`. `config`: `folder`; `calls` (8): calls written a rank; `min_rows` (8)."""
    folder, calls, min_rows = Path(config["folder"]), int(config.get("calls", 8)), int(config.get("min_rows", 8))
    lock, own = threading.Lock(), object()
    written = 0

    def hook(module, inputs, output):
        nonlocal written
        if written >= calls or not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        x = inputs[0]
        if not x.is_floating_point():
            _embedded[own] = x.detach().flatten().to("cpu", copy=True)
            return
        if x.dim() != 2 or x.shape[0] < min_rows:
            return
        with lock:
            number, written = written, written + 1
        rank, ranks = _rank()
        ids = next((ids for hook_, ids in _embedded.items() if hook_ is not own and ids.shape[0] == x.shape[0]), None)
        tensors = {"fed": x.detach().to("cpu", copy=True).contiguous(), **({} if ids is None else {"input_ids": ids.to(torch.int64)})}
        folder.mkdir(parents=True, exist_ok=True)
        name = f"call{number:04d}.rank{rank}of{ranks}.safetensors"
        unfinished = folder / f"{name}.tmp"
        save_file(tensors, unfinished, {"module": type(module).__name__, "dtype": str(x.dtype)})
        unfinished.replace(folder / name)

    return hook


def _rank():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
