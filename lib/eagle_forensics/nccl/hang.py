"""Does the first collective end? A hang that only peer-to-peer traffic has is one of the machine: ACS or the IOMMU sends it astray.

PyTorch's watchdog tells in the server's log at which collective a rank stood. That alone accuses nobody: a rank that skips a
collective hangs the others as well. nccl-tests has no such rank, so a run of it that stops before its first row beside one under
NCCL_P2P_DISABLE=1 that ends tells the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics import faults
from eagle_forensics.evidence.nccl.records import NcclLog, NcclTests
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.settings import NOTEBOOK

FAULT = "nccl.p2p-hang"
OFF = "NCCL_P2P_DISABLE"
FIRST = 1
"""Number of a group's first collective in PyTorch's watchdog; some releases count from 0."""
_TIMEOUT = re.compile(r"\[Rank (\d{1,6})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,12}), OpType=(\w+), NumelIn=(\d+)", re.ASCII)


def first_collective(said: Sequence[LogLine], *, tests: Sequence[NcclTests] = (), log: NcclLog | None = None, tp: int | None = None,
                     env: Mapping[str, str] | None = None, off: str | None = None) -> Finding:
    """`said`: the watchdog's lines of the server log; `env`: the server's environment."""
    common: dict[str, Any] = {"id": "nccl.first-collective", "question": "Does the first collective end?", "notebook": NOTEBOOK}
    stopped = [t for t in tests if t.stopped]
    where = {int(m[1]): (int(m[2]), m[3], int(m[4])) for line in reversed(said) if (m := _TIMEOUT.search(line.text))}
    if off or not (where or stopped):
        return Finding(**common, status=Status.SKIPPED, statement=f"Not looked at: {off or 'no log shows a collective that timed out'}.")
    common |= {"n": len(where) or None, "unit": "ranks",
               "evidence": (*(Evidence(note=f"log, byte {line.byte}: {line.text}") for line in said[:8]), *(Evidence(note="stopped before its first row", path=str(t.path)) for t in stopped))}
    ends = [t for t in tests if t.rows and not t.failed and t.test == "all_reduce_perf" and t.ranks in (tp, *(s.ranks for s in stopped))]
    cured = [t for t in ends if (t.environment or {}).get(OFF) == "1"]
    with_p2p = [t for t in ends if t.environment is not None and t.environment.get(OFF) != "1"]
    direct = sum(n for kind, n in log.transports.items() if kind.startswith("P2P")) if log else 0
    first = bool(where) and all(seq <= FIRST for seq, _, _ in where.values())
    text = (f"{len(where)} rank{'s' * (len(where) > 1)}{f' of {tp}' if tp else ''} timed out at {_at(where)}" if where else f"nccl-tests stopped before its first row ({stopped[0].path.name})")

    def open_(why: str, next_step: str, fault: str | None = FAULT) -> Finding:
        return Finding(**common, status=Status.INCONCLUSIVE, fault=fault, statement=f"{text}. {why}", next_step=next_step)

    if where and not first:
        return open_("That is not the first collective: peer-to-peer carried those before it.", "Which rank is missing, or stands at another number? That one stopped, or skipped a collective.", None)
    if (env or {}).get(OFF) == "1" or (log and log.environment.get(OFF) == "1"):
        return open_(f"{OFF}=1 is set, so peer-to-peer traffic is not what hangs.", "Look at the rank that is missing, and at the network between the ranks.", None)
    if with_p2p:
        return open_(f"nccl-tests ends on these ranks with peer-to-peer on ({with_p2p[0].path.name}), so the machine carries it: a rank that skips a collective is likelier.",
                     "py-spy dump of every rank at the time of the hang.", None)
    missing = [what for what, there in (
        ("a server that timed out at its first collective", first), ("nccl-tests as the server runs, which stops as well", bool(stopped)),
        (f"nccl-tests -J under {OFF}=1, which ends", bool(cured)), ("NCCL's log of a run that hangs, with `via P2P`", bool(direct))) if not there]
    if missing:
        return open_(f"Peer-to-peer traffic that never arrives (ACS, IOMMU) looks like this, and so does a rank that skips a collective. Not in the case: {'; '.join(missing)}.",
                     f"nccl-tests twice on these GPUs, `-J` each, with and without {OFF}=1; `lspci -vvv | grep ACSCtl`; the kernel's iommu= options.")
    return Finding(
        **common, status=Status.FAIL, fault=FAULT, observed=sorted(where), expected=[],
        statement=f"{text}, its first. nccl-tests stops before its first row on the same GPUs, over peer-to-peer ({direct} connections), and ends under {OFF}=1 ({cured[0].path.name}): "
                  "peer-to-peer traffic never arrives.",
        competitor=Competitor(fault=faults.fault(FAULT).rival or "", margin=f"{len(stopped)} run(s) of nccl-tests stopped, {len(cured)} under {OFF}=1 ended",
                              why_rejected="nccl-tests has no rank that could skip a collective, and it stops too; with peer-to-peer off it ends"),
        refuted_by=f"The hang stays under {OFF}=1, or nccl-tests ends with peer-to-peer on.",
        remedy=f"Switch ACS off on the PCIe bridges between the GPUs (BIOS, or setpci), or the IOMMU's redirection (iommu=pt, amd_iommu=off). Until then {OFF}=1: it costs speed.",
        next_step="`lspci -vvv | grep ACSCtl` (ReqRedir+ is the sign), `nvidia-smi topo -p2p r`, then nccl-tests without the variable.")


def _at(where: Mapping[int, tuple[int, str, int]]) -> str:
    kinds = list(dict.fromkeys(where.values()))
    return " and ".join(f"collective {seq} ({op} of {n:,} elements)" for seq, op, n in kinds[:3])
