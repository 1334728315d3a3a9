"""Two servers on the same prompts: what differs between them besides speculation, and what speculation does to the speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_forensics import stats
from eagle_forensics.acceptance.clients.records import Server
from eagle_forensics.acceptance.live.measure import Measurement

SPECULATION = ("speculative_", "_speculative_", "decoupled_spec_", "spec_trace_dir", "per_request_spec_decode_metrics")
"""Arguments of speculation: one variable, the one under test."""
OWN = frozenset({
    "host", "port", "nccl_port", "dist_init_addr", "random_seed", "launch_command", "served_model_name", "scheduler_info", "api_key", "admin_api_key",
    "engine_info_bootstrap_port", "disaggregation_bootstrap_port", "instance_id", "version"})
"""Arguments that two equal servers must or may have their own of; `version` is compared by itself."""
FOLLOWS = frozenset({
    "disable_overlap_schedule", "max_running_requests", "enable_mixed_chunk", "mem_fraction_static", "max_total_num_tokens", "max_req_input_len",
    "cuda_graph_bs", "cuda_graph_max_bs", "cuda_graph_config.decode.bs", "cuda_graph_config.decode.max_bs",
    "scheduler_config.max_num_scheduled_tokens", "cache_config.num_gpu_blocks", "cache_config.kv_cache_size_tokens", "cache_config.kv_cache_max_concurrency",
    "compilation_config.cudagraph_capture_sizes", "compilation_config.max_cudagraph_capture_size"})
"""Arguments that the engine changes by itself once speculation is on: named, not counted against the pair. SGLang: engines/sglang_args.toml
A4 to A6; of 496 arguments of two CPU servers that differed in speculation alone, `disable_overlap_schedule` did. On a GPU the draft also has its
own list of decode graphs (0.5.23 arg_groups/cuda_graph_hook.py:500), which moves the static memory (memory_hook.py:271) and with it the tokens the
cache holds (managers/scheduler.py:1943). vLLM: of 353, the tokens scheduled at once and what the draft's own cache leaves of the blocks did; on a
GPU the sizes of the graphs are rounded to whole rounds (0.32.0 config/compilation.py adjust_cudagraph_sizes_for_spec_decode)."""


@dataclass(frozen=True)
class Differences:
    """Fields in which two servers differ, speculation apart."""

    fields: tuple[tuple[str, Any, Any], ...]
    following: tuple[tuple[str, Any, Any], ...]
    """Fields that the engine itself changes with speculation."""
    compared: int
    """Arguments that both give."""

    @property
    def confounded(self) -> bool:
        """More than speculation differs."""
        return bool(self.fields)

    def text(self) -> str:
        return ", ".join(f"{name} ({a}, {b})" for name, a, b in self.fields)


def server_differences(first: Server, second: Server) -> Differences:
    """Engine, version and every effective argument of two servers held against each other."""
    named = [("engine", first.engine, second.engine), ("version", first.version, second.version)]
    one, other = dict(_named(first.arguments)), dict(_named(second.arguments))
    both = sorted(one.keys() & other.keys())
    named += [(k, one[k], other[k]) for k in both]
    apart = [(k, _short(a), _short(b)) for k, a, b in named if a != b]
    return Differences(tuple(d for d in apart if d[0] not in FOLLOWS), tuple(d for d in apart if d[0] in FOLLOWS), len(both))


@dataclass(frozen=True)
class Speed:
    """Speculation against none on the same prompts."""

    ratio: stats.Estimate
    """Tokens/s with speculation over tokens/s without, all paired prompts together."""
    median: float
    """Of the ratio prompt by prompt."""
    faster: int
    """Prompts that speculation answers faster."""
    pairs: int


def speed(speculative: Measurement, baseline: Measurement) -> Speed | None:
    """Seconds per output token on the prompts that both answered; None without a pair.

    Times are of whole answers, prefill included, so the ratio is what a user of one stream sees. Meant for interleaved runs.
    """
    other = {a.prompt: a for a in baseline.good if a.completion_tokens and a.seconds}
    pairs = [(a, other[a.prompt]) for a in speculative.good if a.completion_tokens and a.seconds and a.prompt in other]
    if not pairs:
        return None
    with_s, without_s = (np.array([a.seconds / a.completion_tokens for a in side]) for side in zip(*pairs, strict=True))
    return Speed(stats.ratio_of_sums(without_s, with_s), float(np.median(without_s / with_s)), int((with_s < without_s).sum()), len(pairs))


def _named(arguments: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Every argument that must not differ, by its name; those in vLLM's groups by the group and theirs."""
    for key, value in arguments.items():
        if key in OWN or key.startswith(SPECULATION):
            continue
        if isinstance(value, Mapping) and value:
            yield from _named(value, f"{group}{key}.")
        else:
            yield f"{group}{key}", value


def _short(value: Any) -> Any:
    text = str(value)
    return value if len(text) <= 60 else text[:57] + "..."
