"""Tensors of tiny heads, embeddings and tokenizers: what notebook 01 must say of them."""

from __future__ import annotations

import torch

from tests.evidence.builders import VD, V
from tests.lineup import papers as p
from tests.lineup.outcome import healthy, planted

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
)
HEALTHY = (
    healthy("Qwen3, whole head", p.QWEN.but(tensors=p.head)),
    healthy("vLLM with norm_before_residual", p.VLLM.but(draft={"norm_before_residual": True}, tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("d2t arange, t2d marks the even ids", p.LLAMA.but(tensors=lambda: p.arange_map(2 * torch.arange(VD // 2)), draft={"draft_vocab_size": VD // 2})),
    healthy("whole vocabulary, no map", p.LLAMA.but(draft={"draft_vocab_size": V}, tensors=lambda: p.head(d2t=None, t2d=None, **{"lm_head.weight": p.builders.weights(V, p.builders.H)}))),
    healthy("layers.0 names from 0.5.12", p.LLAMA.but(version="0.5.12", tensors=lambda: p.renamed("midlayer.", "layers.0."))),
)
CASES = (*PLANTED, *HEALTHY)
