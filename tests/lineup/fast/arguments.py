"""Launch lines: what notebook 01 must say of them (04 where a table is there)."""

from __future__ import annotations

from tests.lineup import papers as p
from tests.lineup.outcome import healthy, planted

BUDGET, REFUSED, TREE, MISMATCH, UNITS = "args.draft-budget-overridden", "args.refused", "args.tree-capacity", "args.algorithm-mismatch", "args.unit-confusion"
PLANTED = (
    planted("budget: 16 asked, steps 1, SGLang 0.5.8", p.LLAMA.but(version="0.5.8", launch=p.sglang_launch(1, 1, 16)), BUDGET),
    planted("budget: 24 asked, steps 4", p.LLAMA.but(launch=p.sglang_launch(4, 1, 24)), BUDGET),
    planted("budget: 2 asked, steps 2 make 3", p.LLAMA.but(launch=p.sglang_launch(2, 1, 2)), BUDGET),
    planted("algorithm EAGLE with an EAGLE-3 head", p.LLAMA.but(launch=p.sglang_launch(algorithm="EAGLE"), tensors=p.head), "args.algorithm-mismatch"),
    planted("tree of 6 nodes asked for 16", p.LLAMA.but(launch=p.sglang_launch(2, 2, 16)), "args.tree-capacity"),
)
HEALTHY = (
    healthy("tree within its capacity", p.LLAMA.but(launch=p.sglang_launch(3, 4, 16))),
)
CASES = (*PLANTED, *HEALTHY)
