"""Where keys and values go: slots of the cache handed out, copied and packed around one round of drafting and verify."""

import ctypes

import torch


def _spans(req_pool_indices, start_offset, end_offset):
    """(row of the request table, first column, one past the last, where its slots start in the packed list)."""
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        yield row, start, end, at
        at += end - start


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Write packed slots `out_cache_loc` into columns start..end-1 of each request's row of `req_to_token` [R, pool_len]."""
    for row, start, end, at in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[at:at + end - start].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """The reverse: read columns start..end-1 of each request's row into the packed `out_cache_loc`."""
    for row, start, end, at in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at:at + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_steps):
    """The topk * num_steps slots behind each request's verified tokens, packed: where the draft steps write."""
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(req_to_token, req_pool_indices, seq_lens, topk, num_steps, pool_len):
    """A slot table with a row for each branch [B topk, pool_len]: the verified prefix, then the branch's own `num_steps` slots."""
    table = torch.zeros((len(seq_lens) * topk, pool_len), dtype=req_to_token.dtype)
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            own = table[request * topk + branch]
            own[:length] = req_to_token[row, :length]
            first = length + branch * num_steps
            own[length:length + num_steps] = req_to_token[row, first:first + num_steps]
    return table


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Copy cache rows src to tgt in every layer's buffer, by address and bytes a row; all are read before one is written."""
    source, target = src_loc.tolist(), tgt_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + row * stride, stride) for row in source]
        for row, data in zip(target, rows, strict=True):
            ctypes.memmove(base + row * stride, data, stride)


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """Slots of the accepted tokens, packed to the front; -1 in `accept_index` is no token."""
    kept = accept_index.reshape(-1)
    kept = kept[kept > -1].long()
    accept_out_cache_loc[:len(kept)] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    """The last token of each request's round; `accept_lens` counts it."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype))


def rotate_input_ids_cpu(input_ids, extend_start_loc, extend_seq_lens, topk_index, select_index=None):
    """Shift each request's tokens left by one and put its new token at the end (or at `select_index`)."""
    new = topk_index.reshape(-1)
    for request, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if length > 0:
            input_ids[start:start + length - 1] = input_ids[start + 1:start + length].clone()
            input_ids[start + length - 1 if select_index is None else int(select_index[request])] = new[request]
