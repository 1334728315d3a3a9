"""TensorRT-LLM: launch flags and the speculative_config of its YAML file to effective ones. Tables: `trtllm_args.toml`.

The YAML file itself is not read here: its section is given as `--speculative_config '{...}'`, as JSON, which is no flag of trtllm-serve.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.engines.answers import ArgsAnswer, Message
from eagle_forensics.engines.argv import parse_argv
from eagle_forensics.engines.tables import current, table
from eagle_forensics.engines.versions import version_key

TABLE = "trtllm_args"


class _Refused(Exception):
    """What the configuration class raises."""

    def __init__(self, text: str, kind: str = "value") -> None:
        super().__init__(text)
        self.kind = kind


def resolve(version: str, argv: Sequence[str], *, architecture: str | None = None, draft_architecture: str | None = None,
            model_type: str | None = None, env: Mapping[str, str] | None = None) -> ArgsAnswer:
    """What TensorRT-LLM `version` makes of these flags; the target's class and the environment change nothing that was read."""
    rules = table(TABLE)
    version_key(version)
    row = current(rules["generation"], version)
    parsed = parse_argv(argv, rules["flags"], rules["aliases"])
    assumed = version_key(version) not in {version_key(known) for known in rules["documented"]}
    messages = [Message("note", note) for note in parsed.notes]
    if assumed:
        messages.insert(0, Message("note", f"TensorRT-LLM {version} was not read as a release; the rules of the {row['from']} generation are assumed"))
    raw: dict[str, Any] = dict(parsed.raw)
    error, kind = "; ".join(parsed.errors) or None, "usage" if parsed.errors else None
    effective = {
        "algorithm": None, "num_steps": None, "topk": None, "num_draft_tokens": None, "max_accept_length": 1, "max_running_requests": raw.get("max_batch_size"),
        "tp_size": raw.get("tp_size") or 1, "context_length": raw.get("max_seq_len"), "draft_model_path": None}
    try:
        spec = _spec(raw) if error is None else None
        if spec is not None:
            raw["speculative_config"] = spec
            effective.update(_eagle(spec, row, messages, assumed) or {"algorithm": spec.get("decoding_type"), "max_accept_length": None})
        elif error is None and not parsed.open:
            file = raw.get("config") or raw.get("extra_llm_api_options")
            messages.append(Message("note", f"speculation is set up in {file}, which is not read here: give its speculative_config as JSON to --speculative_config"
                                    if file else "no speculative_config: the server does not speculate"))
    except _Refused as refused:
        error, kind = str(refused), refused.kind
    return ArgsAnswer("trtllm", version, raw, effective, tuple(messages), error, (rules["source"],), assumed, refusal=kind,
                      open=tuple(parsed.open))


def _spec(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    text = raw.get("speculative_config")
    if text is None:
        return None
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise _Refused(f"speculative_config is not JSON ({error.msg} at column {error.colno}): {text[:80]!r}", "usage") from None
    if not isinstance(spec, dict):
        raise _Refused(f"speculative_config must be an object; got {type(spec).__name__}", "usage")
    return spec


def _eagle(spec: Mapping[str, Any], row: Mapping[str, Any], messages: list[Message], assumed: bool) -> dict[str, Any] | None:
    """The settings of an EAGLE-3 config; None for another decoding type."""
    types, kind = table(TABLE)["types"], spec.get("decoding_type")
    if kind in types["other"]:
        messages.append(Message("note", f"the rules of decoding_type {kind} are not written down; its fields are left as written"))
        return None
    if kind not in types["eagle3"] or (kind == "Eagle3" and not row["eagle3_type"]):
        raise _Refused(f"ValueError: Invalid decoding type: {kind}" + (" (this generation calls it Eagle)" if kind == "Eagle3" else ""))
    if kind == "Eagle" and row["eagle3_type"]:
        messages.append(Message("note", "decoding_type Eagle is read as Eagle3 by the PyTorch backend; checkpoints of EAGLE 1 and 2 do not fit"))
    for name in spec:
        if name not in row["fields"]:
            near = difflib.get_close_matches(name, row["fields"], n=1, cutoff=0.75)
            said = f"ValidationError: speculative_config.{name}: Extra inputs are not permitted" + (f" (did you mean {near[0]}?)" if near else "")
            if not assumed:
                raise _Refused(said)
            messages.append(Message("note", f"possible {said}"))
    _whole_numbers(spec, ("max_draft_len", "max_total_draft_tokens", "dynamic_tree_max_topK"))
    length = spec.get("max_draft_len")
    if not length:
        raise _Refused("ValueError: max_draft_len must be > 0 for Eagle" if row["eagle3_type"] else "AssertionError: max_draft_len is required for Eagle")
    model = spec.get("speculative_model") or spec.get("speculative_model_dir")
    if model is None:
        raise _Refused("ValueError: Draft model must be provided for EAGLE")
    if spec.get("max_concurrency") is not None and spec.get("draft_len_schedule") is not None:
        raise _Refused("ValueError: max_concurrency and draft_len_schedule are mutually exclusive.")
    length, topk, total = _tree(spec, length, row, messages)
    return {
        "algorithm": "EAGLE3", "num_steps": length, "topk": topk, "num_draft_tokens": total, "max_accept_length": length + 1, "draft_model_path": str(model),
        "one_model": _one_model(spec, row, messages), "layers_to_capture": _layers(spec, messages)}


def _whole_numbers(spec: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        value = spec.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise _Refused(f"ValidationError: speculative_config.{name}: Input should be a valid integer, 0 or more; got {value!r}")


def _tree(spec: Mapping[str, Any], length: int, row: Mapping[str, Any], messages: list[Message]) -> tuple[int, int | None, int]:
    """(draft length, topk, drafts a round): a chain, a static tree or a dynamic one."""
    choices, topk, dynamic = spec.get("eagle_choices"), spec.get("dynamic_tree_max_topK"), bool(spec.get("use_dynamic_tree"))
    total = spec.get("max_total_draft_tokens")
    if topk is not None and not dynamic:
        dynamic = row["topk_alone"] == "tree"
        messages.append(Message("note", f"dynamic_tree_max_topK without use_dynamic_tree {'switches the dynamic tree on' if dynamic else 'is ignored: a chain is drafted'}"))
    if choices is not None:
        if dynamic:
            raise _Refused("ValueError: If eagle_choices is provided, use_dynamic_tree should be False", "tree")
        return _static(choices, length, messages)
    if not dynamic:
        return length, 1, total or length
    if not topk:
        raise _Refused("ValueError: dynamic_tree_max_topK should be provided, which indicates the number of nodes to expand each time", "tree")
    if total is None:
        if row["total_required"]:
            raise _Refused("AssertionError: max_total_draft_tokens should be provided, which indicates the total nodes of the final draft tree. (exclude the root node)", "tree")
        total = topk * length
        messages.append(Message("warning", f"max_total_draft_tokens is not provided, use the default value {total} "
                                           "(default_max_total_draft_tokens = dynamic_tree_max_topK * max_draft_len)"))
    elif not row["total_required"] and not length <= total <= topk * length:
        raise _Refused(f"ValueError: max_total_draft_tokens ({total}) must lie between max_draft_len ({length}) and dynamic_tree_max_topK * max_draft_len ({topk * length})", "tree")
    messages.append(Message("note", "the dynamic tree is documented as unsupported for targets with sliding-window attention or MLA"))
    return length, topk, total


def _static(choices: Any, length: int, messages: list[Message]) -> tuple[int, int | None, int]:
    if not isinstance(choices, list) or not choices or not all(isinstance(path, list) and path for path in choices):
        raise _Refused("ValueError: Wrong eagle choices type. Eagle choices should be a List[List[int]] or a string like [[0], [1], [2], [0, 0], [0, 1]].", "tree")
    nodes = {tuple(path) for path in choices}
    loose = next((path for path in sorted(nodes) if len(path) > 1 and path[:-1] not in nodes), None)
    if loose:
        raise _Refused(f"AssertionError: Error: choice {list(loose)} is not connected", "tree")
    depth = max(map(len, nodes))
    messages.append(Message("note", "static trees (eagle_choices) are deprecated and leave with 1.4"))
    if depth != length:
        messages.append(Message("note", f"max_draft_len becomes {depth}, the depth of eagle_choices (asked: {length})"))
    return depth, None, len(nodes)


def _one_model(spec: Mapping[str, Any], row: Mapping[str, Any], messages: list[Message]) -> bool:
    if spec.get("eagle3_one_model", True):
        return True
    if row["two_model"] == "deprecated":
        messages.append(Message("note", "eagle3_one_model false is deprecated; some candidates of 1.3 ignore it and run one model"))
    return False


def _layers(spec: Mapping[str, Any], messages: list[Message]) -> list[int] | None:
    ids = spec.get("eagle3_layers_to_capture")
    if ids is None and spec.get("eagle3_model_arch") == "mistral_large3":
        return [-1]
    if ids is None:
        messages.append(Message("note", "no eagle3_layers_to_capture: layers 1, L//2-1 and L-4 are captured; the ids of the draft's config are not looked for in the code that was read"))
        return None
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise _Refused(f"ValidationError: speculative_config.eagle3_layers_to_capture: Input should be a set of integers; got {ids!r}")
    return sorted(set(ids))
