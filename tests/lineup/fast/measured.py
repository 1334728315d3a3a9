"""Measurement tables: what notebooks 01 and 04 must say."""

from __future__ import annotations

from tests.lineup import papers as p
from tests.lineup.outcome import abstains, healthy, planted

CANNOT_WIN = "cost.cannot-win"
MEASURED = (
    planted("cannot win: three runs below a fast baseline", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=p.INCIDENT), CANNOT_WIN),
    planted("cannot win: one step, slow verify", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=p.table(p.base("100"), p.run("a", 1, "1.75", "70.0"))), CANNOT_WIN),
    planted("seven drafts configured, four are best", p.LLAMA.but(launch=p.sglang_launch(7, 1, 8), rows=p.SWEEP), "cost.wrong-step-count"),
    planted("accept rate 0.30 at length 1.80 on 0.5.13", p.LLAMA.but(version="0.5.13", launch=p.sglang_launch(5, 1, 6), rows=p.table(p.run("a", 5, "1.80", version="0.5.13", rate="0.30"))),
            "measure.definition"),
    planted("baseline at another concurrency", p.LLAMA.but(rows=p.table(p.base("100", concurrency="1"), p.run("a", 3, "2.5", "140", concurrency="8"))), "measure.confounded"),
    planted("output of three tokens", p.LLAMA.but(rows=p.table(p.base("100", distinct="3"), p.run("a", 3, "3.9", "300", distinct="3"))), "measure.degenerate-output"),
)
DOUBLE = (
    planted("cannot win and confounded", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=p.table(
        p.base("100"), p.run("a", 1, "1.75", "70.0"), "other,sglang,0.5.23,1,3,1,4,,2.4,,70,,")), CANNOT_WIN),
)
HEALTHY = (
    healthy("sweep, four drafts configured", p.LLAMA.but(launch=p.sglang_launch(4, 1, 5), rows=p.SWEEP)),
    healthy("rate 0.30 at 1.80 on 0.5.10 is accept length over tokens", p.LLAMA.but(
        version="0.5.10", launch=p.sglang_launch(5, 1, 6), rows=p.table(p.base("50", "0.5.10"), p.run("a", 5, "1.80", "70", version="0.5.10", rate="0.30")))),
    healthy("a run that wins", p.LLAMA.but(rows=p.table(p.base("11.8", distinct="300"), p.run("a", 3, "2.15", "25.9", distinct="290")))),
)
ABSTAIN = (
    abstains("one run, no baseline", p.LLAMA.but(trainer=None, trained=None, rows=p.table(p.run("a", 3, "1.30", "40")))),
    abstains("a run that loses, no prediction", p.LLAMA.but(rows=p.table(p.base("100", distinct="200"), p.run("a", 3, "1.60", "70", distinct="200")))),
    abstains("accept length pinned at 1", p.LLAMA.but(rows=p.table(p.base("100"), p.run("a", 3, "1.00", "70")))),
    abstains("a row that cannot be", p.LLAMA.but(rows=p.table(p.base("100"), p.run("a", 3, "5.20", "170")))),
    abstains("empty table", p.LLAMA.but(rows=p.COLUMNS + "\n"), "ERROR", "INCONCLUSIVE"),
)
CASES = (*MEASURED, *DOUBLE, *HEALTHY, *ABSTAIN)
