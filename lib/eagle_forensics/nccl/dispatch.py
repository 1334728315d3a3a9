"""Over which transport and how many channels do messages go, as NCCL's log shows it?

Shared memory is NCCL's own default between sockets and no fault by itself; sockets inside one node are one. A tuner plugin that
does not match a call pins it to one channel (plugins/tuner/example plugin.c: `*nChannels = 1`), which decode does not notice.
"""

from __future__ import annotations

from typing import Any

from eagle_forensics import faults
from eagle_forensics.evidence.nccl.records import NcclLog, Pick
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.belief import Belief
from eagle_forensics.nccl.grammar import as_int
from eagle_forensics.nccl.settings import LOG_ENV, NOTEBOOK
from eagle_forensics.nccl.sizes import MessagePlan
from eagle_forensics.nccl.tuning import channels

LARGE = 1 << 20
"""Bytes that fill several channels of any release: one channel of Simple takes 32 KiB, one of ring LL 4 KiB a rank."""
CAPS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS")
SOCKETS = "nccl.no-direct-transport"
PINNED = "nccl.tuner-one-channel"


def transport(log: NcclLog | None, *, off: str | None = None) -> Finding:
    """Do the ranks of a node reach each other directly?"""
    common: dict[str, Any] = {"id": "nccl.transport", "question": "Do the ranks of a node reach each other directly?", "notebook": NOTEBOOK, "required": False}
    if off or log is None or not log.transports:
        why = off or ("no NCCL log is in the case" if log is None else "the log holds no line of a connection")
        return Finding(**common, status=Status.SKIPPED, statement=f"Transports were not looked at: {why}.", next_step=None if off else f"Start the server once with {LOG_ENV}")
    total = sum(log.transports.values())
    by = {kind: sum(n for name, n in log.transports.items() if name.startswith(kind)) for kind in ("P2P", "SHM", "NET/Socket", "NET")}
    text = ", ".join(f"{n} by {name}" for name, n in sorted(log.transports.items(), key=lambda x: -x[1]))
    common |= {"observed": dict(log.transports), "n": total, "unit": "channel lines", "evidence": (Evidence(note=text, path=str(log.path)),)}
    if log.nodes == 1 and by["NET/Socket"]:
        switched = [f"{name}=1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if log.environment.get(name) == "1"]
        if len(switched) == 2:
            return Finding(**common, status=Status.FAIL, fault=SOCKETS, statement=f"Within one node {by['NET/Socket']} of {total} connections go over sockets, with {' and '.join(switched)} in the log.",
                           competitor=Competitor(fault="nccl.graph-fallback", margin="two settings of two, against a failed search",
                                                 why_rejected="a failed search leaves shared memory to carry the data; here both direct ways are switched off"),
                           refuted_by=faults.fault(SOCKETS).refuted_if, remedy=faults.fault(SOCKETS).remedy, next_step="Take one of the two away, start again, and look for `via P2P` or `via SHM`.")
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"Within one node {by['NET/Socket']} of {total} connections go over sockets; the log does not show why.",
                       next_step="Look for both NCCL_P2P_DISABLE and NCCL_SHM_DISABLE in the server's environment, for a small /dev/shm, and for ranks in separate containers.")
    if by["SHM"]:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{by['SHM']} of {total} connections go through shared memory ({text}): NCCL's default beyond a PCIe switch, "
                       "slower or not is not told by the log.", next_step="A/B of NCCL_P2P_LEVEL=SYS at decode size, and at two load points: it can help latency and hurt throughput.")
    return Finding(**common, status=Status.PASS, statement=f"No connection within a node goes through shared memory or sockets: {text}." if log.nodes != 1 or not by["NET"]
                   else f"Connections: {text}. NCCL judges the network card faster than shared memory here.")


def spread(log: NcclLog | None, plan: MessagePlan | None, belief: Belief | None, *, off: str | None = None) -> Finding:
    """Do messages use the channels that they fill?"""
    common: dict[str, Any] = {"id": "nccl.channels", "question": "Do messages use the channels that they fill?", "notebook": NOTEBOOK, "required": False}
    large = [p for p in log.picks if p.bytes >= LARGE and p.channels is not None] if log else []
    cap = min((n for name in CAPS if log and (n := as_int(log.environment.get(name))) is not None and n > 0), default=None)
    if off or log is None or log.channels is None or not (large or cap):
        why = off or ("no NCCL log is in the case" if log is None else "the log shows neither the channels of a message of 1 MiB or more, nor a limit" if log.channels is not None
                      else "the log does not say how many channels there are")
        return Finding(**common, status=Status.SKIPPED, statement=f"Channels were not looked at: {why}.", next_step=None if off else f"Start the server once with {LOG_ENV}")
    evidence = tuple(Evidence(note=_line(p), path=str(log.path)) for p in large[:8])
    pinned = [p for p in large if p.channels == 1]
    if pinned and log.channels > 1 and cap is None:
        if log.plugin_picks and len(pinned) == len(large):
            return Finding(**common, status=Status.FAIL, fault=PINNED, observed=1, expected=log.channels, unit="channels", n=len(pinned), evidence=evidence,
                           statement=f"A tuner plugin runs ({log.plugin_picks} lines say so) and each message of 1 MiB or more uses one of {log.channels} channels: {_line(pinned[0])}.",
                           competitor=Competitor(fault="nccl.graph-fallback", margin=f"{log.channels} channels exist, {len(pinned)} of {len(large)} large messages use one",
                                                 why_rejected="after a failed search the communicator itself has few channels and no plugin speaks; no limit of channels is set in the log"),
                           refuted_by=faults.fault(PINNED).refuted_if, remedy=faults.fault(PINNED).remedy, next_step="Start once with NCCL_TUNER_PLUGIN=none and compare the lines of the same sizes.")
        return Finding(**common, status=Status.INCONCLUSIVE, observed=1, expected=log.channels, unit="channels", n=len(large), evidence=evidence,
                       statement=f"{len(pinned)} of {len(large)} messages of 1 MiB or more use one of {log.channels} channels ({_line(pinned[0])}); what limits them the log does not say.",
                       next_step="Start once with NCCL_TUNER_PLUGIN=none and compare the lines of the same sizes.")
    if cap is not None and log.channels >= cap:
        wanted = channels(belief.system, *_way(log, plan), plan.bytes) if belief and belief.system and plan and _way(log, plan) else None
        if wanted is not None and wanted <= cap:
            return Finding(**common, status=Status.PASS, observed=cap, unit="channels", evidence=evidence,
                           statement=f"Channels are limited to {cap}; a message of {plan.bytes:,} bytes fills {wanted}, so decode does not notice. Prefill may." if plan else "")
        return Finding(**common, status=Status.INCONCLUSIVE, observed=cap, unit="channels", evidence=evidence,
                       statement=f"Channels are limited to {cap} by the environment" + (f", and a message of {plan.bytes:,} bytes would fill {wanted}." if wanted and plan else "."),
                       next_step="Measure at decode and at prefill size with and without the limit.")
    return Finding(**common, status=Status.PASS, n=len(large), evidence=evidence, statement=f"{len(large) - len(pinned)} of {len(large)} messages of 1 MiB or more use several channels.")


def _way(log: NcclLog, plan: MessagePlan) -> tuple[str, str] | None:
    found = {(p.algorithm, p.protocol) for p in log.picks_at(plan.bytes)}
    return found.pop() if len(found) == 1 else None


def _line(pick: Pick) -> str:
    return f"{pick.collective or 'a collective'} of {pick.bytes:,} bytes: {pick.algorithm}/{pick.protocol}, {pick.channels} channel{'s' * (pick.channels != 1)}"
