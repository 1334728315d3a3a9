"""Cases of a tiny Llama that is really run: dump, bank and captures are what its network computes, whole or with a part lost or moved.

Twelve layers of width 64 with random weights of a real network's structure: a residual stream whose norm grows, one token with a massive
activation, norms that weigh columns unequally. The drafter was trained on boundaries 3, 6, 10; the dump's last plane is b=12, before the final norm.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.states import States, write_states
from tests.fingerprint.damage import Kind, kinds
from tests.fingerprint.real import Real
from tests.lineup.papers import KNOWN, VLLM_LAUNCH, sglang_launch

LAYERS, HIDDEN, FFN, HEADS, VOCAB = 12, 64, 128, 4, 256
TRAINED = (3, 6, 10)
SEQUENCES, TOKENS, LONG = 18, 48, 160
"""Texts of a dump and their shortest length; two more texts are long."""

Planes = Callable[[Real, int], list[torch.Tensor]]
"""Planes of sequence i, each [T, W]."""
FAMILIES = {"llama": ("LlamaForCausalLM", "llama"), "deepseek": ("DeepseekV3ForCausalLM", "deepseek_v3")}


@functools.cache
def network(seed: int) -> Real:
    """The tiny target, run on all sequences; `seed` draws its weights, the tokens are the same."""
    folder = _kept() / f"target-{seed}"
    _write_target(folder, seed)
    return Real(folder, texts())


@functools.cache
def _kept() -> Path:
    held = tempfile.TemporaryDirectory(prefix="tiny-")
    _HELD.append(held)
    return Path(held.name)


_HELD: list[tempfile.TemporaryDirectory] = []


def texts() -> list[torch.Tensor]:
    """Token 0 begins a text; frequent tokens are frequent."""
    g = torch.Generator().manual_seed(1)
    zipf = 1 / torch.arange(2, VOCAB + 1)
    lengths = [*(TOKENS + 3 * (i % 5) for i in range(SEQUENCES)), LONG, LONG]
    return [torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.multinomial(zipf, n - 1, replacement=True, generator=g)]) for n in lengths]


def _write_target(folder: Path, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=g) * scale / columns**0.5

    sink = torch.nn.functional.normalize(torch.randn(HIDDEN, generator=g), dim=0)
    beside = torch.eye(HIDDEN) - torch.outer(sink, sink)
    embed = torch.randn(VOCAB, HIDDEN, generator=g) @ beside
    embed[0] += 8 * sink
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": 1 + 0.3 * torch.randn(HIDDEN, generator=g).clamp(-2, 2), "lm_head.weight": draw(VOCAB, HIDDEN, 1.0)}
    for i in range(LAYERS):
        at, grows = f"model.layers.{i}.", 0.7 * 1.08**i
        tensors |= {at + f"self_attn.{p}_proj.weight": draw(HIDDEN, HIDDEN, 1.0) for p in "qkv"}
        tensors |= {at + "self_attn.o_proj.weight": beside @ draw(HIDDEN, HIDDEN, grows), at + "mlp.gate_proj.weight": draw(FFN, HIDDEN, 1.0), at + "mlp.up_proj.weight": draw(FFN, HIDDEN, 1.0),
                    at + "mlp.down_proj.weight": beside @ draw(HIDDEN, FFN, 1.6 * grows)}
        tensors |= {at + f"{norm}_layernorm.weight": 1 + 0.2 * torch.randn(HIDDEN, generator=g).clamp(-2, 2) for norm in ("input", "post_attention")}
    at = "model.layers.2.mlp."
    tensors[at + "gate_proj.weight"][0] = tensors[at + "up_proj.weight"][0] = 2 * sink
    tensors[at + "down_proj.weight"][:, 0] = 3 * (beside @ torch.randn(HIDDEN, generator=g))
    folder.mkdir(parents=True)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config("llama")))


def _config(family: str) -> dict[str, Any]:
    name, kind = FAMILIES[family]
    return KNOWN | {"architectures": [name], "model_type": kind, "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
                    "num_key_value_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


def _head(planes: int) -> dict[str, torch.Tensor]:
    """A whole head for the full vocabulary, whose fc reads this many planes."""
    g = torch.Generator().manual_seed(9)
    shapes = {"fc": (HIDDEN, planes * HIDDEN), "lm_head": (VOCAB, HIDDEN), **{f"midlayer.self_attn.{p}_proj": (HIDDEN, 2 * HIDDEN) for p in "qkv"}, "midlayer.self_attn.o_proj": (HIDDEN, HIDDEN),
              "midlayer.mlp.gate_proj": (FFN, HIDDEN), "midlayer.mlp.up_proj": (FFN, HIDDEN), "midlayer.mlp.down_proj": (HIDDEN, FFN)}
    norms = ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")
    return {f"{n}.weight": (torch.randn(*shape, generator=g) / shape[-1] ** 0.5).to(torch.bfloat16) for n, shape in shapes.items()} | {f"{n}.weight": torch.ones(HIDDEN, dtype=torch.bfloat16) for n in norms}


@dataclass(frozen=True)
class Capture:
    """What one rank recorded of one execution path."""

    planes: Planes
    kind: str = "eager"
    rank: int | None = None
    tokens: Callable[[torch.Tensor], torch.Tensor] = lambda ids: ids
    """Of the token ids of a prompt those that were recorded with the rows."""
    layout: str = "fed"
    of: Sequence[int] = (0, 1)
    """Numbers of the texts that were asked."""
    label: str | None = None


@dataclass(frozen=True)
class Tiny:
    """A change of the tiny case; calling it writes the folder."""

    family: str = "llama"
    engine: str | None = "sglang"
    version: str | None = "0.5.23"
    ids: Sequence[int] | None = (2, 5, 9)
    place: str = "nested"
    env: Mapping[str, str] | None = None
    launch: str | None = None
    trainer: tuple[str, str] | None = ("speculators", "0.4.0")
    trained: Sequence[int] | None = (2, 5, 9, 11)
    labels: Sequence[str] | None = None
    planes: Planes = lambda real, i: [real.state(i, b) for b in TRAINED]
    """Of the dump: those that fc reads."""
    last: Planes | None = lambda real, i: [real.state(i, LAYERS)]
    """Of the dump: the teacher's."""
    layout: str = "speculators_v1"
    kept: int = SEQUENCES
    tokens: int | None = None
    """Tokens of a sample that the dump keeps."""
    weights: str | None = "layers"
    """`layers`: all of the target; `outside`: embedding, final norm and head; None: only its config."""
    bank: int | None = 0
    """Seed of the network whose states the bank holds; None: no bank."""
    captures: Sequence[Capture] = ()
    drafter: Mapping[str, Any] = field(default_factory=dict)
    fc: int | None = None
    """Planes that fc of a drafter with weights reads; None: only its config."""

    def but(self, **changes: Any) -> Tiny:
        return replace(self, **changes)

    def __call__(self, folder: Path) -> None:
        real = network(0)
        self._target(real, folder / "target")
        self._drafter(folder / "drafter")
        samples = [(real.ids[i], [*self.planes(real, i), *(self.last(real, i) if self.last else [])]) for i in range(self.kept)]
        LAYOUTS[self.layout](folder / "dump", [(ids[: self.tokens], [_stored(p[: self.tokens]) for p in planes]) for ids, planes in samples])
        if self.labels:
            (folder / "dump" / "manifest.json").write_text(json.dumps({"planes": list(self.labels)}))
        if self.bank is not None:
            _write_bank(self.bank, folder / "bank")
        raw = self._case()
        if self.captures:
            raw["captures"] = [_write_capture(c, real, folder, number) for number, c in enumerate(self.captures)]
        (folder / "case.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    def _case(self) -> dict[str, Any]:
        training: dict[str, Any] = {"dump": {"path": "./dump"}}
        if self.trainer:
            training["trainer"] = {"name": self.trainer[0], "version": self.trainer[1]}
        if self.trained:
            training["layer_ids"] = list(self.trained)
        launch = self.launch or (VLLM_LAUNCH if self.engine == "vllm" else sglang_launch())
        serving = {"engine": self.engine, "version": self.version, "launch": launch, "env": dict(self.env) if self.env else None}
        raw: dict[str, Any] = {"schema": 1, "name": "case", "target": {"path": "./target"}, "drafter": {"path": "./drafter"}, "training": training}
        if self.engine:
            raw["serving"] = {k: v for k, v in serving.items() if v}
        return raw | ({"reference": {"path": "./bank"}} if self.bank is not None else {})

    def _target(self, real: Real, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(_config(self.family)))
        if self.weights == "layers":
            (folder / "model.safetensors").symlink_to(real.folder / "model.safetensors")
        elif self.weights == "outside":
            held = real.model.state_dict()
            save_file({k: held[k].to(torch.bfloat16) for k in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}, folder / "model.safetensors", metadata={"format": "pt"})

    def _drafter(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        config: dict[str, Any] = _config("llama") | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": VOCAB}
        if self.ids is not None:
            ids = {"eagle_aux_hidden_state_layer_ids": list(self.ids)}
            config |= ids if self.place == "top" else {"eagle_config": ids | {"use_aux_hidden_state": True}}
        (folder / "config.json").write_text(json.dumps(config | dict(self.drafter)))
        if self.fc:
            save_file(_head(self.fc), folder / "model.safetensors", metadata={"format": "pt"})


def kind(name: str, at: Sequence[int] = TRAINED, slots: Sequence[int] | None = None) -> Planes:
    """Planes at the boundaries `at` as the generator of the fingerprint's confusion matrix makes them; only `slots`, the others whole."""
    def planes(real: Real, i: int) -> list[torch.Tensor]:
        made = _kinds()[name].planes
        return [made(real, i, b) if slots is None or slot in slots else real.state(i, b) for slot, b in enumerate(at)]

    return planes


@functools.cache
def _kinds() -> dict[str, Kind]:
    return kinds(network(0))


def whole(*at: int) -> Planes:
    """The states at these boundaries; 13 is the state after the final norm."""
    return lambda real, i: [real.state(i, b) for b in at]


def changed(change: Callable[[torch.Tensor], torch.Tensor], slots: Sequence[int] = (0, 1, 2), at: Sequence[int] = TRAINED) -> Planes:
    """The states at these boundaries with the rows of some slots changed."""
    return lambda real, i: [change(real.state(i, b).clone()) if slot in slots else real.state(i, b) for slot, b in enumerate(at)]


def rows(value: float, *spans: tuple[int, int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows from `start` to before `stop` hold one value only."""
    def change(x: torch.Tensor) -> torch.Tensor:
        for start, stop in spans:
            x[start:stop] = value
        return x

    return change


def by_ranks(count: int, planes: Callable[[Real, int, int], list[torch.Tensor]], **more: Any) -> tuple[Capture, ...]:
    """A capture a rank; `planes` of network, sequence, rank."""
    return tuple(Capture(lambda real, i, r=r: planes(real, i, r), rank=r, **more) for r in range(count))


def _stored(plane: torch.Tensor) -> torch.Tensor:
    return plane.to(torch.bfloat16).contiguous() if plane.dtype == torch.float32 else plane.contiguous()


def _write_bank(seed: int, folder: Path) -> None:
    real = network(seed)
    boundaries = (*map(Boundary, range(LAYERS + 1)), Boundary(LAYERS, True))
    number = {b: b.index + b.normed for b in boundaries}
    write_states(States(boundaries, tuple(tuple(s.tolist()) for s in real.ids), "the target", lambda i, b: real.state(i, number[b]).to(torch.bfloat16)), folder)


def _write_capture(capture: Capture, real: Real, folder: Path, number: int) -> dict[str, Any]:
    name = f"capture-{number}"
    LAYOUTS[capture.layout](folder / name, [(capture.tokens(real.ids[i]), [_stored(p) for p in capture.planes(real, i)]) for i in capture.of])
    told = {"path": f"./{name}", "path_kind": capture.kind, "tp_rank": capture.rank, "label": capture.label}
    return {k: v for k, v in told.items() if v is not None}


Samples = Sequence[tuple[torch.Tensor, list[torch.Tensor]]]
"""Token ids and planes, the teacher's last."""


def _save(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file)


def _mask(ids: torch.Tensor) -> torch.Tensor:
    return (torch.arange(len(ids)) >= 8).long()


def _joined(planes: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(planes[:-1], -1)


def _speculators(folder: Path, samples: Samples) -> None:
    for i, (ids, planes) in enumerate(samples):
        _save(folder / f"data_{i}.pt", {"hidden_states": planes, "input_ids": ids, "loss_mask": _mask(ids)})


def _specforge(folder: Path, samples: Samples) -> None:
    for i, (ids, planes) in enumerate(samples):
        _save(folder / f"rows_0-2000/data_{i}.ckpt", {"input_ids": ids, "loss_mask": _mask(ids), "hidden_state": planes[-1][None], "aux_hidden_state": _joined(planes)[None]})


def _angelslim(folder: Path, samples: Samples) -> None:
    for i, (ids, planes) in enumerate(samples):
        _save(folder / f"rank_{i % 2}/rows_0/data_{i}.ckpt", {"input_ids": ids[None], "loss_mask": _mask(ids)[None], "hidden_states": _joined(planes)[None], "target_hiddens": planes[-1][None]})


def _modelopt(folder: Path, samples: Samples) -> None:
    for i, (ids, planes) in enumerate(samples):
        _save(folder / f"conv-{i}.pt", {"input_ids": ids, "hidden_states": planes[-1], "aux_hidden_states": _joined(planes), "conversation_id": f"conv-{i}"})


def _trtllm(folder: Path, samples: Samples) -> None:
    made = [{"id": i, "input_ids": ids, "hidden_state": planes[-1], "aux_hidden_states": _joined(planes)} for i, (ids, planes) in enumerate(samples)]
    for at in range(0, len(made), 5):
        _save(folder / f"eagle_{at}.pt", made[at:at + 5])


def _torchspec(folder: Path, samples: Samples) -> None:
    for at in range(0, len(samples), 4):
        part = samples[at:at + 4]

        def padded(items: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.utils.rnn.pad_sequence(items, batch_first=True)

        batch = {"input_ids": padded([ids for ids, _ in part]), "attention_mask": padded([torch.ones_like(ids) for ids, _ in part]), "loss_mask": padded([_mask(ids) for ids, _ in part])[..., None],
                 "hidden_states": padded([_joined(p) for _, p in part]), "last_hidden_states": padded([p[-1] for _, p in part])}
        _save(folder / f"batch_{at}_0_rank0.pt", {"step": at, "batch_idx": 0, "rank": 0, "batch": batch})


def _verl(folder: Path, samples: Samples) -> None:
    made = [{"schema_version": 1, "algorithm": "EAGLE3", "input_ids": ids, "loss_mask": _mask(ids).float(), "hidden_states": _joined(planes)[None], "last_hidden_states": planes[-1], "metadata": {}}
            for ids, planes in samples]
    listed = []
    for number, at in enumerate(range(0, len(made), 8)):
        part = made[at:at + 8]
        _save(folder / f"shard_{number:06}.pt", {"samples": part, "metadata": {"format": "torch_shard"}})
        listed.append({"path": f"shard_{number:06}.pt", "num_samples": len(part), "num_tokens": sum(len(s["input_ids"]) for s in part)})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))


def _vllm(folder: Path, samples: Samples) -> None:
    folder.mkdir(parents=True)
    for i, (ids, planes) in enumerate(samples):
        save_file({"hidden_states": torch.stack(planes, 1), "token_ids": ids}, folder / f"hs_{i}.safetensors")


def _vllm_fp8(folder: Path, samples: Samples) -> None:
    folder.mkdir(parents=True)
    for i, (ids, planes) in enumerate(samples):
        states = torch.stack(planes, 1).float()
        scale = (states.abs().amax((1, 2), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-12)
        save_file({"hidden_states": (states / scale).to(torch.float8_e4m3fn), "token_ids": ids, "hidden_states_scales": scale}, folder / f"hs_{i}.safetensors")


def _fed(folder: Path, samples: Samples) -> None:
    folder.mkdir(parents=True)
    for i, (ids, planes) in enumerate(samples):
        save_file({"fed": torch.stack(planes, 1), "input_ids": ids}, folder / f"prompt{i:03d}.safetensors")


def _bare(folder: Path, samples: Samples) -> None:
    for i, (_, planes) in enumerate(samples):
        _save(folder / f"{i}.pt", torch.cat(planes, -1))


def _debug(folder: Path, samples: Samples) -> None:
    """SGLang's debug dump of two ranks: planes are the states before layers 0, 1, ... and, last, before the final norm."""
    for rank in range(2):
        for number, (ids, planes) in enumerate(samples):
            held = {"model.embed_tokens": planes[0], **{f"model.layers.{j}.input_layernorm": [x.float().mul(0.5).to(x.dtype), x] for j, x in enumerate(planes[1:-1], 1)},
                    "model.norm": [network(0).weights.normed(planes[-1]).to(planes[-1].dtype), planes[-1]],
                    "model.forward_batch_info.input_ids": ids, "model.forward_batch_info.seq_lens": torch.tensor([len(ids)]), "model.forward_batch_info.positions": torch.arange(len(ids))}
            _save(folder / f"TP{rank}_PP0_Rank{rank}_pid{100 + rank}" / f"Pass{number:05}.pt", held)


LAYOUTS: dict[str, Callable[[Path, Samples], None]] = {
    "speculators_v1": _speculators, "specforge": _specforge, "angelslim": _angelslim, "modelopt": _modelopt, "trtllm": _trtllm, "torchspec": _torchspec, "verl": _verl,
    "vllm": _vllm, "vllm_fp8": _vllm_fp8, "fed": _fed, "bare": _bare, "debug": _debug}

SGLANG = Tiny()
VLLM = Tiny(engine="vllm", version="0.32.0", ids=TRAINED, place="top")
