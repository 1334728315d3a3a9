"""Cost, definitions and comparability: what notebooks 01 and 04 must say from tables and logs; figures where a thread is named are its own."""

from __future__ import annotations

from tests.lineup import papers as p
from tests.lineup import tables as t
from tests.lineup.fast.runtime import rows
from tests.lineup.outcome import abstains, healthy, planted

CANNOT_WIN, STEPS, CONCURRENCY, GRAPHS, REUSE = "cost.cannot-win", "cost.wrong-step-count", "cost.concurrency", "cost.no-cuda-graph", "cost.prefix-cache"
DEFINITION, CONFOUNDED, DEGENERATE, BUDGET = "measure.definition", "measure.confounded", "measure.degenerate-output", "args.draft-budget-overridden"
DOMAIN, CACHE = "data.domain", "runtime.stale-draft-cache"
WEAK = ("data.too-little",)
PIECEWISE = ("WARNING 09-14 10:01:12 [gpu_model_runner.py:5021] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend X; "
             "setting cudagraph_mode=PIECEWISE\n")
ADJUSTED = ("[2026-02-11 09:12:01] speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1\n")
VLLM_32 = {"engine": "vllm", "version": "0.32.0"}
WHOLE = {"draft_vocab_size": p.builders.V}
SWEEP_1_3_7 = ((1, 1.98, 621), (3, 3.88, 955), (7, 6.25, 999))
"""sglang #21599, against 461 tokens/s (there 2.00 with one step, which is its ceiling)."""


def speeds(*at: tuple[int, float, float, float], length: float | None = None) -> str:
    """(load, accept length, tokens/s with, tokens/s without)."""
    return t.csv(*(row for n, al, fast, slow in at for row in (
        t.plain(f"plain at {n}", slow, concurrency=n), t.spec(f"drafts at {n}", length or al, concurrency=n, tokens_per_second=fast))))


def logged(text: str, **serving: str) -> dict[str, object]:
    return {"files": {"server.log": text}, "case": {"serving": {"log": "./server.log", **serving}}}


def reuse(with_it: float, without: float, context: int | None = 4000) -> p.Papers:
    return rows(t.plain("plain", 100.0, cache_hit_rate=without, context_length=context), t.spec("drafts", 2.5, tokens_per_second=150.0, cache_hit_rate=with_it, context_length=context))


def heads(*by_dataset: tuple[str, float, float], rounds: int | None = 20000, **changes: object) -> p.Papers:
    """(dataset, accept length of the served head, of another one)."""
    return rows(*(t.spec(f"{name} on {data}", al, dataset=data, prompts_hash=data[:4], drafter=name, rounds=rounds)
                  for data, own, other in by_dataset for name, al in (("drafter", own), ("public", other))), **changes)


COST = (
    planted("gain 1.8 at load 1, 0.83 at 48", p.LLAMA.but(rows=speeds((1, 2.40, 180.0, 100.0), (48, 2.39, 2500.0, 3000.0))), CONCURRENCY, rival="runtime.batch-metadata"),
    planted("gain 1.10 at load 1, 0.97 at 20", p.LLAMA.but(rows=speeds((1, 2.40, 110.2, 100.3), (8, 2.41, 700.0, 690.0), (20, 2.40, 1400.0, 1440.0))), CONCURRENCY),
    planted("one step configured, seven serve best", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=t.csv(
        t.plain("plain", 461), *(t.spec(f"{k} steps", al, steps=k, tokens_per_second=speed) for k, al, speed in SWEEP_1_3_7),
        *(t.spec(f"{k} steps, once more", al, steps=k, tokens_per_second=speed + 1) for k, al, speed in SWEEP_1_3_7))), STEPS, rival=CANNOT_WIN),
    planted("attention outside of the graphs, 75 and 25 tokens/s", p.VLLM.but(rows=t.csv(*(t.spec(f"{n}", 2.4, context_length=n, tokens_per_second=v, **VLLM_32) for n, v in ((2000, 75.0), (30000, 25.0)))),
            draft={"max_position_embeddings": 32768}, **logged(PIECEWISE, engine="vllm", version="0.32.0", launch=p.VLLM_LAUNCH)), GRAPHS, rival="nccl.graph-fallback"),
    planted("attention outside of the graphs, 80 and 62 tokens/s", p.VLLM.but(rows=t.csv(*(t.spec(f"{n}", 2.40, context_length=n, tokens_per_second=v, **VLLM_32) for n, v in ((2000, 80.0), (12000, 62.0)))),
            draft={"max_position_embeddings": 32768}, **logged(PIECEWISE, engine="vllm", version="0.32.0", launch=p.VLLM_LAUNCH)), GRAPHS),
    planted("reuse 97 % to 45 %", reuse(0.45, 0.97), REUSE, rival=CACHE),
    planted("reuse 92 % to 71 %", reuse(0.71, 0.92), REUSE),
)
MEASURE = (
    planted("per-position survival sums to 2.55, the table says 2.30", rows(t.spec("a", 2.30, accepted_per_position="0.70;0.50;0.35")), DEFINITION),
    planted("rate 0.77 beside length 2.30 at three steps", rows(t.spec("a", 2.30, accept_rate=0.77)), DEFINITION, rival="runtime.regression"),
    planted("baseline of another release and environment", rows(t.plain("plain", 88.8, version="0.5.20", env_hash="e0"), t.spec("drafts", 2.4, tokens_per_second=94.0)), CONFOUNDED, rival="runtime.regression"),
    planted("baseline at temperature 1", rows(t.plain("plain", 100.0, temperature=1.0), t.spec("drafts", 2.4, tokens_per_second=170.0)), CONFOUNDED),
    planted("random prompts, two tokens in turn, 3.93", rows(t.plain("plain", 100.0, distinct_output_tokens=2), t.spec("drafts", 3.93, tokens_per_second=310.0, distinct_output_tokens=2)), DEGENERATE),
    planted("budget: the log adjusts 16 to 2, accept length 1.6", p.LLAMA.but(rows=t.csv(t.spec("one step", 1.60, steps=1, draft_tokens=16, version="0.5.8")), **logged(
        ADJUSTED, engine="sglang", version="0.5.8", launch=p.sglang_launch(1, 1, 16))), BUDGET),
)
HEADS = (
    planted("a head at 1.48 on one language, level with another head elsewhere", heads(("ceval", 1.482, 2.295), ("gsm8k", 3.20, 3.21), ("mt-bench", 2.69, 2.69), draft=WHOLE), DOMAIN, rival="vocab.coverage"),
    planted("a head at 2.10 on law texts, level elsewhere", heads(("law", 2.10, 2.30), ("chat", 2.60, 2.61), draft=WHOLE), DOMAIN),
)
DOUBLE = (
    planted("budget and cost: 16 asked, 2 made, below the baseline", p.LLAMA.but(launch=p.sglang_launch(1, 1, 16), rows=t.csv(
        t.plain("plain", 90.0), t.spec("one step", 1.6, steps=1, draft_tokens=16, tokens_per_second=56.8))), BUDGET, CANNOT_WIN),
    planted("loads and reuse", p.LLAMA.but(rows=t.csv(*(row for n, fast, slow, rate in ((1, 180.0, 100.0, 0.95), (48, 2500.0, 3000.0, 0.40)) for row in (
        t.plain(f"plain {n}", slow, concurrency=n, cache_hit_rate=0.95, context_length=4000),
        t.spec(f"drafts {n}", 2.4, concurrency=n, tokens_per_second=fast, cache_hit_rate=rate, context_length=4000)))), draft={"max_position_embeddings": 32768}), CONCURRENCY, REUSE),
    planted("cost and a survival that does not sum", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=t.csv(
        t.plain("plain", 100.0), t.spec("a", 1.75, steps=1, tokens_per_second=70.0, accepted_per_position="0.60"))), CANNOT_WIN, DEFINITION),
    planted("another baseline and two-token text", rows(t.plain("plain", 100.0, env_hash="e0", distinct_output_tokens=2), t.spec("drafts", 3.9, tokens_per_second=300.0, distinct_output_tokens=2)), CONFOUNDED, DEGENERATE),
    planted("cost and a stale cache", p.LLAMA.but(launch=p.sglang_launch(1, 1, 2), rows=t.csv(
        t.plain("plain", 100.0, prefix_cache=0), t.spec("cold", 1.80, steps=1, prefix_cache=0, tokens_per_second=70.0), t.spec("warm", 1.40, steps=1, prefix_cache=1))), CANNOT_WIN, CACHE),
    planted("one language and another baseline", rows(*(t.spec(f"{name} on {data}", al, dataset=data, prompts_hash=data[:4], drafter=name, tokens_per_second=120.0)
            for data, own, other in (("ceval", 1.482, 2.295), ("gsm8k", 3.20, 3.21)) for name, al in (("drafter", own), ("public", other))),
            t.plain("plain", 70.0, dataset="alpaca", prompts_hash="a1fa"), draft=WHOLE), DOMAIN, CONFOUNDED),
)
HEALTHY = (
    healthy("gain falls from 1.9 to 1.2 with the load and still pays", p.LLAMA.but(rows=speeds((1, 2.40, 190.0, 100.0), (16, 2.41, 1600.0, 1100.0), (48, 2.40, 3600.0, 3000.0)))),
    healthy("5.9 of 6 tokens on sane text", rows(t.plain("plain", 100.0, distinct_output_tokens=340), t.spec("drafts", 5.9, steps=5, tokens_per_second=330.0, distinct_output_tokens=330),
                                               launch=p.sglang_launch(5, 1, 6))),
    healthy("seven steps configured, seven serve best", p.LLAMA.but(launch=p.sglang_launch(7, 1, 8), rows=t.csv(
        t.plain("plain", 461), *(t.spec(f"{k} steps", al, steps=k, tokens_per_second=speed) for k, al, speed in SWEEP_1_3_7)))),
    healthy("rate 0.43 beside length 2.30 at three steps", rows(t.spec("a", 2.30, accept_rate=0.43))),
    healthy("survival that sums to the length", rows(t.spec("a", 2.55, accepted_per_position="0.70;0.50;0.35"))),
    healthy("reuse 97 % and 94 % of 4,000 tokens", reuse(0.94, 0.97)),
    healthy("both heads alike on three sets", heads(("ceval", 2.29, 2.30), ("gsm8k", 3.20, 3.21), ("mt-bench", 2.69, 2.69))),
    healthy("the served head accepts more", heads(("ceval", 2.50, 2.30), ("gsm8k", 3.40, 3.21))),
    healthy("one step, 1.55 of 2, wins", rows(t.plain("plain", 100.0), t.spec("drafts", 1.55, steps=1, tokens_per_second=121.0), launch=p.sglang_launch(1, 1, 2))),
    healthy("speed falls with the context, full graphs in the log", p.VLLM.but(rows=t.csv(*(t.spec(f"{n}", 2.4, context_length=n, tokens_per_second=v, **VLLM_32) for n, v in ((2000, 75.0), (30000, 60.0)))),
            draft={"max_position_embeddings": 32768}, **logged("INFO 09-14 10:01:12 cudagraph_mode=FULL_AND_PIECEWISE\n", engine="vllm", version="0.32.0", launch=p.VLLM_LAUNCH))),
)
ABSTAIN = (
    abstains("baseline missing for the load, one run below another", rows(t.plain("plain", 100.0), t.spec("drafts", 2.0, tokens_per_second=95.0))),
    abstains("gain 1.8 at load 1, 0.83 at 64, of which 48 run", p.LLAMA.but(rows=speeds((1, 2.40, 180.0, 100.0), (64, 2.39, 2500.0, 3000.0)))),
    abstains("reuse 97 % to 45 %, context unrecorded", reuse(0.45, 0.97, None)),
    abstains("the served head lower on every set", heads(("mt-bench", 2.695, 3.115), ("gsm8k", 2.80, 3.30), draft=WHOLE), suspects=WEAK),
    abstains("the served head lower on the one set there is", heads(("mt-bench", 2.10, 2.60), draft=WHOLE), suspects=WEAK),
    abstains("one language lower, draft vocabulary reduced, no answers", heads(("ceval", 1.482, 2.295), ("gsm8k", 3.20, 3.21))),
    abstains("one language 2.2 and 2.4 over 150 rounds", heads(("ceval", 2.2, 2.4), ("gsm8k", 3.2, 3.2), rounds=150, draft=WHOLE), suspects=("measure.not-enough-data",)),
    abstains("pinned at the ceiling, text unrecorded", rows(t.plain("plain", 100.0), t.spec("drafts", 4.0, tokens_per_second=330.0))),
    abstains("conditional rates where survival belongs", rows(t.spec("a", 2.30, accepted_per_position="0.60;0.70;0.65"), t.spec("b", 2.30))),
)
CASES = (*COST, *MEASURE, *HEADS, *DOUBLE, *HEALTHY, *ABSTAIN)
