"""For how many aux planes an engine builds the draft's fc, by the draft's config alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_forensics.engines import sglang
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import nearest, since
from eagle_forensics.evidence.records import MOST_IDS

_IDS = "eagle_aux_hidden_state_layer_ids"


def fc_planes(engine: str, version: str, config: Mapping[str, Any], *, mla: bool) -> int | None:
    """Aux planes for which the engine builds fc, whatever the checkpoint holds; None where it is not written down. `config` as in the file."""
    rules = table("sglang")
    if engine != "sglang" or mla or not since(rules["width_from_ids_since"], nearest(engine, version, sglang.releases()).release):
        return None
    nested = config.get("eagle_config")
    listed = nested.get(_IDS) if isinstance(nested, Mapping) else None
    return planes_of({"num_aux_hidden_states": config.get("num_aux_hidden_states"), _IDS: listed})


def planes_of(config: Mapping[str, Any]) -> int:
    """Aux planes an engine builds fc for: num_aux_hidden_states, else as many as there are ids, else 3 (sglang 0.5.23 llama_eagle3.py:157)."""
    said, ids = config.get("num_aux_hidden_states"), config.get(_IDS)
    count = said if isinstance(said, int) and said > 0 else len(ids) if isinstance(ids, list) and ids else 3
    return min(count, MOST_IDS)
