"""What does the server's own log say of its decode rounds: their time, and whether they replay a CUDA graph at all?

Eager launches cost a fixed time a round, as a slow interconnect does; this tells the two apart before anything is tuned.
"""

from __future__ import annotations

from typing import Any

from eagle_forensics import faults
from eagle_forensics.evidence.decode_log import DecodeLines, DecodeLog
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.settings import NOTEBOOK

FEWEST = 3
"""Lines of one batch size below which nothing is said of it: the first after an idle time is no decode round."""
FAULT = "cost.no-cuda-graph"


def rounds_logged(log: DecodeLog | None) -> Finding:
    """Do decode rounds replay a CUDA graph, and how long do they take?"""
    common: dict[str, Any] = {"id": "nccl.decode-log", "question": "Do decode rounds replay a CUDA graph, and how long do they take?", "notebook": NOTEBOOK, "required": False}
    batches = [b for b in log.batches if b.lines >= FEWEST] if log else []
    if not log or not batches:
        return Finding(**common, status=Status.SKIPPED, statement="The case has no server log with decode lines of SGLang: rounds were not looked at.",
                       next_step="Name the log of the serving process as serving.log, with a minute of decode in it.")
    evidence = tuple(Evidence(note=_line(b), path=str(log.path)) for b in batches)
    first = batches[0]
    common |= {"observed": first.round_ms, "unit": "ms a round", "n": first.lines, "evidence": evidence}
    told = f"{_line(first)}." + (f" {' '.join(log.notes)}" if log.notes else "")
    eager = [b for b in batches if b.eager == b.lines]
    if eager:
        return Finding(**common, status=Status.FAIL, fault=FAULT, expected="cuda graph: True",
                       statement=f"With {', '.join(str(b.running) for b in eager)} running request(s) every decode line says `cuda graph: False`: {told}",
                       competitor=Competitor(fault="nccl.graph-fallback", margin=f"{eager[0].eager} of {eager[0].lines} lines say so",
                                             why_rejected="a slow interconnect leaves `cuda graph: True`; here no graph is replayed, so each layer is launched from Python"),
                       refuted_by=faults.fault(FAULT).refuted_if, remedy=faults.fault(FAULT).remedy,
                       next_step="Start without --disable-cuda-graph and with --cuda-graph-max-bs at least the number of running requests; compare the round's time.")
    mixed = [b for b in batches if b.eager]
    if mixed:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"Some decode rounds ran without a CUDA graph ({mixed[0].eager} of {mixed[0].lines} lines with "
                       f"{mixed[0].running} running): {told}", next_step="Look which batch sizes the server captured (`Capture cuda graph bs`), and whether prefill is mixed in.")
    return Finding(**common, status=Status.PASS, statement=f"All {sum(b.lines for b in batches)} decode lines replay a CUDA graph: {told}")


def _line(b: DecodeLines) -> str:
    length = f"accept length {b.accept_length:.2f}, " if b.accept_length is not None else ""
    return f"{b.running} running: {length}{b.tokens_per_second:.1f} tokens/s, {b.round_ms:.1f} ms a round (medians of {b.lines} lines)"
