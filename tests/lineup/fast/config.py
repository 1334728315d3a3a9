"""Papers, headers and tiny heads: what notebook 01 must say (04 where a table is there)."""

from __future__ import annotations

import torch

from tests.evidence.builders import VD, V
from tests.lineup import papers as p
from tests.lineup.outcome import abstains, healthy, planted

OFFSET, COUNT, GRAPH = "wiring.layer-offset", "wiring.plane-count", "wiring.graph-default-layers"
BUDGET, CANNOT_WIN = "args.draft-budget-overridden", "cost.cannot-win"
ARGUMENTS = (
    planted("budget: 16 asked, steps 1, SGLang 0.5.8", p.LLAMA.but(version="0.5.8", launch=p.sglang_launch(1, 1, 16)), BUDGET),
    planted("budget: 24 asked, steps 4", p.LLAMA.but(launch=p.sglang_launch(4, 1, 24)), BUDGET),
    planted("budget: 2 asked, steps 2 make 3", p.LLAMA.but(launch=p.sglang_launch(2, 1, 2)), BUDGET),
    planted("algorithm EAGLE with an EAGLE-3 head", p.LLAMA.but(launch=p.sglang_launch(algorithm="EAGLE"), tensors=p.head), "args.algorithm-mismatch"),
    planted("tree of 6 nodes asked for 16", p.LLAMA.but(launch=p.sglang_launch(2, 2, 16)), "args.tree-capacity"),
)
LAYERS = (
    planted("Kimi ids [2,30,58] on 0.5.8: graphs replay the default", p.KIMI.but(version="0.5.8", **p.OLD_IDS), GRAPH),
    planted("Kimi ids [2,30,58] on 0.5.13: one early", p.KIMI.but(version="0.5.13", **p.OLD_IDS), OFFSET),
    planted("Kimi ids [2,30,58] on 0.5.23: one early", p.KIMI.but(**p.OLD_IDS), OFFSET),
    planted("Kimi ids [3,31,59] on 0.5.12: one late", p.KIMI.but(version="0.5.12"), OFFSET),
    planted("GLM4 lite [2,23,44] on 0.5.13, trained after those layers", p.LLAMA.but(family="glm4-lite", version="0.5.13", ids=(2, 23, 44), trained=(2, 23, 44)), OFFSET),
    planted("Kimi id -1 on 0.5.8: no residual before layer 0", p.KIMI.but(version="0.5.8", ids=(-1, 2, 30), launch=p.sglang_launch(more="--disable-cuda-graph")), COUNT),
    planted("Kimi id -1 on 0.5.13: two planes", p.KIMI.but(version="0.5.13", ids=(-1, 2, 30), tensors=p.head), COUNT),
    planted("Llama one late", p.LLAMA.but(ids=(2, 16, 29)), OFFSET),
    planted("Llama one early", p.LLAMA.but(ids=(0, 14, 27)), OFFSET),
    planted("Llama ids 0.5.10 graphs replay the default", p.LLAMA.but(version="0.5.10", ids=(3, 10, 20), trained=(3, 10, 20)), GRAPH),
    planted("vLLM V1 with the SGLang spelling", p.VLLM.but(ids=(1, 15, 28), place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "0"}), OFFSET),
    planted("vLLM MiniMax-like ids of layer outputs at top level", p.VLLM.but(ids=(1, 15, 28)), OFFSET),
    planted("vLLM 0.20 nested ids are not read", p.VLLM.but(version="0.20.2", ids=(3, 17, 30), place="nested", trainer=("speculators", "0.5.0"), trained=(3, 17, 30)), "wiring.ids-ignored"),
    planted("vLLM V2 nested ids are not read", p.VLLM.but(ids=(3, 17, 30), place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "1"}, trainer=("speculators", "0.5.0"), trained=(3, 17, 30)),
            "wiring.ids-ignored"),
    planted("SGLang top-level ids are not read", p.LLAMA.but(ids=(2, 16, 29), place="top", trained=(2, 16, 29)), "wiring.ids-ignored"),
    planted("old speculators head without ids on vLLM: one early", p.VLLM.but(ids=None, trainer=("speculators", "0.4.0"), trained=(2, 16, 29, 31)), OFFSET),
    planted("vLLM id listed twice", p.VLLM.but(ids=(2, 2, 29)), COUNT),
    planted("gpt-oss [24,30,36] before 0.5.17", p.GPT_OSS.but(version="0.5.16"), COUNT),
    planted("fc of four planes, three served", p.LLAMA.but(tensors=lambda: p.wide(4)), COUNT),
    planted("fc of 33 planes", p.LLAMA.but(tensors=lambda: p.wide(33)), "wiring.all-layers"),
)
HEADS = (
    planted("no d2t, small head", p.LLAMA.but(tensors=lambda: p.head(d2t=None, t2d=None)), "vocab.map-missing"),
    planted("d2t of absolute ids", p.LLAMA.but(tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2)), "vocab.map-semantics"),
    planted("d2t arange, t2d marks the first ids", p.LLAMA.but(tensors=lambda: p.arange_map(torch.arange(VD // 2)), draft={"draft_vocab_size": VD // 2}), "vocab.map-semantics"),
    planted("d2t with tokens hit twice", p.LLAMA.but(tensors=lambda: p.head(d2t=-(torch.arange(VD) // 2))), "vocab.map-semantics"),
    planted("layer tensors under unknown names", p.LLAMA.but(tensors=lambda: p.renamed("midlayer.", "block.")), "load.tensor-inventory"),
    planted("layers.0 names before 0.5.12", p.LLAMA.but(version="0.5.11", tensors=lambda: p.renamed("midlayer.", "layers.0.")), "load.tensor-inventory"),
    planted("draft of class Qwen3ForCausalLM", p.LLAMA.but(tensors=p.head, draft={"architectures": ["Qwen3ForCausalLM"]}), "load.architecture"),
    planted("norm_before_residual on SGLang", p.LLAMA.but(tensors=p.head, draft={"norm_before_residual": True}), "drafter.norm-flags"),
    planted("norm_before_fc on gpt-oss before 0.5.17", p.GPT_OSS.but(
        version="0.5.16", ids=(1, 17, 32), trainer=("specforge", None), trained=(1, 17, 32), draft={"norm_before_fc": True},
        tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)})), "drafter.norm-flags"),
)
DOUBLE = (
    planted("incident papers: budget, cost and graphs", p.KIMI.but(version="0.5.9", launch=p.sglang_launch(1, 1, 16), rows=p.INCIDENT, **p.OLD_IDS), BUDGET, CANNOT_WIN, GRAPH),
    planted("gpt-oss v3: unreachable id and an unread flag", p.GPT_OSS.but(
        version="0.5.16", draft={"norm_before_fc": True}, tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)})), COUNT, "drafter.norm-flags"),
    planted("one late and a missing map", p.LLAMA.but(ids=(2, 16, 29), tensors=lambda: p.head(d2t=None, t2d=None)), OFFSET, "vocab.map-missing"),
    planted("one early and a budget overridden", p.LLAMA.but(ids=(0, 14, 27), launch=p.sglang_launch(2, 1, 8)), OFFSET, BUDGET),
    planted("algorithm EAGLE and absolute d2t", p.LLAMA.but(
        launch=p.sglang_launch(algorithm="EAGLE"), tensors=lambda: p.head(d2t=torch.arange(VD) + torch.arange(VD) // 2)), "args.algorithm-mismatch", "vocab.map-semantics"),
)
HEALTHY = (
    healthy("Llama, SpecForge ids", p.LLAMA),
    healthy("Llama 0.5.8: graphs replay the default, which is trained", p.LLAMA.but(version="0.5.8")),
    healthy("Llama without ids: the default", p.LLAMA.but(ids=None)),
    healthy("Qwen3, whole head", p.QWEN.but(tensors=p.head)),
    healthy("Qwen3 MoE of 94 layers", p.LLAMA.but(family="qwen3-moe", ids=(1, 46, 90), trained=(1, 46, 90))),
    healthy("Kimi [2,30,58] on 0.5.12", p.KIMI.but(version="0.5.12", **p.OLD_IDS)),
    healthy("Kimi [2,30,58] on 0.5.8, graphs off", p.KIMI.but(version="0.5.8", launch=p.sglang_launch(more="--disable-cuda-graph"), **p.OLD_IDS)),
    healthy("Kimi [3,31,59] on 0.5.13", p.KIMI.but(version="0.5.13")),
    healthy("Kimi [1,29,57] on 0.5.23: the first id 1 switches the rule", p.KIMI.but(ids=(1, 29, 57), trainer=("specforge", None), trained=(1, 29, 57))),
    healthy("GLM4 lite [3,24,45] verbatim", p.LLAMA.but(family="glm4-lite", ids=(3, 24, 45), trained=(2, 23, 44))),
    healthy("gpt-oss [24,30,36] on 0.5.17, speculators ids", p.GPT_OSS.but(trainer=("speculators", "0.5.0"), trained=(24, 30, 36), tensors=p.head)),
    healthy("gpt-oss [24,30,36] on 0.5.17, norm_before_fc", p.GPT_OSS.but(
        draft={"norm_before_fc": True}, tensors=lambda: p.head(**{"input_norm.weight": torch.ones(3 * 16, dtype=torch.bfloat16)}))),
    healthy("gpt-oss [1,17,33] of SpecForge", p.GPT_OSS.but(ids=(1, 17, 33), trainer=("specforge", None), trained=(1, 17, 33))),
    healthy("vLLM top-level boundaries", p.VLLM),
    healthy("vLLM V1 nested boundaries", p.VLLM.but(place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "0"})),
    healthy("vLLM V2: nested ids unread, the default is trained", p.VLLM.but(place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "1"})),
    healthy("vLLM without ids, new speculators", p.VLLM.but(ids=None, trainer=("speculators", "0.5.0"), trained=(2, 16, 29, 32))),
    healthy("vLLM with norm_before_residual", p.VLLM.but(draft={"norm_before_residual": True}, tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("ids in descending order", p.LLAMA.but(ids=(28, 15, 1))),
    healthy("d2t arange, t2d marks the even ids", p.LLAMA.but(tensors=lambda: p.arange_map(2 * torch.arange(VD // 2)), draft={"draft_vocab_size": VD // 2})),
    healthy("whole vocabulary, no map", p.LLAMA.but(draft={"draft_vocab_size": V}, tensors=lambda: p.head(d2t=None, t2d=None, **{"lm_head.weight": p.builders.weights(V, p.builders.H)}))),
    healthy("layers.0 names from 0.5.12", p.LLAMA.but(version="0.5.12", tensors=lambda: p.renamed("midlayer.", "layers.0."))),
    healthy("tree within its capacity", p.LLAMA.but(launch=p.sglang_launch(3, 4, 16))),
)
ABSTAIN = (
    abstains("nothing but a name", p.nothing),
    abstains("no engine", p.LLAMA.but(engine=None, version=None, launch=None)),
    abstains("no version", p.LLAMA.but(version=None)),
    abstains("the training's ids are not known", p.LLAMA.but(trainer=None, trained=None)),
    abstains("a trainer without a known convention", p.LLAMA.but(trainer=("other", None))),
    abstains("a version from the future", p.KIMI.but(version="0.9.0", **p.OLD_IDS)),
    abstains("the trainer's version is not known, its rule changed between versions", p.LLAMA.but(trainer=("speculators", None), trained=(1, 15, 28, 31))),
    abstains("drafter folder absent", p.LLAMA.but(case={"drafter": {"path": "./draft"}}), "ERROR"),
)
CASES = (*ARGUMENTS, *LAYERS, *HEADS, *DOUBLE, *HEALTHY, *ABSTAIN)
