"""A drafter of Kimi-K2's size (MLA, 1.84 billion weights, bf16, 3.7 GB on disk) evaluated in float32 from its mapped file.

    python -m tests.benchmarks.kimi_drafter FOLDER [tokens]

Prints one JSON object: `efficiency`, the time of the bare float32 products of the same shapes over the time of the evaluation; and
`extra_gib`, the peak of resident memory above that before loading and the weights themselves. The weights are synthetic: a
random block repeated. The embedding is a hole in the file, of which only the rows looked up are read.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from eagle_forensics.drafter.network.model import load_drafter
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.drafts import read_draft
from tests.benchmarks import memory

HIDDEN, FFN, HEADS, Q_RANK, KV_RANK, NOPE, TURNED, VALUE, VOCAB, STEPS, PROMPT = 7168, 18432, 64, 1536, 512, 128, 64, 128, 163840, 3, 32
CONFIG = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
          "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": TURNED,
          "v_head_dim": VALUE, "vocab_size": VOCAB, "draft_vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 262144}
ATTENTION, MLP = "layers.0.self_attn.", "layers.0.mlp."
MATRICES = {
    "fc": (HIDDEN, 3 * HIDDEN), ATTENTION + "q_a_proj": (Q_RANK, 2 * HIDDEN), ATTENTION + "q_b_proj": (HEADS * (NOPE + TURNED), Q_RANK),
    ATTENTION + "kv_a_proj_with_mqa": (KV_RANK + TURNED, 2 * HIDDEN), ATTENTION + "kv_b_proj": (HEADS * (NOPE + VALUE), KV_RANK), ATTENTION + "o_proj": (HIDDEN, HEADS * VALUE),
    MLP + "gate_proj": (FFN, HIDDEN), MLP + "up_proj": (FFN, HIDDEN), MLP + "down_proj": (HIDDEN, FFN), "lm_head": (VOCAB, HIDDEN), "embed_tokens": (VOCAB, HIDDEN)}
VECTORS = {"norm": HIDDEN, "layers.0.input_layernorm": HIDDEN, "layers.0.hidden_norm": HIDDEN, "layers.0.post_attention_layernorm": HIDDEN,
           ATTENTION + "q_a_layernorm": Q_RANK, ATTENTION + "kv_a_layernorm": KV_RANK}


def write(folder: Path) -> int:
    """The checkpoint; bytes of its weights without the embedding."""
    shapes = {**{n: (s,) for n, s in VECTORS.items()}, **MATRICES}  # the embedding last: its data is never written
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    block = (torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.01).bfloat16().view(torch.int16).numpy().tobytes()
    written = at - 2 * VOCAB * HIDDEN
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for low in range(0, written, len(block)):
            file.write(block[:min(len(block), written - low)])
        file.truncate(8 + len(encoded) + at)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return written


def bare_seconds(tokens: int) -> float:
    """Bare float32 products of the evaluation's shapes, each measured on at most 8192 rows of its matrix and scaled up."""
    total = 0.0
    for name, (rows, columns) in MATRICES.items():
        if name != "embed_tokens":
            measured = min(rows, 8192)
            x, w = torch.randn(tokens, columns), torch.randn(measured, columns)
            times = []
            for _ in range(3):
                began = time.process_time()
                F.linear(x, w)
                times.append(time.process_time() - began)
            entry = name.endswith(("q_a_proj", "kv_a_proj_with_mqa"))  # the embedding's half of these once, the hidden state's half each step
            total += min(times) * rows / measured * (1 if name == "fc" else (1 + STEPS) / 2 if entry else STEPS)
    return total


def main(folder: Path, tokens: int) -> None:
    written = write(folder)
    rng = torch.Generator().manual_seed(1)
    item = Recorded({f"p{i}": torch.randn(tokens, HIDDEN, generator=rng).bfloat16() for i in range(3)}, torch.randint(0, VOCAB, (tokens,), generator=rng),
                    torch.arange(tokens) >= PROMPT, "synthetic")
    before = memory.resident_bytes()
    drafter = load_drafter(read_draft(folder), device="cpu")
    seconds = []
    for _ in range(2):
        began = time.process_time()
        evaluate(drafter, [item], Wiring(("p0", "p1", "p2")), STEPS)
        seconds.append(time.process_time() - began)
    peak = memory.peak_bytes()
    print(json.dumps({"efficiency": bare_seconds(tokens) / min(seconds), "extra_gib": (peak - before - written) / 2**30, "seconds": min(seconds), "weights_gib": written / 2**30}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 384)
