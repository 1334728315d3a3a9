"""Does the engine refuse its own all-reduce kernel where that kernel would be the faster way?

SGLang and vLLM take their one-shot kernel for two GPUs, or where NVLink joins all of them. For more than two GPUs on PCIe they refuse
it and say so, which is a rule of thumb and no limit of the hardware: within one socket the kernel is faster for small messages,
across two sockets it is slower, as far as a few machines were measured. So the line alone accuses nobody: what is certain is NVLink that
the engine does not see; on PCIe within one socket the kernel is an open suspicion with the A/B that settles it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import faults
from eagle_forensics.evidence.nccl.records import NcclLog, Topology, Trace
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.settings import LOG_ENV, NOTEBOOK
from eagle_forensics.nccl.sizes import MessagePlan
from eagle_forensics.nccl.traces import ways

FAULT = "nccl.custom-allreduce-off"
GATE = "more than two PCIe-only GPUs"
MOST_RANKS = 4
"""GPUs of one socket on which one-shot kernels were measured to win (7 to 11 %); eight over two sockets lost 4 to 16 %."""
LARGEST = 128 * 1024
"""Bytes up to which one-shot beats NCCL on PCIe: 4 ranks behind one switch, inside a CUDA graph, NCCL against one-shot: 19.4 / 4.0 us at
4 KiB, 24.2 / 11.8 at 32, 51.8 / 44.5 at 128, 83.5 / 120.3 at 384 (a public change to SGLang for V100)."""
SWITCHED_OFF = "disable_custom_all_reduce"
SWITCH = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"


def kernel(said: Sequence[LogLine], *, tp: int | None, plan: MessagePlan | None = None, log: NcclLog | None = None, topology: Topology | None = None,
           traces: Sequence[Trace] = (), env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None, off: str | None = None) -> Finding:
    """`said`: the server log's lines on its own all-reduce; `env`, `flags`: the server's environment and launch arguments."""
    common: dict[str, Any] = {"id": "nccl.own-kernel", "question": "Does the engine refuse an all-reduce kernel of its own that would be faster here?", "notebook": NOTEBOOK, "required": False}
    if not off and not said and (flags or {}).get(SWITCHED_OFF) and topology is not None and topology.link == "nvlink":
        return Finding(**common, status=Status.INCONCLUSIVE, fault=FAULT, observed=dict(topology.counts),
                       statement=f"The launch line switches the engine's own all-reduce off (--{SWITCHED_OFF.replace('_', '-')}), although NVLink joins all GPUs; it may be there for a reason.",
                       next_step="The server's tokens/s with and without the flag, outputs side by side.")
    if off or not said:
        return Finding(**common, status=Status.SKIPPED, statement=f"Not looked at: {off or 'no line of the server log says that the engine refuses its own all-reduce'}.",
                       next_step=None if off else "Give the start of the server's log as `serving.log`; a trace of one decode step names what carries the all-reduces.")
    common["evidence"] = tuple(Evidence(note=f"log, byte {line.byte}: {line.text}") for line in said[:4])

    def open_(why: str, next_step: str, fault: str | None = None) -> Finding:
        return Finding(**common, status=Status.INCONCLUSIVE, fault=fault, statement=f"The engine refuses its own all-reduce ({_reason(said)}). {why}", next_step=next_step)

    own = {way: n for way, n in ways(traces).items() if way not in ("nccl", "gloo")}
    if own or (env or {}).get(SWITCH, "").lower() in ("1", "true"):
        text = ", ".join(f"{n} by {way}" for way, n in own.items()) or f"{SWITCH} is set"
        return open_(f"Another kernel than NCCL's is in use ({text}).", "A trace of one decode step of the served process names what carries the all-reduces.")
    if not any(GATE in line.text for line in said):
        return open_("This is not the rule for PCIe GPUs.", "Read the line; where peer access or the number of ranks is the reason, no setting of NCCL changes it.")
    if tp is None or tp <= 2:
        return open_(f"That line needs more than two ranks, the launch line has {tp or 'no number'}.", "Is the log of the same start?")
    if topology is None or len(topology.gpus) < tp:
        return open_("Whether its kernel would win depends on how the GPUs are linked, which is not known.", "Save the output of `nvidia-smi topo -m`.", FAULT)
    kinds = topology.counts
    rejected = "a failed search slows NCCL and leaves this line alone: it is the engine's, written before NCCL is asked for anything"
    if all(kind.startswith("NV") for kind in kinds):
        pairs = sum(kinds.values())
        return Finding(**common, status=Status.FAIL, fault=FAULT, observed=dict(kinds), n=pairs,
                       statement=f"The engine takes the GPUs for PCIe-only and refuses its own all-reduce, although NVLink joins all {pairs} pairs.",
                       competitor=Competitor(fault=faults.fault(FAULT).rival or "", margin=f"{pairs} of {pairs} pairs by NVLink", why_rejected=rejected), refuted_by=faults.fault(FAULT).refuted_if,
                       remedy="Let the server see NVLink: it asks NVML for each pair, so the driver's fabric manager must run and the container must have NVML and all GPUs of CUDA_VISIBLE_DEVICES.",
                       next_step="`nvidia-smi nvlink --status` inside the server's container, then start again and look for the line.")
    if tp > MOST_RANKS or "SYS" in kinds:
        where = "across two sockets" if "SYS" in kinds else f"of {tp} GPUs"
        return Finding(**common, status=Status.PASS, observed=dict(kinds),
                       statement=f"The engine refuses its own all-reduce {where}: nothing is lost by it as far as is measured, since one-shot kernels over PCIe won on up to {MOST_RANKS} GPUs of one socket and lost across two.")
    if plan is None or log is None or not log.patterns or any(p.is_fallback for p in log.patterns) or log.lost_patterns:
        return open_(f"On {tp} GPUs of one socket its kernel is faster for small messages; whether NCCL itself is in order here is not known.", f"Start the server once with {LOG_ENV}", FAULT)
    direct = sum(n for kind, n in log.transports.items() if kind.startswith("P2P"))
    if not direct or direct < sum(log.transports.values()):
        return open_("Its kernel needs peer access between all pairs, and NCCL's log does not show it for all of them.", "`nvidia-smi topo -p2p r` and `-p2p w`, then NCCL_P2P_LEVEL=SYS.", FAULT)
    if plan.bytes > LARGEST or {p.protocol for p in log.picks_at(plan.bytes)} != {"LL"}:
        return open_(f"A verify sends {plan.bytes:,} bytes; NCCL's way there is not its fastest for small messages, or the message is too large for the kernel.",
                     "Measure both ways at this size with a trace of one decode step each.", FAULT)
    return Finding(
        **common, status=Status.INCONCLUSIVE, fault=FAULT, observed=plan.bytes, unit="bytes", threshold=LARGEST, threshold_why="measured on four ranks over PCIe: one-shot wins to 128 KiB and loses at 384 KiB",
        statement=f"NCCL carries {plan.count} all-reduces of {plan.bytes:,} bytes a verify between {tp} GPUs of one socket, because the engine refuses its own kernel for {GATE}. "
                  "NCCL itself is in order: its search found the machine, it chooses LL, every connection is peer-to-peer. On the machines of this kind that were measured the kernel is faster (24.2 us by NCCL, "
                  "11.8 by one-shot at 32 KiB on V100); whether it is on this one, only this one can tell.",
        competitor=Competitor(fault=faults.fault(FAULT).rival or "", margin=f"{len(log.patterns)} graphs at {min(p.bandwidth for p in log.patterns if p.channels):g} GB/s or more a channel, {direct} of {direct} connections peer-to-peer",
                              why_rejected="after a failed search the log shows 0.1 GB/s and Simple; here it shows a graph and LL"),
        refuted_by="A trace of one decode step shows kernels of the engine's own, or the A/B below shows no gain.",
        next_step="The server's tokens/s with and without a one-shot kernel for PCIe (an engine build that takes its own there, or SGLang's FlashInfer kernel, 0.5.21 on: "
                  "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1), same prompts, outputs side by side.")


def _reason(said: Sequence[LogLine]) -> str:
    text = next((line.text for line in said if GATE in line.text), said[0].text)
    return text.partition(" is disabled")[2].strip(" .").partition(". ")[0] or "no reason given"
