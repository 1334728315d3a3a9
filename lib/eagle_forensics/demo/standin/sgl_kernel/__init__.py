"""Plain-torch stand-in for the compiled `sgl_kernel`: what SGLang 0.5.23 imports from it on a CPU to serve EAGLE-3.

PyPI holds no CPU build of `sgl_kernel`, and the unmodified SGLang wheel does not start on a CPU without one. The folder above
this package goes on PYTHONPATH of the served process only, so that a real installation is never shadowed elsewhere. Shapes and
meaning of every function follow the call sites in the wheel; the token tree follows SGLang's algorithm (sgl-kernel
`eagle_utils`, Apache License 2.0, by the SGLang team), written anew here. No speed is claimed.

`convert_weight_packed` is left out on purpose: its presence switches SGLang to the AMX weight layout.
"""

from .attention import decode_attention, extend_attention, register
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+plain.torch"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu", "assign_extend_cache_locs_cpu", "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu", "build_tree_kernel_efficient_cpu", "copy_all_layer_kv_cache_cpu",
    "decode_attention", "extend_attention", "fill_accept_out_cache_loc_cpu", "fill_bonus_tokens_cpu", "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu"]

register()
