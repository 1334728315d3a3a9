"""SGLang's `/generate` replies with `return_hidden_states`, as JSON: one, or a list of them (0.5.20 and later).

`meta_info.hidden_states` is `[[T][W], [W], [W], ...]`: the prompt's rows, then one row a decoded token. `W` is the width of the joined aux planes where the
server captures them, else H. The prompt's ids are used where they were saved beside the reply (`input_ids`, `prompt_token_ids`, `request.input_ids`).
The loss mask marks the decoded rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import NOTHING, Layout, Parts


def _members(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


def states_of(reply: Any) -> list[Any] | None:
    """The rows of a reply, bare or under `response`; None if it has none."""
    inner = reply.get("response", reply) if isinstance(reply, Mapping) else None
    meta = inner.get("meta_info") if isinstance(inner, Mapping) else None
    found = meta.get("hidden_states") if isinstance(meta, Mapping) else None
    return found if isinstance(found, list) and found else None


def _read(reply: Any, _: Path) -> Parts:
    found = states_of(reply)
    if found is None:
        raise ValueError("a reply has no `meta_info.hidden_states`: start the server with --enable-return-hidden-states (or "
                         "--enable-return-aux-hidden-states) and send \"return_hidden_states\": true")
    try:
        prompt = torch.tensor(found[0], dtype=torch.float32)
        if prompt.dim() != 2 or not prompt.numel():
            raise ValueError(f"the prompt's states have the shape {list(prompt.shape)}")
        decoded = [torch.tensor(row, dtype=torch.float32).reshape(-1, prompt.shape[1]) for row in found[1:]]
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{str(error)[:120]}; expected prompt rows [T][W], then one row [W] a decoded token") from None
    states = torch.cat([prompt, *decoded])
    mask = torch.arange(states.shape[0]) >= prompt.shape[0]
    return Parts([(None, states)], _ids(reply, prompt.shape[0], states.shape[0]), mask, replace(NOTHING, engine="sglang"))


def _ids(reply: Mapping[str, Any], prompt: int, length: int) -> torch.Tensor | None:
    """Token ids of the rows, where the prompt's ids were saved beside the reply; all of them where the prompt has fewer rows (a cached prefix) and
    `cached_tokens` does not say from which token on."""
    request = reply.get("request")
    asked = reply.get("input_ids") or reply.get("prompt_token_ids") or (request.get("input_ids") if isinstance(request, Mapping) else None)
    made = reply.get("response", reply).get("output_ids") or []
    if not isinstance(asked, list) or not isinstance(made, list) or len(asked) < prompt:
        return None
    missing = len(asked) - prompt
    ids = [*asked, *made][: missing + length]
    if len(ids) != missing + length or not all(type(i) is int and abs(i) < 1 << 63 for i in ids):
        return None
    return torch.tensor(ids[missing:] if missing == reply.get("response", reply)["meta_info"].get("cached_tokens") else ids)


SGLANG_REPLY = Layout("sglang_reply", "JSON with `meta_info.hidden_states`", lambda c: any(states_of(reply) for reply in _members(c)), _read, members=_members)
