"""For the serving host: a connector that writes vLLM's extracted hidden states on any device and on every tensor-parallel rank.

The connector that vLLM ships (`ExampleHiddenStatesConnector`) needs CUDA and writes rank 0 alone; take it where that is enough. This one copies within
the step, so it suits a few prompts, not a data set. Needs vLLM, nothing of this suite. Put the folder of this file on PYTHONPATH of the server, then:

    --speculative-config '{"method": "extract_hidden_states", "num_speculative_tokens": 1,
                           "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}}}'
    --kv-transfer-config '{"kv_connector": "EveryRankStates", "kv_connector_module_path": "vllm_states", "kv_role": "kv_producer",
                           "kv_connector_extra_config": {"shared_storage_path": "/var/tmp/states"}}'
    --no-enable-prefix-caching

Files are `{request}.safetensors` {hidden_states [T, k, H], token_ids [T]}; of several ranks `{request}.rankRofN.safetensors`. Written against vLLM 0.32.0.
"""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)
from vllm.distributed.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)


class _Done:
    """Stands for the CUDA event of a copy that is finished."""

    def query(self):
        return True

    def synchronize(self):
        return None


class EveryRankStates(ExampleHiddenStatesConnector):
    """Every rank writes its copy of the states; the reply names the file of rank 0."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return None

    def get_finished_count(self):
        return self._vllm_config.parallel_config.tensor_parallel_size

    def build_connector_meta(self, scheduler_output):
        meta, ranks = super().build_connector_meta(scheduler_output), self._vllm_config.parallel_config.tensor_parallel_size
        if ranks > 1:
            for request, name in meta.new_req_filenames.items():
                self._request_filenames[request] = meta.new_req_filenames[request] = name.removesuffix(".safetensors") + f".rank0of{ranks}.safetensors"
        return meta

    def _submit_async_write(self, pending):
        rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks.reshape(-1, 1) * self._block_size + torch.arange(self._block_size).reshape(1, -1)).flatten().to(self._kv_cache.device)
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).to("cpu", copy=True).contiguous()
        file = Path(pending.filename.replace(f".rank0of{ranks}.", f".rank{rank}of{ranks}."))
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.tmp")
        save_file({"hidden_states": states, "token_ids": pending.token_ids.clone()}, unfinished)
        unfinished.replace(file)
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is not None:
            os.close(lock)
        self._req_copy_events[pending.req_id] = _Done()
