"""Cases of the real pair: SmolLM2-135M-Instruct and its drafter, with planes, configs or weights of the folder changed.

Trained boundaries are 2, 15, 27 (after layers 1, 14, 26 of 30); the dump's last plane is b=30, before the final norm.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from eagle_forensics import demo
from eagle_forensics.evidence.archives import load_archive
from eagle_forensics.evidence.states import read_states
from eagle_forensics.evidence.targets import read_target
from tests.lineup.outcome import KEPT
from tests.lineup.papers import VLLM_LAUNCH, sglang_launch

Sample = dict[str, Any]
RIGHT = {("sglang", "nested"): (1, 14, 26), ("vllm", "top"): (2, 15, 27)}
MEASURED = {"right": (3, "2.153", "707"), "early": (3, "1.907", "966"), "embedding": (3, "1.106", "1353")}
"""Accept length and rounds of three draft steps as measured on CPU servers of this pair."""


@dataclass(frozen=True)
class Real:
    """A change of the real case; calling it writes the folder."""

    engine: str = "sglang"
    version: str = "0.5.23"
    ids: Sequence[int] | None = (1, 14, 26)
    place: str = "nested"
    env: Mapping[str, str] | None = None
    trainer: tuple[str, str] | None = ("speculators", "0.4.0")
    trained: Sequence[int] | None = (1, 14, 26, 29)
    metrics: Mapping[str, float] | None = None
    """As the trainer's log names them."""
    labels: Sequence[str] | None = None
    sample: Callable[[Sample], Sample] | None = None
    """Changes a sample before it is written."""
    drafter: Mapping[str, Any] | None = None
    """Changes of the drafter's config."""
    tensors: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    target: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    weights: bool = True
    """Whether the target's weights are there; else only its config and the bank."""
    bank: bool = True
    measured: str | None = None
    captured: Sequence[int] | None = None
    """Boundaries of a capture of the serving host, made of the bank's states."""
    kept: int = KEPT

    def but(self, **changes: Any) -> Real:
        return replace(self, **changes)

    def __call__(self, folder: Path) -> None:
        source = demo.case_file("vllm-shift").parent
        self._target(source / "target", folder / "target")
        self._drafter(source / "drafter", folder / "drafter")
        self._dump(source / "dump", folder / "dump")
        if self.bank:
            _link_all(source / "bank", folder / "bank")
        raw = self._case()
        if self.measured:
            steps, length, rounds = MEASURED[self.measured]
            (folder / "runs.csv").write_text("label,engine,engine_version,speculative,steps,topk,temperature,rounds,accept_length\n"
                                             f"run 1,{self.engine},{self.version},1,{steps},1,0,{rounds},{length}\n")
            raw["measurements"] = "./runs.csv"
        if self.captured:
            self._capture(source / "bank", folder / "captures")
            raw["captures"] = [{"path": "./captures", "path_kind": "eager"}]
        (folder / "case.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    def _case(self) -> dict[str, Any]:
        training: dict[str, Any] = {"dump": {"path": "./dump"}}
        if self.trainer:
            training["trainer"] = {"name": self.trainer[0], "version": self.trainer[1]}
        if self.trained:
            training["layer_ids"] = list(self.trained)
        if self.metrics:
            training["metrics"] = dict(self.metrics)
        launch = sglang_launch(more="--device cpu") if self.engine == "sglang" else VLLM_LAUNCH + " --enforce-eager"
        raw = {"schema": 1, "name": "case", "target": {"path": "./target"}, "drafter": {"path": "./drafter"}, "training": training,
               "serving": {"engine": self.engine, "version": self.version, "launch": launch, **({"env": dict(self.env)} if self.env else {})}}
        return raw | ({"reference": {"path": "./bank"}} if self.bank else {})

    def _target(self, source: Path, folder: Path) -> None:
        _link_all(source, folder, without=() if self.weights and not self.target else ("model.safetensors",))
        if self.target:
            save_file({k: v.contiguous() for k, v in self.target(load_file(source / "model.safetensors")).items()}, folder / "model.safetensors", metadata={"format": "pt"})

    def _drafter(self, source: Path, folder: Path) -> None:
        _link_all(source, folder, without=("config.json",))
        config = json.loads((source / "config.json").read_text())
        config.pop("eagle_config")
        if self.ids is not None:
            ids = list(self.ids)
            config |= ({"eagle_aux_hidden_state_layer_ids": ids} if self.place == "top" else
                       {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}})
        (folder / "config.json").write_text(json.dumps(config | dict(self.drafter or {}), indent=2))
        if self.tensors:
            file = folder / "model.safetensors"
            changed = self.tensors(load_file(file))
            file.unlink()
            save_file({k: v.contiguous() for k, v in changed.items()}, file, metadata={"format": "pt"})

    def _dump(self, source: Path, folder: Path) -> None:
        folder.mkdir(parents=True)
        if self.labels:
            (folder / "manifest.json").write_text(json.dumps({"planes": list(self.labels)}))
        files = sorted(source.glob("data_*.pt"), key=lambda p: int(p.stem.split("_")[1]))
        files = files[::max(1, len(files) // self.kept)][:self.kept]
        for index, file in enumerate(files):
            if self.sample is None:
                _link(file, folder / f"data_{index}.pt")
                continue
            held = load_archive(file)
            buffer = io.BytesIO()
            torch.save(self.sample({k: [p.clone() for p in v] if isinstance(v, list) else v.clone() for k, v in held.items()}), buffer)
            (folder / f"data_{index}.pt").write_bytes(buffer.getvalue())

    def _capture(self, bank: Path, folder: Path) -> None:
        folder.mkdir()
        states = read_states(bank)
        for index, tokens in enumerate(states.sequences[:4]):
            planes = torch.stack([states.plane(index, b) for b in self.captured], dim=1)
            save_file({"hidden_states": planes.contiguous(), "token_ids": torch.tensor(tokens)}, folder / f"req-{index}.safetensors")


def _link(file: Path, link: Path) -> None:
    try:
        os.link(file, link)
    except OSError:  # another file system
        shutil.copy2(file, link)


def _link_all(source: Path, folder: Path, without: Sequence[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name not in without and file.suffix != ".md":
            _link(file, folder / file.name)


SGLANG = Real()
VLLM = Real(engine="vllm", version="0.32.0", ids=(2, 15, 27), place="top")
SHIFTED = VLLM.but(ids=(1, 14, 26), place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
TRUE_LABELS = ("b2", "b15", "b27", "b30")


def planes(change: Callable[[list[torch.Tensor], Sample], list[torch.Tensor]]) -> Callable[[Sample], Sample]:
    """A change of the planes only."""
    return lambda sample: sample | {"hidden_states": change(sample["hidden_states"], sample)}


def order(*slots: int) -> Callable[[Sample], Sample]:
    return planes(lambda held, sample: [held[i] for i in slots])


def dtype(kind: torch.dtype) -> Callable[[Sample], Sample]:
    return planes(lambda held, sample: [p.to(kind) for p in held])


def embedded(*slots: int | None) -> Callable[[Sample], Sample]:
    """The planes at `slots`, None for the embedding of the sample's tokens."""
    table: list[torch.Tensor] = []

    def change(held: list[torch.Tensor], sample: Sample) -> list[torch.Tensor]:
        if not table:
            table.append(load_file(demo.case_file("vllm-shift").parent / "target" / "model.safetensors")["model.embed_tokens.weight"])
        return [table[0][sample["input_ids"]].to(held[0].dtype) if i is None else held[i] for i in slots]

    return planes(change)


def normed_last(times: int = 1) -> Callable[[Sample], Sample]:
    """The last plane after the target's final norm."""
    folder = demo.case_file("vllm-shift").parent / "target"
    eps = read_target(folder).config["rms_norm_eps"]

    def change(held: list[torch.Tensor], sample: Sample) -> list[torch.Tensor]:
        weight = load_file(folder / "model.safetensors")["model.norm.weight"].float()
        last = held[-1]
        for _ in range(times):
            x = last.float()
            last = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(last.dtype)
        return [*held[:-1], last]

    return planes(change)


def shifted_states(sample: Sample) -> Sample:
    """States one position late against their tokens."""
    return sample | {"hidden_states": [torch.roll(p, 1, 0) for p in sample["hidden_states"]]}


def absolute_map(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"d2t": tensors["d2t"] + torch.arange(len(tensors["d2t"]))}


def rotated(plane: torch.Tensor) -> torch.Tensor:
    basis = torch.linalg.qr(torch.randn(plane.shape[1], plane.shape[1], generator=torch.Generator().manual_seed(7)))[0]
    return (plane.float() @ basis).to(plane.dtype)


def other_weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same architecture with other weights: every matrix of the layers gets noise of its own size."""
    generator = torch.Generator().manual_seed(3)
    return {k: (v.float() + v.float().std() * torch.randn(v.shape, generator=generator)).to(v.dtype) if ".layers." in k and v.dim() == 2 else v
            for k, v in tensors.items()}
