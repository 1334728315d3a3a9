"""Cases of recorded answers of a tiny pair that is really run in float32: what the server counted follows from how it fed and computed its drafter.

A text's next token is one of two that the last one allows. The head is fitted to the target's states on other texts of that kind, with
the layers computed as the reference does.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from eagle_forensics.drafter.network.arithmetic import rms_norm
from eagle_forensics.drafter.network.feed import feed
from eagle_forensics.drafter.network.model import Drafter, load_drafter
from eagle_forensics.drafter.network.unroll import chunks, states
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.states import target_states
from eagle_forensics.evidence.targets import read_target
from tests.lineup import papers, tiny

PROMPT, ANSWER, FITTED, STEPS = 6, 40, 24, 3
"""Tokens of a prompt and of an answer; texts that the head is fitted to; drafted steps."""
TOKENS, LIKELY = 64, 0.85
"""Tokens that the texts use; the chance of the likelier of two successors."""
PLANES = tuple(f"b={b}" for b in tiny.TRAINED)
TRAINED = Wiring(PLANES)


@dataclass(frozen=True)
class Served:
    """A server that feeds and computes the drafter as `truth` says; calling it writes the folder."""

    truth: Wiring = TRAINED
    layers: int = 1
    answers: int = 12
    dtype: str = "float32"
    ids: Sequence[int] = (2, 5, 9)
    trained: Sequence[int] | None = (2, 5, 9, 11)

    def but(self, **changes: Any) -> Served:
        return replace(self, **changes)

    def __call__(self, folder: Path) -> None:
        for name in ("target", "drafter"):
            (folder / name).mkdir(parents=True)
            for file in (_pair(self.layers)[0] / name).iterdir():
                (folder / name / file.name).symlink_to(file)
        config = json.loads((folder / "drafter" / "config.json").read_text())
        (folder / "drafter" / "config.json").unlink()
        (folder / "drafter" / "config.json").write_text(json.dumps(config | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.ids), "use_aux_hidden_state": True}}))
        self._answers(folder / "served")
        training = {"trainer": {"name": "speculators", "version": "0.4.0"}} | ({"layer_ids": list(self.trained)} if self.trained else {})
        raw = {"schema": 1, "name": "case", "target": {"path": "./target"}, "drafter": {"path": "./drafter"}, "training": training, "answers": "./served",
               "serving": {"engine": "sglang", "version": "0.5.23", "launch": papers.sglang_launch(STEPS, 1, STEPS + 1, more=f"--dtype {self.dtype}")}}
        (folder / "case.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    def _answers(self, folder: Path) -> None:
        _, drafter = _pair(self.layers)
        asked = _recorded(1)[:self.answers]
        folder.mkdir()
        prompts, answers = [], []
        for item, walked in zip(asked, evaluate(drafter, asked, self.truth, STEPS).sequences, strict=True):
            ids, rounds = item.input_ids.tolist(), walked.rounds(STEPS).rounds
            prompts.append({"id": item.sample_id, "domain": "chat", "input_ids": ids[:PROMPT]})
            answers.append({"prompt": item.sample_id, "domain": "chat", "output_ids": ids[PROMPT:], "completion_tokens": ANSWER,
                            "acceptance": {"rounds": rounds, "accepted": ANSWER - 1 - rounds, "proposed": rounds * STEPS}})
        for name, rows in (("prompts", prompts), ("answers_speculation", answers)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "served.json").write_text(json.dumps({"engine": "sglang", "version": "0.5.23", "dtype": self.dtype, "steps": STEPS, "topk": 1, "draft_tokens": STEPS + 1, "temperature": 0.0}))


@functools.cache
def _recorded(seed: int) -> tuple[Recorded, ...]:
    """Texts with the target's states at every boundary."""
    successors = torch.randint(1, TOKENS, (TOKENS, 2), generator=torch.Generator().manual_seed(5))
    g, texts = torch.Generator().manual_seed(20 + seed), []
    for _ in range(FITTED):
        ids = [int(torch.randint(1, TOKENS, (1,), generator=g))]
        while len(ids) < PROMPT + ANSWER:
            ids.append(int(successors[ids[-1], int(torch.rand(1, generator=g) > LIKELY)]))
        texts.append(ids)
    held = target_states(read_target(tiny.network(0).folder), texts, range(tiny.LAYERS + 1), cache=False, float32=True)
    return tuple(Recorded({f"b={b}": held.plane(i, b) for b in range(tiny.LAYERS + 1)}, torch.tensor(ids), torch.arange(len(ids)) >= PROMPT, f"chat-{i}") for i, ids in enumerate(texts))


@functools.cache
def _pair(layers: int) -> tuple[Path, Drafter]:
    """Folder of target and drafter, and the drafter."""
    folder = tiny._kept() / f"pair-{layers}"
    (folder / "target").mkdir(parents=True)
    for file in tiny.network(0).folder.iterdir():
        (folder / "target" / file.name).symlink_to(file)
    head = tiny._head(len(PLANES))
    for index in range(1, layers):
        g = torch.Generator().manual_seed(index)
        head |= {k.replace("midlayer.", f"layers.{index}."): _upper(k, v, g) for k, v in head.items() if k.startswith("midlayer.")}
    _write(folder / "drafter", head, layers)
    drafter = _load(folder)
    _write(folder / "drafter", head | {"lm_head.weight": _fitted(drafter)}, layers)
    return folder, _load(folder)


def _upper(name: str, weight: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """A layer above the first reads the hidden state alone."""
    if weight.dim() == 1:
        return weight.clone()
    width = weight.shape[1] // 2 if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj") else weight.shape[1]
    return (torch.randn(len(weight), width, generator=g) / width**0.5).to(weight.dtype)


def _write(folder: Path, head: dict[str, torch.Tensor], layers: int) -> None:
    folder.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in head.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(tiny._config("llama") | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": layers, "draft_vocab_size": tiny.VOCAB}))


def _load(folder: Path) -> Drafter:
    return load_drafter(read_draft(folder / "drafter"), read_target(folder / "target"), embedding_from="target", device="cpu")


def _fitted(drafter: Drafter) -> torch.Tensor:
    """[V, H] of a head that reads the next token off the drafter's state at every step, by least squares."""
    (chunk,) = chunks(_recorded(0), STEPS)
    x, y = [], []
    for step, h in enumerate(states(drafter, chunk, feed(drafter, chunk, PLANES), STEPS)):
        to_come = chunk.rows + 2 + step
        inside = to_come <= chunk.last[chunk.rows]
        x.append(rms_norm(h, drafter.norm, drafter.eps)[inside])
        y.append(torch.nn.functional.one_hot(chunk.tokens[to_come[inside]], tiny.VOCAB).float())
    return torch.linalg.lstsq(torch.cat(x), torch.cat(y)).solution.T.to(torch.bfloat16)
