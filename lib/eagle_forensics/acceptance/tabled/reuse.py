"""Does speculation cost prefix-cache hits? The share of prompt tokens out of the cache with and without it, on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.acceptance.confounds import baseline_for, compare
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.finding import Competitor, Finding, Status

LARGEST_BLOCK = 256
"""Tokens of a prompt that a sound server with a draft may compute again although the cache holds them: one block, of 1 to 256 tokens in SGLang and vLLM."""


def reuse(runs: Sequence[Run]) -> Finding | None:
    """`cost.prefix-cache`; None where no run with speculation and its baseline both record cache_hit_rate."""
    pairs = [(run, b) for run in runs if run.is_speculative and run.cache_hit_rate is not None
             for b in baseline_for(run, tuple(runs))[0][:1] if b.cache_hit_rate is not None]
    if not pairs:
        return None
    run, base = max(pairs, key=lambda p: p[1].cache_hit_rate.value - p[0].cache_hit_rate.value)
    ours, theirs = run.cache_hit_rate, base.cache_hit_rate
    common: dict[str, Any] = {"id": "acceptance.prefix-reuse", "question": "Does speculation cost hits of the prefix cache?", "notebook": NOTEBOOK, "unit": "share of prompt tokens",
                              "observed": ours.value, "expected": theirs.value, "interval": ours.interval}
    text = f"{spread(ours)} of the prompt tokens came out of the cache with speculation (\"{run.label}\"), {spread(theirs)} without"
    if ours.high >= theirs.low:
        return Finding(**common, status=Status.PASS, required=False, statement=f"{text}: no loss.")
    allowed = None if run.context_length is None else LARGEST_BLOCK / run.context_length
    if allowed is not None and theirs.low - ours.high <= allowed:
        return Finding(**common, status=Status.PASS, required=False, statement=f"{text}: within the block of up to {LARGEST_BLOCK} tokens that an engine computes again for its draft.")
    compared = compare(run, base)
    doubt = [*(["context_length"] if allowed is None else []), *compared.unrecorded, *(name for name, _, _ in compared.differ)]
    if doubt:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="cost.prefix-cache", statement=f"{text}; but {listed(doubt)} are not recorded for both, or differ.",
                       competitor=Competitor(fault="measure.confounded", margin=f"{theirs.low - ours.high:.0%} of the prompt tokens", why_rejected="not rejected: other prompts, or another order of them, hit the cache otherwise"),
                       next_step="Write these columns; ask the same prompts in the same order.")
    return Finding(
        **common, status=Status.FAIL, fault="cost.prefix-cache", threshold=allowed, threshold_why=f"a block of {LARGEST_BLOCK} tokens a prompt of {run.context_length}, the largest that is computed again for a draft",
        statement=f"{text}, on the same prompts, load and environment: what the draft takes of the memory, or how the cache is keyed, costs reuse.",
        competitor=Competitor(fault="runtime.stale-draft-cache", margin=f"{theirs.low - ours.high:.0%} of the prompt tokens fewer", why_rejected="stale draft states lower the accept length on hits, never the number of hits"),
        refuted_by="equal cached tokens of both servers in a repeat with an emptied cache", remedy="Give the cache more memory (--mem-fraction-static, --gpu-memory-utilization) or take the engine release that keeps reuse with a draft.",
        predicted_effect="Time to the first token as without speculation.", next_step="Compare the memory that both servers leave to the cache (SGLang max_total_num_tokens, vLLM GPU KV cache size).")
