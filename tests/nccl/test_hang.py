"""A hang of the first collective is peer-to-peer's only where nccl-tests, which skips nothing, stops as well and ends without it."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.records import NcclTests, Timing
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Status
from eagle_forensics.nccl.hang import first_collective

LOG = read_nccl_log(Path(__file__).parent / "fixtures" / "nccl_debug_2.28_graphxml.log")
STOPPED = NcclTests(Path("p2p.txt"), None, "2.18.3", None, 4, (), False)
ROWS = (Timing(43008, False, 40.0, dtype="bfloat16"),)
CURED = NcclTests(Path("shm.json"), "all_reduce_perf", None, "2.28.9", 4, ROWS, False, environment={"NCCL_P2P_DISABLE": "1"})
WITH_P2P = replace(CURED, path=Path("p2p.json"), environment={})


def line(rank, seq=1, op="ALLREDUCE"):
    return LogLine("timeout", f"[rank{rank}]:[E1001 16:06:04.5 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
                   "NumelIn=128, NumelOut=128, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.", rank)


ALL = tuple(line(r) for r in range(4))


def asked(said=ALL, tests=(STOPPED, CURED), log=LOG, tp=4, **more):
    return first_collective(said, tests=tests, log=log, tp=tp, **more)


def test_a_hang_that_only_peer_to_peer_has():
    for said, count in ((ALL, "4 ranks of 4"), (ALL[:1], "1 rank of 4"), ([line(0), line(0, 7)], "1 rank of 4")):
        found = asked(said)
        assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "nccl.p2p-hang", "runtime.dp-attention")
        assert found.statement.startswith(f"{count} timed out at collective 1 (ALLREDUCE of 128 elements)") and found.required


@pytest.mark.parametrize(("more", "status", "word", "fault"), [
    ({"said": (), "tests": (CURED,)}, Status.SKIPPED, "no log", None), ({"off": "one rank"}, Status.SKIPPED, "one rank", None),
    ({"said": ()}, Status.INCONCLUSIVE, "a server that timed out", "nccl.p2p-hang"), ({"tests": (CURED,)}, Status.INCONCLUSIVE, "which stops as well", "nccl.p2p-hang"),
    ({"tests": (STOPPED,)}, Status.INCONCLUSIVE, "under NCCL_P2P_DISABLE=1", "nccl.p2p-hang"), ({"log": None}, Status.INCONCLUSIVE, "via P2P", "nccl.p2p-hang"),
    ({"log": replace(LOG, transports={"SHM/direct/direct": 8})}, Status.INCONCLUSIVE, "via P2P", "nccl.p2p-hang"), ({"tests": (STOPPED, replace(CURED, ranks=2))}, Status.INCONCLUSIVE, "NCCL_P2P_DISABLE", "nccl.p2p-hang"),
    ({"tests": (STOPPED, replace(CURED, failed=True))}, Status.INCONCLUSIVE, "NCCL_P2P_DISABLE", "nccl.p2p-hang"),
    ({"said": [line(0, 5730), line(1, 5729)]}, Status.INCONCLUSIVE, "not the first", None), ({"said": [line(0), line(1, 2)]}, Status.INCONCLUSIVE, "not the first", None),
    ({"env": {"NCCL_P2P_DISABLE": "1"}}, Status.INCONCLUSIVE, "not what hangs", None), ({"tests": (CURED, WITH_P2P)}, Status.INCONCLUSIVE, "ends on these ranks", None),
])
def test_less_accuses_nobody(more, status, word, fault):
    found = asked(**more)
    assert (found.status, word in found.statement, found.fault) == (status, True, fault), found.statement
