"""Attention over a cache of slots, as the two torch operators that SGLang's `intel_amx` backend calls."""

import torch
import torch.nn.functional as F

_SCHEMAS = {
    "decode_attention_cpu":
        "(Tensor q, Tensor k_cache, Tensor v_cache, float k_scale, float v_scale, Tensor(a!) o, Tensor? key, Tensor? value, Tensor loc, "
        "Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, "
        "bool is_cross, int window, Tensor? encoder_lens, Tensor? sinks) -> ()",
    "extend_attention_cpu":
        "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_cache, Tensor v_cache, float k_scale, float v_scale, "
        "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, int max_len, "
        "float sm_scale, float logit_cap, bool is_cross, int window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, "
        "bool causal) -> ()",
}  # fmt: skip
_library = None


def register():
    """Define `torch.ops.sgl_kernel.decode_attention_cpu` and `extend_attention_cpu`, once a process."""
    global _library
    if _library is None:
        _library = torch.library.Library("sgl_kernel", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            _library.define(name + schema)
        _library.impl("decode_attention_cpu", decode_attention, "CPU")
        _library.impl("extend_attention_cpu", extend_attention, "CPU")


def attend(q, k, v, mask, scale):
    """q [T, heads, D] over k, v [S, kv_heads, D] -> [T, heads, D]; mask [T, S] bool or None."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def decode_attention(q, k_cache, v_cache, k_scale, v_scale, o, key, value, loc, attn_logits, req_to_token, req_pool_indices,
                     seq_lens, sm_scale, logit_cap, is_cross, window, encoder_lens, sinks):
    """One new token a request: its key and value are stored at `loc` first, then it sees the last `window` slots (0: all)."""
    _plain(logit_cap, is_cross, sinks)
    if key is not None:
        k_cache[loc] = key.view(-1, *k_cache.shape[1:]).to(k_cache.dtype)
        v_cache[loc] = value.view(-1, *v_cache.shape[1:]).to(v_cache.dtype)
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, max(0, length - window) if window > 0 else 0:length].long()
        o[request] = attend(q[request:request + 1], k_cache[slots], v_cache[slots], None, sm_scale)[0].to(o.dtype)


def extend_attention(q, k, v, o, k_cache, v_cache, k_scale, v_scale, req_to_token, req_pool_indices, seq_lens, extend_seq_lens,
                     extend_start_loc, max_len, sm_scale, logit_cap, is_cross, window, encoder_lens, sinks, tree_mask, causal):
    """Several new tokens a request, already stored: each sees the prefix, and of the new ones those before it or, with
    `tree_mask` (flat [n, n] a request), its ancestors."""
    _plain(logit_cap, is_cross, sinks)
    read = 0
    for row, length, new, start in zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist(), strict=True):
        mask = torch.ones(new, length, dtype=torch.bool)
        if tree_mask is not None:
            mask[:, length - new:] = tree_mask.view(-1)[read:read + new * new].view(new, new).bool()
            read += new * new
        elif causal:
            mask = mask.tril(length - new)
        if window > 0:
            age = torch.arange(length - new, length)[:, None] - torch.arange(length)
            mask &= age < window
        slots = req_to_token[row, :length].long()
        o[start:start + new] = attend(q[start:start + new], k_cache[slots], v_cache[slots], mask, sm_scale).to(o.dtype)


def _plain(logit_cap, is_cross, sinks):
    if logit_cap > 0 or is_cross or sinks is not None:
        raise NotImplementedError("the stand-in serves llama-type models: no logit cap, cross attention or attention sinks")
