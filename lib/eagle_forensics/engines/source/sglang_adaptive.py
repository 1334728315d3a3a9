"""Why SGLang switches `--speculative-adaptive` off: its own `adaptive_unsupported_reason`, executed, against our warning."""

from __future__ import annotations

from typing import Any

from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.engines.source.execute import Refused, call_by_name, outcome
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.standins import Anything, Arguments
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import since

FILE, FUNCTION = "srt/speculative/adaptive_spec_params.py", "adaptive_unsupported_reason"
CASES: tuple[tuple[str, ...], ...] = (
    (), ("--disable-overlap-schedule",), ("--enable-dp-attention",), ("--enable-multi-layer-eagle",), ("--enable-two-batch-overlap",), ("--enable-pdmux",))
BEFORE, AFTER = "speculative_adaptive disabled: ", ". Falling back to static speculative params."


def check_adaptive(tree: Tree, ledger: Ledger) -> None:
    """Which arguments switch it off, and the reason given, with a chain and with a tree."""
    if not since(table("sglang_args")["since"]["speculative_adaptive"], tree.version):
        return
    module = tree.parse(FILE) if tree.read(FILE) is not None else None
    names: dict[str, Any] = {
        "resolved_view": lambda args: args, "resolving_view": lambda args: args, "attn_dp_enabled_of": lambda args: args.enable_dp_attention,
        "SpeculativeAlgorithm": Anything(from_string=lambda name: Anything(get_platform_worker_cls=lambda: None))}
    function = call_by_name(module, FUNCTION, names) if module else None
    node = next((part for part in (module.body if module else ()) if getattr(part, "name", "") == FUNCTION), None)
    at = tree.at(FILE, node) if node else f"sglang {tree.version} {FILE}"
    for topk in (1, 4):
        for flags in CASES:
            what = f"adaptive speculation with topk {topk} {' '.join(flags)}".rstrip()
            ours, source = _ours(tree.version, topk, flags)
            if function is None:
                ledger.unread(what, ours, source, f"no {FUNCTION}", at)
                continue
            args = Arguments({"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": topk,
                              **{flag.removeprefix("--").replace("-", "_"): True for flag in flags}})
            try:
                theirs, error = outcome(lambda f=function, a=args: f(a))
            except Refused as refused:
                ledger.unread(what, ours, source, str(refused), at)
                continue
            ledger.compare(what, ours, source, error or theirs or "stays on", at)


def _ours(version: str, topk: int, flags: tuple[str, ...]) -> tuple[str, str]:
    argv = ["--speculative-algorithm", "EAGLE3", "--speculative-adaptive", "--speculative-num-steps", "3", "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", "4", *flags]
    answer = resolve_args("sglang", version, argv, architecture="Qwen3ForCausalLM")
    said = next((m.text for m in answer.messages if m.text.startswith(BEFORE)), None)
    return ("stays on" if said is None else said.removeprefix(BEFORE).removesuffix(AFTER)), answer.sources[0]
