"""Two links at once in the papers: both must be named."""

from __future__ import annotations

import torch

from tests.evidence.builders import VD, V
from tests.lineup import papers as p
from tests.lineup.fast.heads import bias, tokenizers
from tests.lineup.fast.loading import AWQ, FP8, logged
from tests.lineup.fast.serving import RESET, SPEC_V2, loads, parallel, truncated
from tests.lineup.outcome import planted

OFFSET, COUNT, GRAPH = "wiring.layer-offset", "wiring.plane-count", "wiring.graph-default-layers"
BUDGET, CANNOT_WIN = "args.draft-budget-overridden", "cost.cannot-win"
PLANTED = (
    planted("incident papers: budget, cost and graphs", p.KIMI.but(version="0.5.9", launch=p.sglang_launch(1, 1, 16), rows=p.INCIDENT, **p.OLD_IDS), BUDGET, CANNOT_WIN, GRAPH),
    planted("gpt-oss v3: unreachable id and an unread flag", p.GPT_OSS.but(
        version="0.5.16", draft={"norm_before_fc": True}, tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)})), COUNT, "drafter.norm-flags"),
    planted("one late and a missing map", p.LLAMA.but(ids=(2, 16, 29), tensors=lambda: p.head(d2t=None, t2d=None)), OFFSET, "vocab.map-missing"),
    planted("one early and a budget overridden", p.LLAMA.but(ids=(0, 14, 27), launch=p.sglang_launch(2, 1, 8)), OFFSET, BUDGET),
    planted("algorithm EAGLE and absolute d2t", p.LLAMA.but(
        launch=p.sglang_launch(algorithm="EAGLE"), tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2)), "args.algorithm-mismatch", "vocab.map-semantics"),
    planted("one late, and a bias without its key", p.LLAMA.but(ids=(2, 16, 29), tensors=lambda: bias(0.3)), OFFSET, "drafter.bias"),
    planted("a tree that does not fit on graphs of the default", p.LLAMA.but(version="0.5.8", ids=(3, 10, 20), trained=(3, 10, 20), launch=p.sglang_launch(2, 2, 16)), "args.tree-capacity", GRAPH),
    planted("ids that are not read, and another tokenizer", p.LLAMA.but(ids=(4, 16, 27), place="top", trained=(3, 15, 26), files=tokenizers(p.vocabulary(), p.vocabulary((3, 9), (5, 6)))),
            "wiring.ids-ignored", "vocab.tokenizer"),
    planted("AWQ reaches the draft, whose graphs replay the default", p.LLAMA.but(version="0.5.9", ids=(3, 10, 20), trained=(3, 10, 20), target=AWQ, launch=p.sglang_launch(more="--quantization awq")),
            "load.draft-quantization", GRAPH),
    planted("turned by another theta, and one id late", p.LLAMA.but(ids=(2, 16, 29), trainer=("eagle", None), trained=None, draft={"rope_theta": 500000.0}), "drafter.rope", OFFSET),
    planted("a speculators class, and absolute ids in d2t", p.LLAMA.but(tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2), draft={"architectures": ["Eagle3Speculator"]}),
            "load.architecture", "vocab.map-semantics"),
    planted("48 admitted of 128, and a budget that is not asked for", logged(p.LLAMA.but(launch=p.sglang_launch(3, 1, 8), rows=loads(16, 128)), RESET), "cost.admission-limit", BUDGET),
    planted("stages and graphs: vLLM 0.28 under load", logged(parallel(p.VLLM, "--pipeline-parallel-size 2", version="0.28.0", rows=loads(1, 16, engine="vllm", version="0.28.0")), truncated(32)),
            "feature.missing-stage", "cost.no-cuda-graph"),
    planted("units copied between engines, and one id early", p.LLAMA.but(ids=(0, 14, 27), rows=p.table(p.run("a", 3, "2.41", rounds="400"), "b,vllm,0.32.0,1,4,1,4,400,2.58,,,,")),
            "args.unit-confusion", OFFSET),
    planted("cache scales lost, and a table of noise", p.VLLM.but(
        target=FP8, target_tensors=lambda: {"model.embed_tokens.weight": p.table_of(V), "model.layers.0.self_attn.o_proj.weight": p.builders.weights(16, 16)},
        tensors=lambda: p.embedded(p.table_of(V, 2, noise=True))), "load.kv-scales", "vocab.shared-tables"),
    planted("attention ranks on 0.5.7, whose graphs replay the default", parallel(
        p.QWEN, "--tp 4 --dp-size 4 --enable-dp-attention", version="0.5.7", env=SPEC_V2, ids=(4, 17, 30), trained=(4, 17, 30)), "runtime.dp-attention", GRAPH),
)
CASES = p.alone(*PLANTED)
