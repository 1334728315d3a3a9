"""vLLM: launch arguments and `--speculative-config` to effective ones. Tables: `vllm_args.toml`.

vLLM drafts a chain: there is no topk and no tree, and the number of draft tokens is the number of steps.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.engines.answers import ArgsAnswer, Message
from eagle_forensics.engines.argv import parse_argv
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import nearest
from eagle_forensics.engines.vllm import default_runner, releases, runner_of

TABLE = "vllm_args"


def resolve(version: str, argv: Sequence[str], *, architecture: str | None = None, draft_architecture: str | None = None,
            model_type: str | None = None, env: Mapping[str, str] | None = None) -> ArgsAnswer:
    """What vLLM `version` makes of these launch arguments; the speculative settings are read from --speculative-config."""
    rules = table(TABLE)
    at = nearest("vllm", version, releases())
    parsed = parse_argv(argv, rules["flags"], rules["aliases"])
    env = {**(env or {}), **parsed.env}
    parsed.refuse_early_flags("vLLM", at.release, rules["since"], at.assumed)
    messages = [Message("note", text) for text in ([at.note] if at.note else []) + parsed.notes]
    errors = list(parsed.errors)
    raw: dict[str, Any] = dict(parsed.raw)
    spec: dict[str, Any] | None = None
    dotted = {name.partition(".")[2]: raw.pop(name) for name in list(raw) if name.startswith("speculative_config.")}
    if ("speculative_config" in raw or dotted) and not errors:
        try:
            spec = _spec(raw.get("speculative_config", "{}")) | {name: _value(text) for name, text in dotted.items()}
            raw["speculative_config"] = spec
        except ValueError as error:
            errors.append(str(error))
    refusal = "usage" if errors else None
    effective = _plain_settings(raw, at.release, model_type, env, messages)
    if spec is not None:
        errors += _speculation(spec, raw, draft_architecture, effective, messages)
    elif not errors and not parsed.open:
        messages.append(Message("note", "no --speculative-config: the server does not speculate, unless the model is a speculators checkpoint"))
    return ArgsAnswer("vllm", version, raw, effective, tuple(messages), "; ".join(errors) or None, (rules["source"],), at.assumed,
                      refusal=refusal or ("value" if errors else None), open=tuple(parsed.open))


def _spec(text: str) -> dict[str, Any]:
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--speculative-config is not JSON ({error.msg} at column {error.colno}): {text[:80]!r}") from None
    if not isinstance(spec, dict):
        raise ValueError(f"--speculative-config must be a JSON object; got {type(spec).__name__}")
    return spec


def _value(text: Any) -> Any:
    """Of a dotted flag (`--speculative-config.num_speculative_tokens 3`): JSON where it is, else the text; vLLM joins such flags to one object."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (json.JSONDecodeError, RecursionError):
        return text


def _plain_settings(raw: Mapping[str, Any], release: str, model_type: str | None, env: Mapping[str, str],
                    messages: list[Message]) -> dict[str, Any]:
    forced = runner_of(env)
    runner, sure = (forced, True) if forced else default_runner(release, model_type or "")[:2]
    if not sure or (model_type is None and forced is None and default_runner(release, "")[2] != default_runner(release, "qwen3")[2]):
        messages.append(Message("note", f"model runner {runner.upper()} is read from an incomplete list; the log line 'Using V2 Model Runner' decides"))
    return {
        "algorithm": None, "num_steps": None, "topk": None, "num_draft_tokens": None, "max_accept_length": 1,
        "max_running_requests": raw.get("max_num_seqs"), "page_size": raw.get("block_size"), "tp_size": raw.get("tensor_parallel_size") or 1,
        "quantization": raw.get("quantization"), "draft_quantization": None, "dtype": raw.get("dtype") or "auto",
        "cuda_graph": not raw.get("enforce_eager"), "draft_model_path": None, "runner": runner, "context_length": raw.get("max_model_len"),
    }


def _speculation(spec: Mapping[str, Any], raw: Mapping[str, Any], draft_architecture: str | None, effective: dict[str, Any],
                 messages: list[Message]) -> list[str]:
    """Fills `effective` from the speculative config; returns what vLLM refuses."""
    errors = []
    known = table(TABLE)["fields"]["known"]
    for name in spec:
        if name in known:
            continue
        if name == "tensor_parallel_size":
            errors.append("'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass 'draft_tensor_parallel_size' instead.")
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        errors.append(f"speculative_config has no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    tokens = spec.get("num_speculative_tokens")
    if tokens is None:
        messages.append(Message("note", "num_speculative_tokens is not given: vLLM takes it from the draft config, or refuses to start"))
    elif isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        errors.append(f"Expected num_speculative_tokens to be greater than zero ({tokens!r}).")
        tokens = None
    method = spec.get("method") or _detect(spec, draft_architecture, messages)
    if method not in table(TABLE)["fields"]["methods"] and not str(method).endswith("mtp"):
        errors.append(f"unsupported speculative method: {method!r}")
    draft_tp = spec.get("draft_tensor_parallel_size")
    if draft_tp is not None and draft_tp not in (1, effective["tp_size"]):
        errors.append(f"draft_tensor_parallel_size={draft_tp} cannot be other value than 1 or target model tensor_parallel_size {effective['tp_size']}")
    if raw.get("hf_overrides"):
        messages.append(Message("note", "--hf-overrides given as a dict stay target-only: layer ids can be changed only in the draft's config.json"))
    if spec.get("rejection_sample_method") == "synthetic" or spec.get("synthetic_acceptance_length"):
        messages.append(Message("note", "acceptance is synthetic: no accept length of this server says anything about the drafter"))
    if raw.get("quantization") and spec.get("quantization") is None:
        messages.append(Message("note", f"--quantization {raw['quantization']} does not reach an EAGLE draft from vLLM 0.11.1 on; 0.11.0 gives it the target's"))
    messages.append(Message("note", "requests with min_p or logit_bias are refused under speculative decoding"))
    effective.update(
        algorithm=method, num_steps=tokens, topk=1, num_draft_tokens=tokens, max_accept_length=None if tokens is None else tokens + 1,
        draft_model_path=spec.get("model"), draft_quantization=spec.get("quantization"), draft_tensor_parallel_size=draft_tp,
        draft_sample_method=spec.get("draft_sample_method", "greedy"), rejection_sample_method=spec.get("rejection_sample_method", "standard"),
        parallel_drafting=bool(spec.get("parallel_drafting")))
    return errors


def _detect(spec: Mapping[str, Any], draft_architecture: str | None, messages: list[Message]) -> str:
    path = str(spec.get("model", "")).lower()
    if path in ("ngram", "[ngram]"):
        return "ngram"
    method = next((row["method"] for row in table(TABLE)["detected"] if row["part"] in path), None)
    if method is None and draft_architecture and "eagle3" in draft_architecture.lower():
        method = "eagle3"
    if method is None:
        method = "draft_model"
        messages.append(Message("note", "no method is given and the draft's path names none: it becomes 'draft_model', an ordinary draft model; "
                                        'write "method": "eagle3"'))
    else:
        messages.append(Message("note", f"no method is given; {method!r} is recognised from the draft"))
    return method
