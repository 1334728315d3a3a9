"""What runs of the table tell that differ in their context length or their load alone: does the accept length fall, or only the speed?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eagle_forensics.acceptance.ceiling import cycle_ms, measured_accept_length
from eagle_forensics.acceptance.rendering import FEW_ROUNDS
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK, spread
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.stats import Estimate

UNIT = "tokens per verify round"
MOST_STEPS = 16
"""Taken for a run whose steps are not recorded: more than the published sweeps draft, and the more steps, the wider its interval."""
PIECEWISE = "cudagraph_mode=PIECEWISE"
"""vLLM's own words when attention stays outside of its CUDA graphs (vllm 0.11 gpu_model_runner.py)."""


def splits(runs: Sequence[Run], log: Sequence[LogLine] = ()) -> list[Finding]:
    """A finding for each setting that runs with speculation differ in alone; none where there is no such pair."""
    by_length, by_load = _series(runs, "context_length"), _series(runs, "concurrency")
    return [*([_lengths(by_length)] if by_length else []), *([_loads(by_load)] if by_load else []), *filter(None, [_speed(by_length, runs, log)])]


def _series(runs: Sequence[Run], field: str) -> tuple[Run, ...]:
    """The longest series of runs equal in every setting but `field`, one value each, in the order of `field`; empty below two."""
    groups: dict[tuple, dict[int, Run]] = {}
    for run in runs:
        value = getattr(run, field)
        if run.is_speculative and value is not None and run.accept_length is not None:
            known = groups.setdefault(replace(run, label="", **{field: None}).settings, {})
            known[value] = min(known.get(value, run), run, key=lambda r: -r.accept_length.value)  # of repeats the best: a fall must hold for it too
    longest = max(groups.values(), key=len, default={})
    return tuple(longest[v] for v in sorted(longest)) if len(longest) > 1 else ()


def _al(run: Run) -> Estimate:
    """Accept length with printing and sampling error; unrecorded rounds are taken for those of one response, so that no interval is too narrow."""
    return measured_accept_length(replace(run, rounds=run.rounds or FEW_ROUNDS, steps=run.steps or (None if run.ceiling else MOST_STEPS)))


def _table(series: Sequence[Run], field: str) -> tuple[Evidence, ...]:
    return (Evidence(note="; ".join(f"{getattr(r, field)}: {spread(_al(r))}" for r in series)),
            *((Evidence(note=f"rounds are not recorded: taken as {FEW_ROUNDS} a run"),) if any(not r.rounds for r in series) else ()))


def _lengths(series: Sequence[Run]) -> Finding:
    common: dict[str, Any] = {"id": "acceptance.by-context", "question": "Does the accept length fall with the context?", "notebook": NOTEBOOK, "unit": UNIT, "required": False}
    first, last = _al(series[0]), _al(series[-1])
    shown = {"observed": last.value, "expected": first.value, "interval": last.bounded, "n": len(series), "evidence": _table(series, "context_length")}
    text = f"Accept length {spread(first)} at {series[0].context_length} tokens, {spread(last)} at {series[-1].context_length}"
    apart = [r for r in series if _al(r).high < first.low]
    if not apart or last.high >= first.low:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: no fall to be seen over {len(series)} lengths.")
    return Finding(
        **common, **shown, status=Status.INCONCLUSIVE, fault="drafter.rope",
        statement=f"{text}: short prompts are healthy, from {apart[0].context_length} tokens on the intervals lie below that of the shortest. A mean over lengths hides both.",
        competitor=Competitor(fault="data.domain", margin=f"at least {first.low - last.high:.2f} tokens a round between the intervals of both ends",
                              why_rejected="not rejected: longer prompts may hold other text"),
        next_step="Compare the draft's max_position_embeddings and rotary settings in notebook 01; ask the same questions in longer prompts (`prompt_lengths`).")


def _loads(series: Sequence[Run]) -> Finding:
    common: dict[str, Any] = {"id": "acceptance.by-concurrency", "question": "Does the accept length fall with the load?", "notebook": NOTEBOOK, "unit": UNIT, "required": False}
    first, last = _al(series[0]), _al(series[-1])
    shown = {"observed": last.value, "expected": first.value, "interval": last.bounded, "n": len(series), "evidence": _table(series, "concurrency")}
    text = f"Accept length {spread(first)} at concurrency {series[0].concurrency}, {spread(last)} at {series[-1].concurrency}"
    if last.value >= first.value:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: no fall.")
    if last.high >= first.low:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, fault="measure.not-enough-data", statement=f"{text}: the intervals meet, so a fall is neither shown nor excluded.",
                       next_step="Record `rounds`, or measure the same prompts at both loads live (`concurrency`).")
    return Finding(
        **common, **shown, status=Status.INCONCLUSIVE, fault="runtime.batch-metadata", statement=f"{text}: it falls with the load. The drafter does not know the load; batched metadata would look like this.",
        competitor=Competitor(fault="measure.confounded", margin=f"at least {first.low - last.high:.2f} tokens a round between the intervals",
                              why_rejected="not rejected: whether both loads answered the same requests is not in the table"),
        next_step="Measure the same prompts at both loads live (`concurrency`): equal answers with fewer accepted drafts decide.")


def _speed(series: Sequence[Run], runs: Sequence[Run], log: Sequence[LogLine]) -> Finding | None:
    """`cost.no-cuda-graph`: the speed falls with the context, the accept length does not, and the engine says that attention is not captured."""
    timed = [r for r in series if r.tokens_per_second is not None]
    if len(timed) < 2:
        return None
    short, long = timed[0], timed[-1]
    fast, slow = short.tokens_per_second, long.tokens_per_second
    quick, heavy = (cycle_ms(replace(r, accept_length=_al(r))) for r in (short, long))
    if _al(long).high < _al(short).low or quick is None or heavy is None or heavy.low <= quick.high:
        return None
    said = [line for line in log if PIECEWISE in line.text]
    common: dict[str, Any] = {"id": "acceptance.speed-by-context", "question": "Why does speculation slow down with the context?", "notebook": NOTEBOOK, "unit": "ms a round",
                              "observed": heavy.value, "expected": quick.value, "interval": heavy.bounded, "n": len(timed)}
    text = (f"{fast.value:g} tokens/s at {short.context_length} tokens of context, {slow.value:g} at {long.context_length}, at accept lengths that are not told apart "
            f"({spread(_al(short))}, {spread(_al(long))}): a round takes {spread(heavy)} ms instead of {spread(quick)}")
    if not said:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, statement=f"{text}. Attention grows with the context by itself; whether it is captured is not known.",
                       next_step="Give the start-up log under `serving.log`: vLLM says there which CUDA graph mode it takes.")
    return Finding(
        **common, status=Status.FAIL, fault="cost.no-cuda-graph", statement=f"{text}; and the engine says that its attention runs outside of the CUDA graphs ({PIECEWISE}).",
        threshold=0.0, threshold_why="intervals of a round's time that do not meet, accept length's own interval included, beside the engine's own line",
        evidence=(Evidence(note=f"log, byte {said[0].byte}: {said[0].text}"), *_table(series, "context_length")),
        competitor=Competitor(fault="nccl.graph-fallback", margin=f"a round {heavy.low / quick.high:.2f} times as long at least",
                              why_rejected="a slower interconnect costs the same at every context length; here the cost grows with it"),
        refuted_by="the same fall without speculation, or with an attention backend whose graphs hold it",
        remedy="An attention backend that supports full CUDA graphs with speculation (vLLM names it in that line), and a capture size of sequences x (1 + steps) tokens.",
        next_step="Measure both context lengths without speculation, and with another attention backend.")
