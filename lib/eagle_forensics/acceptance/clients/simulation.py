"""Is acceptance simulated? Settings under which a server accepts drafts by a dice, or another part of the cost is made up.

Sources: sglang 0.5.23 srt/environ.py (SGLANG_SIMULATE_*; read at import, an accept length above 0 switches it on), 0.5.2 and before
SIMULATE_ACC_LEN; vllm config/speculative.py (rejection_sample_method: synthetic).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LENGTHS = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")
SWITCHES = ("SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS", "SGLANG_DSPARK_SIMULATE_FOLD")
"""Experts chosen by no router, drafts folded by no model: neither text nor cost are the target's."""
SYNTHETIC = "synthetic"


def by_environment(env: Mapping[str, Any]) -> str | None:
    """`NAME=value` of the variable that switches a simulation on; None if none does."""
    for name in LENGTHS:
        try:
            if float(env.get(name) or -1) > 0:
                return f"{name}={env[name]}"
        except (TypeError, ValueError):
            continue
    return next((f"{name}={env[name]}" for name in SWITCHES if str(env.get(name, "")).lower() in ("1", "true", "yes", "y", "on")), None)


def by_config(speculation: Mapping[str, Any]) -> str | None:
    """The setting of vLLM's speculative config that makes acceptance synthetic; None without it."""
    return f"rejection_sample_method={SYNTHETIC}" if speculation.get("rejection_sample_method") == SYNTHETIC else None


def by_command(argv: Sequence[str]) -> str | None:
    """The same on a launch line, written as JSON or as a dotted flag."""
    text = " ".join(argv)
    if inner := re.search(r"\b((?:SGLANG_)?SIMULATE_ACC_LEN)=([\d.]+)", text):  # set by a shell or container inside the command
        return by_environment({inner[1]: inner[2]})
    return f"rejection_sample_method={SYNTHETIC}" if "rejection_sample_method" in text.replace("-", "_") and SYNTHETIC in text else None
