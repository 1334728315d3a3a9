"""SGLang: raw launch arguments to effective ones, with the log lines and exceptions to expect. Tables: `sglang_args.toml`.

The rules (`sglang_settings`, `sglang_budget`, `sglang_adaptive`) run in the order in which SGLang runs them: server_args.py up to
0.5.12.post1, arg_groups/speculative_hook.py after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eagle_forensics.engines import sglang_adaptive as adaptive
from eagle_forensics.engines import sglang_budget as budget
from eagle_forensics.engines import sglang_settings as settings
from eagle_forensics.engines.answers import ArgsAnswer
from eagle_forensics.engines.argv import parse_argv
from eagle_forensics.engines.sglang import releases
from eagle_forensics.engines.sglang_run import TABLE, Run, Stop
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import nearest, row_at


def resolve(version: str, argv: Sequence[str], *, architecture: str | None = None, draft_architecture: str | None = None,
            model_type: str | None = None, env: Mapping[str, str] | None = None) -> ArgsAnswer:
    """What SGLang `version` makes of these launch arguments; `architecture` is the target's `architectures[0]`."""
    rules = table(TABLE)
    at = nearest("sglang", version, releases())
    parsed = parse_argv(argv, rules["flags"], rules["aliases"])
    run = Run(at.release, dict(parsed.raw), {**(env or {}), **parsed.env}, architecture or rules["architecture"].get(model_type or ""),
               draft_architecture, assumed=at.assumed)
    parsed.refuse_early_flags("SGLang", at.release, rules["since"], at.assumed)
    for note in ([at.note] if at.note else []) + parsed.notes:
        run.say("note", note)
    short = row_at(rules["ambiguous"], at.release)
    if short and any(str(word).partition("=")[0] == short["spelled"] for word in argv):
        parsed.errors.append(short["text"])
    error = "; ".join(parsed.errors) or None
    refusal = "usage" if error else None
    if error is None:
        try:
            for rule in _RULES:
                rule(run)
        except Stop as stop:
            if parsed.open:
                run.say("note", f"possible, by the values that are not known here: {stop}")
            else:
                error, refusal = str(stop), stop.kind
    effective = _effective(run)
    changed = tuple(
        short for short, name in _REPORTED.items() if name in parsed.raw and effective.get(short) != parsed.raw[name])
    return ArgsAnswer("sglang", version, parsed.raw, effective, tuple(run.messages), error, (rules["source"],), run.assumed, changed, refusal,
                      tuple(parsed.open))


def _eagle_only(rule: Callable[[Run], None]) -> Callable[[Run], None]:
    def guarded(run: Run) -> None:
        if run.get("speculative_algorithm") in table(TABLE)["algorithms"]["eagle"]:
            rule(run)
    return guarded


_RULES: tuple[Callable[[Run], None], ...] = (
    settings.quantization, settings.page_size, settings.algorithm,
    *map(_eagle_only, (
        settings.draft_class, adaptive.before_the_budget, settings.max_running, settings.overlap, settings.mixed_chunk, settings.mtp,
        budget.automatic_triple, budget.trtllm_mha, budget.rejection_sampling, budget.lowered_topk, budget.draft_tokens, budget.tree_on_pages,
        budget.tree_capacity, adaptive.after_the_budget, settings.ignored)),
    settings.pipeline,
)

_REPORTED = {
    "algorithm": "speculative_algorithm", "num_steps": "speculative_num_steps", "topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens", "max_running_requests": "max_running_requests", "page_size": "page_size",
    "attention_backend": "attention_backend", "quantization": "quantization", "draft_quantization": "speculative_draft_model_quantization",
    "dtype": "dtype", "draft_model_path": "speculative_draft_model_path", "tp_size": "tp_size", "adaptive": "speculative_adaptive",
    "mixed_chunk": "enable_mixed_chunk", "rejection_sampling": "speculative_use_rejection_sampling", "context_length": "context_length",
}


def _effective(run: Run) -> dict[str, Any]:
    """The arguments after all rules, under short names; `max_accept_length` counts the bonus token."""
    out = {short: run.get(name) for short, name in _REPORTED.items()}
    speculates = out["algorithm"] is not None
    steps, topk, tokens = out["num_steps"], out["topk"], out["num_draft_tokens"]
    ceiling: int | None = None if speculates else 1
    if speculates and isinstance(steps, int) and isinstance(tokens, int) and isinstance(topk, int):
        ceiling = max(1, min(steps + 1, tokens))
    for name in ("adaptive", "mixed_chunk", "rejection_sampling"):
        out[name] = bool(out[name])
    return {
        **out, "max_accept_length": ceiling, "overlap": run.overlap, "spec_v2": run.spec_v2, "chosen_automatically": run.auto,
        "cuda_graph": not run.get("disable_cuda_graph"), "dtype": out["dtype"] or "auto", "tp_size": out["tp_size"] or 1,
        "accept_threshold_single": 1.0 if run.get("speculative_accept_threshold_single") is None else run.get("speculative_accept_threshold_single"),
        "accept_threshold_acc": 1.0 if run.get("speculative_accept_threshold_acc") is None else run.get("speculative_accept_threshold_acc"),
    }
