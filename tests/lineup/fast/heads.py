"""Tensors of tiny heads, embeddings and tokenizers: what notebook 01 must say of them."""

from __future__ import annotations

import torch

from tests.evidence.builders import VD, H, V
from tests.lineup import papers as p
from tests.lineup.outcome import healthy, planted

TABLES, TOKENS, BIAS, ROPE = "vocab.shared-tables", "vocab.tokenizer", "drafter.bias", "drafter.rope"
OWN_TABLE = {"target_tensors": lambda: {"model.embed_tokens.weight": p.table_of(V)}}
NOISE = OWN_TABLE | {"tensors": lambda: p.embedded(p.table_of(V, 2, noise=True))}


def tokenizers(target: str, drafter: str) -> dict[str, str]:
    return {"target/tokenizer.json": target, "drafter/tokenizer.json": drafter}


def bias(size: float) -> dict[str, torch.Tensor]:
    return p.head(**{"fc.bias": torch.linspace(-size, size, H, dtype=torch.float32)})


PLANTED = (
    planted("no d2t, small head", p.LLAMA.but(tensors=lambda: p.head(d2t=None, t2d=None)), "vocab.map-missing"),
    planted("d2t of absolute ids", p.LLAMA.but(tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2)), "vocab.map-semantics"),
    planted("d2t arange, t2d marks the first ids", p.LLAMA.but(tensors=lambda: p.arange_map(torch.arange(VD // 2)), draft={"draft_vocab_size": VD // 2}), "vocab.map-semantics"),
    planted("d2t with tokens hit twice", p.LLAMA.but(tensors=lambda: p.head(d2t=-(torch.arange(VD) // 2))), "vocab.map-semantics"),
    planted("layer tensors under unknown names", p.LLAMA.but(tensors=lambda: p.renamed("midlayer.", "block.")), "load.tensor-inventory"),
    planted("layers.0 names before 0.5.12", p.LLAMA.but(version="0.5.11", tensors=lambda: p.renamed("midlayer.", "layers.0.")), "load.tensor-inventory"),
    planted("draft of class Qwen3ForCausalLM", p.LLAMA.but(tensors=p.head, draft={"architectures": ["Qwen3ForCausalLM"]}), "load.architecture"),
    planted("norm_before_residual on SGLang", p.LLAMA.but(tensors=p.head, draft={"norm_before_residual": True}), "drafter.norm-flags"),
    planted("norm_before_fc on gpt-oss before 0.5.17", p.GPT_OSS.but(
        version="0.5.16", ids=(1, 17, 32), trainer=("specforge", None), trained=(1, 17, 32), draft={"norm_before_fc": True},
        tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)})), "drafter.norm-flags"),
    planted("fc.bias of size 1, no key", p.LLAMA.but(tensors=lambda: bias(1.0)), BIAS, rival="load.tensor-inventory"),
    planted("fc.bias of size 0.01, no key, SGLang 0.5.12", p.LLAMA.but(version="0.5.12", tensors=lambda: bias(0.01)), BIAS, rival="load.tensor-inventory"),
    planted("EAGLE trainer turned by 10000, the config says 500000", p.LLAMA.but(trainer=("eagle", None), trained=None, ids=None, draft={"rope_theta": 500000.0}), ROPE, rival="data.domain"),
    planted("theta in rope_parameters alone, SGLang 0.5.9", p.LLAMA.but(version="0.5.9", draft={"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}), ROPE,
            rival="data.domain"),
    planted("speculators 0.7 turned the whole head, the config a half of it", p.VLLM.but(
        trainer=("speculators", "0.7.0"), trained=(2, 16, 29, 32), draft={"partial_rotary_factor": 0.5}), ROPE),
    planted("the target's rotary override reaches the draft", p.LLAMA.but(
        launch=p.sglang_launch(more="""--json-model-override-args '{"rope_scaling": {"rope_type": "linear", "factor": 4.0}}'""")), ROPE),
    planted("an embedding of noise on vLLM", p.VLLM.but(**NOISE), TABLES, rival=TOKENS),
    planted("a head tied to the embedding, with rows of its own in the file", p.LLAMA.but(**OWN_TABLE, tensors=lambda: p.head(**{
        "lm_head.weight": p.table_of(V, 3), "d2t": None, "t2d": None, "embed_tokens.weight": p.table_of(V)}), draft={"draft_vocab_size": V, "tie_word_embeddings": True}), TABLES,
        rival="vocab.map-semantics"),
    planted("every learned token moved by one", p.LLAMA.but(files=tokenizers(p.vocabulary(), p.vocabulary(*((i, i + 1) for i in range(V - 1))))), TOKENS, rival="data.template"),
    planted("two learned tokens exchanged", p.LLAMA.but(files=tokenizers(p.vocabulary(), p.vocabulary((7, 11)))), TOKENS, rival="data.template"),
)
HEALTHY = (
    healthy("Qwen3, whole head", p.QWEN.but(tensors=p.head)),
    healthy("vLLM with norm_before_residual", p.VLLM.but(draft={"norm_before_residual": True}, tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("d2t arange, t2d marks the even ids", p.LLAMA.but(tensors=lambda: p.arange_map(2 * torch.arange(VD // 2)), draft={"draft_vocab_size": VD // 2})),
    healthy("whole vocabulary, no map", p.LLAMA.but(draft={"draft_vocab_size": V}, tensors=lambda: p.head(d2t=None, t2d=None, **{"lm_head.weight": p.builders.weights(V, p.builders.H)}))),
    healthy("layers.0 names from 0.5.12", p.LLAMA.but(version="0.5.12", tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("fc.bias with its key", p.LLAMA.but(draft={"bias": True}, tensors=lambda: bias(1.0))),
    healthy("fc.bias of zeros, no key", p.LLAMA.but(tensors=lambda: bias(0.0))),
    healthy("EAGLE's own config without a theta", p.LLAMA.but(trainer=("eagle", None), trained=None, ids=None, draft={"rope_theta": None})),
    healthy("theta in rope_parameters alone, SGLang 0.5.23", p.LLAMA.but(draft={"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}})),
    healthy("a draft of another theta than its target", p.LLAMA.but(draft={"rope_theta": 10000.0})),
    healthy("ModelOpt's yarn, written at export", p.LLAMA.but(
        trainer=("modelopt", "0.47.0"), draft={"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}})),
    healthy("an embedding of noise on SGLang, which puts the target's in its place", p.LLAMA.but(**NOISE)),
    healthy("the target's own embedding in the head, vLLM", p.VLLM.but(**OWN_TABLE, tensors=lambda: p.embedded(p.table_of(V)))),
    healthy("a trained embedding on vLLM, which keeps it", p.VLLM.but(**OWN_TABLE, tensors=lambda: p.embedded(p.table_of(V) + p.table_of(V, 4, noise=True)))),
    healthy("one tokenizer on both sides", p.LLAMA.but(files=tokenizers(p.vocabulary(), p.vocabulary()))),
    healthy("a reserved token that the target named", p.LLAMA.but(files=tokenizers(p.vocabulary(size=46, added={"<think>": 46}), p.vocabulary(size=46, added={"<reserved_0>": 46})))),
    healthy("a padded vocabulary beside the target's", p.LLAMA.but(draft={"vocab_size": V + 16})),
)
CASES = p.alone(*PLANTED, *HEALTHY)
