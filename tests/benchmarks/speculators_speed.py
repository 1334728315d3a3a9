"""Seconds of speculators 0.9.0's own EAGLE-3 forward on the samples of a file; runs in .venv-speculators for `bench_drafter`.

    python speculators_speed.py IN.safetensors

As its trainer runs it: sequences packed and padded to a fixed length (2048 tokens) with its default attention; and the two other ways
it can be run, eager attention on packed sequences or on one at a time. Each as its trainer validates (the forward that yields
accuracies: teacher's logits, loss, metrics) and for the draft tokens alone. Prints one JSON object of CPU seconds on one thread.
"""

import json
import sys
import time

import torch
from safetensors import safe_open
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
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
        group.append((stored[f"planes/{i}"][:-1].float(), stored[f"ids/{i}"][1:], stored[f"last/{i}"][1:].float(), stored[f"mask/{i}"][1:]))
        length += n
    yield group


def seconds(made, stored, config, size, validate):
    """CPU seconds, the better of REPEATS, and the first draft token of every row."""
    times, drafts = [], []
    for _ in range(REPEATS):
        began, drafts = time.process_time(), []
        for group in batches(stored, config["sequences"], size):
            planes, ids, last, mask = (torch.cat(x) for x in zip(*group, strict=True))
            documents = torch.repeat_interleave(torch.arange(len(group)), torch.tensor([len(item[1]) for item in group]))
            tokens, pad = len(documents), max(0, size - len(documents))
            planes, last = (torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (planes, last))
            ids, mask, documents = (torch.nn.functional.pad(x, (0, pad), value=v) for x, v in ((ids, 0), (mask, 0), (documents, -1)))
            teacher = {"verifier_last_hidden_states": last[None], "loss_mask": mask[None], "loss_config": resolve_loss_config("kl_div", "eager")} if validate else {}
            out = made(planes[None], ids[None], documents[None], ttt_steps=config["steps"], **teacher)
            drafts.append((out[0] if validate else out)[0][0][:tokens])
        times.append(time.process_time() - began)
    return min(times), torch.cat(drafts)


torch.set_num_threads(1)
with safe_open(sys.argv[1], "pt") as file, torch.inference_mode():
    stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config = json.loads(file.metadata()["config"])
    weights = {n.removeprefix("weights/"): w if w.dtype == torch.int64 else w.float() for n, w in stored.items() if n.startswith("weights/")}
    found, drafts = {}, None
    for name, attention, size in (("own way", "simple_flex_attention", PACKED), ("eager packed", "eager", PACKED), ("eager single", "eager", 1)):
        made = model(config, weights, attention)
        for kind in ("validation", "drafts"):
            found[f"{kind}, {name}"], drafts = seconds(made, stored, config, size, kind == "validation")
    print(json.dumps(found | {"first drafts": drafts.tolist()}))
