"""Speculative decoding of the tiny target as servers do it, token by token: the yardstick of walks and trees."""

from __future__ import annotations

import numpy as np

from tests.drafter import tiny


def greedy_text(target: tiny.TinyTarget, prompt: list[int], length: int) -> list[int]:
    ids = list(prompt)
    while len(ids) < length:
        ids.append(target.next_token(ids))
    return ids


def decode_with_trees(target: tiny.TinyTarget, dense: tiny.Dense, prompt: list[int], length: int, steps: int, topk: int, draft_tokens: int) -> tuple[list[int], list[int]]:
    """The text, and the accepted drafts of each verify round, with SGLang's dynamic tree."""
    ids, accepted = [*prompt, target.next_token(prompt)], []
    while len(ids) < length:
        children = draft_tree(dense, ids, target.states(ids[:-1]), steps, topk, draft_tokens)
        node, kept = (), 0
        while len(ids) < length:
            token = target.next_token(ids)
            ids.append(token)
            if (*node, token) not in children:
                break
            node, kept = (*node, token), kept + 1
        accepted.append(kept)
    return ids, accepted


def draft_tree(dense: tiny.Dense, ids: list[int], planes: list[np.ndarray], steps: int, topk: int, draft_tokens: int) -> set[tuple[int, ...]]:
    """Paths (token tuples) of the nodes to verify."""
    return {path for _, path in sorted(grow(dense, ids, planes, steps, topk), key=lambda node: -node[0])[:draft_tokens - 1]}


def grow(dense: tiny.Dense, ids: list[int], planes: list[np.ndarray], steps: int, topk: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and path of every node. Each slot of the beam keeps its own keys, whatever its nodes' ancestry."""
    t = len(ids) - 2
    shared: list[list] = [[] for _ in range(dense.layers)]
    for s in range(t):
        dense.step(ids[s + 1], dense.fuse([p[s] for p in planes]), s, shared)
    h = dense.step(ids[t + 1], dense.fuse([p[t] for p in planes]), t, shared)
    pool = [(p, (token,)) for p, token in likeliest(dense, h, topk)]
    beam = [(p, path, h) for p, path in pool]
    slots: list[list[list]] = [[[] for _ in range(dense.layers)] for _ in range(topk)]
    for k in range(1, steps):
        grown = []
        for slot, (score, path, parent) in enumerate(beam):
            cache = [[*common, *own] for common, own in zip(shared, slots[slot], strict=True)]
            before = dense._rms(parent, "norm.weight") if dense.flags.norm_output else parent
            state = dense.step(path[-1], before, t + k, cache)
            for own, full in zip(slots[slot], cache, strict=True):
                own.append(full[-1])
            grown += [(score * p, (*path, token), state) for p, token in likeliest(dense, state, topk)]
        pool += [(score, path) for score, path, _ in grown]
        beam = sorted(grown, key=lambda node: -node[0])[:topk]
    return pool


def likeliest(dense: tiny.Dense, h: np.ndarray, topk: int) -> list[tuple[float, int]]:
    logits = dense.w["lm_head.weight"] @ dense._rms(h, "norm.weight")
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return [(float(p[d]), dense.target_id(int(d))) for d in np.argsort(-p)[:topk]]
