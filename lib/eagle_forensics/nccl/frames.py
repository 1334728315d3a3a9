"""The tables of notebook 05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from eagle_forensics.evidence.decode_log import DecodeLog
from eagle_forensics.evidence.nccl.records import NcclLog, NcclTests, Topology, Trace
from eagle_forensics.nccl.advice import Step
from eagle_forensics.nccl.belief import Belief
from eagle_forensics.nccl.curves import Curve, Switch
from eagle_forensics.nccl.harness import Measured, statistics
from eagle_forensics.nccl.ranking import Ranking
from eagle_forensics.nccl.search import Space
from eagle_forensics.nccl.settings import LOG_ENV
from eagle_forensics.nccl.sizes import MessagePlan, decode_sizes
from eagle_forensics.nccl.tokens import Cost, Round
from eagle_forensics.nccl.traces import carried

STATISTICS = ("min", "p20", "p50", "p95", "p99", "mad")
MICROSECONDS = {f"{s}, us": ".1f" for s in STATISTICS}
ROUNDS = {"round, ms": ".2f", "on the line, ms": ".2f", "plain decode, ms": ".2f", "break-even accept length": ".2f"}


def evidence_frame(log: NcclLog | None, tests: Sequence[NcclTests], topology: Topology | None, traces: Sequence[Trace], decode: DecodeLog | None) -> pd.DataFrame | None:
    """What each file of the case holds about the interconnect, and what was odd in it; None without any."""
    rows: list[tuple[str, Path, str, Sequence[str]]] = []
    if log:
        rows.append(("NCCL log", log.path, f"NCCL {log.version or 'of unknown release'}, {log.lines:,} lines, {log.ranks or 'unknown'} ranks, {len(log.patterns)} graphs, {len(log.picks)} choices", log.notes))
    rows += [("nccl-tests", t.path, f"{t.test or 'test not named'}, {len(t.rows)} rows, {t.ranks or 'unknown'} ranks, NCCL {t.nccl or 'not named'}", t.notes) for t in tests]
    if topology:
        rows.append(("topology", topology.path, f"{len(topology.gpus)} GPUs, {len(topology.nics)} network cards", topology.notes))
    rows += [("trace", t.path, f"{t.format}, {len(t.of()):,} all-reduces", t.notes) for t in traces]
    if decode:
        rows.append(("server log", decode.path, f"{len(decode.windows):,} decode lines", decode.notes))
    return pd.DataFrame([{"evidence": kind, "file": path.name, "holds": holds, "odd": " ".join(notes) or None} for kind, path, holds, notes in rows]).dropna(axis=1, how="all") if rows else None


def sizes_frame(plan: MessagePlan | None) -> pd.DataFrame | None:
    """What one forward sends, by tokens verified; None where nothing is sent or it is not known."""
    if plan is None or plan.tp == 1:
        return None
    names = {1: "plain decode", plan.tokens: "verify as configured"}
    return pd.DataFrame([{"forward": names.get(t, "verify"), "tokens": t, "bytes a message": size, "all-reduces": plan.count} for size, t in decode_sizes(plan).items()])


def belief_frame(belief: Belief | None) -> pd.DataFrame | None:
    """Choice in the log, choice of the model with NCCL's own time, and what was measured, by size."""
    if belief is None or not any(r.logged or r.model for r in belief.rows):
        return None
    rows = []
    for r in belief.rows:
        row = {"bytes": r.bytes, "tokens": r.tokens, "log": f"{r.logged.algorithm}/{r.logged.protocol}" if r.logged else None,
               "channels in log": r.logged.channels if r.logged else None, "model": f"{r.model.algorithm}/{r.model.protocol}" if r.model else None,
               "NCCL believes, us": r.model.time_us if r.model else r.logged.time_us if r.logged else None}
        rows.append(row | {f"us, {label.rsplit('.', 1)[0]}": us for label, us in r.measured.items()})
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def ways_frame(belief: Belief | None, size: int | None) -> pd.DataFrame | None:
    """Every way that is enabled, with NCCL's latency and bandwidth and its estimate at `size` bytes, cheapest first."""
    row = next((r for r in belief.rows if r.bytes == size), None) if belief else None
    if belief is None or row is None or row.model is None:
        return None
    return pd.DataFrame([{"way": f"{a}/{p}", "latency, us": belief.table[a, p].latency_us, "bandwidth, GB/s": belief.table[a, p].bandwidth, f"us at {size:,} bytes": t}
                         for (a, p), t in sorted(row.model.others.items(), key=lambda x: x[1])])


def traces_frame(traces: Sequence[Trace]) -> pd.DataFrame | None:
    """What carried the all-reduces, what they cost, and how long ranks waited for each other."""
    found = carried(traces)
    return pd.DataFrame([{"carried by": c.path, "bytes": f"{c.bytes:,}" if c.bytes else "not in the trace", "calls": c.calls, "ranks seen": c.ranks, "cost, us": c.cost_us, "skew, us": c.skew_us} for c in found]) if found else None


def shares_frame(traces: Sequence[Trace]) -> pd.DataFrame | None:
    """Where the time of each traced GPU went."""
    rows = [{"trace": t.path.name, "span, us": s.span_us, "communication": f"{100 * s.communication_us / s.span_us:.0f} %", "compute": f"{100 * s.compute_us / s.span_us:.0f} %",
             "both": f"{100 * s.overlap_us / s.span_us:.0f} %", "idle": f"{100 * s.idle_us / s.span_us:.0f} %"} for t in traces if (s := t.share) and s.span_us > 0]
    return pd.DataFrame(rows) if rows else None


def launches_frame(launches: Sequence[Measured], tokens: Mapping[int, int]) -> pd.DataFrame | None:
    """Percentiles of single all-reduces by size, middle launch each, and the median of one inside a chain."""
    if not launches:
        return None
    rows = []
    for size in launches[0].alone:
        s = [statistics(m.alone[size]) for m in launches]
        chained = [statistics(m.chain[size])["p50"] for m in launches if m.chain]
        rows.append({"bytes": size, "tokens": tokens.get(size), "launches": len(s), "samples": sum(int(x["n"]) for x in s),
                     **{f"{k}, us": sorted(x[k] for x in s)[len(s) // 2] for k in STATISTICS},
                     f"in a chain of {launches[0].per_chain}, us": sorted(chained)[len(chained) // 2] if chained else None})
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def curves_frame(curves: Mapping[str, Curve], breaks: Mapping[str, Switch]) -> pd.DataFrame | None:
    """Latency and bandwidth of every measured curve, and from which size on another protocol carries it."""
    if not curves:
        return None
    return pd.DataFrame([{"curve": name, "alpha, us": c.alpha_us.value, "alpha 95 %": _interval(c.alpha_us.bounded), "algorithm bandwidth, GB/s": c.bandwidth.value,
                          "bandwidth 95 %": _interval(c.bandwidth.bounded), "largest residual": f"{100 * c.worst_residual:.0f} %", "sizes": len(c.sizes),
                          "protocol changes at": f"{breaks[name].bytes:,} bytes" if name in breaks else None, "interval": c.alpha_us.method}
                         for name, c in curves.items()]).dropna(axis=1, how="all")


def space_frame(space: Space | None) -> pd.DataFrame | None:
    """What would be tried, and what not and why."""
    if space is None:
        return None
    base = space.tried[0].env
    return pd.DataFrame([{"setting": " ".join(f"{k}={v}" for k, v in c.env.items() if base.get(k) != v) or "as served", "launch": "no" if why else "yes", "why": why or c.why}
                         for c, why in [*((c, None) for c in space.tried), *space.skipped]])


def ranking_frame(ranking: Ranking | None) -> pd.DataFrame | None:
    """Order of the last rung, then what left earlier."""
    if ranking is None:
        return None
    rows = [{"setting": n, "against the middle of its rounds": f"{100 * s:+.1f} %", "left": "stayed"} for n, s in zip(ranking.order, ranking.scores, strict=True)]
    return pd.DataFrame([*rows, *({"setting": n, "against the middle of its rounds": None, "left": why} for n, why in reversed(ranking.dropped))])


def rounds_frame(rounds: Sequence[Round], cost: Cost | None) -> pd.DataFrame | None:
    """The measured rounds, the line through them, and plain decode."""
    if not rounds:
        return None
    return pd.DataFrame([{"run": r.label, "tokens verified": r.tokens, "round, ms": r.cycle_ms.value, "round, as printed": _interval(r.cycle_ms.bounded),
                          "on the line, ms": cost.round_ms(r.tokens) if cost else None, "plain decode, ms": 1e3 / r.baseline.value,
                          "break-even accept length": r.cycle_ms.value * r.baseline.value / 1e3, "measured": r.accept_length.value} for r in rounds]).dropna(axis=1, how="all")


def advice_frame(steps: Sequence[Step]) -> pd.DataFrame | None:
    """What to do, why, and what proves it, in order."""
    return pd.DataFrame([{"do": s.do, "why": s.why, "proof": s.prove} for s in steps]) if steps else None


def capture_frame(plan: MessagePlan | None) -> pd.DataFrame:
    """What to capture on the serving host, with the command, in the order in which it decides."""
    commands = [("which algorithm and protocol NCCL picks, and whether it understood the machine", "serving host, once at start", LOG_ENV),
                ("how the GPUs are linked", "serving host", "nvidia-smi topo -m; nvidia-smi topo -p2p r"),
                ("environment of the served process", "serving host, server running", "tr '\\0' '\\n' < /proc/PID/environ | grep -E '^(NCCL|CUDA|SGLANG|VLLM)_'")]
    if plan is not None:
        commands.insert(1, ("time of an all-reduce at decode size", "serving host, server stopped", plan.nccl_tests))
    return pd.DataFrame(commands, columns=["decides", "where", "command"])


def _interval(bounds: tuple[float, float] | None) -> str | None:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}" if bounds else None
