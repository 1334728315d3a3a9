"""How a server verifies drafts above temperature 0, as its own arguments tell."""

from __future__ import annotations

from collections.abc import Mapping

from eagle_forensics.acceptance.clients.records import Server


def verification(server: Server) -> str | None:
    """`greedy`, `target-only` or `rejection`; None where the server's arguments are not known.

    SGLang 0.5.23 on a CPU has no tree sampling kernel and verifies greedily (speculative/eagle_utils.py); elsewhere it accepts a greedy draft with the target's
    probability, or rejects losslessly with --speculative-use-rejection-sampling. vLLM 0.32 drafts greedily unless draft_sample_method says otherwise
    (config/speculative.py).
    """
    if not server.arguments:
        return None
    if server.engine == "sglang":
        return "greedy" if server.argument("device") == "cpu" else "rejection" if server.argument("speculative_use_rejection_sampling") else "target-only"
    spec = server.argument("speculative_config")
    return "rejection" if isinstance(spec, Mapping) and spec.get("draft_sample_method", "greedy") != "greedy" else "target-only"
