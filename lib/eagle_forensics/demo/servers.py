"""How the demo's target and drafter are served for real on a CPU: SGLang 0.5.23 and vLLM 0.32.0, each out of its own environment.

SGLang as PyPI has it: the compiled kernels that PyPI lacks are replaced by `standin/sgl_kernel`, on PYTHONPATH of the served process
only. Its flags are those that EAGLE-3 needs on a machine without AMX: all three backends named, one thread, no compilation at
warm-up. vLLM needs no stand-in; its development mode shows the resolved arguments and lets the prefix cache be emptied.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle_forensics.demo.stage import sequences

STANDIN = Path(__file__).parent / "standin"
SGLANG_ENV, VLLM_ENV = ".venv-sglang", ".venv-vllm"
CHECKOUT = Path(__file__).resolve().parents[3]
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class ServedBy:
    """A command and its environment, ready for `acceptance.live.serve.serving`."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Both as one launch line."""
        return shlex.join(["env", *(f"{k}={v}" for k, v in self.env.items()), *self.command])


def sglang_python(checkout: Path = CHECKOUT) -> Path | None:
    """The interpreter that `make sglang-env` made; None without it."""
    return _python(checkout / SGLANG_ENV)


def vllm_python(checkout: Path = CHECKOUT) -> Path | None:
    """The interpreter that `make vllm-env` made; None without it."""
    return _python(checkout / VLLM_ENV)


def sglang(python: Path, target: Path, drafter: Path | None = None, *, steps: int = 3, topk: int = 1, draft_tokens: int | None = None,
           dtype: str = "float32", extra: Sequence[str] = ()) -> ServedBy:
    """SGLang on the CPU, with speculation if a drafter is given. `draft_tokens`: steps + 1 where it is left out."""
    command = [str(python), "-W", "ignore", "-m", "sglang.launch_server", "--model-path", str(target), "--device", "cpu", "--dtype", dtype,
               "--enable-metrics", "--sleep-on-idle", "--decode-log-interval", "1", "--max-total-tokens", "8192", "--max-running-requests", "4",
               "--attention-backend", "torch_native", "--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"]
    if drafter is not None:
        command += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(drafter), "--speculative-num-steps", str(steps),
                    "--speculative-eagle-topk", str(topk), "--speculative-num-draft-tokens", str(draft_tokens or steps + 1)]
    env = {"PYTHONPATH": str(STANDIN), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return ServedBy((*command, *extra), env)


def vllm(python: Path, target: Path, drafter: Path | None = None, *, steps: int = 3, dtype: str = "float32", extra: Sequence[str] = ()) -> ServedBy:
    """vLLM on the CPU, with speculation and its counts per request if a drafter is given."""
    command = [str(python), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", str(target), "--dtype", dtype, "--max-model-len", "1024",
               "--max-num-seqs", "4", "--enforce-eager", "--enable-prompt-tokens-details"]
    if drafter is not None:
        command += ["--speculative-config", json.dumps({"method": "eagle3", "model": str(drafter), "num_speculative_tokens": steps}),
                    "--per-request-spec-decode-metrics", "detailed"]
    env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
           "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return ServedBy((*command, *extra), env)


def held_out_prompts(file: Path, n: int) -> Path:
    """JSON lines of `n` prompts of the drafter's held-out sequences, as token ids."""
    rows = sequences()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"id": f"held-out-{i}", "domain": row.family, "input_ids": row.prompt_ids}) + "\n"
                            for i, row in list(enumerate(rows))[::max(1, len(rows) // n)][:n]), encoding="utf-8")
    return file


def with_ids(drafter: Path, ids: Sequence[int], folder: Path, *, top_level: bool = False) -> Path:
    """A copy of the drafter whose config names other layer ids: nested as SGLang reads them, or at top level, where vLLM looks first."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(drafter / "model.safetensors", folder)
    config = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
    if top_level:
        config[LAYER_IDS] = list(ids)
    else:
        config["eagle_config"] = {**(config.get("eagle_config") or {}), LAYER_IDS: list(ids)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _python(environment: Path) -> Path | None:
    python = environment / "bin" / "python"
    return python if python.exists() else None
