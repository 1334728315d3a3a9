"""An engine that refuses its own kernel is accused only where it does not see NVLink; over PCIe it is suspected where NCCL itself is in order."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.records import Call, Topology, Trace
from eagle_forensics.evidence.server_log import LogLine
from eagle_forensics.finding import Status
from eagle_forensics.nccl.refused import kernel
from eagle_forensics.nccl.sizes import plan

HEALTHY = read_nccl_log(Path(__file__).parent / "fixtures" / "nccl_debug_2.28_graphxml.log")
FALLBACK = read_nccl_log(Path(__file__).parent / "fixtures" / "nccl_debug_2.27_fallback.log")
CONFIG = {"num_hidden_layers": 61, "hidden_size": 7168}
GATE = LogLine("all-reduce", "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.", 90)
OTHER = LogLine("all-reduce", "CustomAllreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.", 90)


def links(*kinds, gpus=4):
    pairs = [(i, j) for i in range(gpus) for j in range(i + 1, gpus)]
    return Topology(Path("topo.txt"), tuple(f"GPU{i}" for i in range(gpus)), {p: kinds[i % len(kinds)] for i, p in enumerate(pairs)})


def asked(said=(GATE,), tp=4, steps=2, log=HEALTHY, topology=None, **more):
    return kernel(said, tp=tp, plan=plan(CONFIG, tp=max(tp or 2, 2), steps=steps), log=log, topology=topology or links("PIX", "PXB"), **more)


def test_four_gpus_of_one_socket():
    found = asked()
    assert (found.status, found.fault, found.competitor.fault) == (Status.INCONCLUSIVE, "nccl.custom-allreduce-off", "nccl.graph-fallback")
    assert "123 all-reduces of 43,008 bytes" in found.statement and "24 GB/s" in found.competitor.margin and found.evidence


def test_nvlink_that_the_engine_does_not_see():
    found = asked(topology=links("NV18", gpus=8), tp=8, log=None)
    assert (found.status, found.fault) == (Status.FAIL, "nccl.custom-allreduce-off") and "all 28 pairs" in found.statement


@pytest.mark.parametrize(("more", "status", "word"), [
    ({"said": ()}, Status.SKIPPED, "no line"), ({"said": (), "flags": {"disable_custom_all_reduce": True}}, Status.SKIPPED, "no line"),
    ({"said": (), "flags": {"disable_custom_all_reduce": True}, "topology": links("NV18")}, Status.INCONCLUSIVE, "may be there for a reason"), ({"off": "one rank"}, Status.SKIPPED, "one rank"), ({"said": (OTHER,)}, Status.INCONCLUSIVE, "not the rule for PCIe"),
    ({"tp": 2}, Status.INCONCLUSIVE, "more than two ranks"), ({"tp": None}, Status.INCONCLUSIVE, "no number"), ({"topology": links("PIX", gpus=2)}, Status.INCONCLUSIVE, "not known"),
    ({"topology": links("NODE", "SYS")}, Status.PASS, "across two sockets"), ({"tp": 8, "topology": links("PIX", gpus=8)}, Status.PASS, "of 8 GPUs"),
    ({"topology": links("NV12", "PIX")}, Status.INCONCLUSIVE, "one socket"), ({"log": None}, Status.INCONCLUSIVE, "in order here is not known"), ({"log": FALLBACK}, Status.INCONCLUSIVE, "in order here is not known"),
    ({"log": replace(HEALTHY, transports={"SHM/direct/direct": 4, "P2P/CUMEM": 4})}, Status.INCONCLUSIVE, "peer access"), ({"log": replace(HEALTHY, transports={})}, Status.INCONCLUSIVE, "peer access"),
    ({"steps": 15}, Status.INCONCLUSIVE, "229,376 bytes"), ({"log": replace(HEALTHY, picks=())}, Status.INCONCLUSIVE, "not its fastest"),
    ({"traces": (Trace(Path("t"), "kineto", (Call("allreduce", "flashinfer", 9.0),)),)}, Status.INCONCLUSIVE, "1 by flashinfer"),
    ({"env": {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}}, Status.INCONCLUSIVE, "PCIE_IPC"),
])
def test_less_accuses_nobody(more, status, word):
    found = asked(**more)
    assert (found.status, word in found.statement) == (status, True), found.statement
