"""The steps of notebook 05 in order: what the case knows about its interconnect, and what would have to be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from eagle_forensics.case import Case
from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.nccl_logs import read_nccl_log
from eagle_forensics.evidence.nccl_records import NcclLog, NcclTests, Topology
from eagle_forensics.evidence.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.evidence.topology import read_topology
from eagle_forensics.finding import Finding, Status
from eagle_forensics.nccl import findings
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.sizes import MessagePlan, plan


@dataclass(frozen=True)
class Work:
    """Everything about the interconnect that the case holds."""

    tp: int | None
    device: str | None
    plan: MessagePlan | None
    env: Mapping[str, str] | None
    host: Host
    log: NcclLog | None
    tests: tuple[NcclTests, ...]
    topology: Topology | None
    opening: tuple[Finding, ...]


def begin(case: Case) -> Work:
    """Read launch line, target config, environment and NCCL evidence; what cannot be read becomes an opening finding."""
    problems: list[Finding] = []

    def read(key: str, reader: Callable[..., Any], *args: Any) -> Any:
        try:
            return reader(*args)
        except (EvidenceError, OSError, ValueError) as error:
            problems.append(Finding(id=f"nccl.read.{key}", question=f"Can {key} be read?", status=Status.ERROR, notebook=findings.NOTEBOOK,
                                    statement=" ".join(str(error).split()), next_step="Correct it in the case, then run again."))
            return None

    serving, nccl = case.serving, case.nccl
    launch = read("launch", read_launch, serving.launch, case.file.parent if case.file else None) if serving.launch else None
    flags = launch.arguments if launch else {}
    tp = read("launch-tp", _whole, flags.get("tp") or flags.get("tp_size") or flags.get("tensor_parallel_size") or (1 if launch else None))
    device = str(flags["device"]) if "device" in flags else "cpu" if serving.hardware and serving.hardware.count == 0 else None
    steps = read("launch-steps", _whole, flags.get("speculative_num_steps") or 0)
    target = read("target", read_target, case.target.path) if case.target else None
    sizes = read("plan", plan, target.config, tp, steps or 0) if target and tp and tp > 1 else None
    env = read("environment", read_env, serving.env) if serving.env else None
    log = read("log", read_nccl_log, nccl.debug_log) if nccl.debug_log else None
    tests = tuple(t for i, path in enumerate(nccl.tests) if (t := read(f"tests-{i}", read_nccl_tests, path)))
    topology = read("topology", read_topology, nccl.topology) if nccl.topology else None
    host = Host(nccl=log.version if log else None, link=serving.hardware.link if serving.hardware and serving.hardware.link != "none" else None,
                sglang=serving.version if serving.engine == "sglang" else None)
    return Work(tp, device, sizes, env, host, log, tests, topology, tuple(problems))


def judge(work: Work) -> list[Finding]:
    """All findings of the notebook."""
    return findings.evaluate(tp=work.tp, device=work.device, plan=work.plan, env=work.env, host=work.host, log=work.log, tests=work.tests,
                             topology=work.topology.counts if work.topology else None)


def sizes_frame(work: Work) -> pd.DataFrame | None:
    """What one forward sends, for plain decode and for the verify step; None where nothing is sent or it is not known."""
    p = work.plan
    if p is None:
        return None
    one = p.hidden * p.element_bytes
    return pd.DataFrame([{"forward": name, "tokens": tokens, "bytes a message": tokens * one, "all-reduces": p.count}
                         for name, tokens in (("decode", 1), ("verify", p.tokens))])


def capture_frame(work: Work) -> pd.DataFrame:
    """What to capture on the serving host, with the command, in the order in which it decides."""
    commands = [("which algorithm and protocol NCCL picks, and whether it understood the machine", "serving host, once at start", findings.LOG_ENV),
                ("how the GPUs are linked", "serving host", "nvidia-smi topo -m; nvidia-smi topo -p2p r"),
                ("environment of the served process", "serving host, server running", "tr '\\0' '\\n' < /proc/PID/environ | grep -E '^(NCCL|CUDA|SGLANG|VLLM)_'")]
    if work.plan is not None:
        commands.insert(1, ("time of an all-reduce at decode size", "serving host, server stopped", work.plan.nccl_tests))
    return pd.DataFrame(commands, columns=["decides", "where", "command"])


def _whole(value: Any) -> int | None:
    if value is None or value is True or str(value).startswith(("$", "`")):
        return None  # absent, or known to the shell alone
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"the launch line gives {value!r} where a whole number is expected") from None
