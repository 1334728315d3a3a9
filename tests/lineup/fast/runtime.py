"""Runs that differ in one thing: what notebooks 01 and 04 must say of the engine's state.

Figures where a thread is named are its own; the others lie between figures of that kind.
"""

from __future__ import annotations

from tests.lineup import papers as p
from tests.lineup import tables as t
from tests.lineup.outcome import abstains, healthy, planted

CACHE, BATCH, DP, GRAPH, DTYPE = "runtime.stale-draft-cache", "runtime.batch-metadata", "runtime.dp-attention", "wiring.graph-default-layers", "runtime.graph-dtype"
RULE, GRAMMAR, IMAGES, REGRESSION = "runtime.acceptance-rule", "runtime.grammar", "runtime.multimodal", "runtime.regression"
ROPE, TEMPLATE, CONCURRENCY = "drafter.rope", "data.template", "cost.concurrency"
MORE = ("measure.not-enough-data",)
A17 = t.csv(*(t.spec(f"{k}k", al, context_length=1000 * k, rounds=None) for k, al in zip(range(2, 22, 2), (2.295, 2.040, 1.863, 1.687, 1.400, 1.289, 1.161, 1.090, 1.092, 1.084), strict=True)))
"""speculators #684."""
LONG = {"max_position_embeddings": 32768}
VLLM_31 = {"engine": "vllm", "version": "0.31.0"}
VLLM_32 = {"engine": "vllm", "version": "0.32.0"}


def rows(*runs: t.Row, **changes: object) -> p.Papers:
    return p.LLAMA.but(rows=t.csv(*runs), **changes)


def switch(column: str, off: float, on: float, papers: p.Papers = p.LLAMA, **more: object) -> p.Papers:
    return papers.but(rows=t.pair(column, off, on, **more))


def lengths(values: dict[int, float], rounds: int | None = 40000, **draft: object) -> p.Papers:
    return p.LLAMA.but(rows=t.csv(*(t.spec(f"{n} tokens", al, context_length=n, rounds=rounds) for n, al in values.items())), draft=draft)


def builds(cold: tuple[float, float], warm: tuple[float, float], rounds: int | None = 20000) -> p.Papers:
    return p.VLLM.but(rows=t.csv(*(t.spec(f"{v['version']} at {temperature}", al, temperature=temperature, rounds=rounds, **v)
                                   for temperature, pair in ((0, cold), (1.0, warm)) for v, al in zip((VLLM_31, VLLM_32), pair, strict=True))))


SWITCHES = (
    planted("prefix cache 2.39 to 2.26 over 20,000 rounds", switch("prefix_cache", 2.39, 2.26), CACHE, rival=GRAPH),
    planted("prefix cache 2.6 to 1.5, rounds unrecorded", switch("prefix_cache", 2.6, 1.5, rounds=None), CACHE),
    planted("prefix cache, the same text over 900 rounds", switch("prefix_cache", 2.39, 2.26, rounds=900, outputs_hash="77aa"), CACHE),
    planted("DP attention 2.35 to 1.48 at two steps", switch("dp_attention", 2.35, 1.48, p.LLAMA.but(version="0.5.7", launch=p.sglang_launch(2, 1, 3)), version="0.5.7", steps=2, rounds=None), DP,
            rival="wiring.plane-count"),
    planted("DP attention 2.40 to 2.25", switch("dp_attention", 2.40, 2.25, rounds=40000), DP),
    planted("graphs 2.6 to 1.12", switch("cuda_graph", 2.6, 1.12, rounds=None), DTYPE, rival=GRAPH),
    planted("graphs 2.60 to 2.42, vLLM", switch("cuda_graph", 2.60, 2.42, p.VLLM, rounds=30000, **VLLM_32), DTYPE),
    planted("graphs 2.6 to 1.9 on 0.5.8, own ids", switch("cuda_graph", 2.6, 1.9, p.LLAMA.but(version="0.5.8", ids=(3, 10, 20), trained=(3, 10, 20)), version="0.5.8", rounds=None), GRAPH),
    planted("graphs 2.10 to 1.96 on 0.5.10, Kimi", switch("cuda_graph", 2.10, 1.96, p.KIMI.but(version="0.5.10", **p.OLD_IDS), version="0.5.10", rounds=40000), GRAPH),
    planted("grammar 2.6 to 1.7 on one text", switch("grammar", 2.6, 1.7, outputs_hash="77aa", rounds=None), GRAMMAR, rival="data.domain"),
    planted("grammar 2.60 to 2.44 on one text", switch("grammar", 2.60, 2.44, outputs_hash="77aa"), GRAMMAR),
    planted("images 2.4 to 1.05, same questions", rows(t.spec("described", 2.4, images=0, dataset="mmstar"), t.spec("shown", 1.05, images=1, dataset="mmstar", prompts_hash="0b7e")), IMAGES,
            rival="args.draft-budget-overridden"),
    planted("images 2.40 to 2.20, same questions", rows(t.spec("described", 2.40, images=0, dataset="mmstar"), t.spec("shown", 2.20, images=1, dataset="mmstar", prompts_hash="0b7e")), IMAGES),
)
LOADS = (
    planted("batch 2 and 32: 2.41 to 2.27 over 20,000 rounds", rows(t.spec("two", 2.41, concurrency=2), t.spec("thirty-two", 2.27, concurrency=32)), BATCH),
    planted("batch 1, 8, 64: 2.52 to 1.3", rows(*(t.spec(f"{n}", al, concurrency=n, rounds=None) for n, al in ((1, 2.52), (8, 2.4), (64, 1.3)))), BATCH, rival=CONCURRENCY),
)
VERSIONS = (
    planted("0.5.20 to 0.5.23: 3.18 to 2.14", rows(t.spec("older", 3.18, version="0.5.20", rounds=None), t.spec("newer", 2.14, rounds=None)), REGRESSION, rival="measure.confounded"),
    planted("0.5.20 to 0.5.23: 2.80 to 2.62", rows(t.spec("older", 2.80, version="0.5.20"), t.spec("newer", 2.62)), REGRESSION),
    planted("two vLLM builds, apart at temperature 1 alone", builds((2.71, 2.70), (2.35, 1.60), None), RULE, rival="data.too-little"),
    planted("two vLLM builds, 2.35 and 2.19 at temperature 1", builds((2.71, 2.70), (2.35, 2.19)), RULE),
    planted("Kimi ids kept from 0.5.12 to 0.5.13", p.KIMI.but(version="0.5.13", **p.OLD_IDS, rows=t.csv(t.spec("older", 2.9, version="0.5.12"), t.spec("newer", 2.5, version="0.5.13"))),
            "wiring.layer-offset"),
)
CONTEXTS = (
    planted("contexts 2k to 20k, a draft of 2048 positions", p.LLAMA.but(rows=A17, draft={"max_position_embeddings": 2048}), ROPE, rival="data.domain"),
    planted("contexts 1k to 8k, 2.30 to 2.10 beyond 2048", lengths({1000: 2.30, 2000: 2.29, 4000: 2.20, 8000: 2.10}, max_position_embeddings=2048), ROPE),
    planted("25 % and 60 % of the drafts on one dataset rendered twice", rows(t.spec("think", None, accept_rate=0.25, rounds=None), t.spec("plain", None, accept_rate=0.60, rounds=None, prompts_hash="a1f0")), TEMPLATE),
    planted("2.60 and 2.40 on one dataset rendered twice", rows(t.spec("one", 2.60), t.spec("two", 2.40, prompts_hash="a1f0")), TEMPLATE, rival="data.too-little"),
)
DOUBLE = (
    planted("graphs and batch", rows(t.spec("eager", 2.6, cuda_graph=0), t.spec("graph", 2.0, cuda_graph=1), t.spec("eager, eight", 2.3, cuda_graph=0, concurrency=8)), DTYPE, BATCH),
    planted("cache and context", p.LLAMA.but(draft={"max_position_embeddings": 2048}, rows=t.csv(
        t.spec("cold", 2.5, prefix_cache=0, context_length=1000), t.spec("warm", 2.2, prefix_cache=1, context_length=1000), t.spec("cold, long", 1.4, prefix_cache=0, context_length=9000))), CACHE, ROPE),
    planted("grammar and template", rows(t.spec("free", 2.7, grammar=0, outputs_hash="77aa"), t.spec("bound", 2.2, grammar=1, outputs_hash="77aa"),
                                         t.spec("other rendering", 2.3, grammar=0, prompts_hash="a1f0", outputs_hash="31b0")), GRAMMAR, TEMPLATE),
    planted("DP attention and cache", rows(t.spec("neither", 2.7, dp_attention=0, prefix_cache=0), t.spec("dp", 2.0, dp_attention=1, prefix_cache=0), t.spec("cached", 2.4, dp_attention=0, prefix_cache=1)), DP, CACHE),
    planted("one early and a stale cache", p.LLAMA.but(ids=(0, 14, 27), rows=t.pair("prefix_cache", 2.0, 1.7)), "wiring.layer-offset", CACHE),
)
HEALTHY = (
    healthy("prefix cache 2.39 and 2.37", switch("prefix_cache", 2.39, 2.37)),
    healthy("prefix cache, higher with it", switch("prefix_cache", 2.30, 2.41, rounds=None)),
    healthy("2.41 and 2.38 at batch 2 and 32", rows(t.spec("two", 2.41, concurrency=2, rounds=None), t.spec("thirty-two", 2.38, concurrency=32, rounds=None))),
    healthy("graphs as fast again, the accept length alike", rows(t.spec("eager", 2.60, cuda_graph=0, tokens_per_second=60.0), t.spec("graph", 2.61, cuda_graph=1, tokens_per_second=140.0))),
    healthy("temperature 1 below temperature 0, one build", rows(t.spec("greedy", 2.71), t.spec("sampled", 2.20, temperature=1.0))),
    healthy("temperature 1 below temperature 0, two builds alike", builds((2.71, 2.70), (2.30, 2.29))),
    healthy("newer release accepts more", rows(t.spec("older", 2.50, version="0.5.20"), t.spec("newer", 2.80))),
    healthy("0.5.20 and 0.5.23 alike", rows(t.spec("older", 2.62, version="0.5.20"), t.spec("newer", 2.60))),
    healthy("Kimi ids changed with the release, lengths alike", p.KIMI.but(version="0.5.13", rows=t.csv(t.spec("older", 2.9, version="0.5.12"), t.spec("newer", 2.9, version="0.5.13")))),
    healthy("contexts to 16k level, a draft of 32768 positions", lengths({1000: 2.30, 4000: 2.29, 16000: 2.30}, **LONG)),
    healthy("contexts to 2k, a draft of 2048 positions", lengths({500: 2.31, 1000: 2.30, 2000: 2.29}, max_position_embeddings=2048)),
    healthy("images 2.40 and 2.43", rows(t.spec("described", 2.40, images=0, dataset="mmstar"), t.spec("shown", 2.43, images=1, dataset="mmstar", prompts_hash="0b7e"))),
    healthy("grammar on the same text, 2.60 and 2.58", switch("grammar", 2.60, 2.58, outputs_hash="77aa")),
    healthy("one dataset rendered twice, 2.60 and 2.58", rows(t.spec("one", 2.60, rounds=2000), t.spec("two", 2.58, rounds=2000, prompts_hash="a1f0"))),
    healthy("code at 3.2 and chat at 2.5", rows(t.spec("code", 3.2, dataset="humaneval", prompts_hash="c0de"), t.spec("chat", 2.5))),
    healthy("DP attention 2.35 and 2.34", switch("dp_attention", 2.35, 2.34)),
)
ABSTAIN = (
    abstains("prefix cache 2.39 to 2.26 without rounds", switch("prefix_cache", 2.39, 2.26, rounds=None), suspects=MORE),
    abstains("batch 2.41 to 2.27 over 200 rounds", rows(t.spec("two", 2.41, concurrency=2, rounds=200), t.spec("thirty-two", 2.27, concurrency=32, rounds=200)), suspects=MORE),
    abstains("batch 2.5 to 2.1, prompts unrecorded", rows(t.spec("one", 2.5, prompts_hash=None), t.spec("many", 2.1, concurrency=32, prompts_hash=None))),
    abstains("prefix cache 2.6 to 1.9, temperature unknown", switch("prefix_cache", 2.6, 1.9, temperature=None)),
    abstains("grammar 2.6 to 1.7, texts unrecorded", switch("grammar", 2.6, 1.7)),
    abstains("images 2.4 to 1.3, other questions", rows(t.spec("text", 2.4, images=0, dataset=None), t.spec("shown", 1.3, images=1, dataset=None, prompts_hash="0b7e"))),
    abstains("release and environment unrecorded, 2.8 to 2.3", rows(t.spec("older", 2.8, version="0.5.20", env_hash=None), t.spec("newer", 2.3, env_hash=None))),
    abstains("two builds at temperature 1 alone, 2.35 and 1.9", p.VLLM.but(rows=t.csv(t.spec("a", 2.35, temperature=1.0, **VLLM_31), t.spec("b", 1.9, temperature=1.0, **VLLM_32)))),
    abstains("two releases 2.8 to 2.3, the training's ids unknown", rows(t.spec("older", 2.8, version="0.5.20"), t.spec("newer", 2.3), trainer=None, trained=None)),
    abstains("contexts 1k to 8k, 2.3 to 1.7 within the draft's range", lengths({1000: 2.3, 4000: 2.0, 8000: 1.7}, **LONG)),
    abstains("rendered twice, dataset unrecorded, 2.6 and 2.2", rows(t.spec("one", 2.6, dataset=None), t.spec("two", 2.2, dataset=None, prompts_hash="a1f0"))),
)
CASES = (*SWITCHES, *LOADS, *VERSIONS, *CONTEXTS, *DOUBLE, *HEALTHY, *ABSTAIN)
