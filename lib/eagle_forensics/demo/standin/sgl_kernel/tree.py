"""The token tree of one verify: how drafted candidates hang together, and which path the target's own choice accepts.

SGLang's algorithm (`sgl-kernel` eagle_utils, Apache License 2.0), in Python over small lists: a tree has at most a few dozen nodes.

Candidates are numbered level by level: 0..topk-1 hang below the root, then every group of `topk` hangs below one earlier
candidate, `parent_list[group]`. Of them `selected_index` keeps n-1, ascending; slot 0 is the root (the last verified token) and
slot i the i-th kept candidate.
"""

import torch

FULL_MASK, QLEN_ONLY = 0, 1
"""`TreeMaskMode` of the wheel: each node's row over prefix and tree, or over the tree alone."""


def parents(selected, parent_list, topk):
    """Parent slot of slots 1..n-1: 0 for the root, None where the parent was not kept (such a node is never reached)."""
    slot = {candidate: place for place, candidate in enumerate(selected, start=1)}
    groups = [candidate // topk for candidate in selected]
    return [0 if group == 0 else slot.get(parent_list[group]) for group in groups]


def ancestors(slot, parent, depth):
    """Slots from `slot` up to below the root, itself first, at most `depth` of them."""
    path = []
    while slot and len(path) < depth:
        path.append(slot)
        slot = parent[slot - 1]
    return path


def build_tree_kernel_efficient_cpu(parent_list, selected_index, verified_seq_len, tree_mask, positions, retrive_index,
                                    retrive_next_token, retrive_next_sibling, topk, depth, draft_token_num, tree_mask_mode):
    """Fill, for each request b of the batch: `retrive_index` [B, n] flat index of each slot, `retrive_next_token` [B, n] first
    child, `retrive_next_sibling` [B, n] next child of the same parent (-1: none, as they come), `positions` [B n] and
    `tree_mask` (flat, bool): each slot sees the root, its ancestors and itself."""
    mode, n = int(tree_mask_mode), draft_token_num
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree_mask_mode {mode}: the CPU backend of SGLang 0.5.23 asks for {FULL_MASK} or {QLEN_ONLY} only")
    lengths = verified_seq_len.tolist()
    kept = selected_index.reshape(len(lengths), n - 1).tolist()
    groups = parent_list.reshape(len(lengths), -1).tolist()
    index, child, sibling = (x.view(len(lengths), n) for x in (retrive_index, retrive_next_token, retrive_next_sibling))
    place, mask = positions.view(len(lengths), n), tree_mask.view(-1)
    start = 0
    for b, length in enumerate(lengths):
        parent = parents(kept[b], groups[b], topk)
        index[b] = torch.arange(b * n, (b + 1) * n)
        for slot in range(n - 1, 0, -1):
            above = parent[slot - 1]
            if above is not None:
                sibling[b, slot] = child[b, above].clone()
                child[b, above] = slot
        for slot in range(n):
            path = ancestors(slot, parent, depth)
            place[b, slot] = length + len(path)
            row = torch.zeros(n, dtype=torch.bool)
            row[[0, *path]] = True
            prefix = length if mode == FULL_MASK else 0
            mask[start + prefix:start + prefix + n] = row.to(mask.dtype)
            start += prefix + n


def verify_tree_greedy_cpu(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token,
                           retrive_next_sibling, target_predict):
    """Follow the target's argmax from the root: at each node the child that holds it is accepted; without one the round ends.

    `candidates`, `target_predict` and the links are [B, n]. Written: `accept_index` [B, steps + 1] flat indices of the root and the
    accepted slots, `accept_token_num` [B] accepted drafts, `predicts` [B n] the target's token after each of them (the last
    is the bonus token).
    """
    wanted, out = target_predict.reshape(-1).tolist(), predicts.view(-1)
    for b in range(len(candidates)):
        held, flat = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        path, slot = [0], 0
        while len(path) < accept_index.shape[1]:
            slot = child[slot]
            while slot != -1 and held[slot] != wanted[flat[path[-1]]]:
                slot = sibling[slot]
            if slot == -1:
                break
            path.append(slot)
        for place, slot in enumerate(path):
            accept_index[b, place] = flat[slot]
            out[flat[slot]] = wanted[flat[slot]]
        accept_token_num[b] = len(path) - 1
