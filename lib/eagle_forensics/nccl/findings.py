"""The findings of notebook 05: is NCCL on the path, are its settings what was meant, what is sent, what would have to be measured.

Nothing here tunes anything: without a log and a measurement at decode size the answer is what to capture, with the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import faults
from eagle_forensics.evidence.decode_log import DecodeLog
from eagle_forensics.evidence.nccl.records import NcclLog, NcclTests, Topology, Trace
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl import contrast, dispatch, engine
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.belief import RING, TREES, Belief, chain
from eagle_forensics.nccl.decode import rounds_logged
from eagle_forensics.nccl.hang import first_collective
from eagle_forensics.nccl.live import Live
from eagle_forensics.nccl.refused import kernel
from eagle_forensics.nccl.settings import LOG_ENV, NOTEBOOK, settings
from eagle_forensics.nccl.sizes import MessagePlan, saving_ms
from eagle_forensics.nccl.traces import ways

DECODE_LIMIT = 256 * 1024
"""Bytes above which a row says nothing about decode: 16 tokens at hidden 7168 are 229,376 bytes."""


def evaluate(*, tp: int | None, device: str | None = None, plan: MessagePlan | None = None, live: Live | None = None,
             meant: Mapping[str, str] | None = None, host: Host | None = None, log: NcclLog | None = None,
             tests: Sequence[NcclTests] = (), topology: Topology | None = None, belief: Belief | None = None,
             traces: Sequence[Trace] = (), decode: DecodeLog | None = None, said: Sequence[LogLine] = ()) -> list[Finding]:
    """All findings of notebook 05. `tp`: tensor parallel size; `device`: `cpu`, `cuda`, None if unknown; `said`: lines of the server log; the rest where the case has it."""
    off = off_path(tp, device)
    if off:
        return [path(tp, device)]
    host, env, measured = host or Host(), live.env if live else None, [t for t in tests if t.rows]
    served = engine.applied(live.env, host.made) if live else None
    return [path(tp, device, host.link, traces), *settings(live, host, meant=meant, log=log, off=off), messages(plan, tp, device, measured=bool(measured)),
            graph(log, plan, measured, off=off, belief=belief, served=served), choice(log, belief, off=off), dispatch.transport(log, off=off), dispatch.spread(log, plan, belief, off=off),
            rounds_logged(decode), curve(measured, plan, off=off), contrast.versions(measured, plan, host.nccl, off=off),
            *contrast.settings(measured, plan, served, off=off, fallback=bool(belief and belief.fallback)), links(topology.counts if topology else None, off=off),
            kernel([s for s in said if s.kind == "all-reduce"], tp=tp, plan=plan, log=log, topology=topology, traces=traces, env=env, flags=host.flags, off=off),
            first_collective([s for s in said if s.kind == "timeout"], tests=tests, log=log, tp=tp, env=env, off=off)]


def path(tp: int | None, device: str | None = None, link: str | None = None, traces: Sequence[Trace] = ()) -> Finding:
    """Is NCCL on the path of a served token?"""
    common: dict[str, Any] = {"id": "nccl.path", "question": "Is NCCL on the path of a served token?", "notebook": NOTEBOOK}
    off = off_path(tp, device)
    if off:
        return Finding(**common, status=Status.PASS, observed=tp, unit="tensor parallel size",
                       statement=f"NCCL is not on the path: {off}. No interconnect setting can change speed or acceptance here.")
    if tp is None:
        return Finding(**common, status=Status.SKIPPED, statement="The tensor parallel size is not known: whether NCCL is on the path was not decided.",
                       next_step="Give the launch line (--tp) in the case.")
    seen = ways(traces)
    if seen:
        common |= {"id": "nccl.carriers", "question": "What carries the all-reduces?"}
        text = ", ".join(f"{n} by {way}" for way, n in sorted(seen.items(), key=lambda x: -x[1]))
        return Finding(**common, status=Status.PASS, observed=seen, n=sum(seen.values()), required=False,
                       evidence=tuple(Evidence(note=f"{t.format}, {len(t.of())} all-reduces", path=str(t.path)) for t in traces),
                       statement=f"In the traces all-reduces are carried {text}. Which protocol NCCL used, the name of its kernel does not say.")
    common |= {"status": Status.INCONCLUSIVE, "required": False, "observed": tp, "unit": "tensor parallel size"}
    if link == "pcie" and tp > 2:
        return Finding(**common, evidence=(Evidence(note="custom all-reduce is refused for more than two GPUs without full NVLink", source="sglang 0.5.9 custom_all_reduce.py:146"),),
                       statement=f"{tp} PCIe GPUs: the engine's custom all-reduce is refused for more than two of them, so NCCL carries both all-reduces of a layer unless another kernel is switched on.",
                       next_step="Look for \"Custom allreduce is disabled\" in the server log; a trace of one decode step names what carries them.")
    return Finding(**common, statement=f"{tp} ranks exchange hidden states twice a layer. Whether NCCL or a custom kernel carries them, the log of the engine says.",
                   next_step="Look for \"Custom allreduce is disabled\" in the server log; more than two PCIe GPUs always use NCCL.")


def messages(plan: MessagePlan | None, tp: int | None, device: str | None = None, *, measured: bool = False) -> Finding:
    """What does decode send, and how often?"""
    common: dict[str, Any] = {"id": "nccl.plan", "question": "What does one verify forward send, and how often?", "notebook": NOTEBOOK, "required": False}
    off = off_path(tp, device)
    if off:
        return Finding(**common, status=Status.SKIPPED, statement=f"Nothing is sent: {off}.")
    if plan is None:
        return Finding(**common, status=Status.SKIPPED, statement="The target's config or the tensor parallel size is missing: message sizes are not known.",
                       next_step="Name the target folder (config.json suffices) and the launch line in the case.")
    return Finding(**common, status=Status.SKIPPED, observed={"bytes": plan.bytes, "all_reduces": plan.count}, unit="bytes",
                   statement=f"A verify forward of {plan.tokens} tokens sends {plan.count} all-reduces of {plan.bytes:,} bytes each between {plan.tp} ranks "
                   f"(and {plan.draft_count} smaller ones in the draft steps). Every 10 us on one of them are {plan.verify_ms(10):.2f} ms a round. "
                   f"{'' if measured else 'Nothing is measured yet; '}{'L' if measured else 'l'}arge-message bandwidth says nothing about this size.",
                   next_step=f"Measure at these sizes, under the server's own environment: {plan.nccl_tests}",
                   evidence=(Evidence(note="2 all-reduces a layer and 1 for the embedding", source="sglang 0.5.9 deepseek_v2.py:621, 699, 755"),))


def graph(log: NcclLog | None, plan: MessagePlan | None = None, tests: Sequence[NcclTests] = (), *, off: str | None = None,
          belief: Belief | None = None, served: Mapping[str, str] | None = None) -> Finding:
    """Did NCCL find its way through the machine, and which protocol does it choose at decode size? `served`: the server's environment."""
    common: dict[str, Any] = {"id": "nccl.graph", "question": "Did NCCL recognise the machine, and what does it choose at decode size?", "notebook": NOTEBOOK}
    if off or log is None:
        why = off or "no NCCL log is in the case. It would tell a failed topology search (one channel, Simple) from a healthy choice (LL)"
        return Finding(**common, status=Status.SKIPPED, statement=f"NCCL's choice was not checked: {why}.",
                       next_step=None if off else f"Start the server once with {LOG_ENV}")
    picks = log.picks_at(plan.bytes) if plan else ()
    protocols = {p.protocol for p in picks}
    chosen = (f"{' and '.join(dict.fromkeys(f'{p.algorithm}/{p.protocol}' for p in picks))} at {picks[0].bytes:,} bytes" if picks else
              "no choice logged at decode size" if plan else "decode's message size is not known")
    lost = [p for p in log.patterns if p.is_fallback]
    seen = [f"pattern {p.pattern}: bandwidth {p.bandwidth:g} GB/s, {p.link}, {p.channels} channels" for p in log.patterns]
    notes = [*seen, *(f"{k}: {v} channel lines" for k, v in log.transports.items())]
    evidence: tuple[Evidence, ...] = (*(Evidence(note=n) for n in notes), Evidence(note=chosen, path=str(log.path)))
    evidence += tuple(Evidence(note=step) for step in (chain(belief, log) if belief else ()))
    if lost or log.lost_patterns:
        effect = _effect(plan, tests)
        both = {p.pattern for p in lost} & {p.pattern for p in log.patterns if p.channels and not p.is_fallback}
        text = f"bandwidth {lost[0].bandwidth:g} GB/s, {lost[0].link}, {lost[0].channels} channel(s)" if lost else f"no path for pattern {log.lost_patterns[0]}"
        if protocols == {"LL"}:
            return Finding(**common, status=Status.INCONCLUSIVE, evidence=evidence, observed=text,
                           statement=f"NCCL's topology search failed ({text}), but decode does not pay for Simple: {chosen}. Larger messages (prefill) have one slow graph.",
                           next_step="Measure prefill size with NCCL_GRAPH_FILE (dump, edit, load) against this.")
        if both:
            return Finding(**common, status=Status.INCONCLUSIVE, fault="nccl.graph-fallback", evidence=evidence, observed=text,
                           statement=f"One search of pattern {min(both)} failed ({text}) and another found its path: several communicators write into this log, and which of them carries decode it does not say; {chosen}.",
                           next_step="NCCL_DEBUG_FILE=nccl.%h.%p.log gives each process its own file; `nRanks` of the lines around the failed search names its group.")
        if not picks and (forced := {**(served or {}), **log.environment}.get("NCCL_PROTO")):
            return Finding(**common, status=Status.INCONCLUSIVE, fault="nccl.graph-fallback", evidence=evidence, observed=text,
                           statement=f"NCCL's topology search failed ({text}), but NCCL_PROTO={forced} limits what it may choose, and the log shows {chosen}.",
                           next_step=f"Start the server once with {LOG_ENV}: the lines of TUNING name the protocol at decode size.")
        return Finding(
            **common, status=Status.FAIL, fault="nccl.graph-fallback", observed=text, expected="a bandwidth above 0.1 GB/s, LL at decode size",
            threshold=0.1, threshold_why="the value NCCL's graph search writes when it finds no path (search.cc)", unit="GB/s",
            statement=f"NCCL's topology search failed and fell back: {text}; {chosen}.",
            competitor=Competitor(fault="cost.no-cuda-graph", margin=f"{len(lost) or len(log.lost_patterns)} of {max(len(log.patterns), 1)} graph patterns at the fallback value",
                                  why_rejected="eager launches cost time as well but leave NCCL's own search intact; here the log shows the search failing"),
            refuted_by="The log shows LL chosen at decode size, or nccl-tests at these sizes is as fast as on a like machine without the fallback.",
            evidence=evidence, remedy=faults.fault("nccl.graph-fallback").remedy, predicted_effect=effect,
            next_step="A/B at decode size, a fresh process group each: NCCL_GRAPH_FILE (dump, edit, load) against NCCL_P2P_LEVEL=SYS with NCCL_PROTO=LL. Not channels.")
    seen_patterns = {p.pattern for p in log.patterns if p.channels}
    if RING not in seen_patterns or not seen_patterns & set(TREES):
        subsystems = log.environment.get("NCCL_DEBUG_SUBSYS", "not shown")
        return Finding(**common, status=Status.INCONCLUSIVE, evidence=evidence, observed=chosen,
                       statement=f"The log has no ring and tree graph (NCCL_DEBUG_SUBSYS: {subsystems}): a silent fallback cannot be excluded, since 2.27 it is logged there only.",
                       next_step=f"Start the server once with {LOG_ENV}")
    if protocols != {"LL"}:
        return Finding(**common, status=Status.INCONCLUSIVE, evidence=evidence, observed=chosen,
                       statement=f"NCCL found its graph, with {chosen}. Whether LL would be faster here, only a measurement says.",
                       next_step=plan.nccl_tests if plan else "Measure at decode sizes with and without NCCL_PROTO=LL.")
    return Finding(**common, status=Status.PASS, evidence=evidence, observed=chosen, statement=f"NCCL found its graph and chooses {chosen}, the low-latency protocol.")


def choice(log: NcclLog | None, belief: Belief | None, *, off: str | None = None) -> Finding:
    """Does NCCL choose what its own cost model says for this machine?"""
    common: dict[str, Any] = {"id": "nccl.choice", "question": "Does NCCL choose at decode size what its own cost model says?", "notebook": NOTEBOOK, "required": False}
    if off or log is None or belief is None or belief.system is None:
        why = off or (belief.unknown if belief and belief.unknown else "no NCCL log")
        return Finding(**common, status=Status.SKIPPED, statement=f"NCCL's model was not asked: {why}.", next_step=None if off else f"Start the server once with {LOG_ENV}")
    compared = [r for r in belief.rows if r.agrees is not None]
    notes = [*belief.deviations, *log.refused]
    evidence = (*(Evidence(note=n, path=str(log.path)) for n in notes), Evidence(note=f"model of {belief.release}", source="nccl src/graph/tuning.cc, tuning.toml"))
    if not compared:
        return Finding(**common, status=Status.INCONCLUSIVE, evidence=evidence, statement="The log shows no choice at the sizes that decode sends.",
                       next_step=f"Start the server once with {LOG_ENV}; under CUDA graphs the lines appear while graphs are captured.")
    other = [r for r in compared if not r.agrees]
    if other:
        first = other[0]
        return Finding(**common, status=Status.INCONCLUSIVE, evidence=evidence, observed=len(other), n=len(compared),
                       statement=f"At {len(other)} of {len(compared)} decode sizes the log shows another choice than the model of NCCL {belief.release}: at {first.bytes:,} bytes "
                       f"{first.logged.algorithm}/{first.logged.protocol} instead of {first.model.algorithm}/{first.model.protocol}.",
                       next_step="A tuner plugin, a setting that this log does not show, or another communicator: read its lines with ENV and TUNING.")
    words = sorted({f"{r.logged.algorithm}/{r.logged.protocol}" for r in compared})
    doubt = ", although its graph search failed, so that its times mean nothing" if belief.fallback else ""
    return Finding(**common, status=Status.PASS, evidence=evidence, observed=len(compared), n=len(compared),
                   statement=f"At all {len(compared)} decode sizes in the log NCCL {belief.release} chooses what its model says: {', '.join(words)}{doubt}.")


def curve(tests: Sequence[NcclTests], plan: MessagePlan | None, *, off: str | None = None) -> Finding:
    """How long does an all-reduce of decode size take?"""
    common: dict[str, Any] = {"id": "nccl.curve", "question": "How long does an all-reduce of decode size take?", "notebook": NOTEBOOK, "unit": "us", "required": False}
    if off or not tests or plan is None:
        why = off or ("no nccl-tests table is in the case" if plan else "message sizes are not known")
        return Finding(**common, status=Status.SKIPPED, statement=f"The time of an all-reduce was not looked at: {why}.",
                       next_step=None if off or plan is None else f"Measure: {plan.nccl_tests}")
    bad = [t for t in tests if t.failed or any(r.wrong for r in t.rows)]
    if bad:
        return Finding(**common, status=Status.ERROR, statement=f"Wrong results in {', '.join(t.path.name for t in bad)}: its times are those of a broken "
                       "configuration and are not used.", next_step="Do not serve with that environment (LL128 forced on PCIe does this). Measure without it.")
    timed = [(t, row.time_us) for t in tests if (row := t.at(plan.bytes)) and row.time_us is not None]
    if not timed:
        small = sorted({r.bytes for t in tests for r in t.rows if r.bytes <= DECODE_LIMIT})
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"No row of {plan.bytes:,} bytes; nearest measured sizes: {small or 'none below 256 KiB'}.",
                       next_step=f"Measure exactly: {plan.nccl_tests}")
    slow, fast = max(timed, key=lambda x: x[1]), min(timed, key=lambda x: x[1])
    text = "; ".join(f"{t.path.name}: {us:.2f} us, {plan.verify_ms(us):.2f} ms a verify forward" for t, us in timed)
    gap = f" Between them lie {saving_ms(plan.count, slow[1], fast[1]):.2f} ms a round." if len(timed) > 1 else ""
    return Finding(**common, status=Status.INCONCLUSIVE, observed=fast[1], n=len(timed), evidence=tuple(Evidence(note=f"{us:.2f} us", path=str(t.path)) for t, us in timed),
                   statement=f"An all-reduce of {plan.bytes:,} bytes takes: {text}.{gap} Single tables without launches repeated prove no winner.",
                   next_step="Paired, interleaved launches of both configurations; then the server's own tokens/s, with and without speculation.")


def links(topology: Mapping[str, int] | None, *, off: str | None = None) -> Finding:
    """How are the GPUs connected?"""
    common: dict[str, Any] = {"id": "nccl.topology", "question": "How are the GPUs connected?", "notebook": NOTEBOOK, "required": False}
    if off or topology is None:
        return Finding(**common, status=Status.SKIPPED, statement=f"Links were not looked at: {off or 'no topology is in the case'}.",
                       next_step=None if off else "Save the output of `nvidia-smi topo -m` and of `nvidia-smi topo -p2p r` from the serving host.")
    text = ", ".join(f"{n} pairs {kind}" for kind, n in sorted(topology.items(), key=lambda x: -x[1]))
    if topology and all(k.startswith("NV") for k in topology):
        return Finding(**common, status=Status.PASS, observed=dict(topology), statement=f"NVLink between all GPUs ({text}): where the engine takes its own all-reduce, "
                       "NCCL's environment is rarely the lever.")
    far = sum(n for kind, n in topology.items() if kind in ("PHB", "NODE", "SYS"))
    return Finding(**common, status=Status.INCONCLUSIVE, observed=dict(topology), statement=f"GPUs over PCIe: {text}. NCCL's default level ends at PXB, so {far} pairs go "
                   "through shared memory instead of peer-to-peer.", next_step="A/B of NCCL_P2P_LEVEL=SYS at decode size, and at two load points: it can help latency and hurt throughput.")


def _effect(plan: MessagePlan | None, tests: Sequence[NcclTests]) -> str | None:
    if plan is None:
        return None
    timed = [row.time_us for t in tests if not t.failed and (row := t.at(plan.bytes)) and row.time_us is not None]
    if len(timed) > 1:
        return f"{saving_ms(plan.count, max(timed), min(timed)):.1f} ms less a round by the measured tables ({max(timed):.1f} -> {min(timed):.1f} us x {plan.count})"
    return (f"public figures of a like machine (48 -> 26 us at 32 and 64 KiB) would save {saving_ms(plan.count, 48.16, 26.20):.1f} to "
            f"{saving_ms(plan.count, 48.69, 25.59):.1f} ms a round ({plan.count} all-reduces)")


def off_path(tp: int | None, device: str | None) -> str | None:
    """Why no all-reduce of NCCL is on the path; None if one may be."""
    if device == "cpu":
        return "the server runs on CPU"
    return "one rank, no all-reduce" if tp == 1 else None
