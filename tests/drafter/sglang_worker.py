"""SGLang 0.5.23's own EAGLE-3 draft models run on a CPU for `test_equality_sglang.py`; runs in .venv-sglang.

    python sglang_worker.py IN.safetensors OUT.safetensors

Real: the classes `LlamaForCausalLMEagle3` and `Eagle3DeepseekV2ForCausalLM`, their weight loading, fc and its norms, decoder layer, all
projections, rotary embedding, MLA in absorbed form, feedback, head weights and hot token table; the parallel state of one rank (gloo).
Not real: `RadixAttention`'s backend and its memory pool, which are a list of keys and values of one request and a softmax over it; the
logits processor, which is one product with the head's weight; and the scheduler: this file calls the model as the draft worker does, one
draft extend over the known positions, then one decode a step.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sglang.srt.distributed import parallel_state
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, set_forward_context
from sglang.srt.runtime_context import _CONTEXT, get_parallel
from transformers import PretrainedConfig


class OneRequest:
    """An attention backend whose cache is a list: every key of the request so far, in order."""

    prefill_attention_backend_str = decode_attention_backend_str = "triton"  # the name under which MLA is computed in absorbed form in both modes
    token_to_kv_pool = req_to_token_pool = None

    def __init__(self):
        self.keys, self.values = {}, {}

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        q = q.view(len(forward_batch.at), layer.tp_q_head_num, -1)
        k, v = k.view(len(k), layer.tp_k_head_num, -1), v.view(len(v), layer.tp_v_head_num, -1)
        self.keys[layer.layer_id] = k = torch.cat((self.keys.get(layer.layer_id, k[:0]), k))
        self.values[layer.layer_id] = v = torch.cat((self.values.get(layer.layer_id, v[:0]), v))
        k, v = (x.repeat_interleave(layer.tp_q_head_num // x.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * layer.scaling
        scores.masked_fill_(torch.arange(len(k)) > forward_batch.at[:, None], float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


class Batch(SimpleNamespace):
    """A ForwardBatch with what one request on one rank has; everything else is None."""

    def __getattr__(self, name):
        return None


def call(model, mode, tokens, positions, at, hidden):
    batch = Batch(forward_mode=mode, spec_info=SimpleNamespace(hidden_states=hidden), at=at, contains_mm_inputs=lambda: False)
    return model.model(tokens, positions, batch)


def chain(model, planes, ids, t, steps):
    """States and draft ids of the chain a server starts once token t + 1 is known: its own tokens from the second step on."""
    set_forward_context(ForwardContext(attn_backend=OneRequest()))
    hidden = planes[:, :t + 1].permute(1, 0, 2).flatten(1)
    at = torch.arange(t + 1)
    normed, (fed,) = call(model, ForwardMode.DRAFT_EXTEND_V2, ids[1:t + 2], at, at, hidden)
    logits, drafts = [], []
    for step in range(steps):
        logits.append(normed[-1] @ model.lm_head.weight[:model.config.draft_vocab_size].T)  # the rest pads the rows to 64
        draft = int(logits[-1].argmax())
        drafts.append(draft if model.hot_token_id is None else int(model.hot_token_id[draft]))
        if step + 1 < steps:
            place = torch.tensor([t + 1 + step])
            normed, (fed,) = call(model, ForwardMode.DECODE, torch.tensor(drafts[-1:]), place, place, fed[-1:])
    return torch.stack(logits), torch.tensor(drafts)


def main(source, out):
    with safe_open(source, "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        cases = json.loads(file.metadata()["cases"])
    _CONTEXT.override_server_args(device="cpu").install()
    with tempfile.TemporaryDirectory() as folder:
        get_parallel().override_permanently(**dict.fromkeys(("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "attn_dcp_rank", "moe_ep_rank", "moe_tp_rank", "moe_dp_rank"), 0))
        parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{Path(folder) / 'rank'}")
        parallel_state.initialize_model_parallel(backend="gloo")
        found = {}
        for name, case in cases.items():
            found |= run(name, case, stored)
        save_file(found, out)


def run(name, case, stored):
    from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

    config = PretrainedConfig(**case["config"])
    for key, value in case["config"].items():
        setattr(config, key, value)
    model = (Eagle3DeepseekV2ForCausalLM if case["weights"] == "mla" else LlamaForCausalLMEagle3)(config)
    prefix = case["weights"] + "/"
    weights = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    for value in model.parameters():
        value.data.fill_(float("nan"))
    model.load_weights([(key, weights[key]) for key in case["names"]])
    unset = sorted(key for key, value in model.named_parameters() if value.isnan().any())
    assert unset == ["model.layers.1.input_layernorm.weight"] * (config.num_hidden_layers - 1), f"{name}: {unset} took no weight"  # made, never read
    logits, drafts = zip(*(chain(model, stored["planes"], stored["ids"], t, case["steps"]) for t in case["rows"]), strict=True)
    return {f"logits/{name}": torch.stack(logits), f"drafts/{name}": torch.stack(drafts)}


with torch.no_grad():
    main(*sys.argv[1:])
