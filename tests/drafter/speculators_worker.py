"""speculators' own Eagle3DraftModel on a tiny drafter, for `test_equality_speculators.py`. Runs in the environment of `make speculators-env`.

    python speculators_worker.py golden OUT.safetensors   the committed golden file: inputs, weights and logits of every case
    python speculators_worker.py again IN OUT             the cases of IN run again on its own inputs and weights

Everything is speculators' and transformers' own: model class, masks, rotary embedding, training-time test. Attention runs in their
`eager` implementation in float32. Only weights and inputs are ours. Its config refuses norm_before_fc with fc_norm, which its model
computes all the same: those four combinations are set after the config was checked.
"""

import importlib.metadata as metadata
import json
import sys
from itertools import product

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HIDDEN, HEADS, KV, DIM, FFN, VOCAB, DRAFT_VOCAB, AUX, STEPS = 16, 4, 2, 8, 24, 19, 11, 3, 3
LENGTHS = (14, 9)
"""Tokens of the two documents of a batch, the next tokens included."""
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
PLAIN = dict.fromkeys(FLAGS, False)
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 500.0},
    "yarn": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "rope_theta": 500.0}}
CASES = {
    **{"flags " + "".join("01"[v] for v in values): {"flags": dict(zip(FLAGS, values, strict=True))} for values in product((False, True), repeat=4)},
    "two layers": {"flags": PLAIN | {"norm_before_residual": True}, "layers": 2},
    "biases": {"flags": PLAIN, "bias": True},
    "norms of q and k": {"flags": PLAIN, "qwen3": True},
    **{f"rope {name}": {"flags": PLAIN, "rope": rope} for name, rope in ROPES.items()}}


def model(case, weights):
    kind = Qwen3Config if case.get("qwen3") else LlamaConfig
    biases = {"attention_bias": True, "mlp_bias": True} if case.get("bias") else {}
    layer = kind(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=case.get("layers", 1), num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
                 vocab_size=VOCAB, rms_norm_eps=1e-5, max_position_embeddings=1024, rope_parameters=case.get("rope") or {"rope_type": "default", "rope_theta": 10000.0}, **biases)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=DRAFT_VOCAB, eagle_aux_hidden_state_layer_ids=[2, 3, 4], **(case["flags"] | {"fc_norm": False}),
        speculators_config=SpeculatorsConfig(algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)], default_proposal_method="greedy",
                                             verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))
    config.fc_norm = case["flags"]["fc_norm"]
    made = Eagle3DraftModel(config).eval().float()
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[torch.arange(DRAFT_VOCAB) + weights["d2t"]] = True
    made.load_vocab_mappings(t2d, weights["d2t"])
    wanted = {name: value for name, value in made.named_parameters() if not name.startswith("verifier")}
    assert set(wanted) <= set(weights), sorted(set(wanted) - set(weights))
    with torch.no_grad():
        for name, value in wanted.items():
            assert value.shape == weights[name].shape, name
            value.copy_(weights[name])
    return made


def logits(case, weights, planes, ids):
    """[STEPS, T, Vd] of the documents laid end to end."""
    made, found = model(case, weights), []
    made.lm_head.register_forward_hook(lambda module, inputs, output: found.append(output.detach()[0].clone()))
    hidden = torch.cat([p[:, :-1].permute(1, 0, 2).flatten(1) for p in planes])
    documents = torch.repeat_interleave(torch.arange(len(ids)), torch.tensor([len(i) - 1 for i in ids]))
    with torch.no_grad():
        made(hidden[None], torch.cat([i[1:] for i in ids])[None], documents[None], ttt_steps=STEPS)
    assert len(found) == STEPS
    return torch.stack(found)


def random_weights():
    rng = torch.Generator().manual_seed(20)

    def matrix(rows, columns, scale=1.0):
        return torch.randn(rows, columns, generator=rng) * scale / columns ** 0.5

    def gain(size):
        return torch.rand(size, generator=rng) + 0.5

    w = {"fc.weight": matrix(HIDDEN, AUX * HIDDEN), "norm.weight": gain(HIDDEN), "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN, 3), "embed_tokens.weight": matrix(VOCAB, HIDDEN, 4),
         "input_norm.weight": gain(AUX * HIDDEN), **{f"fc_norm.{i}.weight": gain(HIDDEN) for i in range(AUX)}}
    for i in range(2):
        at, width = f"layers.{i}.", HIDDEN * (2 if i == 0 else 1)
        names = ("input_layernorm", "post_attention_layernorm") + (("hidden_norm",) if i == 0 else ())
        w |= {f"{at}{n}.weight": gain(HIDDEN) for n in names}
        shapes = {"self_attn.q_proj": (HEADS * DIM, width), "self_attn.k_proj": (KV * DIM, width), "self_attn.v_proj": (KV * DIM, width), "self_attn.o_proj": (HIDDEN, HEADS * DIM),
                  "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN)}
        for name, (rows, columns) in shapes.items():
            w |= {f"{at}{name}.weight": matrix(rows, columns), f"{at}{name}.bias": matrix(1, rows)[0]}
        w |= {f"{at}self_attn.{n}_norm.weight": gain(DIM) for n in "qk"}
    used = torch.randperm(VOCAB, generator=rng)[:DRAFT_VOCAB].sort().values
    return w | {"d2t": used - torch.arange(DRAFT_VOCAB)}


def run(weights, planes, ids):
    return {f"logits/{name}": logits(case, weights, planes, ids) for name, case in CASES.items()}


def main(mode, *paths):
    if mode == "golden":
        rng = torch.Generator().manual_seed(21)
        weights = random_weights()
        planes = [torch.randn(AUX, n, HIDDEN, generator=rng) * torch.tensor([1.0, 2.0, 5.0])[:, None, None] for n in LENGTHS]
        ids = [torch.randint(0, VOCAB, (n,), generator=rng) for n in LENGTHS]
    else:
        with safe_open(paths[0], "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name.removeprefix("weights/"): value for name, value in stored.items() if name.startswith("weights/")}
        planes, ids = ([stored[f"{kind}/{i}"] for i in range(len(LENGTHS))] for kind in ("planes", "ids"))
    versions = {name: metadata.version(name) for name in ("speculators", "transformers", "torch")}
    inputs = {f"weights/{k}": v for k, v in weights.items()} | {f"{kind}/{i}": x for kind, xs in (("planes", planes), ("ids", ids)) for i, x in enumerate(xs)}
    meta = {"made by": "tests/drafter/speculators_worker.py golden", "versions": json.dumps(versions), "cases": json.dumps(CASES), "attention": "eager, float32, CPU"}
    save_file({k: v.contiguous() for k, v in (inputs | run(weights, planes, ids)).items()}, paths[-1], metadata=meta)


main(*sys.argv[1:])
