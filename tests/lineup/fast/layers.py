"""Layer ids in every place and convention: what notebook 01 must say of them."""

from __future__ import annotations

import torch

from tests.lineup import papers as p
from tests.lineup.outcome import abstains, healthy, planted

OFFSET, COUNT, GRAPH, IGNORED = "wiring.layer-offset", "wiring.plane-count", "wiring.graph-default-layers", "wiring.ids-ignored"
PLANTED = (
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
    planted("vLLM 0.20 nested ids are not read", p.VLLM.but(version="0.20.2", ids=(3, 17, 30), place="nested", trainer=("speculators", "0.5.0"), trained=(3, 17, 30)), IGNORED),
    planted("vLLM V2 nested ids are not read", p.VLLM.but(ids=(3, 17, 30), place="nested", env={"VLLM_USE_V2_MODEL_RUNNER": "1"}, trainer=("speculators", "0.5.0"), trained=(3, 17, 30)),
            IGNORED),
    planted("SGLang top-level ids are not read", p.LLAMA.but(ids=(2, 16, 29), place="top", trained=(2, 16, 29)), IGNORED),
    planted("old speculators head without ids on vLLM: one early", p.VLLM.but(ids=None, trainer=("speculators", "0.4.0"), trained=(2, 16, 29, 31)), OFFSET),
    planted("vLLM id listed twice", p.VLLM.but(ids=(2, 2, 29)), COUNT),
    planted("gpt-oss [24,30,36] before 0.5.17", p.GPT_OSS.but(version="0.5.16"), COUNT),
    planted("fc of four planes, three served", p.LLAMA.but(tensors=lambda: p.wide(4)), COUNT),
    planted("Qwen3 MoE ids on 0.5.5: graphs replay the default", p.LLAMA.but(family="qwen3-moe", version="0.5.5", ids=(10, 46, 80), trained=(10, 46, 80)), GRAPH, rival=OFFSET),
    planted("one id beside the default on 0.5.10.post1: graphs replay the default", p.LLAMA.but(version="0.5.10.post1", ids=(1, 15, 27), trained=(1, 15, 27)), GRAPH, rival=OFFSET),
    planted("eagle_config without its list: the default is served", p.LLAMA.but(ids=None, draft={"eagle_config": {"layer_ids": [3, 17, 27]}}, trained=(3, 17, 27)), IGNORED),
    planted("vLLM 0.10.0 reads no ids at all", p.VLLM.but(version="0.10.0", ids=(3, 17, 30), trainer=("speculators", "0.5.0"), trained=(3, 17, 30, 32)), IGNORED),
    planted("TorchSpec's ids for Kimi on vLLM in the place of SGLang's", p.VLLM.but(family="deepseek", version="0.32.0", ids=(3, 31, 59), place="nested", trainer=("torchspec", None), trained=(2, 30, 58)),
            IGNORED),
    planted("fc of 33 planes", p.LLAMA.but(tensors=lambda: p.wide(33)), "wiring.all-layers"),
)
HEALTHY = (
    healthy("Llama, SpecForge ids", p.LLAMA),
    healthy("Llama 0.5.8: graphs replay the default, which is trained", p.LLAMA.but(version="0.5.8")),
    healthy("Llama without ids: the default", p.LLAMA.but(ids=None)),
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
    healthy("GLM-4 MoE, SpecForge's ids", p.LLAMA.but(family="glm4-moe", ids=(1, 22, 42), trained=(1, 22, 42))),
    healthy("MiniMax-M2 of 62 layers on vLLM, boundaries of its layers' outputs", p.VLLM.but(family="minimax", ids=(2, 31, 59), trained=(1, 30, 58))),
    healthy("Qwen2 of 28 layers, AngelSlim", p.LLAMA.but(family="qwen2", ids=(1, 13, 24), trainer=("angelslim", "0.5.0"), trained=(1, 13, 24))),
    healthy("gpt-oss on vLLM, ModelOpt's boundaries at top level", p.VLLM.but(family="gpt-oss", ids=(24, 30, 36), trainer=("modelopt", None), trained=(23, 29, 35))),
    healthy("TensorRT-LLM, ids of its launch", p.LLAMA.but(
        engine="trtllm", version="1.3.0rc27", launch='--speculative_config \'{"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "./drafter", "eagle3_layers_to_capture": [1, 15, 28]}\'')),
    healthy("TensorRT-LLM, its default layers", p.LLAMA.but(
        engine="trtllm", version="1.4.0rc4", ids=None, launch='--speculative_config \'{"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "./drafter"}\'')),
    healthy("five planes on SGLang", p.LLAMA.but(ids=(1, 8, 15, 22, 28), trained=(1, 8, 15, 22, 28), tensors=lambda: p.wide(5))),
    healthy("vLLM 0.10.0 reads no ids, the default is trained", p.VLLM.but(version="0.10.0")),
    healthy("ids in descending order", p.LLAMA.but(ids=(28, 15, 1))),
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
CASES = p.alone(*PLANTED, *HEALTHY, *ABSTAIN)
