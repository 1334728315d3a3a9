"""What a server's flags and start-up lines say of the load it takes, of its graphs and of parallel modes: what notebook 01 must say (04 where a table is there)."""

from __future__ import annotations

from typing import Any

from tests.lineup import papers as p
from tests.lineup.fast.loading import logged
from tests.lineup.outcome import abstains, healthy, planted

ADMISSION, GRAPHS, STAGE, ATTENTION = "cost.admission-limit", "cost.no-cuda-graph", "feature.missing-stage", "runtime.dp-attention"
RESET = "[2026-05-05 06:16:40] Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting --max-running-requests.\n"
SPEC_V2 = {"SGLANG_ENABLE_SPEC_V2": "1"}
SEES = {"vision_config": {"depth": 32}, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}}
DEEPSEEK = p.KIMI.but(version="0.5.12", ids=(2, 30, 58))


def decoding(running: int, waiting: int, lines: int = 3) -> str:
    return lines * (f"[2026-05-05 06:17:02 TP0] Decode batch, #running-req: {running}, #token: 9000, token usage: 0.10, accept len: 2.40, accept rate: 0.47, "
                    f"cuda graph: True, gen throughput (token/s): 2100.00, #queue-req: {waiting}\n")


def truncated(tokens: int) -> str:
    return f"WARNING 07-05 08:51:36 [vllm.py:1719] Truncating max_cudagraph_capture_size to {tokens}\n"


def fallback(mode: str, backend: str = "FlashInferBackend") -> str:
    return (f"WARNING 07-05 08:51:36 [compilation.py:1190] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend {backend} "
            f"(support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode={mode}\n")


def loads(*concurrency: int, engine: str = "sglang", version: str = "0.5.23", drafts: int = 3) -> str:
    tokens = drafts + 1 if engine == "sglang" else drafts
    return p.table(*(f"c{n},{engine},{version},1,{drafts},1,{tokens},400,2.40,,,,{n}" for n in concurrency))


def on(papers: p.Papers, capability: str) -> p.Papers:
    """On GPUs of this compute capability."""
    serving = {"engine": papers.engine, "version": papers.version, "launch": papers.launch, "hardware": {"compute_capability": capability, "count": 8}}
    return papers.but(case={"serving": serving})


def parallel(papers: p.Papers, more: str, **changes: Any) -> p.Papers:
    return papers.but(**changes, launch=f"{papers.launch} {more}")


PLANTED = (
    planted("48 admitted of 128", logged(p.LLAMA.but(rows=loads(16, 128)), RESET), ADMISSION, rival="cost.concurrency"),
    planted("48 run and 6 wait in the log", logged(p.LLAMA, RESET + decoding(20, 0) + decoding(48, 6)), ADMISSION, rival="cost.concurrency"),
    planted("graphs of 8 tokens, 4 requests of 4 tokens", logged(p.VLLM.but(rows=loads(1, 4, engine="vllm", version="0.32.0")), truncated(8)), GRAPHS, rival="nccl.graph-fallback"),
    planted("graphs of 60 tokens, 16 requests of 4 tokens", logged(p.VLLM.but(rows=loads(1, 16, engine="vllm", version="0.32.0")), truncated(60)), GRAPHS, rival="nccl.graph-fallback"),
    planted("graphs of 8 requests on the launch line, 32 at once", parallel(p.LLAMA, "--cuda-graph-max-bs 8", rows=loads(1, 32)), GRAPHS, rival="nccl.graph-fallback"),
    planted("capture sizes that end at 16 tokens, 8 requests at once", parallel(p.VLLM, """--compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}'""",
            rows=loads(8, engine="vllm", version="0.32.0")), GRAPHS),
    planted("no graph at all, says vLLM", logged(p.VLLM, fallback("NONE", "TritonAttentionBackend")), GRAPHS),
    planted("two stages on vLLM 0.28", parallel(p.VLLM, "--pipeline-parallel-size 2", version="0.28.0"), STAGE, rival="wiring.plane-count"),
    planted("four stages on vLLM 0.22", parallel(p.VLLM.but(family="qwen3", ids=(2, 18, 33), trained=(1, 17, 32)), "--pipeline-parallel-size 4", version="0.22.1"), STAGE,
            rival="wiring.plane-count"),
    planted("two stages of a DeepSeek target on vLLM 0.31", parallel(p.VLLM.but(family="deepseek", ids=(3, 31, 59), trained=(2, 30, 58)), "--pipeline-parallel-size 2", version="0.31.0"),
            "args.refused", rival=STAGE),
    planted("four attention ranks on SGLang 0.5.7", parallel(p.QWEN, "--tp 4 --dp-size 4 --enable-dp-attention", version="0.5.7", env=SPEC_V2), ATTENTION, rival="wiring.plane-count"),
    planted("attention ranks and expert all-to-all on 0.5.9", parallel(
        p.KIMI.but(ids=(1, 29, 57), trained=(1, 29, 57), trainer=("specforge", None)), "--tp 16 --dp-size 4 --enable-dp-attention --moe-a2a-backend deepep", version="0.5.9"), ATTENTION),
)
HEALTHY = (
    healthy("128 asked for and 128 sent", logged(parallel(p.LLAMA, "--max-running-requests 128", rows=loads(16, 128)), decoding(96, 0))),
    healthy("48 admitted, 32 sent", logged(p.LLAMA.but(rows=loads(1, 32)), RESET + decoding(32, 0))),
    healthy("48 run, nobody waits", logged(p.LLAMA, RESET + decoding(48, 0))),
    healthy("20 run and some wait for memory", logged(p.LLAMA, RESET + decoding(20, 3))),
    healthy("graphs of 32 tokens, 8 requests of 4 tokens", logged(p.VLLM.but(rows=loads(1, 8, engine="vllm", version="0.32.0")), truncated(32))),
    healthy("graphs of 8 tokens, one request at a time", logged(p.VLLM, truncated(8))),
    healthy("full graphs for decode alone", logged(p.VLLM, fallback("FULL_DECODE_ONLY"))),
    healthy("graphs off on purpose, vLLM", parallel(p.VLLM, "--enforce-eager", rows=loads(8, engine="vllm", version="0.32.0"))),
    healthy("graphs of 48 requests, 128 sent, 48 admitted as asked", parallel(p.LLAMA, "--cuda-graph-max-bs 48 --max-running-requests 48", rows=loads(128))),
    healthy("two stages on vLLM 0.30", parallel(p.VLLM, "--pipeline-parallel-size 2", version="0.30.0")),
    healthy("four attention ranks on SGLang 0.5.8", parallel(p.QWEN, "--tp 4 --dp-size 4 --enable-dp-attention", version="0.5.8", env=SPEC_V2)),
    healthy("attention ranks and expert all-to-all on 0.5.12", parallel(DEEPSEEK, "--tp 16 --dp-size 4 --enable-dp-attention --moe-a2a-backend deepep")),
    healthy("four attention ranks on a newer release that was not read", parallel(
        p.QWEN, "--tp 4 --dp-size 4 --enable-dp-attention", version="0.5.12.post9")),
    healthy("one attention rank is none", parallel(p.QWEN, "--tp 4 --enable-dp-attention", version="0.5.7", env=SPEC_V2)),
    healthy("images on 0.5.23, three positions on both sides", p.LLAMA.but(family="qwen2.5-vl", target=SEES, draft={"rope_scaling": SEES["rope_scaling"]}, ids=(1, 13, 24), trained=(1, 13, 24))),
    healthy("all-reduce fused on 0.5.14, captured whole", on(parallel(DEEPSEEK.but(ids=(3, 31, 59)), "--tp 8", version="0.5.14"), "9.0")),
    healthy("no fusion on compute capability 12", on(parallel(DEEPSEEK, "--tp 8"), "12.0")),
    healthy("the fusion switched off", on(parallel(DEEPSEEK, "--tp 8 --enforce-disable-flashinfer-allreduce-fusion"), "9.0")),
    healthy("speculation off, an old log line of another start", logged(p.VLLM.but(rows=loads(1, 2, engine="vllm", version="0.32.0")), truncated(512))),
)
ABSTAIN = (
    abstains("128 sent, the log is not at hand", p.LLAMA.but(rows=loads(16, 128))),
    abstains("attention outside of the graphs, no measurement", logged(p.VLLM, fallback("PIECEWISE"))),
    abstains("two stages of a target that was not read", parallel(p.VLLM.but(family="minimax", ids=(2, 31, 59), trained=(1, 30, 58)), "--pipeline-parallel-size 2")),
    abstains("two stages on a vLLM that was not read", parallel(p.VLLM, "--pipeline-parallel-size 2", version="0.16.0")),
    abstains("images on 0.5.9, no measurement with any", p.LLAMA.but(family="qwen2.5-vl", version="0.5.9", target=SEES, draft={"rope_scaling": SEES["rope_scaling"]}, ids=(1, 13, 24),
             trained=(1, 13, 24))),
    abstains("all-reduce fused on 0.5.12, no captures of two ranks", on(parallel(DEEPSEEK, "--tp 8"), "9.0")),
    abstains("all-reduce fused by its flag, GLM-4 MoE on 0.5.16", on(parallel(p.LLAMA.but(family="glm4-moe", version="0.5.16", ids=(1, 22, 42), trained=(1, 22, 42)),
             "--tp 4 --enable-flashinfer-allreduce-fusion"), "10.0")),
    abstains("attention ranks on a release that was not read", parallel(p.QWEN, "--tp 4 --dp-size 4 --enable-dp-attention", version="0.5.7.post3", env=SPEC_V2)),
)
CASES = p.alone(*PLANTED, *HEALTHY, *ABSTAIN)
