"""Reported acceptance figures: what each means in its engine, version and trainer, and their conversion.

`AL` is the accept length with the bonus token: 1..k+1 tokens a verify step, k draft tokens. Nothing else is called accept length here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_forensics.engines.sglang import releases as sglang_releases
from eagle_forensics.engines.versions import engine_name, nearest, since

RATE_PER_DRAFT_SINCE = "0.5.11"
"""SGLang log `accept rate`: AL / num_draft_tokens before, correct / (num_draft_tokens - 1) from here on."""


@dataclass(frozen=True)
class Metric:
    """One reported figure: how its source defines it."""

    source: str
    name: str
    numerator: str
    denominator: str
    kind: str
    """`accept length` (with bonus), `accepted drafts` (no bonus), `rate`, `survival`, `conditional`, `marginal`, `lower bound`."""
    versions: str = "all"
    note: str = ""


METRICS: tuple[Metric, ...] = (
    Metric("sglang", "spec_accept_length", "completion_tokens", "spec_verify_ct", "accept length", ">=0.5.4",
           "also counts the token of prefill (+1/verify steps), truncated at a stop"),
    Metric("sglang", "accept len (log)", "correct drafts + batch size", "forward passes", "accept length", "all", "window of the decode-log interval"),
    Metric("sglang", "accept rate (log)", "accept length", "num_draft_tokens", "rate", "0.5.4-0.5.10.post1", "bonus counted: 1/num_draft_tokens when nothing is accepted"),
    Metric("sglang", "accept rate (log)", "correct drafts", "num_draft_tokens - 1", "rate", ">=0.5.11"),
    Metric("sglang", "avg_spec_accept_length", "accepted tokens with bonus", "forward passes", "accept length", "all",
           "cumulative since start or flush, updated only when a decode line is logged"),
    Metric("sglang", "sglang:spec_accept_length (Prometheus)", "accepted tokens with bonus", "forward passes", "accept length", "all", "last log interval"),
    Metric("sglang", "spec_correct_drafts_histogram", "steps with exactly k correct drafts", "-", "histogram", ">=0.5.12"),
    Metric("vllm", "mean acceptance length", "drafts + accepted drafts", "drafts", "accept length"),
    Metric("vllm", "draft acceptance rate", "accepted drafts", "draft tokens", "rate"),
    Metric("vllm", "per-position acceptance rate", "steps accepted through the position", "drafts", "survival"),
    Metric("speculators", "full_acc_k", "chains with steps 0..k all right", "positions with mask[i+k]", "survival", "all", "over the draft vocabulary: multiply by its coverage"),
    Metric("speculators", "cond_acc_k", "chains with steps 0..k all right", "chains with steps 0..k-1 right", "conditional"),
    Metric("eagle", "acc_k", "draft argmax == target argmax, in the draft vocabulary", "loss-mask positions", "marginal"),
    Metric("angelslim", "acc_k", "draft argmax == target argmax, in the draft vocabulary", "loss-mask positions", "marginal"),
    Metric("specforge", "acc_k", "draft argmax == target argmax", "loss-mask positions", "marginal"),
    Metric("specforge", "accept_length (bench)", "completion_tokens", "spec_verify_ct", "accept length"),
    Metric("torchspec", "acc_k", "draft argmax == target argmax", "positions whose target token is in the draft vocabulary", "marginal", "all", "multiply by coverage"),
    Metric("torchspec", "simulated_acc_len", "sum of products of acc_k", "1", "accepted drafts", "all", "no bonus token: add 1"),
    Metric("modelopt", "train_acc", "argmax equal over the draft vocabulary", "masked positions", "marginal", "all", "a target token outside the vocabulary is replaced: inflated"),
    Metric("modelopt", "AR (ar_validate)", "accepted + 1, correction token not counted", "cycles", "lower bound"),
    Metric("eagle", "n-alpha (gen_ea_alpha)", "accepted at position n", "reached position n", "conditional"),
)
"""Source: sglang 0.5.9 scheduler_metrics_mixin.py:376-390, 0.5.23 internal_state.py; vllm v1/spec_decode/metrics.py; the trainers' own code."""


def definitions(source: str, name: str | None = None) -> tuple[Metric, ...]:
    """The definitions of a source's figures, all or those whose name contains `name`."""
    return tuple(m for m in METRICS if m.source == source and (name is None or name in m.name))


def accept_rate_to_accept_length(engine: str, version: str, rate: float, *, draft_tokens: int) -> float:
    """AL from a reported accept rate; `draft_tokens` is SGLang's num_draft_tokens (k + 1) or vLLM's num_speculative_tokens (k).

    ValueError for a rate outside [0, 1] or too few draft tokens.
    """
    per_draft, drafted = _rate_rule(engine, version, draft_tokens)
    if not 0 <= rate <= 1:
        raise ValueError(f"an accept rate lies in 0..1; got {rate} (divide a percentage by 100)")
    return 1 + rate * drafted if per_draft else rate * draft_tokens


def accept_length_to_accept_rate(engine: str, version: str, accept_length: float, *, draft_tokens: int) -> float:
    """The accept rate that this engine and version would report for an AL."""
    per_draft, drafted = _rate_rule(engine, version, draft_tokens)
    if not 1 <= accept_length <= drafted + 1:
        raise ValueError(f"an accept length with {drafted} drafts lies in 1..{drafted + 1}; got {accept_length}")
    return (accept_length - 1) / drafted if per_draft else accept_length / draft_tokens


def rate_agrees(engine: str, version: str, accept_length: float, rate: float, *, draft_tokens: int, rounding: float = 0.005) -> bool:
    """Whether a printed (accept length, accept rate) pair fits the version's definition, given the rounding of both."""
    per_draft, drafted = _rate_rule(engine, version, draft_tokens)
    slack = rounding + rounding / (drafted if per_draft else draft_tokens)
    expected = (accept_length - 1) / drafted if per_draft else accept_length / draft_tokens
    return abs(expected - rate) <= slack + 1e-9


def counts_to_accept_length(accepted: int, rounds: int) -> float:
    """AL from counts: 1 + accepted drafts / verify steps (vLLM counters, SGLang correct drafts / spec_verify_ct)."""
    if rounds < 1 or accepted < 0:
        raise ValueError(f"need at least one verify step and no negative count; got {accepted} accepted in {rounds}")
    return 1 + accepted / rounds


def accept_length_from_survival(survival: Sequence[float]) -> float:
    """AL = 1 + sum of S_i, the share of steps accepted through position i (vLLM per-position rates, speculators full_acc_k)."""
    return 1 + sum(survival)


def accept_length_from_conditional(conditional: Sequence[float]) -> float:
    """AL = 1 + sum of running products of the conditional rates (cond_acc_k, n-alpha)."""
    total, product = 1.0, 1.0
    for rate in conditional:
        product *= rate
        total += product
    return total


def survival_from_histogram(histogram: Sequence[int]) -> tuple[float, ...]:
    """S_1..S_k from counts of steps with exactly 0..k correct drafts."""
    steps = sum(histogram)
    if steps == 0:
        raise ValueError("the histogram holds no step")
    return tuple(sum(histogram[position:]) / steps for position in range(1, len(histogram)))


def _rate_rule(engine: str, version: str, draft_tokens: int) -> tuple[bool, int]:
    """Whether the rate is per draft without bonus, and how many tokens are drafted a step."""
    name = engine_name(engine)
    if name == "vllm":
        per_draft, drafted = True, draft_tokens
    elif name == "sglang":
        release = nearest(name, version, sglang_releases()).release
        per_draft, drafted = since(RATE_PER_DRAFT_SINCE, release), draft_tokens - 1
    else:
        raise ValueError(f"{name}: its accept rate is not written down")
    if drafted < 1:
        raise ValueError(f"{draft_tokens} draft tokens leave nothing to accept: an accept rate is undefined")
    return per_draft, drafted
