"""NVIDIA Model-Optimizer's dumps (`{conversation_id}.pt`; `compute_hidden_states_{hf,vllm,trtllm}.py`, 0.47).

A loss mask came later and is missing in those of TensorRT-LLM.
"""

from eagle_forensics.evidence.layouts.parts import Layout, has_rank, pair

MODELOPT = Layout(
    "modelopt", "`hidden_states` [T, H] with `aux_hidden_states` [T, n*H]",
    lambda c: has_rank(c, "hidden_states", 2) and has_rank(c, "aux_hidden_states", 2),
    lambda c, _: pair(c, "aux_hidden_states", "hidden_states"))
