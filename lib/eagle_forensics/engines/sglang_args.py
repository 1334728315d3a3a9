"""SGLang: raw launch arguments to effective ones, with the log lines and exceptions to expect. Tables: `sglang_args.toml`.

The rules run in the order in which SGLang runs them (server_args.py up to 0.5.12.post1, arg_groups/speculative_hook.py after).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.engines.answers import ArgsAnswer, Message
from eagle_forensics.engines.argv import parse_argv
from eagle_forensics.engines.sglang import releases
from eagle_forensics.engines.tables import current, table
from eagle_forensics.engines.versions import nearest, row_at, since

TABLE = "sglang_args"


class _Stop(Exception):
    """The server does not start; the text is the exception it raises."""


@dataclass
class _Run:
    """The arguments of one start, as the rules rewrite them."""

    release: str
    args: dict[str, Any]
    env: Mapping[str, str]
    architecture: str | None
    draft_architecture: str | None
    messages: list[Message] = field(default_factory=list)
    assumed: bool = False
    overlap: bool | None = None
    spec_v2: bool | None = None
    auto: bool = False

    def get(self, name: str) -> Any:
        return self.args.get(name)

    def say(self, level: str, text: str) -> None:
        if text:
            self.messages.append(Message(level, text))

    def row(self, name: str) -> Mapping[str, Any]:
        return current(table(TABLE)[name], self.release)

    def since(self, version: str) -> bool:
        return since(version, self.release)


def resolve(version: str, argv: Sequence[str], *, architecture: str | None = None, draft_architecture: str | None = None,
            model_type: str | None = None, env: Mapping[str, str] | None = None) -> ArgsAnswer:
    """What SGLang `version` makes of these launch arguments; `architecture` is the target's `architectures[0]`."""
    rules = table(TABLE)
    at = nearest("sglang", version, releases())
    parsed = parse_argv(argv, rules["flags"], rules["aliases"])
    run = _Run(at.release, dict(parsed.raw), {**(env or {}), **parsed.env}, architecture or rules["architecture"].get(model_type or ""),
               draft_architecture, assumed=at.assumed)
    if at.note:
        run.say("note", at.note)
    for note in parsed.notes:
        run.say("note", note)
    for name in run.args:
        first = rules["since"].get(name)
        if first and not run.since(first):
            run.say("note", f"--{name.replace('_', '-')} exists from SGLang {first} on; {at.release} refuses it")
    short = row_at(rules["ambiguous"], at.release)
    if short and any(str(word).partition("=")[0] == short["spelled"] for word in argv):
        parsed.errors.append(short["text"])
    error = "; ".join(parsed.errors) or None
    if error is None:
        try:
            for rule in _RULES:
                rule(run)
        except _Stop as stop:
            error = str(stop)
    effective = _effective(run)
    changed = tuple(
        short for short, name in _REPORTED.items() if name in parsed.raw and effective.get(short) != parsed.raw[name])
    return ArgsAnswer("sglang", version, parsed.raw, effective, tuple(run.messages), error, (rules["source"],), run.assumed, changed)


# --- the rules, in SGLang's order --------------------------------------------------------------------------------------

def _algorithm(run: _Run) -> None:
    algorithm = run.get("speculative_algorithm")
    if algorithm is None:
        run.say("note", "no --speculative-algorithm: the server does not speculate")
        return
    known = [*table(TABLE)["algorithms"]["eagle"], *table(TABLE)["algorithms"]["other"]]
    if algorithm not in known and algorithm.upper() in known:
        if not run.since(table(TABLE)["algorithms"]["upper_cased_since"]):
            raise _Stop(f"argument --speculative-algorithm: invalid choice: {algorithm!r} (write {algorithm.upper()!r})")
        algorithm = algorithm.upper()
    if algorithm not in known:
        run.say("note", f"algorithm {algorithm!r} is not in the table; its arguments are left as written")
    run.args["speculative_algorithm"] = "EAGLE" if algorithm == "NEXTN" else algorithm
    if algorithm in table(TABLE)["algorithms"]["other"]:
        run.say("note", f"the rules of {algorithm} are not in the table; its arguments are left as written")


def _draft_class(run: _Run) -> None:
    eagle3_draft = run.draft_architecture in table(TABLE)["draft_classes"]["eagle3"]
    if run.get("speculative_algorithm") == "EAGLE" and eagle3_draft:
        run.say("note", f"algorithm EAGLE with an EAGLE-3 draft ({run.draft_architecture}) is not detected: the aux states are not captured, "
                        "fc is skipped and the accept length is exactly 1.00; use EAGLE3")
    backend = run.get("decode_attention_backend") or run.get("attention_backend")
    if eagle3_draft and "Llama" in run.draft_architecture and backend == "trtllm_mla" and not run.get("speculative_draft_attention_backend"):
        raise _Stop(f"ValueError: {table(TABLE)['text']['trtllm_mla']} (the draft has plain attention: set --speculative-draft-attention-backend)")


def _quantization(run: _Run) -> None:
    target, draft = run.get("quantization"), run.get("speculative_draft_model_quantization")
    run.args["speculative_draft_model_quantization"] = None if draft == "unquant" else draft or (None if target == "unquant" else target)
    if target and target != "unquant" and draft is None:
        run.say("note", f"--quantization {target} also applies to the draft model"
                        + ("; --speculative-draft-model-quantization unquant opts out" if run.since("0.5.7") else "; this release has no flag to opt out"))


def _page_size(run: _Run) -> None:
    asked = run.get("page_size")
    backends = [run.get(name) for name in ("attention_backend", "decode_attention_backend", "prefill_attention_backend")]
    for backend in backends:
        row = row_at([row for row in table(TABLE)["page_size"] if row["backend"] == backend], run.release)
        if row and asked not in row["sizes"]:
            asked = row["becomes"]
            run.say("note", f"page size becomes {asked}: attention backend {backend} needs one of {row['sizes']}")
    run.args["page_size"] = 1 if asked is None else asked


def _max_running(run: _Run) -> None:
    if run.get("max_running_requests") is None:
        run.args["max_running_requests"] = 48
        key = run.row("max_running")["text"]
        run.say("warning", table(TABLE)["text"][key] if key else "")
        if not key:
            run.say("note", "max_running_requests is set to 48, silently")


def _overlap(run: _Run) -> None:
    row = run.row("overlap")
    topk, disabled = run.get("speculative_eagle_topk"), bool(run.get("disable_overlap_schedule"))
    tree = topk is not None and topk > 1
    text = run.env.get("SGLANG_ENABLE_SPEC_V2")
    if row.get("env_removed") and text is not None:
        run.say("warning", table(TABLE)["text"]["spec_v2_removed"])
    wanted = row.get("env_default", True) if text is None else text.strip().lower() in ("1", "true", "yes", "y", "on")
    if row["mode"] == "off":
        run.overlap, run.spec_v2 = False, False
    elif row["mode"] == "env":
        run.overlap = wanted and (run.get("speculative_algorithm") in row["on_for"] or not row["refuses_tree"])
        run.spec_v2 = run.overlap
        if run.overlap and run.get("speculative_algorithm") in row["on_for"]:
            run.say("warning", row["on"])
            if row["refuses_tree"] and tree:
                raise _Stop(table(TABLE)["text"]["spec_v2_topk"])
            return
        if run.overlap:
            return
    elif row["mode"] == "v1_or_v2":
        reason = ("spec v2 currently only supports topk = 1" if tree and not disabled else
                  "overlap schedule is disabled" if disabled else None if wanted else "SGLANG_ENABLE_SPEC_V2=False")
        run.overlap = run.spec_v2 = reason is None
        run.say("warning", row["on"] if reason is None else row["off"].format(reason=reason))
        return
    else:
        run.spec_v2 = True
        run.overlap = not disabled and (bool(row.get("env_removed")) or wanted)
        if run.get("device") == "cpu":
            run.overlap = False
    run.say("warning", row["on"] if run.overlap else row["off"])


def _mixed_chunk(run: _Run) -> None:
    text = run.row("mixed_chunk")["text"]
    if run.get("enable_mixed_chunk") and text not in ("", "kept"):
        run.args["enable_mixed_chunk"] = False
        run.say("warning", text)


def _mtp(run: _Run) -> None:
    if run.architecture not in run.row("mtp")["architectures"]:
        return
    if run.get("speculative_draft_model_path") is None:
        run.args["speculative_draft_model_path"] = run.get("model_path")
        run.say("note", "no draft path: the target's own checkpoint (its MTP head) becomes the draft")
    elif run.architecture not in table(TABLE)["mtp_silent"]["architectures"]:
        run.say("warning", table(TABLE)["text"]["mtp"])
    if run.since("0.5.1") and not run.since("0.5.2") and run.get("page_size") != 1 and run.get("attention_backend") == "flashinfer":
        raise _Stop(table(TABLE)["text"]["page_0_5_1"])


def _adaptive(run: _Run) -> None:
    if not run.get("speculative_adaptive"):
        return
    topk = run.get("speculative_eagle_topk")
    reason = None
    if run.get("speculative_algorithm") not in ("EAGLE", "EAGLE3"):
        reason = f"speculative_algorithm={run.get('speculative_algorithm')} (only EAGLE/EAGLE3 are supported)"
    elif topk is not None and topk != 1:
        reason = f"speculative_eagle_topk={topk} (only topk=1 is supported)"
    elif run.get("enable_dp_attention"):
        reason = "attention DP is not supported (adaptive tier decisions are not synchronized across DP ranks)"
    elif run.get("enable_multi_layer_eagle"):
        reason = "enable_multi_layer_eagle=True is not supported (MultiLayerEagleWorkerV2 does not implement adaptive)"
    elif run.get("enable_two_batch_overlap"):
        reason = "enable_two_batch_overlap=True is not supported (adaptive state swap would discard the TboAttnBackend wrapper)"
    if reason:
        run.args["speculative_adaptive"] = False
        run.say("warning", f"speculative_adaptive disabled: {reason}. Falling back to static speculative params.")
        return
    if not run.since(table(TABLE)["adaptive"]["resolves_since"]):
        run.say("note", "speculative_adaptive moves the step count while the server runs; num_draft_tokens follows it")
        return
    candidates = current(table(TABLE)["adaptive"]["candidates"], run.release)["steps"]
    run.args["speculative_eagle_topk"] = 1
    if run.get("speculative_num_steps") is None:
        run.args["speculative_num_steps"] = candidates[len(candidates) // 2]
    steps = run.args["speculative_num_steps"]
    if run.get("speculative_adaptive_config") is None and steps not in candidates:
        raise _Stop(f"ValueError: --speculative-num-steps={steps} is not in the adaptive config candidate_steps {candidates}. Pass one of those values.")
    run.args["speculative_num_draft_tokens"] = steps + 1
    run.say("note", f"speculative_adaptive moves the step count among {candidates} while the server runs, starting at {steps}")


def _automatic_triple(run: _Run) -> None:
    if run.get("speculative_num_steps") is not None or (
            run.get("speculative_adaptive") and run.since(table(TABLE)["adaptive"]["resolves_since"])):
        return
    if run.get("speculative_eagle_topk") is not None or run.get("speculative_num_draft_tokens") is not None:
        raise _Stop(table(TABLE)["text"]["partial"])
    row = run.row("auto")
    if run.get("speculative_algorithm") == "STANDALONE" and run.since("0.5.2"):
        triple = [3, 1, 4]
    elif run.architecture is None:
        triple = row["other"]
        run.assumed = True
        run.say("note", f"the target's architecture is not given; {triple} (steps, topk, draft tokens) is assumed, what most targets get"
                        + (" (LlamaForCausalLM gets [5, 4, 8])" if row["tree"] else " (DeepSeek and some others get [3, 1, 4])"))
    else:
        triple = [3, 1, 4] if run.architecture in row["chain"] else [5, 4, 8] if run.architecture in row["tree"] else row["other"]
    run.auto = True
    (run.args["speculative_num_steps"], run.args["speculative_eagle_topk"], run.args["speculative_num_draft_tokens"]) = triple
    run.say("note", f"steps, topk and draft tokens are chosen automatically for {run.architecture or 'an unknown target'}: {triple}")
    if run.overlap and triple[1] > 1 and run.row("overlap")["mode"] == "v1_or_v2":
        run.say("note", "spec v2 was chosen before the automatic topk 4: overlap stays on with a tree (runtime effect not verified)")


def _trtllm_mha(run: _Run) -> None:
    topk = run.get("speculative_eagle_topk")
    backends = [run.get(name) for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")]
    if "trtllm_mha" in backends and run.since("0.5.1"):
        if topk is None:
            raise _Stop(table(TABLE)["text"]["topk_none"])
        if topk > 1:
            raise _Stop(table(TABLE)["text"]["trtllm_mha"])


def _rejection_sampling(run: _Run) -> None:
    if not run.get("speculative_use_rejection_sampling") or not run.since("0.5.14"):
        return
    if run.get("speculative_algorithm") not in ("EAGLE", "EAGLE3"):
        raise _Stop("NotImplementedError: --speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN, not "
                    f"speculative_algorithm={run.get('speculative_algorithm')}.")
    if run.get("speculative_eagle_topk") != 1:
        raise _Stop(table(TABLE)["text"]["rejection_topk"])
    if any(run.get(name) not in (None, 1.0) for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")):
        raise _Stop(table(TABLE)["text"]["rejection_threshold"])
    run.say("info", table(TABLE)["text"]["rejection_on"])
    run.say("note", "rejection sampling needs draft vocabulary == target vocabulary: a reduced d2t vocabulary is a ValueError at load")


def _lowered_topk(run: _Run) -> None:
    topk = run.get("speculative_eagle_topk")
    if run.row("page_tree")["action"] != "lower" or run.get("page_size") <= 1:
        return
    if topk is None:
        raise _Stop(table(TABLE)["text"]["topk_none"])
    if topk > 1:
        run.args["speculative_eagle_topk"] = 1
        run.say("warning", table(TABLE)["text"]["topk_page"])


def _draft_tokens(run: _Run) -> None:
    steps = run.get("speculative_num_steps")
    if run.get("speculative_eagle_topk") == 1 and run.get("speculative_num_draft_tokens") != steps + 1:
        run.args["speculative_num_draft_tokens"] = steps + 1
        run.say("warning", table(TABLE)["text"]["draft_tokens"])


def _tree_on_pages(run: _Run) -> None:
    row, topk, backend = run.row("page_tree"), run.get("speculative_eagle_topk"), run.get("attention_backend")
    if row["action"] == "refuse" and topk is None:
        raise _Stop(table(TABLE)["text"]["topk_none"])
    if row["action"] != "refuse" or topk <= 1 or run.get("page_size") <= 1 or backend in row["backends"]:
        return
    if backend is None:
        run.say("note", f"topk > 1 with page size {run.get('page_size')} runs only on {row['backends']}; the attention backend is chosen by the "
                        "server here: set it explicitly")
        return
    raise _Stop(table(TABLE)["text"][row["text"]].format(backend=backend))


def _tree_capacity(run: _Run) -> None:
    steps, topk, tokens = (run.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if topk is None:
        raise _Stop("speculative_eagle_topk stays None and the worker fails later: set --speculative-eagle-topk")
    if topk > 1 and tokens is None:
        raise _Stop("speculative_num_draft_tokens stays None and the worker fails later: set --speculative-num-draft-tokens")
    capacity = topk + (steps - 1) * topk * topk
    if topk > 1 and tokens - 1 > capacity:
        raise _Stop(f"RuntimeError: selected index k out of range (a tree of {steps} steps and topk {topk} has {capacity} nodes, "
                    f"--speculative-num-draft-tokens {tokens} needs {tokens - 1}; not checked at parse, fails when the graph is captured)")
    if steps < 1 or topk < 1:
        run.say("note", f"steps {steps} and topk {topk} draft nothing: every step yields the bonus token only")


def _pipeline(run: _Run) -> None:
    """Checked by SGLang after everything else is resolved."""
    if run.get("speculative_algorithm") is None or (run.get("pp_size") or 1) <= 1:
        return
    row = run.row("pipeline")
    if run.get("speculative_algorithm") not in row["allows"]:
        raise _Stop(f"AssertionError: {row['text']}")
    run.say("note", "EAGLE with pipeline parallelism runs only on prefill nodes of a disaggregated server, or with SGLANG_ENABLE_PP_SPEC")


def _ignored(run: _Run) -> None:
    if run.get("speculative_token_map") and run.get("speculative_algorithm") == "EAGLE3":
        run.say("warning", table(TABLE)["text"]["token_map"])
    if run.get("json_model_override_args"):
        run.say("note", "--json-model-override-args applies to the target and to the draft config: rope overrides leak into the draft")
    if run.get("dtype") is None or run.get("dtype") == "auto":
        run.say("note", "dtype auto: the draft takes its config's dtype; missing or float32 becomes float16 (bfloat16 for Gemma)")


def _eagle_only(rule: Callable[[_Run], None]) -> Callable[[_Run], None]:
    def guarded(run: _Run) -> None:
        if run.get("speculative_algorithm") in table(TABLE)["algorithms"]["eagle"]:
            rule(run)
    return guarded


_RULES: tuple[Callable[[_Run], None], ...] = (
    _quantization, _page_size, _algorithm,
    *map(_eagle_only, (
        _draft_class, _adaptive, _max_running, _overlap, _mixed_chunk, _mtp, _automatic_triple, _trtllm_mha, _rejection_sampling,
        _lowered_topk, _draft_tokens, _tree_on_pages, _tree_capacity, _ignored)),
    _pipeline,
)

_REPORTED = {
    "algorithm": "speculative_algorithm", "num_steps": "speculative_num_steps", "topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens", "max_running_requests": "max_running_requests", "page_size": "page_size",
    "attention_backend": "attention_backend", "quantization": "quantization", "draft_quantization": "speculative_draft_model_quantization",
    "dtype": "dtype", "draft_model_path": "speculative_draft_model_path", "tp_size": "tp_size", "adaptive": "speculative_adaptive",
    "mixed_chunk": "enable_mixed_chunk", "rejection_sampling": "speculative_use_rejection_sampling", "context_length": "context_length",
}


def _effective(run: _Run) -> dict[str, Any]:
    """The arguments after all rules, under short names; `max_accept_length` counts the bonus token."""
    out = {short: run.get(name) for short, name in _REPORTED.items()}
    speculates = out["algorithm"] is not None
    steps, topk, tokens = out["num_steps"], out["topk"], out["num_draft_tokens"]
    ceiling: int | None = None if speculates else 1
    if speculates and isinstance(steps, int) and isinstance(tokens, int) and isinstance(topk, int):
        ceiling = max(1, min(steps + 1, tokens))
    for name in ("adaptive", "mixed_chunk", "rejection_sampling"):
        out[name] = bool(out[name])
    return {
        **out, "max_accept_length": ceiling, "overlap": run.overlap, "spec_v2": run.spec_v2, "chosen_automatically": run.auto,
        "cuda_graph": not run.get("disable_cuda_graph"), "dtype": out["dtype"] or "auto", "tp_size": out["tp_size"] or 1,
        "accept_threshold_single": 1.0 if run.get("speculative_accept_threshold_single") is None else run.get("speculative_accept_threshold_single"),
        "accept_threshold_acc": 1.0 if run.get("speculative_accept_threshold_acc") is None else run.get("speculative_accept_threshold_acc"),
    }
