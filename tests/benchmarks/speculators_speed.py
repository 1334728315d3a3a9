"""Seconds of speculators 0.9.0's own EAGLE-3 forward on the samples of a file; runs in .venv-speculators for `bench_drafter`.

    python speculators_speed.py IN.safetensors

Three ways to run it, the fastest counts: one sequence at a time or packed to 2048 tokens with eager attention, and packed with its
flex attention. No loss and no teacher: only the draft tokens of every step. Prints one JSON object of CPU seconds on one thread.
"""

import json
import sys
import time

import torch
from safetensors import safe_open
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig

PACKED = 2048
REPEATS = 2


def model(config, weights, attention):
    layer = LlamaConfig(**config["layer"])
    layer._attn_implementation = attention
    made = Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=len(weights["lm_head.weight"]), eagle_aux_hidden_state_layer_ids=list(range(config["n_aux"])),
        speculators_config=SpeculatorsConfig(algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=config["steps"])],
                                             default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))).eval()
    made.load_state_dict(weights, strict=False)
    return made


def batches(stored, count, size):
    group, length = [], 0
    for i in range(count):
        n = len(stored[f"ids/{i}"]) - 1
        if group and length + n > size:
            yield group
            group, length = [], 0
        group.append((stored[f"planes/{i}"][:-1].float(), stored[f"ids/{i}"][1:]))
        length += n
    yield group


def seconds(made, stored, config, size):
    times, first = [], None
    for _ in range(REPEATS):
        began = time.process_time()
        drafts = []
        for group in batches(stored, config["sequences"], size):
            documents = torch.repeat_interleave(torch.arange(len(group)), torch.tensor([len(i) for _, i in group]))
            drafts += made(torch.cat([p for p, _ in group])[None], torch.cat([i for _, i in group])[None], documents[None], ttt_steps=config["steps"])
        times.append(time.process_time() - began)
        first = drafts
    return min(times), torch.cat([d[0] for d in first[0::config["steps"]]])


torch.set_num_threads(1)
with safe_open(sys.argv[1], "pt") as file, torch.inference_mode():
    stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config = json.loads(file.metadata()["config"])
    weights = {n.removeprefix("weights/"): w if w.dtype == torch.int64 else w.float() for n, w in stored.items() if n.startswith("weights/")}
    eager = model(config, weights, "eager")
    found, kept = {}, None
    for name, made, size in (("one at a time", eager, 1), ("packed", eager, PACKED), ("flex", None, PACKED)):
        try:
            found[name], drafts = seconds(made or model(config, weights, "simple_flex_attention"), stored, config, size)
            kept = drafts if kept is None else kept
        except Exception as error:  # one way of running it may be missing on this machine
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)
    print(json.dumps({"seconds": found, "first drafts": kept.tolist()}))
