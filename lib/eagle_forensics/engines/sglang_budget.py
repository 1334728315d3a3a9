"""SGLang's rules for the draft budget: what steps, topk and draft tokens become, and which trees are refused."""

from __future__ import annotations

from eagle_forensics.engines.sglang_run import TABLE, Run, Stop
from eagle_forensics.engines.tables import table


def automatic_triple(run: Run) -> None:
    if run.get("speculative_num_steps") is not None or (
            run.get("speculative_adaptive") and run.since(table(TABLE)["adaptive"]["resolves_since"])):
        return
    if run.get("speculative_eagle_topk") is not None or run.get("speculative_num_draft_tokens") is not None:
        raise Stop(table(TABLE)["text"]["partial"])
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


def trtllm_mha(run: Run) -> None:
    topk = run.get("speculative_eagle_topk")
    backends = [run.get(name) for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")]
    if "trtllm_mha" in backends and run.since("0.5.1"):
        if topk is None:
            raise Stop(table(TABLE)["text"]["topk_none"])
        if topk > 1:
            raise Stop(table(TABLE)["text"]["trtllm_mha"], "tree")


def rejection_sampling(run: Run) -> None:
    if not run.get("speculative_use_rejection_sampling") or not run.since("0.5.14"):
        return
    if run.get("speculative_algorithm") not in ("EAGLE", "EAGLE3"):
        raise Stop("NotImplementedError: --speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN, not "
                    f"speculative_algorithm={run.get('speculative_algorithm')}.")
    if run.get("speculative_eagle_topk") != 1:
        raise Stop(table(TABLE)["text"]["rejection_topk"])
    if any(run.get(name) not in (None, 1.0) for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")):
        raise Stop(table(TABLE)["text"]["rejection_threshold"])
    run.say("info", table(TABLE)["text"]["rejection_on"])
    run.say("note", "rejection sampling needs draft vocabulary == target vocabulary: a reduced d2t vocabulary is a ValueError at load")


def lowered_topk(run: Run) -> None:
    topk = run.get("speculative_eagle_topk")
    if run.row("page_tree")["action"] != "lower" or run.get("page_size") <= 1:
        return
    if topk is None:
        raise Stop(table(TABLE)["text"]["topk_none"])
    if topk > 1:
        run.args["speculative_eagle_topk"] = 1
        run.say("warning", table(TABLE)["text"]["topk_page"])


def draft_tokens(run: Run) -> None:
    steps = run.get("speculative_num_steps")
    if run.get("speculative_eagle_topk") == 1 and run.get("speculative_num_draft_tokens") != steps + 1:
        run.args["speculative_num_draft_tokens"] = steps + 1
        run.say("warning", table(TABLE)["text"]["draft_tokens"])


def tree_on_pages(run: Run) -> None:
    row, topk, backend = run.row("page_tree"), run.get("speculative_eagle_topk"), run.get("attention_backend")
    if row["action"] == "refuse" and topk is None:
        raise Stop(table(TABLE)["text"]["topk_none"])
    if row["action"] != "refuse" or topk <= 1 or run.get("page_size") <= 1 or backend in row["backends"]:
        return
    if backend is None:
        run.say("note", f"topk > 1 with page size {run.get('page_size')} runs only on {row['backends']}; the attention backend is chosen by the "
                        "server here: set it explicitly")
        return
    raise Stop(table(TABLE)["text"][row["text"]].format(backend=backend), "tree")


def tree_nodes(steps: int, topk: int) -> int:
    """Drafted nodes from which a tree of `steps` steps is chosen, the root not among them: the first step gives topk, every later one topk squared."""
    return topk + (steps - 1) * topk * topk


def tree_capacity(run: Run) -> None:
    steps, topk, tokens = (run.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if topk is None:
        raise Stop("speculative_eagle_topk stays None and the worker fails later: set --speculative-eagle-topk")
    if topk > 1 and tokens is None:
        raise Stop("speculative_num_draft_tokens stays None and the worker fails later: set --speculative-num-draft-tokens")
    capacity = tree_nodes(steps, topk)
    if topk > 1 and tokens - 1 > capacity:
        raise Stop(f"RuntimeError: selected index k out of range (a tree of {steps} steps and topk {topk} has {capacity} nodes, "
                    f"--speculative-num-draft-tokens {tokens} needs {tokens - 1}; not checked at parse, fails when the graph is captured)", "tree")
    if steps < 1 or topk < 1:
        run.say("note", f"steps {steps} and topk {topk} draft nothing: every step yields the bonus token only")
