"""Cases of a tiny drafter that is really run: a text on which it is right most of the time when fed and read as it was trained, and only then.

States and weights are random; every even token of a response is what step 1 predicts under the wiring of the training, every odd one what
step 2 predicts, but for a share of noise. What the case hands over may differ from that wiring.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from eagle_forensics.drafter.network.model import Drafter, load_drafter
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.targets import read_target
from tests.evidence import builders as b
from tests.lineup import papers

PLANES = ("slot 0", "slot 1", "slot 2")
CONTRACT = Wiring(PLANES)
PROMPT, ENDING, RESPONSE, SEQUENCES = 5, (3, 1, 2), 26, 16
"""Tokens of a prompt before its ending, which all prompts share; of a response; number of texts: as few as the first screening of a battery needs."""
Sample = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def random_head() -> Tensors:
    """A head of the shapes of `builders.head` with random weights; draft id i means target id i + i // 2."""
    g = torch.Generator().manual_seed(4)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=g) * scale / columns**0.5

    def gain(size: int) -> torch.Tensor:
        return torch.rand(size, generator=g) + 0.5

    at = "midlayer."
    tensors = {"fc.weight": matrix(b.H, b.PLANES * b.H), "norm.weight": gain(b.H), "lm_head.weight": matrix(b.VD, b.H, 3)}
    tensors |= {at + n: gain(b.H) for n in ("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")}
    tensors |= {at + f"self_attn.{n}_proj.weight": matrix(rows * b.D, 2 * b.H, 2) for n, rows in (("q", b.HEADS), ("k", b.KV), ("v", b.KV))}
    tensors |= {at + "self_attn.o_proj.weight": matrix(b.H, b.HEADS * b.D), at + "mlp.gate_proj.weight": matrix(b.F, b.H), at + "mlp.up_proj.weight": matrix(b.F, b.H),
                at + "mlp.down_proj.weight": matrix(b.H, b.F)}
    tensors = {k: v.to(torch.bfloat16) for k, v in tensors.items()}
    offsets = torch.arange(b.VD) // 2
    return tensors | {"d2t": offsets, "t2d": torch.zeros(b.V, dtype=torch.bool).index_fill(0, torch.arange(b.VD) + offsets, True)}


def absolute_map() -> Tensors:
    tensors = random_head()
    return tensors | {"d2t": tensors["d2t"] + torch.arange(b.VD)}


def target_tensors() -> Tensors:
    g = torch.Generator().manual_seed(6)
    return {"model.embed_tokens.weight": (torch.randn(b.V, b.H, generator=g) * 2).to(torch.bfloat16), "model.norm.weight": (torch.rand(b.H, generator=g) + 0.5).to(torch.bfloat16)}


PAPERS = papers.LLAMA.but(tensors=random_head, target_tensors=target_tensors, draft={"torch_dtype": "bfloat16", "num_hidden_layers": 1, "tie_word_embeddings": False})


@dataclass(frozen=True)
class Spoken:
    """What the drafter was trained on (`truth`, `head`), and what the case hands over; calling it writes the folder."""

    truth: Wiring = CONTRACT
    """The wiring of the training, in terms of the checkpoint that is handed over."""
    handed: papers.Papers = PAPERS
    sample: Callable[[Sample], Sample] = lambda sample: sample
    keep: float = 0.9
    """Share of the tokens that follow the drafter."""
    kept: int = SEQUENCES
    logged: Callable[[Any], Mapping[str, float]] | None = lambda found: {"acc_0": found.accuracy(0).value, "acc_1": found.accuracy(1).value}
    """What the trainer's log says, of the accuracy under `truth`."""
    domain: Callable[[int], str] = lambda index: ""
    """Folder of the dump that a sample lies in."""
    spare: int = 1
    """Planes beyond those that fc reads."""

    def but(self, **changes: Any) -> Spoken:
        return replace(self, **changes)

    def __call__(self, folder: Path) -> None:
        self.handed(folder)
        texts, logged = spoken(self.truth, self.handed.tensors, _frozen(self.handed.draft), self.keep, self.spare)
        for index, item in enumerate(texts[:self.kept]):
            sample = self.sample({"input_ids": item.input_ids.clone(), "loss_mask": item.loss_mask.long(), "hidden_states": [p.clone() for p in item.planes.values()]})
            file = folder / "dump" / self.domain(index) / f"data_{index}.pt"
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(sample, file)
        raw = yaml.safe_load((folder / "case.yaml").read_text())
        raw.setdefault("training", {})["dump"] = {"path": "./dump"}
        if self.logged:
            raw["training"]["metrics"] = {k: round(float(v), 4) for k, v in self.logged(logged).items()}
        (folder / "case.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))


def _frozen(draft: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((k, tuple(sorted(v.items())) if isinstance(v, dict) else v) for k, v in (draft or {}).items()))


@functools.cache
def spoken(truth: Wiring, tensors: Callable[[], Tensors], draft: tuple[tuple[str, Any], ...], keep: float, spare: int) -> tuple[tuple[Recorded, ...], Any]:
    """The texts, and the drafter's correctness on them under `truth`."""
    with tempfile.TemporaryDirectory(prefix="head-") as folder:
        own = {k: dict(v) if isinstance(v, tuple) else v for k, v in draft}
        PAPERS.but(tensors=tensors, draft=own)(Path(folder))
        target = read_target(Path(folder) / "target")
        model = load_drafter(read_draft(Path(folder) / "drafter"), target, embedding_from="target", device="cpu")
        norm = FinalNorm(target_tensors()["model.norm.weight"].float(), target.eps)
        texts = _texts(model, truth, norm, keep, spare)
        return texts, evaluate(model, texts, truth, 2, norm=norm)


def _texts(model: Drafter, truth: Wiring, norm: FinalNorm, keep: float, spare: int) -> tuple[Recorded, ...]:
    rng, g = np.random.default_rng(0), torch.Generator().manual_seed(8)
    start, length = PROMPT + len(ENDING), PROMPT + len(ENDING) + RESPONSE
    items = []
    for i in range(SEQUENCES):
        ids = torch.randint(0, b.V, (length,), generator=g)
        ids[PROMPT:start] = torch.tensor(ENDING)
        planes = {f"slot {k}": (torch.randn(length, b.H, generator=g) * (1 + k % 3)).to(torch.bfloat16) for k in range(b.PLANES + spare)}
        items.append(Recorded(planes, ids, torch.arange(length) >= start, f"s{i}"))
    for j in range(start, length):
        step = j % 2
        found = evaluate(model, [i.cut(j + 1) for i in items], truth, 2, norm=norm)
        for item, own in zip(items, found.sequences, strict=True):
            row = int(np.nonzero(own.positions == j - 2 - step)[0][0])
            if rng.random() < keep:
                item.input_ids[j] = int(own.predicted[row, step])
    return tuple(items)
