"""How many requests does speculation let run at once, and does a CUDA graph hold a verify round of that many?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.launching import measurements
from eagle_forensics.config.question import Question, rules, unless_assumed
from eagle_forensics.evidence.configs import parse_object
from eagle_forensics.evidence.decode_log import Window, read_decode_log
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Evidence, Finding

ADMISSION = Question("config.admission", "Does speculation limit the number of running requests?")
GRAPHS = Question("config.graphs", "Is a verify round of the served load replayed from a CUDA graph?")
_MODE = re.compile(r"setting cudagraph_mode=(\w+)")
_CAPTURED = re.compile(r"Truncating max_cudagraph_capture_size(?: to |\. original_size=\d+, truncated_size=)(\d+)")
_RULE = {
    "vllm": "vllm 0.32.0 config/vllm.py _set_cudagraph_sizes: sizes count tokens, a batch above the largest is not replayed; compilation.py adjust_cudagraph_sizes_for_spec_decode",
    "sglang": "sglang 0.5.9 model_executor/cuda_graph_runner.py:288, :403: sizes count requests (num_tokens_per_bs tokens each), a batch above the largest is not replayed",
}


def capacity_findings(found: Inspection) -> list[Finding]:
    """The limit of SGLang's speculation, and the graphs of the engine that serves; nothing without speculation."""
    answer, engine = found.arguments, found.case.serving.engine
    if answer is None or answer.error or engine not in _RULE or answer.effective.get("algorithm") is None:
        return []
    sent = _sent(found)
    items = [*(_admission(found, sent) if engine == "sglang" else []), *_graphs(found, sent)]
    return [unless_assumed(item, {found.engine: answer}) for item in items]


def _sent(found: Inspection) -> int | None:
    """Most requests at once of a measured run with speculation."""
    frame = measurements(found)
    if frame is None or "concurrency" not in frame:
        return None
    used = frame[frame["speculative"].fillna(True).astype(bool)] if "speculative" in frame else frame
    return int(used["concurrency"].max()) if used["concurrency"].notna().any() else None


def _waiting(found: Inspection, limit: int) -> list[Window]:
    """Decode lines at which exactly `limit` requests run and others wait."""
    try:
        windows = read_decode_log(found.case.serving.log).windows if found.case.serving.log else ()
    except EvidenceError:
        return []
    at_most = max((w.running or 0 for w in windows), default=0) == limit
    return [w for w in windows if w.running == limit and w.queued] if at_most else []


def _admission(found: Inspection, sent: int | None) -> list[Finding]:
    answer = found.arguments
    limit, asked = answer.effective.get("max_running_requests"), answer.raw.get("max_running_requests")
    said = [line for line in found.log_lines("arguments") if "Max running requests is reset to" in line]
    if limit is None or (asked is not None and not said):
        return [ADMISSION.passes(f"--max-running-requests {asked} is as asked", observed=limit, expected=asked)] if asked is not None else []
    waiting = _waiting(found, limit)
    common = {"observed": limit, "unit": "running requests", "evidence": (*rules(*answer.sources), *(Evidence(note=line) for line in said))}
    if not waiting and (sent is None or sent <= limit):
        return [ADMISSION.passes(f"speculation admits {limit} running requests because none were asked for" + (f"; measured up to {sent}" if sent else ""), **common)]
    most = max([sent or 0, *(limit + w.queued for w in waiting)])
    seen = f"{len(waiting)} decode lines show {limit} running and up to {most - limit} waiting" if waiting else f"runs with {sent} concurrent requests were measured: {sent - limit} of them wait"
    words = f"speculation admits {limit} running requests because none were asked for, but {seen}"
    remedy = f"--max-running-requests {most}, as far as memory and CUDA graphs reach."
    if not said:
        return [ADMISSION.suspects(
            "cost.admission-limit", f"{words}, unless the launch line of this case is cut", **common, expected=most, required=True,
            rival=("cost.concurrency", "a sharp plateau at the limit, a smooth decline without one", "not rejected here: the server's own log or throughput by concurrency tells them apart"),
            remedy=remedy, next_step="Give the server's log (`serving.log`): it says whether the limit was reset. Notebook 04: throughput by concurrency, once with the limit raised.")]
    return [ADMISSION.fails(
        "cost.admission-limit", words, **common, expected=most,
        rival=("cost.concurrency", f"{limit} run, {most - limit} wait", "a batch too heavy to verify slows every request that runs; these do not run at all"),
        refuted_by="the server's /server_info names another max_running_requests", remedy=remedy,
        predicted_effect=f"Up to {most} requests share a verify round; the waiting time before the first token goes.",
        next_step="Measure throughput at this load once with the limit raised (notebook 04): the accept length stays.")]


def _graphs(found: Inspection, sent: int | None) -> list[Finding]:
    answer, engine = found.arguments, found.case.serving.engine
    typed, effective = answer.raw, answer.effective
    if str(typed.get("device")) == "cpu":
        return []
    lines = found.log_lines("graphs")
    mode = next((m for line in reversed(lines) if (m := _MODE.search(line))), None)
    common = {"evidence": (*rules(_RULE[engine]), *(Evidence(note=line) for line in lines))}
    if typed.get("disable_cuda_graph") or typed.get("enforce_eager"):
        return [GRAPHS.passes("no: the launch line asks for no CUDA graphs. As a test that is right; in production every kernel is launched by the CPU", **common)]
    if mode and mode[1] == "NONE":
        return [GRAPHS.fails(
            "cost.no-cuda-graph", f"the engine says that nothing is replayed from a CUDA graph: {mode.string}", observed="NONE", expected="a mode with full graphs for verify rounds", **common,
            rival=("nccl.graph-fallback", "the engine's own line", "a slow interconnect leaves the graphs in place; here there are none"),
            refuted_by="a later line of the log names another mode", remedy="An attention backend that supports full CUDA graphs with speculation; the line names the one that does not.",
            predicted_effect="A verify round no longer waits for the CPU; the accept length stays.", next_step="Restart with another attention backend and read the line again.")]
    held, whence = _held(found, lines)
    load = min(sent, effective["max_running_requests"]) if sent and engine == "sglang" and effective.get("max_running_requests") else sent
    counts = {"observed": held, "expected": load, "unit": "requests in a verify round", **common}
    if held is not None and load and load > held:
        return [GRAPHS.fails(
            "cost.no-cuda-graph", f"CUDA graphs hold {held} requests ({whence}), but runs with {load} at once were measured: their verify rounds are not replayed", **counts,
            rival=("nccl.graph-fallback", f"{load} requests against {held}", "the engine's own sizes decide this; no interconnect is involved, and smaller loads are replayed"),
            refuted_by="the decode lines of that load say that a graph was replayed", remedy=_larger(engine, load, effective.get("num_steps")),
            predicted_effect="The verify round of that load is replayed; the accept length stays.", next_step="Measure that load once with larger graphs (notebook 04).")]
    if mode and mode[1] == "PIECEWISE":
        return [GRAPHS.suspects(
            "cost.no-cuda-graph", f"the engine says that attention stays outside of its CUDA graphs: {mode.string}", observed="PIECEWISE", expected="FULL", required=True,
            rival=("nccl.graph-fallback", "a cost that grows with the context", "not rejected here: the speed at two context lengths tells them apart"), **common,
            next_step="Measure two context lengths (notebook 04), or start once with another attention backend.")]
    if held is None:
        return []
    reach = f"; {load} at once were measured" if load else "; how many run at once was not measured"
    return [GRAPHS.passes(f"CUDA graphs hold {held} requests ({whence}){reach}", **counts)]


def _held(found: Inspection, lines: tuple[str, ...]) -> tuple[int | None, str]:
    """Requests that fit into the largest graph, and who says so; None where nobody does."""
    typed, steps = found.arguments.raw, found.arguments.effective.get("num_steps")
    if found.case.serving.engine == "sglang":
        sizes = _numbers(typed.get("cuda_graph_bs")) or _numbers(typed.get("cuda_graph_max_bs"))
        return (max(sizes), f"the launch line, which counts requests: {max(sizes)}") if sizes else (None, "")
    told = next((m for line in reversed(lines) if (m := _CAPTURED.search(line))), None)
    tokens, who = (int(told[1]), "the log") if told else (_asked_tokens(typed), "the launch line")
    if not isinstance(steps, int) or tokens is None:
        return None, ""
    return tokens // (steps + 1), f"{who}: {tokens} tokens of {steps} + 1 a request"


def _asked_tokens(typed: Mapping[str, Any]) -> int | None:
    try:
        config = parse_object(typed["compilation_config"], "--compilation-config") if isinstance(typed.get("compilation_config"), str) else {}
    except EvidenceError:
        config = {}
    sizes = [n for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size") for n in _numbers(config.get(name)) or _numbers(typed.get(name))]
    return max(sizes) if sizes else None


def _numbers(value: Any) -> list[int]:
    if isinstance(value, list):
        return [n for n in value if isinstance(n, int) and not isinstance(n, bool)]
    return [int(n) for n in re.findall(r"\d+", str(value))] if value is not None and not isinstance(value, bool | Mapping) else []


def _larger(engine: str, load: int, steps: int | None) -> str:
    if engine == "sglang":
        return f"--cuda-graph-max-bs {load}, or no such flag."
    return f"`max_cudagraph_capture_size` of {load * ((steps or 0) + 1)} in --compilation-config: it counts tokens, (1 + {steps}) a request."
