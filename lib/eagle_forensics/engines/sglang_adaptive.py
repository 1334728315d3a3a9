"""SGLang's `--speculative-adaptive`: when it is switched off, among which step counts it moves, and where it starts."""

from __future__ import annotations

from eagle_forensics.engines.sglang_run import TABLE, Run, Stop
from eagle_forensics.engines.tables import table


def before_the_budget(run: Run) -> None:
    """From `resolves_since` on: decided first, and it settles the draft budget."""
    if not run.since(table(TABLE)["adaptive"]["resolves_since"]) or not _wanted(run):
        return
    candidates = run.row("adaptive", "candidates")["steps"]
    run.args["speculative_eagle_topk"] = 1
    if run.get("speculative_num_steps") is None:
        run.args["speculative_num_steps"] = candidates[len(candidates) // 2]
    steps = run.args["speculative_num_steps"]
    _refuse_outside(run, candidates)
    run.args["speculative_num_draft_tokens"] = steps + 1
    _say_moves(run, candidates, steps)


def after_the_budget(run: Run) -> None:
    """Before `resolves_since`: decided last, on the numbers as they were resolved."""
    if run.since(table(TABLE)["adaptive"]["resolves_since"]) or not _wanted(run):
        return
    candidates, outside = run.row("adaptive", "candidates")["steps"], run.row("adaptive", "start")["outside"]
    steps = run.get("speculative_num_steps")
    if outside == "refused":
        _refuse_outside(run, candidates)
    elif outside == "added":
        candidates = sorted({*candidates, steps})
    start = steps if steps in candidates else min(candidates, key=lambda step: (abs(step - steps), -step))
    _say_moves(run, candidates, start)


def _wanted(run: Run) -> bool:
    """Whether it was asked for and can run; otherwise it is switched off with the engine's warning."""
    if not run.get("speculative_adaptive") or not run.since(table(TABLE)["since"]["speculative_adaptive"]):
        return False
    reason = _unsupported(run)
    if reason is None:
        return True
    run.args["speculative_adaptive"] = False
    run.say("warning", f"speculative_adaptive disabled: {reason}. Falling back to static speculative params.")
    return False


def _unsupported(run: Run) -> str | None:
    algorithm, topk = run.get("speculative_algorithm"), run.get("speculative_eagle_topk")
    if algorithm not in ("EAGLE", "EAGLE3"):
        return f"speculative_algorithm={algorithm} (only EAGLE/EAGLE3 are supported)"
    if topk not in (None, 1):
        return f"speculative_eagle_topk={topk} (only topk=1 is supported)"
    for flag, text in run.row("adaptive", "refusals")["reasons"]:
        if run.overlap if flag == "overlap" else run.get(flag):
            return text
    return None


def _refuse_outside(run: Run, candidates: list[int]) -> None:
    steps = run.get("speculative_num_steps")
    if run.get("speculative_adaptive_config") is None and steps not in candidates:
        raise Stop(f"ValueError: --speculative-num-steps={steps} is not in the adaptive config candidate_steps {candidates}. Pass one of those values.")


def _say_moves(run: Run, candidates: list[int], start: int) -> None:
    if run.get("speculative_adaptive_config") is not None:
        run.assumed = True
        run.say("note", "speculative_adaptive takes its candidate steps from --speculative-adaptive-config, a file that is not read here")
        return
    run.say("note", f"speculative_adaptive moves the step count among {candidates} while the server runs, starting at {start}")
