"""Launch lines: what notebook 01 must say of them (04 where a table is there)."""

from __future__ import annotations

import json

from tests.lineup import papers as p
from tests.lineup.outcome import abstains, healthy, planted

BUDGET, REFUSED, TREE, MISMATCH, UNITS = "args.draft-budget-overridden", "args.refused", "args.tree-capacity", "args.algorithm-mismatch", "args.unit-confusion"
TRTLLM = p.LLAMA.but(engine="trtllm", version="1.4.0rc4", launch="--speculative_config '{\"decoding_type\": \"Eagle3\", \"max_draft_len\": 3, \"speculative_model\": \"./drafter\"}'")


def speculative(**fields: object) -> str:
    return f"--model ./target --speculative-config '{json.dumps({'method': 'eagle3', 'model': './drafter', 'num_speculative_tokens': 3} | fields)}'"


def vllm_run(label: str, drafts: int, length: str) -> str:
    return f"{label},vllm,0.32.0,1,{drafts},1,{drafts},400,{length},,,,"


PLANTED = (
    planted("budget: 16 asked, steps 1, SGLang 0.5.8", p.LLAMA.but(version="0.5.8", launch=p.sglang_launch(1, 1, 16)), BUDGET),
    planted("budget: 24 asked, steps 4", p.LLAMA.but(launch=p.sglang_launch(4, 1, 24)), BUDGET),
    planted("budget: 2 asked, steps 2 make 3", p.LLAMA.but(launch=p.sglang_launch(2, 1, 2)), BUDGET),
    planted("algorithm EAGLE with an EAGLE-3 head", p.LLAMA.but(launch=p.sglang_launch(algorithm="EAGLE"), tensors=p.head), MISMATCH, rival="vocab.map-missing"),
    planted("algorithm NEXTN with an EAGLE-3 head", p.LLAMA.but(launch=p.sglang_launch(algorithm="NEXTN"), tensors=p.head), MISMATCH, rival="vocab.map-missing"),
    planted("EAGLE3 without a draft path", p.LLAMA.but(launch="--model-path ./target --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1"), MISMATCH),
    planted("vLLM: no method, and a path that names none", p.VLLM.but(
        launch='--model ./target --speculative-config \'{"model": "./drafter", "num_speculative_tokens": 3}\'', draft={"architectures": ["LlamaForCausalLM"]}, tensors=p.head), MISMATCH),
    planted("tree of 6 nodes asked for 16", p.LLAMA.but(launch=p.sglang_launch(2, 2, 16)), TREE, rival=BUDGET),
    planted("tree of 10 nodes asked for 12 tokens", p.LLAMA.but(launch=p.sglang_launch(3, 2, 12)), TREE, rival=BUDGET),
    planted("tree on pages of 64 without a backend for it", p.LLAMA.but(version="0.5.5", launch=p.sglang_launch(3, 4, 16, more="--page-size 64 --attention-backend fa3")), TREE, rival=BUDGET),
    planted("tree on trtllm_mha", p.LLAMA.but(launch=p.sglang_launch(3, 2, 8, more="--attention-backend trtllm_mha")), TREE),
    planted("TensorRT-LLM tree of 3 x 4 nodes asked for 20", TRTLLM.but(launch="--speculative_config '{\"decoding_type\": \"Eagle3\", \"max_draft_len\": 3, "
            "\"speculative_model\": \"./drafter\", \"use_dynamic_tree\": true, \"dynamic_tree_max_topK\": 4, \"max_total_draft_tokens\": 20}'"), TREE),
    planted("steps without topk", p.LLAMA.but(launch="--model-path ./target --speculative-algorithm EAGLE3 --speculative-draft-model-path ./drafter --speculative-num-steps 3"), REFUSED, rival=TREE),
    planted("draft tokens without steps", p.LLAMA.but(
        launch="--model-path ./target --speculative-algorithm EAGLE3 --speculative-draft-model-path ./drafter --speculative-num-draft-tokens 4"), REFUSED, rival=TREE),
    planted("two pipeline stages on SGLang 0.5.10", p.LLAMA.but(version="0.5.11", launch=p.sglang_launch(more="--pp-size 2")), REFUSED, rival=TREE),
    planted("a flag of 0.5.7 on 0.5.6", p.LLAMA.but(version="0.5.6", launch=p.sglang_launch(more="--speculative-draft-model-quantization unquant")), REFUSED),
    planted("rejection sampling with a tree", p.LLAMA.but(launch=p.sglang_launch(3, 2, 8, more="--speculative-use-rejection-sampling")), REFUSED),
    planted("a plain head under an MLA backend", p.KIMI.but(version="0.5.14", ids=(3, 31, 59), draft={}, launch=p.sglang_launch(more="--attention-backend trtllm_mla")), REFUSED),
    planted("a step count of words", p.LLAMA.but(launch=p.sglang_launch().replace("num-steps 3", "num-steps three")), REFUSED),
    planted("vLLM: tensor_parallel_size inside of the speculative config", p.VLLM.but(launch=speculative(tensor_parallel_size=4) + " --tensor-parallel-size 4"), REFUSED, rival=TREE),
    planted("vLLM: no draft token", p.VLLM.but(launch=speculative(num_speculative_tokens=0)), REFUSED),
    planted("vLLM: a draft on 2 of 4 ranks", p.VLLM.but(launch=speculative(draft_tensor_parallel_size=2) + " --tensor-parallel-size 4"), REFUSED),
    planted("TensorRT-LLM without a draft length", TRTLLM.but(launch="--speculative_config '{\"decoding_type\": \"Eagle3\", \"speculative_model\": \"./drafter\"}'"), REFUSED),
    planted("4 draft tokens in SGLang and in vLLM", p.LLAMA.but(rows=p.table(p.run("a", 3, "2.41", rounds="400"), vllm_run("b", 4, "2.58"))), UNITS, rival="measure.definition"),
    planted("2 and 8 draft tokens in both engines", p.LLAMA.but(rows=p.table(
        p.run("a", 1, "1.62", rounds="400"), p.run("b", 7, "2.90", rounds="400"), vllm_run("c", 2, "1.97"), vllm_run("d", 8, "2.93"))), UNITS, rival="measure.definition"),
)
HEALTHY = (
    healthy("tree within its capacity", p.LLAMA.but(launch=p.sglang_launch(3, 4, 16))),
    healthy("tree of 10 nodes asked for 11 tokens", p.LLAMA.but(launch=p.sglang_launch(3, 2, 11))),
    healthy("tree on pages of 64 with fa3 from 0.5.6", p.LLAMA.but(version="0.5.8", launch=p.sglang_launch(3, 4, 16, more="--page-size 64 --attention-backend fa3"))),
    healthy("all three numbers left to SGLang", p.QWEN.but(launch="--model-path ./target --speculative-algorithm EAGLE3 --speculative-draft-model-path ./drafter")),
    healthy("a token map beside EAGLE3 is ignored, as the head has its own", p.LLAMA.but(launch=p.sglang_launch(more="--speculative-token-map ./map.pt"))),
    healthy("lower-case algorithm from 0.5.12", p.LLAMA.but(launch=p.sglang_launch(algorithm="eagle3"))),
    healthy("vLLM: a draft on one rank of four", p.VLLM.but(launch=speculative(draft_tensor_parallel_size=1) + " --tensor-parallel-size 4")),
    healthy("4 tokens in SGLang, 3 in vLLM: three drafts each", p.LLAMA.but(rows=p.table(p.base("100"), p.run("a", 3, "2.41", "150", rounds="400"), vllm_run("b", 3, "2.44")))),
)
ABSTAIN = (
    abstains("a step count that only the shell knows", p.LLAMA.but(launch=p.sglang_launch().replace("num-steps 3", "num-steps $STEPS"))),
    abstains("a refusal that was read for another release", p.LLAMA.but(version="0.9.1", ids=(1, 15, 28), launch=p.sglang_launch(more="--pp-size 2"))),
)
CASES = p.alone(*PLANTED, *HEALTHY, *ABSTAIN)
