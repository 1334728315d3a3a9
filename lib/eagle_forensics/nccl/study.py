"""The steps of notebook 05 in order: what the case knows about its interconnect, what this host measures, and what to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from eagle_forensics import show
from eagle_forensics.case import Case
from eagle_forensics.evidence.decode_log import DecodeLog, read_decode_log
from eagle_forensics.evidence.experts import experts
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.records import NcclLog, NcclTests, Topology, Trace
from eagle_forensics.evidence.nccl.topology import read_topology
from eagle_forensics.evidence.nccl.traces import read_trace
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.server_log import LogLine, read_server_log
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.finding import Finding, Status
from eagle_forensics.nccl import (
    advice,
    bench,
    curves,
    figures,
    findings,
    frames,
    gains,
    memory,
    search,
    tokens,
    tuner_file,
)
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.belief import Belief, believe
from eagle_forensics.nccl.bench import Bench
from eagle_forensics.nccl.engine import applied
from eagle_forensics.nccl.harness import torchrun_line
from eagle_forensics.nccl.live import Live, gather
from eagle_forensics.nccl.ranking import LaunchFailed
from eagle_forensics.nccl.search import Space
from eagle_forensics.nccl.sizes import ELEMENT_BYTES, MessagePlan, decode_sizes, plan
from eagle_forensics.nccl.tuning import Choice, UnsupportedRelease, choose, communicator_channels


@dataclass(frozen=True)
class Work:
    """Everything about the interconnect that the case holds."""

    tp: int | None
    device: str | None
    nodes: int
    """Over which one group of tensor parallelism spreads: pipeline stages take their share of the server's."""
    plan: MessagePlan | None
    live: Live | None
    meant: Mapping[str, str]
    """NCCL's variables that the launch line or script sets."""
    served: Mapping[str, str]
    """NCCL's and CUDA's variables of the server: the case's, and what the engine sets by itself."""
    host: Host
    log: NcclLog | None
    tests: tuple[NcclTests, ...]
    topology: Topology | None
    traces: tuple[Trace, ...]
    decode: DecodeLog | None
    said: tuple[LogLine, ...]
    """Lines of the server log that say something, of either engine."""
    belief: Belief | None
    gpus: int | None
    gpu: str | None
    config: Mapping[str, Any] | None
    """The target's."""
    rounds: tuple[tokens.Round, ...]
    cost: tokens.Cost | None
    opening: tuple[Finding, ...]


def begin(case: Case, *, acceptance: Mapping[str, Any] | None = None, arguments: Mapping[str, Any] | None = None) -> Work:
    """Read launch line, target config, environment and NCCL evidence; what cannot be read becomes an opening finding.

    `acceptance`, `arguments`: records of notebooks 04 and 01 in the same run.
    """
    problems: list[Finding] = []

    def read(key: str, reader: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return reader(*args, **more)
        except (EvidenceError, OSError, ValueError) as error:
            problems.append(Finding(id=f"nccl.read.{key}", question=f"Can {key} be read?", status=Status.ERROR, notebook=findings.NOTEBOOK,
                                    statement=" ".join(str(error).split()), next_step="Correct it in the case, then run again."))
            return None

    serving, nccl, hardware = case.serving, case.nccl, case.serving.hardware
    launch = read("launch", read_launch, serving.launch, case.file.parent if case.file else None) if serving.launch else None
    flags = launch.arguments if launch else {}
    tp = read("launch-tp", _whole, flags.get("tp") or flags.get("tp_size") or flags.get("tensor_parallel_size") or (1 if launch else None))
    device = str(flags["device"]) if "device" in flags else "cpu" if hardware and hardware.count == 0 else None
    steps = (arguments or {}).get("num_steps") or read("launch-steps", _whole, flags.get("speculative_num_steps") or 0) or 0
    tree = (arguments or {}).get("num_draft_tokens") if ((arguments or {}).get("topk") or 1) > 1 else None
    target = read("target", read_target, case.target.path) if case.target else None
    dtype = flags.get("dtype") if flags.get("dtype") in ELEMENT_BYTES else None
    sent = read("plan", plan, target.config, tp, steps, dtype=dtype, tokens=tree) if target and tp and not findings.off_path(tp, device) else None
    typed = {k: v for k, v in launch.env.items() if k.startswith("NCCL_")} if launch else {}
    live = read("environment", gather, serving.env) if serving.env else Live(typed, proven=False) if typed else None
    env = live.env if live else None
    log = read("log", read_nccl_log, nccl.debug_log) if nccl.debug_log else None
    tests = tuple(t for i, path in enumerate(nccl.tests) if (t := read(f"tests-{i}", read_nccl_tests, path)))
    topology = read("topology", read_topology, nccl.topology) if nccl.topology else None
    traces = tuple(t for i, path in enumerate(nccl.traces) if (t := read(f"traces-{i}", read_trace, path)))
    decode = read("server-log", read_decode_log, serving.log) if serving.log and serving.engine == "sglang" else None
    server_log = read("server-log", read_server_log, serving.log) if serving.log and (serving.engine != "sglang" or decode) else None
    release = log.version if log else None
    nodes = max((log.nodes if log else None) or 1, read("launch-nodes", _whole, flags.get("nnodes")) or 1)
    stages = read("launch-pp", _whole, flags.get("pp") or flags.get("pp_size") or flags.get("pipeline_parallel_size")) or 1
    host = Host(nccl=release, link=(hardware.link if hardware and hardware.link != "none" else None) or (topology.link if topology else None), nodes=nodes,
                engine=serving.engine, engine_release=serving.version, flags=flags)
    served = applied({k: v for k, v in (env or {}).items() if k.startswith(("NCCL_", "CUDA_"))}, host.made)
    belief = believe(log, decode_sizes(sent), capability=hardware.compute_capability if hardware else None, release=release, tests=tests, env=env, ranks=sent.tp) if sent else None
    runs = tokens.rounds(acceptance)
    spanned = log.nodes if log and log.nodes and log.ranks == tp else -(-nodes // stages)
    return Work(tp, device, spanned, sent, live, typed, served, host, log, tests, topology, traces, decode, server_log.lines if server_log else (), belief, hardware.count if hardware else tp,
                hardware.gpu if hardware else None, target.config if target else None, runs, _cost(runs, target.config if target else None), tuple(problems))


def measure(work: Work, mode: str, *, launches: int, samples: int) -> Bench:
    """What this host measures in `mode`; a harness that does not run, or has nothing to measure, says why."""
    try:
        return bench.measure(mode, sent=work.plan, config=work.config, served=work.served, belief=work.belief, link=work.host.link,
                             launches=launches, samples=samples)
    except (LaunchFailed, ValueError) as error:
        return Bench(mode, reason=f"the harness did not measure: {error}")


def space(work: Work, measured: Bench) -> Space | None:
    """The settings that were tried, or that would be tried on the serving host."""
    if measured.space is not None or work.plan is None or findings.off_path(work.tp, work.device):
        return measured.space
    return search.space(release=work.host.nccl, link=work.host.link, sizes=tuple(decode_sizes(work.plan)), system=work.belief.system if work.belief else None,
                        base=work.served, trusted=not (work.belief and work.belief.fallback))


def judge(work: Work) -> list[Finding]:
    """What NCCL does with its settings on the served machine."""
    return findings.evaluate(tp=work.tp, device=work.device, plan=work.plan, live=work.live, meant=work.meant, host=work.host, log=work.log, tests=work.tests,
                             topology=work.topology, belief=work.belief, traces=work.traces, decode=work.decode, said=work.said)


def joined(work: Work, measured: Bench) -> list[Finding]:
    """What this host's search found, and what a faster all-reduce would save of a round."""
    off = findings.off_path(work.tp, work.device)
    return [gains.searched(measured.found, measured.checks, reason=off or measured.reason, fallback=bool(work.belief and work.belief.fallback)),
            gains.cost(work.rounds, work.cost, work.plan, all_reduce_us(work, measured), found=measured.found, read=memory.expert_read(work.config, work.gpu, work.gpus), off=off)]


def all_reduce_us(work: Work, measured: Bench) -> float | None:
    """Time of one all-reduce of a verify as served: this host's chain under NCCL, else the slowest table of the case at that size."""
    if work.plan is None:
        return None
    if measured.served is not None and work.plan.bytes in measured.served.alone:
        return measured.served.summary(work.plan.bytes)["p50"]
    return max((at.time_us for t in work.tests if not t.failed and (at := t.at(work.plan.bytes)) and at.time_us), default=None)


def points(work: Work, measured: Bench) -> dict[str, dict[int, float]]:
    """Time by size of every table of the case and of the harness (p20 of the single all-reduces), for sizes below 1 MiB.

    Gloo's only where there is nothing else: processors and GPUs do not belong into one picture."""
    found = {t.path.name: {r.bytes: r.time_us for r in t.rows if not r.in_place and r.time_us and r.bytes <= 2**20} for t in work.tests if not t.failed}
    if measured.launches and (measured.served or not found):
        found[f"harness, {measured.launches[0].backend}"] = measured.low()
    return {name: values for name, values in found.items() if len(values) > 1}


def fits(work: Work, measured: Bench) -> dict[str, curves.Curve]:
    """The curve through each of them."""
    launches = measured.low_of_each()
    return {name: curves.fit(values, launches if name.startswith("harness") else ()) for name, values in points(work, measured).items()}


def breaks(work: Work, measured: Bench) -> dict[str, curves.Switch]:
    """The curves in which the protocol changes: where the log shows another choice and two segments fit better."""
    picks = sorted((p.bytes, f"{p.algorithm}/{p.protocol}") for p in (work.log.picks if work.log else ()) if p.collective in (None, "AllReduce"))
    logged = [size for (_, before), (size, after) in itertools.pairwise(picks) if before != after]
    return {name: found for name, values in points(work, measured).items() if (found := curves.switch(values, logged))}


def curves_picture(work: Work, measured: Bench) -> Any:
    """Measured curves beside NCCL's belief; None without a measurement."""
    found, sent = points(work, measured), work.plan or measured.plan
    return figures.curves_plot(found, fits(work, measured), sent, work.belief, measured.launches) if found and sent else None


def ranking_picture(measured: Bench) -> Any:
    """Launches of each setting; None without a search."""
    return figures.ranking_plot(measured.found.ranking, measured.found.comparison) if measured.found else None


def rounds_picture(work: Work) -> Any:
    """Rounds on their line; None without three step counts."""
    return figures.rounds_plot(work.rounds, work.cost) if work.cost else None


def advice_frame(work: Work, measured: Bench) -> pd.DataFrame | None:
    """What to do about this machine, in order."""
    return frames.advice_frame(_advice(work, measured))


def settings_markup(work: Work, measured: Bench) -> tuple[str | None, str]:
    """`settings` as HTML, and as text."""
    text = settings(work, measured)
    return (None, "") if text is None else (f'<pre class="ef-settings">{show.safe(text, limit=20000)}</pre>', text)


def settings(work: Work, measured: Bench) -> str | None:
    """What to set, as text to copy: environment, tuner file, harness on several hosts; None where nothing is sent."""
    if work.plan is None:
        return None
    env = measured.found.changes if measured.found is not None and measured.found.won and all(g.passed for g in measured.checks) else {}
    parts = ["# " + ("Proven on this host: " if env else "Nothing is proven yet, so nothing is to be set. ") + (advice.NOT_FOR_PRODUCTION if env else "")]
    parts += [f"export {k}={v}" for k, v in env.items()]
    if table := tuner(work, env or {"NCCL_PROTO": "LL"} if work.belief and work.belief.fallback else env):
        parts += ["", f"# {'The same' if env else 'A candidate for the A/B,'} by size, as a file of the example tuner plugin (NCCL 2.27.7 on):", *(f"# {k}={v}" for k, v in
                  tuner_file.environment("/path/nccl_tuner.conf").items()), table.rstrip()]
    parts += ["", "# The measurement of this notebook with torchrun, on every host:", torchrun_line(measured.task(work.plan), work.served, work.nodes)]
    return "\n".join(parts)


def tuner(work: Work, env: Mapping[str, str]) -> str | None:
    """The tuner file that gives `env`'s choice at decode sizes and leaves other sizes to ring and Simple; None without a model or a setting."""
    choices = _choices(work, env)
    if not choices or work.belief is None or work.belief.system is None:
        return None
    system = work.belief.system
    return tuner_file.text(tuner_file.entries(choices, ranks=system.ranks, nodes=system.nodes, channels=communicator_channels(system)))


def record(work: Work, measured: Bench) -> dict[str, Any]:
    """Plan, belief, worth and advice, for later runs and the comparison of runs. Raw samples are `measured.record()`."""
    p = work.plan
    return {"plan": None if p is None else {"bytes": p.bytes, "all_reduces": p.count, "tokens": p.tokens, "tp": p.tp, "draft_all_reduces": p.draft_count},
            "release": work.host.nccl, "choices": [] if work.belief is None else [
                {"bytes": r.bytes, "log": f"{r.logged.algorithm}/{r.logged.protocol}" if r.logged else None, "model": f"{r.model.algorithm}/{r.model.protocol}" if r.model else None}
                for r in work.belief.rows],
            "all_reduce_us": all_reduce_us(work, measured), "cost": None if work.cost is None else {
                "fixed_ms": work.cost.fixed_ms.value, "load_ms": work.cost.load_ms.value, "penalty_ms": work.cost.penalty_ms},
            "advice": [s.do for s in _advice(work, measured)],
            "speculative_adaptive_config": advice.adaptive(work.rounds, _best_steps(work))}


def _advice(work: Work, measured: Bench) -> list[advice.Step]:
    return advice.steps(plan=work.plan, link=work.host.link, gpus=work.gpus, nodes=work.nodes, belief=work.belief, found=measured.found, checks=measured.checks, cost=work.cost)


def _choices(work: Work, env: Mapping[str, str]) -> list[Choice]:
    b = work.belief
    if not env or b is None or b.system is None or b.release is None:
        return []
    try:
        return [choose(b.system, b.release, r.bytes, env) for r in b.rows]
    except (UnsupportedRelease, ValueError):
        return []


def _best_steps(work: Work) -> int | None:
    """Steps of the measured run with the most tokens/s that beats its baseline."""
    winning = [(r.accept_length.value / r.cycle_ms.value, r.steps) for r in work.rounds if 1e3 * r.accept_length.low / r.cycle_ms.high > r.baseline.high]
    return max(winning)[1] if winning else None


def _cost(measured: tuple[tokens.Round, ...], config: Mapping[str, Any] | None) -> tokens.Cost | None:
    try:
        return tokens.cost(measured, experts(config)) if config is not None else None
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    if value is None or value is True or str(value).startswith(("$", "`")):
        return None  # absent, or known to the shell alone
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"the launch line gives {value!r} where a whole number is expected") from None
