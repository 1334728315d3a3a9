"""A live measurement as tables, and as a row of the measurements table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.clients.records import Answer
from eagle_forensics.acceptance.live.measure import Measurement
from eagle_forensics.acceptance.live.verification import verification
from eagle_forensics.acceptance.runs import Run


def servers_frame(measurements: Sequence[Measurement]) -> pd.DataFrame:
    """One row a server and setting: what was asked, what came, accept length with its interval, tokens/s."""
    return pd.DataFrame([{
        "server": m.label, "engine": f"{m.server.engine} {m.server.version}", "steps": m.server.steps, "temperature": m.settings.sampling.temperature,
        "concurrency": m.settings.concurrency, "answers": len(m.good), "failed": len(m.answers) - len(m.good),
        "verify rounds": m.acceptance.rounds if m.acceptance else None, "accept length": m.accept_length.text() if m.accept_length else None,
        "tokens/s, prefill included": m.tokens_per_second, "prompts": m.workload.prompts_hash, "chat template": m.workload.template_hash, "ended": m.stopped,
    } for m in measurements])


def definitions_frame(m: Measurement) -> pd.DataFrame:
    """The same counts under every definition, {figure, value, definition}."""
    if m.acceptance is None:
        return pd.DataFrame(columns=["figure", "value", "definition"])
    tokens = sum(a.completion_tokens or 0 for a in m.good) if m.parts else None
    return pd.DataFrame(counters.as_defined(m.acceptance, m.server.engine, m.server.version, steps=m.server.steps, completion_tokens=tokens))


def positions_frame(m: Measurement) -> pd.DataFrame:
    """Survival (share of rounds that accept at least i drafts) with its interval over answers, and conditional acceptance, by position."""
    parts, found = [p for p in m.parts if p.reached is not None], m.acceptance
    if found is None or found.reached is None:
        return pd.DataFrame(columns=["position", "reached", "survival", "low", "high", "of those that got there"])
    rows = []
    for i, (reached, conditional) in enumerate(zip(found.reached, found.conditional, strict=True)):
        if len(parts) == len(m.parts) and parts:
            s = stats.ratio_of_sums([p.reached[i] if i < len(p.reached) else 0 for p in parts], [p.rounds for p in parts], seed=m.settings.seed)
        else:
            s = stats.wilson(reached, found.rounds)
        rows.append({"position": i + 1, "reached": reached, "survival": s.value, "low": s.low, "high": s.high, "of those that got there": conditional})
    return pd.DataFrame(rows)


def domains_frame(m: Measurement) -> pd.DataFrame:
    """Accept length of each domain of prompts, with its interval over answers."""
    rows = []
    for domain in m.workload.domains:
        parts = [a.acceptance for a in m.good if a.domain == domain and a.acceptance is not None]
        if parts:
            al = counters.accept_length(parts)
            low, high = al.bounded or (None, None)
            rows.append({"domain": domain, "answers": len(parts), "verify rounds": al.n, "accept length": al.value, "low": low, "high": high})
    return pd.DataFrame(rows)


def as_run(m: Measurement) -> Run:
    """The measurement as a row of the measurements table, with its sampling intervals.

    One request at a time, tokens/s and the time of a round are those of decoding; with more, of the busy time, prefill included.
    """
    found, speculative = m.acceptance, bool(m.server.speculative)
    distinct = {t for a in m.good for t in a.output_ids or ()}
    al = m.accept_length
    if al is not None and al.bounded is None:
        al = stats.Estimate(al.value, al.value, al.value, 0, 0, al.method)
    timed = _timed(m)
    own = f", temperature {m.settings.sampling.temperature:g}, concurrency {m.settings.concurrency}"
    return Run(
        label=f"live {m.label}{own}", engine=m.server.engine, engine_version=m.server.version, speculative=speculative, steps=m.server.steps if speculative else 0,
        topk=m.server.topk if speculative else None, draft_tokens=m.server.draft_tokens if speculative else None, temperature=m.settings.sampling.temperature,
        concurrency=m.settings.concurrency, dataset=m.workload.name, prompts_hash=m.workload.prompts_hash, rounds=found.rounds if found else None,
        accept_length=al if speculative else None, survival=found.survival if found else None, distinct_output_tokens=len(distinct) or None,
        verification=verification(m.server) if speculative else None,
        tokens_per_second=stats.ratio_of_sums([n for _, n, _ in timed], [s for _, _, s in timed], seed=m.settings.seed) if timed else None,
        cycle_ms=_cycle(timed, m.settings.seed) if speculative else None)


def _timed(m: Measurement) -> list[tuple[Answer, int, float]]:
    """Answer, its tokens, the seconds they took."""
    if m.settings.concurrency == 1:
        return [(a, a.completion_tokens - 1, a.seconds - a.first_s) for a in m.good if a.decode_tokens_per_second is not None]
    total = sum(a.seconds for a in m.good)
    return [(a, a.completion_tokens, a.seconds * m.busy_s / total) for a in m.good if a.completion_tokens] if total else []


def _cycle(timed: Sequence[tuple[Answer, int, float]], seed: int) -> stats.Estimate | None:
    counted = [(1e3 * s, a.acceptance.rounds) for a, _, s in timed if a.acceptance is not None]
    return stats.ratio_of_sums([s for s, _ in counted], [r for _, r in counted], seed=seed) if counted else None
