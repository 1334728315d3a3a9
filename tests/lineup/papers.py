"""Cases of configs, launch lines, tiny tensors and measurement tables: the fast part of the line-up.

What is right for an engine version is taken from its source as the engines' own issue threads and releases state it, not
from the tables under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from tests.evidence import builders
from tests.lineup.outcome import Planted

KNOWN = {"hidden_size": builders.H, "num_attention_heads": builders.HEADS, "num_key_value_heads": builders.KV, "vocab_size": builders.V,
         "rms_norm_eps": 1e-5, "rope_theta": 100000.0}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36},
    "gpt-oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 36},
    "deepseek": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61},
    "glm4-lite": {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "num_hidden_layers": 47},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 94},
    "qwen2.5-vl": {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "num_hidden_layers": 28},
    "glm4-moe": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 46},
    "minimax": {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_hidden_layers": 62},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28},
}
VLLM_LAUNCH = "--model ./target --speculative-config '{\"method\": \"eagle3\", \"model\": \"./drafter\", \"num_speculative_tokens\": 3}'"


def sglang_launch(steps: int = 3, topk: int = 1, tokens: int | None = 4, algorithm: str = "EAGLE3", more: str = "") -> str:
    asked = "" if tokens is None else f" --speculative-num-draft-tokens {tokens}"
    return (f"--model-path ./target --speculative-algorithm {algorithm} --speculative-draft-model-path ./drafter "
            f"--speculative-num-steps {steps} --speculative-eagle-topk {topk}{asked} {more}").strip()


@dataclass(frozen=True)
class Papers:
    """Everything a paper case says; calling it writes the folder."""

    family: str = "llama"
    engine: str | None = "sglang"
    version: str | None = "0.5.23"
    ids: Sequence[int] | None = (1, 15, 28)
    place: str = "nested"
    launch: str | None = sglang_launch()
    env: Mapping[str, str] | None = None
    trainer: tuple[str, str | None] | None = ("specforge", None)
    trained: Sequence[int] | None = (1, 15, 28)
    """Ids as the trainer's config wrote them."""
    draft: Mapping[str, Any] | None = None
    tensors: Callable[[], dict[str, torch.Tensor]] | None = None
    target: Mapping[str, Any] | None = None
    """More keys of the target's config."""
    target_tensors: Callable[[], dict[str, torch.Tensor]] | None = None
    rows: str | None = None
    """Measurements as CSV."""
    files: Mapping[str, str] | None = None
    """More files by their path: logs, tables, environments. The case names them in `case`."""
    case: Mapping[str, Any] | None = None
    """More keys of the case file."""

    def __call__(self, folder: Path) -> None:
        for name, content, tensors in (("target", KNOWN | FAMILIES[self.family] | dict(self.target or {}), self.target_tensors), ("drafter", self._config(), self.tensors)):
            builders.write_config(folder / name, content)
            if tensors:
                save_file({k: v.contiguous() for k, v in tensors().items()}, folder / name / "model.safetensors")
        raw: dict[str, Any] = {"schema": 1, "name": "case", "target": {"path": "./target"}, "drafter": {"path": "./drafter"}}
        training = {"trainer": self.trainer and {"name": self.trainer[0], **({"version": self.trainer[1]} if self.trainer[1] else {})},
                    "layer_ids": None if self.trained is None else list(self.trained)}
        serving = {"engine": self.engine, "version": self.version, "launch": self.launch, "env": dict(self.env) if self.env else None}
        for key, part in (("training", training), ("serving", serving)):
            if kept := {k: v for k, v in part.items() if v}:
                raw[key] = kept
        for path, text in (self.files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        if self.rows:
            (folder / "runs.csv").write_text(self.rows)
            raw["measurements"] = "./runs.csv"
        raw = {k: v for k, v in (raw | dict(self.case or {})).items() if v is not None}
        (folder / "case.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    def _config(self) -> dict[str, Any]:
        config = builders.LLAMA | dict(self.draft or {})
        if self.ids is None:
            return config
        ids = list(self.ids)
        if self.place == "top":
            return config | {"eagle_aux_hidden_state_layer_ids": ids}
        return config | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}}

    def but(self, **changes: Any) -> Papers:
        return replace(self, **changes)


LLAMA = Papers()
"""SGLang 0.5.23, Llama, L = 32: ids [1, 15, 28] are boundaries 2, 16, 29, as SpecForge trains them."""
QWEN = LLAMA.but(family="qwen3", ids=(1, 17, 32), trained=(1, 17, 32))
GPT_OSS = LLAMA.but(family="gpt-oss", version="0.5.17", ids=(24, 30, 36), trainer=("modelopt", None), trained=(23, 29, 35))
"""A head trained on boundaries 24, 30, 36 of 36 layers (nvidia/gpt-oss-120b-Eagle3-v3)."""
KIMI = LLAMA.but(family="deepseek", ids=(3, 31, 59), trainer=("speculators", "0.3.0"), trained=(2, 30, 58, 60))
"""Trained on boundaries 3, 31, 59 (after layers 2, 30, 58): the incident's class."""
VLLM = LLAMA.but(engine="vllm", version="0.32.0", ids=(2, 16, 29), place="top", launch=VLLM_LAUNCH)
OLD_IDS = {"ids": (2, 30, 58)}


def head(**changes: Any) -> dict[str, torch.Tensor]:
    """A whole head with a valid offset map: draft id i is target id i + i // 2."""
    tensors = builders.head()
    image = torch.arange(builders.VD) + tensors["d2t"]
    tensors["t2d"] = torch.zeros(builders.V, dtype=torch.bool).index_fill(0, image, True)
    return {k: v for k, v in (tensors | changes).items() if v is not None}


def table_of(rows: int, seed: int = 1, noise: bool = False) -> torch.Tensor:
    """An embedding [rows, H]: rows of very different length as a trained one has them, or even noise."""
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, builders.H, generator=drawn)
    return (values * (0.02 if noise else torch.exp(torch.randn(rows, 1, generator=drawn)))).to(torch.bfloat16)


def embedded(table: torch.Tensor, **changes: Any) -> dict[str, torch.Tensor]:
    """A whole head with an embedding of its own."""
    return head(**{"embed_tokens.weight": table}, **changes)


def vocabulary(*swapped: tuple[int, int], size: int = builders.V, added: Mapping[str, int] | None = None) -> str:
    """A tokenizer.json of `size` learned tokens, two and two of them exchanged, with added ones."""
    tokens = [f"t{i}" for i in range(size)]
    for a, b in swapped:
        tokens[a], tokens[b] = tokens[b], tokens[a]
    return json.dumps({"model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}}, "added_tokens": [{"id": i, "content": t} for t, i in (added or {}).items()]})


def arange_map(marked: torch.Tensor) -> dict[str, torch.Tensor]:
    """d2t = 0, 1, 2, ...: target id 2i, right only if t2d marks the even ids."""
    size = builders.VD // 2
    t2d = torch.zeros(builders.V, dtype=torch.bool).index_fill(0, marked, True)
    return head(d2t=torch.arange(size), t2d=t2d, **{"lm_head.weight": builders.weights(size, builders.H)})


def renamed(old: str, new: str) -> dict[str, torch.Tensor]:
    return {k.replace(old, new): v for k, v in head().items()}


def wide(planes: int) -> dict[str, torch.Tensor]:
    return head(**{"fc.weight": builders.weights(builders.H, planes * builders.H)})


COLUMNS = "label,engine,engine_version,speculative,steps,topk,draft_tokens,rounds,accept_length,accept_rate,tokens_per_second,distinct_output_tokens,concurrency"


def table(*rows: str) -> str:
    return "\n".join((COLUMNS, *rows)) + "\n"


def base(speed: str, version: str = "0.5.23", **fields: str) -> str:
    return f"no speculation,sglang,{version},0,,,,,,,{speed},{fields.get('distinct', '')},{fields.get('concurrency', '')}"


def run(label: str, steps: int, length: str, speed: str = "", version: str = "0.5.23", **fields: str) -> str:
    return (f"{label},sglang,{version},1,{steps},1,{steps + 1},{fields.get('rounds', '')},{length},{fields.get('rate', '')},{speed},"
            f"{fields.get('distinct', '')},{fields.get('concurrency', '')}")


INCIDENT = table(base("90.0"), run("a", 1, "1.6", "56.8"), run("b", 15, "1.9", "46.7"), run("c", 5, "1.8", "54.8"))
SWEEP_LENGTHS = ("2.36", "2.79", "3.08", "3.32", "3.46", "3.54")
SWEEP_MS = (4.32, 4.09, 4.05, 4.13, 4.20, 4.29)
"""Accept lengths and ms a token for 2..7 drafts against 7.07 ms without: a published sweep; 4 drafts serve best."""
SWEEP = table(base(f"{1000 / 7.07:.2f}"), *(run(f"k{k}", k, a, f"{1000 / ms:.2f}") for k, a, ms in zip(range(2, 8), SWEEP_LENGTHS, SWEEP_MS, strict=True)))


def nothing(folder: Path) -> None:
    (folder / "case.yaml").write_text(json.dumps({"name": "case"}))


def alone(*cases: Planted) -> tuple[Planted, ...]:
    """Cases of papers without a table run notebook 01 alone: there is nothing in them that 04 could measure."""
    return tuple(c if getattr(c.make, "rows", None) else replace(c, notebooks=(1,)) for c in cases)
