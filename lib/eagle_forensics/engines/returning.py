"""How must a server be started so that it hands out the states a drafter is fed? The launch line, by engine and release.

SGLang joins the aux planes into `meta_info.hidden_states` wherever it captures them (layers/logits_processor.py, 0.4.9 to 0.5.23): a server with its
EAGLE-3 drafter needs one flag more; without a drafter it captures since 0.5.23 only, without one an older release returns the last state.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_forensics.engines.versions import version_key
from eagle_forensics.evidence.live import LiveServer

ONHOST = Path(__file__).parent / "onhost"
"""Files for the serving host: `fed_hook.py` (any path into the drafter's fc), `vllm_states.py` (vLLM without CUDA, or every rank)."""
RETURN, NO_CACHE = "--enable-return-hidden-states", "--disable-radix-cache"
CAPTURE_SINCE = "0.5.23"
HOW_EAGER = "This proves one path alone: prefill, on this server, with these arguments."
HOW_DECODE = ("Decode is proven by other means: equal accept lengths on the same prompts with and without --disable-cuda-graph (vLLM: --enforce-eager), or a server "
              "patched to copy the state inside its CUDA graph and to write the copy after the replay.")


def how_to_return(server: LiveServer, ids: Sequence[int] | None = None) -> str:
    """What to start the server with, ready to be pasted. `ids`: layer ids as the engine spells them."""
    given = server.arguments.arguments if server.arguments else {}
    target = str(given.get("model_path") or given.get("model") or "TARGET")
    if server.engine == "vllm":
        return _vllm(target, ids)
    spelled = " ".join(map(str, ids)) if ids else "ID ID ID"
    line = server.asked.argv if server.asked else None
    own = "python -m sglang.launch_server " + shlex.join([*line, *(f for f in (RETURN, NO_CACHE) if f not in line)]) if line else f"its own arguments, and {RETURN} {NO_CACHE}"
    if _speculates(given):
        return f"Restart it with: {own}"
    without = (f"python -m sglang.launch_server --model-path {shlex.quote(target)} --speculative-algorithm EAGLE3 --enable-return-aux-hidden-states "
               f"--return-aux-hidden-state-layer-ids {spelled} {NO_CACHE}")
    text = f"Start SGLang with its drafter (--speculative-algorithm EAGLE3 --speculative-draft-model-path ...) and {RETURN} {NO_CACHE}"
    return text + (f"; or, without a drafter: {without}" if _captures_alone(server.version) else
                   f"; without a drafter this release returns the last state only (states of chosen layers since {CAPTURE_SINCE}: {without})")


def _vllm(target: str, ids: Sequence[int] | None) -> str:
    layers = list(ids) if ids else "[ID, ID, ID]"
    return (f"Start vLLM with: python -m vllm.entrypoints.openai.api_server --model {shlex.quote(target)} --no-enable-prefix-caching "
            f"""--speculative-config '{{"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {{"hf_config": {{"eagle_aux_hidden_state_layer_ids": {layers}}}}}}}' """
            """--kv-transfer-config '{"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {"shared_storage_path": "FOLDER"}}' """
            f"(without CUDA, or for every rank: the connector in {ONHOST / 'vllm_states.py'})")


def _speculates(given: Mapping[str, Any]) -> bool:
    return str(given.get("speculative_draft_model_path") or "") not in ("", "None")


def _captures_alone(version: str | None) -> bool:
    try:
        return version is not None and version_key(version) >= version_key(CAPTURE_SINCE)
    except ValueError:
        return False
