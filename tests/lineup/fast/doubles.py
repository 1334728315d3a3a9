"""Two links at once in the papers: both must be named."""

from __future__ import annotations

import torch

from tests.evidence.builders import VD
from tests.lineup import papers as p
from tests.lineup.outcome import planted

OFFSET, COUNT, GRAPH = "wiring.layer-offset", "wiring.plane-count", "wiring.graph-default-layers"
BUDGET, CANNOT_WIN = "args.draft-budget-overridden", "cost.cannot-win"
CASES = (
    planted("incident papers: budget, cost and graphs", p.KIMI.but(version="0.5.9", launch=p.sglang_launch(1, 1, 16), rows=p.INCIDENT, **p.OLD_IDS), BUDGET, CANNOT_WIN, GRAPH),
    planted("gpt-oss v3: unreachable id and an unread flag", p.GPT_OSS.but(
        version="0.5.16", draft={"norm_before_fc": True}, tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)})), COUNT, "drafter.norm-flags"),
    planted("one late and a missing map", p.LLAMA.but(ids=(2, 16, 29), tensors=lambda: p.head(d2t=None, t2d=None)), OFFSET, "vocab.map-missing"),
    planted("one early and a budget overridden", p.LLAMA.but(ids=(0, 14, 27), launch=p.sglang_launch(2, 1, 8)), OFFSET, BUDGET),
    planted("algorithm EAGLE and absolute d2t", p.LLAMA.but(
        launch=p.sglang_launch(algorithm="EAGLE"), tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2)), "args.algorithm-mismatch", "vocab.map-semantics"),
)
