"""SGLang's argument rules beside the draft budget: algorithm, quantization, pages, requests, overlap, pipeline."""

from __future__ import annotations

from eagle_forensics.engines.sglang_run import TABLE, Run, Stop
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import row_at


def algorithm(run: Run) -> None:
    algorithm = run.get("speculative_algorithm")
    if algorithm is None:
        run.say("note", "no --speculative-algorithm: the server does not speculate")
        return
    known = [*table(TABLE)["algorithms"]["eagle"], *table(TABLE)["algorithms"]["other"]]
    if algorithm not in known and algorithm.upper() in known:
        if not run.since(table(TABLE)["algorithms"]["upper_cased_since"]):
            raise Stop(f"argument --speculative-algorithm: invalid choice: {algorithm!r} (write {algorithm.upper()!r})")
        algorithm = algorithm.upper()
    if algorithm not in known:
        run.say("note", f"algorithm {algorithm!r} is not in the table; its arguments are left as written")
    run.args["speculative_algorithm"] = "EAGLE" if algorithm == "NEXTN" else algorithm
    if algorithm in table(TABLE)["algorithms"]["other"]:
        run.say("note", f"the rules of {algorithm} are not in the table; its arguments are left as written")


def draft_class(run: Run) -> None:
    eagle3_draft = run.draft_architecture in table(TABLE)["draft_classes"]["eagle3"]
    if run.get("speculative_algorithm") == "EAGLE" and eagle3_draft:
        run.say("note", f"algorithm EAGLE with an EAGLE-3 draft ({run.draft_architecture}) is not detected: the aux states are not captured, "
                        "fc is skipped and the accept length is exactly 1.00; use EAGLE3")
    backend = run.get("decode_attention_backend") or run.get("attention_backend")
    if eagle3_draft and "Llama" in run.draft_architecture and backend == "trtllm_mla" and not run.get("speculative_draft_attention_backend"):
        raise Stop(f"ValueError: {table(TABLE)['text']['trtllm_mla']} (the draft has plain attention: set --speculative-draft-attention-backend)")


def quantization(run: Run) -> None:
    target, draft = run.get("quantization"), run.get("speculative_draft_model_quantization")
    run.args["speculative_draft_model_quantization"] = None if draft == "unquant" else draft or (None if target == "unquant" else target)
    if target and target != "unquant" and draft is None:
        run.say("note", f"--quantization {target} also applies to the draft model"
                        + ("; --speculative-draft-model-quantization unquant opts out" if run.since("0.5.7") else "; this release has no flag to opt out"))


def page_size(run: Run) -> None:
    asked = run.get("page_size")
    backends = [run.get(name) for name in ("attention_backend", "decode_attention_backend", "prefill_attention_backend")]
    for backend in backends:
        row = row_at([row for row in table(TABLE)["page_size"] if row["backend"] == backend], run.release)
        if row and asked not in row["sizes"]:
            asked = row["becomes"]
            run.say("note", f"page size becomes {asked}: attention backend {backend} needs one of {row['sizes']}")
    run.args["page_size"] = 1 if asked is None else asked


def max_running(run: Run) -> None:
    if run.get("max_running_requests") is None:
        run.args["max_running_requests"] = 48
        key = run.row("max_running")["text"]
        run.say("warning", table(TABLE)["text"][key] if key else "")
        if not key:
            run.say("note", "max_running_requests is set to 48, silently")


def overlap(run: Run) -> None:
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
                raise Stop(table(TABLE)["text"]["spec_v2_topk"], "tree")
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


def mixed_chunk(run: Run) -> None:
    text = run.row("mixed_chunk")["text"]
    if run.get("enable_mixed_chunk") and text not in ("", "kept"):
        run.args["enable_mixed_chunk"] = False
        run.say("warning", text)


def mtp(run: Run) -> None:
    if run.architecture not in run.row("mtp")["architectures"]:
        return
    if run.get("speculative_draft_model_path") is None:
        run.args["speculative_draft_model_path"] = run.get("model_path")
        run.say("note", "no draft path: the target's own checkpoint (its MTP head) becomes the draft")
    elif run.architecture not in table(TABLE)["mtp_silent"]["architectures"]:
        run.say("warning", table(TABLE)["text"]["mtp"])
    if run.since("0.5.1") and not run.since("0.5.2") and run.get("page_size") != 1 and run.get("attention_backend") == "flashinfer":
        raise Stop(table(TABLE)["text"]["page_0_5_1"])


def pipeline(run: Run) -> None:
    """Checked by SGLang after everything else is resolved."""
    if run.get("speculative_algorithm") is None or (run.get("pp_size") or 1) <= 1:
        return
    row = run.row("pipeline")
    if run.get("speculative_algorithm") not in row["allows"]:
        raise Stop(f"AssertionError: {row['text']}")
    run.say("note", "EAGLE with pipeline parallelism runs only on prefill nodes of a disaggregated server, or with SGLANG_ENABLE_PP_SPEC")


def ignored(run: Run) -> None:
    if run.get("speculative_token_map") and run.get("speculative_algorithm") == "EAGLE3":
        run.say("warning", table(TABLE)["text"]["token_map"])
    if run.get("json_model_override_args"):
        run.say("note", "--json-model-override-args applies to the target and to the draft config: rope overrides leak into the draft")
    if run.get("dtype") is None or run.get("dtype") == "auto":
        run.say("note", "dtype auto: the draft takes its config's dtype; missing or float32 becomes float16 (bfloat16 for Gemma)")
