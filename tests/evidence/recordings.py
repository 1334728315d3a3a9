"""The same four planes as every trainer and server writes them: a writer a layout, each into a folder of its own."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.fed import Fed
from eagle_forensics.evidence.fed_files import write_fed

T, H = 7, 4
IDS = torch.arange(10, 10 + T)
MASK = torch.tensor([0, 0, 1, 1, 1, 1, 0])


def planes(seed: int = 0, count: int = 4) -> list[torch.Tensor]:
    """Four planes [T, H] in bfloat16, other values for another seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(T, H, generator=generator).to(torch.bfloat16) for _ in range(count)]


def wide(seed: int = 0) -> torch.Tensor:
    """The first three planes joined, [T, 3H]."""
    return torch.cat(planes(seed)[:3], -1)


def v1(seed: int = 0) -> dict[str, Any]:
    return {"input_ids": IDS, "loss_mask": MASK, "hidden_states": planes(seed)}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def speculators_v1(folder: Path, count: int = 1) -> None:
    for i in range(count):
        write(folder / f"data_{i}.pt", v1(i))


def speculators_v0(folder: Path) -> None:
    write(folder / "data_0.pt", {"input_ids": IDS, "loss_mask": MASK, "hidden_state": wide(), "target": planes()[3]})


def specforge(folder: Path) -> None:
    write(folder / "rows_0-2000/data_0.ckpt", {"input_ids": IDS, "loss_mask": MASK, "hidden_state": planes()[3][None], "aux_hidden_state": wide()[None]})


def specforge_gzip(folder: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"input_ids": IDS, "loss_mask": MASK, "hidden_state": planes()[3][None], "aux_hidden_state": wide()[None]}, buffer)
    folder.mkdir(parents=True)
    (folder / "data_0.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue()))


def modelopt(folder: Path) -> None:
    write(folder / "conv-1.pt", {"input_ids": IDS, "hidden_states": planes()[3], "aux_hidden_states": wide(), "conversation_id": "conv-1"})


def angelslim(folder: Path) -> None:
    write(folder / "rank_0/rows_0/data_0.ckpt", {"input_ids": IDS[None], "loss_mask": MASK[None], "hidden_states": wide()[None], "target_hiddens": planes()[3][None]})


def vllm_extract(folder: Path) -> None:
    folder.mkdir(parents=True)
    save_file({"hidden_states": torch.stack(planes(), 1), "token_ids": IDS}, folder / "hs_0.safetensors")
    (folder / "hs_0.safetensors.lock").touch()


def vllm_fp8(folder: Path, scales: bool = True) -> None:
    states = torch.stack(planes(), 1).float()
    scale = (states.abs().amax((1, 2), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-12)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"hidden_states": (states / scale).to(torch.float8_e4m3fn), "token_ids": IDS, "hidden_states_scales": scale}
    if not scales:
        del tensors["hidden_states_scales"]
    save_file(tensors, folder / f"hs_{int(not scales)}.safetensors")


def plane_folder(folder: Path) -> None:
    for name, plane in zip(["aux_0", "aux_1", "aux_2", "final"], planes(), strict=True):
        write(folder / f"{name}.pt", plane)


def trtllm(folder: Path) -> None:
    """Two samples a file, as `write_interval: 2` gives them."""
    made = [{"id": i + 1, "input_ids": IDS, "hidden_state": planes(i)[3], "aux_hidden_states": wide(i)} for i in range(3)]
    write(folder / "eagle_2.pt", made[:2])
    write(folder / "eagle_3.pt", made[2:])


def torchspec(folder: Path) -> None:
    """A padded batch of two rows: the second one has three tokens fewer, padded on the right."""
    kept = torch.tensor([[1] * T, [1] * (T - 3) + [0] * 3])
    batch = {"input_ids": torch.stack([IDS, IDS]), "attention_mask": kept, "loss_mask": torch.stack([MASK, MASK])[..., None],
             "hidden_states": torch.stack([wide(0), wide(1)]), "last_hidden_states": torch.stack([planes(0)[3], planes(1)[3]])}
    write(folder / "batch_1_0_rank0.pt", {"step": 1, "batch_idx": 0, "rank": 0, "batch": batch, "gradients": {"fc.weight": torch.ones(2)}})


def verl_speco(folder: Path) -> None:
    made = [{"schema_version": 1, "algorithm": "EAGLE3", "input_ids": IDS, "loss_mask": MASK.float(), "hidden_states": wide(i)[None],
             "last_hidden_states": planes(i)[3], "metadata": {"global_step": i}} for i in range(3)]
    rows = []
    for number, part in enumerate((made[:2], made[2:])):
        write(folder / f"shard_{number:06}.pt", {"samples": part, "metadata": {"format": "torch_shard"}})
        rows.append({"path": f"shard_{number:06}.pt", "num_samples": len(part), "num_tokens": T * len(part)})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metadata.json").write_text("{}")


def _batch(seeds: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([IDS for _ in seeds]), torch.cat([torch.arange(T) for _ in seeds])


def sglang_passes(folder: Path, ranks: int = 1) -> None:
    """A prefill of two prompts, then a decode step, by each rank; names and order are those of a Llama under SGLang 0.5.23."""
    ids, positions = _batch((0, 1))
    low, mid, high, last = (torch.cat(pair) for pair in zip(planes(0), planes(1), strict=True))
    prefill = {"model.embed_tokens": low, "model.layers.0.input_layernorm": low * 2, "model.layers.0.self_attn.qkv_proj": [torch.zeros(2 * T, 3 * H)],
               "model.layers.0.post_attention_layernorm": [mid * 3, mid * 3], "model.layers.1.input_layernorm": [mid * 2, mid],
               "model.norm": [last, high], "model.forward_batch_info.input_ids": ids, "model.forward_batch_info.seq_lens": torch.tensor([T, T]),
               "model.forward_batch_info.positions": positions}
    step = {"model": torch.zeros(2, H), "lm_head": torch.zeros(2, 9), "model.embed_tokens": low[:2], "model.layers.1.input_layernorm": [mid[:2], mid[:2]],
            "model.norm": [last[:2], high[:2]], "model.forward_batch_info.input_ids": ids[:2], "model.forward_batch_info.seq_lens": torch.tensor([T + 1, T + 1]),
            "model.forward_batch_info.positions": torch.tensor([T, T])}
    for rank in range(ranks):
        place = folder / f"TP{rank}_PP0_Rank{rank}_pid{100 + rank}"
        write(place / "Pass00000.pt", prefill)
        write(place / "Pass00001.pt", step)


def sglang_dumper(folder: Path, ranks: int = 1) -> None:
    """Tensors that a user named, dumped by each rank in one step of one prompt."""
    for rank in range(ranks):
        named = [("input_ids", IDS, None), ("positions", torch.arange(T), None), *(("hidden", plane, i) for i, plane in enumerate(planes())),
                 ("next_token_logits", torch.zeros(1, 9), None)]
        for index, (name, value, layer) in enumerate(named, 1):
            layer_tag = "" if layer is None else f"___layer_id={layer}"
            meta = {"step": 3, "rank": rank, "dump_index": index, "name": name, "sglang_parallel_info": {"tp_rank": rank, "tp_size": ranks}}
            write(folder / f"exp/step=3___rank={rank}___dump_index={index}___name={name}___recompute_status=disabled{layer_tag}.pt", {"value": value, "meta": meta})


def sglang_modules(folder: Path) -> None:
    """Whole modules under DUMPER_NON_INTRUSIVE_MODE=all."""
    low, mid, high, last = planes()
    head = "non_intrusive__model."
    named = [("input_ids", IDS), ("positions", torch.arange(T)), (f"{head}embed_tokens.output", low), (f"{head}layers.0.input_layernorm.output", low * 2),
             (f"{head}layers.1.input_layernorm.inputs.0", low), (f"{head}layers.1.input_layernorm.output.0", mid * 2), (f"{head}layers.1.input_layernorm.output.1", mid),
             (f"{head}layers.1.mlp.output", low), (f"{head}norm.output.1", high), (f"{head}norm.output.0", last)]
    for index, (name, value) in enumerate(named, 1):
        write(folder / f"step=0___rank=0___dump_index={index}___name={name}___layer_id=1.pt", {"value": value, "meta": {"name": name}})


def sglang_reply(folder: Path) -> None:
    folder.mkdir(parents=True)
    joined = torch.cat([wide(), planes()[3]], -1).float().tolist()
    reply = {"text": "x", "output_ids": [15, 16, 9], "meta_info": {"hidden_states": [joined[:-2], *joined[-2:]]}}
    (folder / "reply.json").write_text(json.dumps({"input_ids": IDS[:-2].tolist(), "response": reply}))


def fed(folder: Path) -> None:
    """What `eagle-forensics capture` writes."""
    write_fed([Fed(tuple(IDS.tolist()), torch.stack(planes(), 1))], folder, {"engine": "sglang"})


WRITERS: dict[str, Callable[[Path], None]] = {w.__name__: w for w in (
    speculators_v1, speculators_v0, specforge, modelopt, angelslim, vllm_extract, plane_folder, trtllm, torchspec, verl_speco, sglang_passes, sglang_dumper, fed)}
"""Writers by the name of their layout: sample 0 holds `planes()` in slot order."""
