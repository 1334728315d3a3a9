"""What runs of the table tell that differ in their context length alone: does the accept length fall, or only the speed?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eagle_forensics.acceptance.ceiling import cycle_ms
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.fall import TOLD, UNIT, accept_length, fall, rounds_note, series
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

PIECEWISE = "cudagraph_mode=PIECEWISE"
"""vLLM's own words when attention stays outside of its CUDA graphs (vllm 0.11 gpu_model_runner.py)."""


def by_context(runs: Sequence[Run], log: Sequence[LogLine] = (), reach: int | None = None) -> list[Finding]:
    """A finding for each thing that runs of several context lengths show; none where there are no two. `reach`: positions that the draft was made for."""
    lengths = _series(runs)
    return [_lengths(lengths, reach), *filter(None, [_speed(lengths, log)])] if lengths else []


def _series(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The longest series, one run a length, shortest first; of repeats the best: a fall must hold for it too."""
    longest = max(series(runs, "context_length"), key=len, default={})
    return tuple(max(longest[n], key=lambda r: r.accept_length.value) for n in sorted(longest))


def _table(lengths: Sequence[Run]) -> tuple[Evidence, ...]:
    return (Evidence(note="; ".join(f"{r.context_length}: {spread(accept_length(r))}" for r in lengths)), *rounds_note(lengths))


def _lengths(lengths: Sequence[Run], reach: int | None) -> Finding:
    common: dict[str, Any] = {"id": "acceptance.by-context", "question": "Does the accept length fall with the context?", "notebook": NOTEBOOK, "unit": UNIT}
    found = fall(lengths[0], lengths[-1])
    first, last = found.before, found.after
    shown = found.shown | {"n": len(lengths), "evidence": _table(lengths)}
    text = f"Accept length {spread(first)} at {lengths[0].context_length} tokens, {spread(last)} at {lengths[-1].context_length}"
    if found.kind == "none":
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: no fall of 5 % or more over {len(lengths)} lengths.")
    if found.kind == "open":
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, fault="measure.not-enough-data", statement=f"{text}: the intervals meet, so a fall is neither shown nor excluded.",
                       next_step=found.advice)
    begins = next(r.context_length for r in lengths if accept_length(r).high < first.low)
    text = f"{text}: short prompts are healthy, from {begins} tokens on the intervals lie below that of the shortest"
    within, beyond = [r for r in lengths if reach and r.context_length <= reach], [r for r in lengths if reach and r.context_length > reach]
    if within and beyond and begins > reach:
        return Finding(
            **common, **shown, status=Status.FAIL, fault="drafter.rope", threshold=float(reach), threshold_why=f"the draft's own max_position_embeddings; {TOLD}",
            statement=f"{text}, and the draft was made for {reach} positions: up to there the accept length holds, beyond it falls. A mean over lengths hides both.",
            competitor=Competitor(fault="data.domain", margin=found.margin, why_rejected=f"other text falls at any length; {listed([r.context_length for r in within])} tokens lie within the draft's range and are healthy"),
            refuted_by="the same questions in longer prompts (`prompt_lengths`) without a fall", remedy="Train the draft on long contexts with as many positions, or with a sliding window; until then serve long prompts without speculation.",
            predicted_effect=f"accept length {spread(first)} at every length", next_step="Ask the same questions in longer prompts (`prompt_lengths`).")
    return Finding(
        **common, **shown, status=Status.INCONCLUSIVE, fault="drafter.rope", statement=f"{text}. A mean over lengths hides both.",
        competitor=Competitor(fault="data.domain", margin=found.margin, why_rejected="not rejected: longer prompts may hold other text"),
        next_step="Compare the draft's max_position_embeddings and rotary settings in notebook 01; ask the same questions in longer prompts (`prompt_lengths`).")


def _speed(lengths: Sequence[Run], log: Sequence[LogLine]) -> Finding | None:
    """`cost.no-cuda-graph`: the speed falls with the context, the accept length does not, and the engine says that attention is not captured."""
    timed = [r for r in lengths if r.tokens_per_second is not None]
    if len(timed) < 2:
        return None
    short, long = timed[0], timed[-1]
    fast, slow = short.tokens_per_second, long.tokens_per_second
    quick, heavy = (cycle_ms(replace(r, accept_length=accept_length(r))) for r in (short, long))
    if accept_length(long).high < accept_length(short).low or quick is None or heavy is None or heavy.low <= quick.high:
        return None
    said = [line for line in log if PIECEWISE in line.text]
    common: dict[str, Any] = {"id": "acceptance.speed-by-context", "question": "Why does speculation slow down with the context?", "notebook": NOTEBOOK, "unit": "ms a round",
                              "observed": heavy.value, "expected": quick.value, "interval": heavy.bounded, "n": len(timed)}
    text = (f"{fast.value:g} tokens/s at {short.context_length} tokens of context, {slow.value:g} at {long.context_length}, at accept lengths that are not told apart "
            f"({spread(accept_length(short))}, {spread(accept_length(long))}): a round takes {spread(heavy)} ms instead of {spread(quick)}")
    if not said:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, statement=f"{text}. Attention grows with the context by itself; whether it is captured is not known.",
                       next_step="Give the start-up log under `serving.log`: vLLM says there which CUDA graph mode it takes.")
    return Finding(
        **common, status=Status.FAIL, fault="cost.no-cuda-graph", statement=f"{text}; and the engine says that its attention runs outside of the CUDA graphs ({PIECEWISE}).",
        threshold=0.0, threshold_why="intervals of a round's time that do not meet, accept length's own interval included, beside the engine's own line",
        evidence=(Evidence(note=f"log, byte {said[0].byte}: {said[0].text}"), *_table(lengths)),
        competitor=Competitor(fault="nccl.graph-fallback", margin=f"a round {heavy.low / quick.high:.2f} times as long at least",
                              why_rejected="a slower interconnect costs the same at every context length; here the cost grows with it"),
        refuted_by="the same fall without speculation, or with an attention backend whose graphs hold it",
        remedy="An attention backend that supports full CUDA graphs with speculation (vLLM names it in that line), and a capture size of sequences x (1 + steps) tokens.",
        next_step="Measure both context lengths without speculation, and with another attention backend.")
