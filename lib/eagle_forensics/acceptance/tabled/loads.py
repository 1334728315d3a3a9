"""What runs tell that differ in their load alone: does the accept length fall, or only the gain?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.acceptance.ceiling import CLOCK, hull, ratio
from eagle_forensics.acceptance.confounds import baseline_for
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.fall import UNIT, Fall, nearest, series
from eagle_forensics.acceptance.words import NOTEBOOK, listed, spread
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.stats import Estimate

NEXT = "Measure the same prompts at both loads live (`concurrency`): equal answers with fewer accepted drafts decide."


def by_load(runs: Sequence[Run], adaptive: bool = False, limit: int | None = None) -> list[Finding]:
    """`runtime.batch-metadata` where the accept length falls with the load, `cost.concurrency` where only the gain does. `adaptive`: the engine changes its steps by itself.
    `limit`: requests that the server lets run at once."""
    every = list(series(runs, "concurrency"))
    if not every:
        return []
    loads = max(every, key=len)
    low, high = min(loads), max(loads)
    found = nearest(loads[low], loads[high])
    return [_length(found, loads, adaptive), *filter(None, [_gain(found, loads, runs, limit)])]


def _length(found: Fall, loads: dict[int, list[Run]], adaptive: bool) -> Finding:
    low, high = found.first.concurrency, found.second.concurrency
    common: dict[str, Any] = {"id": "acceptance.by-concurrency", "question": "Does the accept length fall with the load?", "notebook": NOTEBOOK, "unit": UNIT} | found.shown
    text = f"Accept length {spread(found.before)} at concurrency {low}, {spread(found.after)} at {high}"
    if found.kind == "none":
        return Finding(**common, status=Status.PASS, statement=f"{text}: no fall of 5 % or more over {len(loads)} loads.")
    if found.kind == "open":
        return Finding(**common, status=Status.INCONCLUSIVE, fault="measure.not-enough-data", statement=f"{text}: the intervals meet, so a fall is neither shown nor excluded.",
                       next_step=f"{found.advice} {NEXT}")
    doubt = "the engine changes its number of steps with the load" if adaptive else f"{listed(found.unrecorded)} not recorded for both" if found.unrecorded else None
    if doubt:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="runtime.batch-metadata", next_step=NEXT,
                       statement=f"{text}: it falls with the load. The drafter does not know the load; batched metadata would look like this, but {doubt}.",
                       competitor=Competitor(fault="measure.confounded", margin=found.margin, why_rejected="not rejected: whether both loads answered the same requests is not in the table"))
    return Finding(
        **common, status=Status.FAIL, fault="runtime.batch-metadata", **found.judged,
        statement=f"{text}: it falls with the load, on the same prompts and with no other setting changed. The drafter does not know the load, so it works on another request's data.",
        competitor=Competitor(fault="cost.concurrency", margin=found.margin, why_rejected="a load that only costs time leaves the accept length where it is"),
        refuted_by="the same prompts with another attention backend of the draft show the same fall", remedy="Change the attention backend of the draft, or update the engine.",
        predicted_effect=f"accept length {spread(found.before)} at every load", next_step=f"Find the smallest batch that loses, with CUDA graphs on and off. {NEXT}")


def _gain(found: Fall, loads: dict[int, list[Run]], runs: Sequence[Run], limit: int | None) -> Finding | None:
    gains = {load: g for load in sorted(loads) if (g := _at(loads[load], runs)) is not None}
    if len(gains) < 2:
        return None
    (low, first), *_, (high, last) = gains.items()
    said = "; ".join(f"{load} at once: {spread(g)} times" for load, g in gains.items())
    common: dict[str, Any] = {"id": "acceptance.gain-by-concurrency", "question": "Does speculation still pay at the highest load?", "notebook": NOTEBOOK, "unit": "ratio of tokens/s",
                              "observed": last.value, "expected": 1.0, "interval": last.bounded, "n": len(gains), "evidence": (Evidence(note=said),)}
    text = f"Speculation gives {spread(first)} times the tokens/s at {low} request(s) at once, {spread(last)} times at {high}"
    if not (first.low > 1 + CLOCK and last.high < 1 - CLOCK):
        return Finding(**common, status=Status.PASS if last.low > 1 or first.high < 1 else Status.INCONCLUSIVE, required=False, statement=f"{text}.",
                       next_step=None if last.low > 1 else "Interleave repeats at the highest load.")
    if found.kind != "none":
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, fault="cost.concurrency", statement=f"{text}; but the accept length is not flat over these loads (acceptance.by-concurrency).",
                       next_step="Settle the accept length first.")
    if limit is not None and high > limit:
        return Finding(**common, status=Status.INCONCLUSIVE, fault="cost.concurrency", statement=f"{text}; but with speculation at most {limit} requests run at once, the others wait.",
                       competitor=Competitor(fault="cost.admission-limit", margin=f"{high - limit} of {high} requests", why_rejected="not rejected: the limit alone may cost the gain"),
                       next_step=f"Raise --max-running-requests to {high}, or measure loads up to {limit}.")
    return Finding(
        **common, status=Status.FAIL, fault="cost.concurrency", threshold=1 - CLOCK, threshold_why="as fast as without speculation, less what two measurements of one server differ by",
        statement=f"{text}, at an accept length that stays ({spread(found.before)}, {spread(found.after)}): verifying more tokens costs more where the batch already fills the GPU.",
        competitor=Competitor(fault="runtime.batch-metadata", margin=f"accept length {found.lost:+.2f} lower at the higher load", why_rejected="there the accept length falls with the batch; here it stays"),
        refuted_by="interleaved repeats at the higher load in which speculation is not slower",
        remedy="Fewer steps above that load, or none: SGLang's adaptive configuration and vLLM's speculative_disable_by_batch_size do it by batch size.",
        next_step="Sweep the steps at every load that matters.")


def _at(run: Sequence[Run], runs: Sequence[Run]) -> Estimate | None:
    """Tokens/s with speculation over tokens/s without at the same load; None without a comparable baseline."""
    timed = [r for r in run if r.tokens_per_second is not None]
    baselines, differs = baseline_for(timed[0], tuple(runs)) if timed else ((), ())
    return ratio(hull([r.tokens_per_second for r in timed]), hull([b.tokens_per_second for b in baselines])) if baselines and not differs else None
