"""The same launch command at another number of draft steps; 0: without speculation. Pure: argv in, argv out.

SGLang: a chain is rewritten to steps and steps + 1 draft tokens (what the server would make of it anyway); a tree (topk > 1) keeps its draft tokens,
at most as many as its nodes and the root. vLLM: `num_speculative_tokens` of `--speculative-config`. What would move the steps while the server
runs is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from eagle_forensics.engines.argv import Written, written
from eagle_forensics.engines.sglang_budget import tree_nodes
from eagle_forensics.engines.tables import table

SPECULATIVE_CONFIG = "speculative_config"
STEPS_KEY = "num_speculative_tokens"
MOVES = {"sglang": ("speculative_adaptive", "speculative_adaptive_config"), "vllm": ("num_speculative_tokens_per_batch_size",)}
"""What changes the number of steps by itself: SGLang's flags, vLLM's keys of the speculative config."""
REFUSED_WITHOUT = ("per_request_spec_decode_metrics",)
"""Flags that vLLM refuses without speculation (0.32.0 config/vllm.py:1659)."""
SHORT = {"-sc": "--speculative-config"}
"""vLLM's short spelling (0.32.0 engine/arg_utils.py:1828)."""


def speculating_engine(argv: Sequence[str]) -> str:
    """`sglang` or `vllm`, by the flags of speculation. ValueError where a command holds none of them."""
    for engine in ("vllm", "sglang"):
        if any(_speculates(engine)(item) for item in _written(engine, argv)):
            return engine
    raise ValueError("the launch command does not speculate: expected SGLang's --speculative-algorithm ... or vLLM's --speculative-config. Give the line that "
                     "serves with the drafter; its step counts are put in one after another, and 0 takes speculation out.")


def with_steps(argv: Sequence[str], steps: int) -> tuple[str, ...]:
    """The command at `steps` draft steps, speculation left out at 0. ValueError for a command that does not speculate, or says too little about it."""
    if steps < 0:
        raise ValueError(f"{steps} draft steps; expected 0 or more.")
    engine = speculating_engine(argv)
    if not steps:
        return _without(engine, argv, lambda item: _speculates(engine)(item) or item.name in REFUSED_WITHOUT)
    return _sglang(argv, steps) if engine == "sglang" else _vllm(argv, steps)


def steps_of(argv: Sequence[str]) -> int | None:
    """The steps that a speculating command asks for; None where it leaves them to the engine."""
    engine = speculating_engine(argv)
    said = _values(engine, argv, "speculative_num_steps") if engine == "sglang" else _config(argv).get(STEPS_KEY)
    return int(said) if said is not None and str(said).isdigit() else None


def _sglang(argv: Sequence[str], steps: int) -> tuple[str, ...]:
    topk = _number(argv, "speculative_eagle_topk") or 1
    tokens = steps + 1
    if topk > 1:
        written_tokens = _number(argv, "speculative_num_draft_tokens")
        if written_tokens is None:
            raise ValueError(f"the launch command asks for a tree (--speculative-eagle-topk {topk}) without --speculative-num-draft-tokens. Write how many tokens a round verifies.")
        tokens = min(written_tokens, 1 + tree_nodes(steps, topk))
    budget = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    kept = _without("sglang", argv, lambda item: item.name in (*budget, *MOVES["sglang"]))
    return (*kept, "--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk), "--speculative-num-draft-tokens", str(tokens))


def _vllm(argv: Sequence[str], steps: int) -> tuple[str, ...]:
    config = {**_config(argv), STEPS_KEY: steps}
    for key in MOVES["vllm"]:
        config.pop(key, None)
    return (*_without("vllm", argv, _speculates("vllm")), "--speculative-config", json.dumps(config))


def _config(argv: Sequence[str]) -> dict[str, Any]:
    """The speculative config: the JSON text, and keys written as `--speculative-config.method eagle3`."""
    found: dict[str, Any] = {}
    for item in _written("vllm", argv):
        if not _speculates("vllm")(item):
            continue
        value = item.values[0] if item.values else ""
        key = (item.name or "").partition(".")[2]
        if key:
            found[key] = json.loads(value) if value[:1] in ("[", "{") or value.isdigit() or value in ("true", "false", "null") else value
            continue
        try:
            said = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"--speculative-config is not JSON ({error.msg} at column {error.colno}): {value[:80]!r}") from None
        if not isinstance(said, dict):
            raise ValueError(f"--speculative-config must be a JSON object; got {type(said).__name__}")
        found |= said
    return found


def _speculates(engine: str) -> Callable[[Written], bool]:
    if engine == "vllm":
        return lambda item: (item.name or "").partition(".")[0] == SPECULATIVE_CONFIG
    return lambda item: (item.name or "").startswith("speculative_") and (item.name or "").partition(".")[0] != SPECULATIVE_CONFIG


def _written(engine: str, argv: Sequence[str]) -> list[Written]:
    rules = table(f"{engine}_args")
    return list(written(_spelled_out(argv), rules["flags"], rules["aliases"]))


def _spelled_out(argv: Sequence[str]) -> list[str]:
    return [SHORT.get(word, word) for word in argv]


def _without(engine: str, argv: Sequence[str], drop: Callable[[Written], bool]) -> tuple[str, ...]:
    items = _written(engine, argv)
    kept = [word for item in items if not drop(item) for word in item.words]
    program = _spelled_out(argv)
    return (*program[:len(program) - sum(len(item.words) for item in items)], *kept)


def _values(engine: str, argv: Sequence[str], name: str) -> str | None:
    return next((item.values[0] for item in reversed(_written(engine, argv)) if item.name == name and item.values), None)


def _number(argv: Sequence[str], name: str) -> int | None:
    text = _values("sglang", argv, name)
    if text is not None and not text.isdigit():
        raise ValueError(f"--{name.replace('_', '-')} is {text!r}; expected a whole number.")
    return None if text is None else int(text)
