"""Logs, environments and tables of the interconnect: what notebook 05 must name."""

from __future__ import annotations

from functools import partial

from tests.lineup import interconnect as n
from tests.lineup import outcome

planted = partial(outcome.planted, notebooks=(5,))
FALLBACK, IGNORED, UNSAFE, SOCKETS, PINNED = "nccl.graph-fallback", "nccl.env-ignored", "nccl.ll128-unsafe", "nccl.no-direct-transport", "nccl.tuner-one-channel"
REFUSED, HANG, ALGORITHM, REGRESSION, TRADE, SIZE = ("nccl.custom-allreduce-off", "nccl.p2p-hang", "nccl.algorithm", "nccl.version-regression", "nccl.p2p-trade", "nccl.wrong-size")
EAGER = "cost.no-cuda-graph"
SYS = n.ON | {"NCCL_P2P_LEVEL": "SYS"}
NVLS = n.ON | {"NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": "allreduce:nvls"}
OFF = n.ON | {"NCCL_P2P_DISABLE": "1"}
BOTH_OFF = OFF | {"NCCL_SHM_DISABLE": "1"}
CHANNELS = n.ON | {"NCCL_MIN_NCHANNELS": "16"}
NVL = (16, 20.0, "NVL")
NVL_LOG = n.nccl_log(graph=NVL, channels=32)
LARGE = {n.PREFILL: 1, 4 * n.PREFILL: 1, 1 << 20: 1}


def set_only(env: dict[str, str]) -> dict[str, str]:
    """What nccl-tests records of an environment beside its own printing."""
    return {k: v for k, v in env.items() if not k.startswith("NCCL_DEBUG")}


SEARCH = (
    planted("NCCL 2.27 finds no path on eight PCIe GPUs and takes Simple", n.host(log=n.lost_log(), env=n.ON, topology=n.links(8, n.two_sockets)), FALLBACK, rival=EAGER),
    planted("no path for the tree alone, choices not logged", n.host(log=n.nccl_log("2.26.2", lost=(1,), tokens=())), FALLBACK, rival=EAGER),
    planted("two channels at 0.1 GB/s, no line of the search itself", n.host(log=n.nccl_log("2.27.7", graph=(2, 0.1, "SYS"), choice="RING SIMPLE"), tests=[
        n.report({n.VERIFY: 48.3}), n.report({n.VERIFY: 26.0}, {"NCCL_GRAPH_FILE": "/mnt/graph.xml"})]), FALLBACK, rival=EAGER),
    planted("no path, peer-to-peer to SYS does not mend it", n.host(env=SYS, log=n.lost_log(env=SYS, via="P2P/IPC")), FALLBACK),
)
SETTINGS = (
    planted("P2P level in lower case", n.host(env=n.ON | {"NCCL_P2P_LEVEL": "sys"}, log=n.nccl_log()), IGNORED, rival=SIZE),
    planted("buffer size 4M is four bytes", n.host(env=n.ON | {"NCCL_BUFFSIZE": "4M"}, log=n.nccl_log(env={"NCCL_BUFFSIZE": "4"})), IGNORED, rival=SIZE),
    planted("the launch line exports LL, the process has it not", n.host(
        before="NCCL_PROTO=LL,Simple", env="PATH=/usr/bin\0NCCL_DEBUG=INFO\0NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING\0", log=n.nccl_log(choice="RING SIMPLE")), IGNORED, rival=SIZE),
    planted("ALGO=Tree leaves all-gather without a way", n.host(env=n.ON | {"NCCL_ALGO": "Tree"}), IGNORED),
    planted("a prefix that 2.21 does not know", n.host(env=n.ON | {"NCCL_PROTO": "allreduce:LL"}, log=n.nccl_log("2.21.5", choice="RING SIMPLE"), version="0.4.6"), IGNORED),
    planted("determinism overwrites the ring", n.host(env=n.ON | {"NCCL_ALGO": "allreduce:ring"}, more="--enable-deterministic-inference"), IGNORED),
    planted("LL128 among the protocols on PCIe", n.host(env=n.ON | {"NCCL_PROTO": "LL,LL128,Simple"}, log=n.nccl_log(env={"NCCL_PROTO": "LL,LL128,Simple"})), UNSAFE),
    planted("all protocols but Simple on PCIe", n.host(env=n.ON | {"NCCL_PROTO": "^Simple"}), UNSAFE),
    planted("LL128 on a link that only the matrix tells", n.host(hardware={}, env=n.ON | {"NCCL_PROTO": "LL128"}, topology=n.links(8, n.two_sockets)), UNSAFE),
    planted("peer-to-peer and shared memory switched off", n.host(env=BOTH_OFF, log=n.nccl_log(env=BOTH_OFF, via="NET/Socket/0")), SOCKETS, rival=FALLBACK),
    planted("sockets within a node, by the log alone", n.host(env=None, log=n.nccl_log(env=BOTH_OFF, via="NET/Socket/0")), SOCKETS, rival=FALLBACK),
    planted("a tuner file pins all large messages", n.host(log=n.nccl_log(plugin=7, channels=8, large=LARGE)), PINNED, rival=FALLBACK),
    planted("a tuner file pins the one large message that is logged", n.host(log=n.nccl_log(plugin=1, large={1 << 20: 1})), PINNED, rival=FALLBACK),
)
TABLES = (
    planted("NVLS forced at decode size on H100", n.host(env=NVLS, hardware=n.H100, log=n.nccl_log(env=NVLS, graph=NVL, channels=32, choice="NVLS SIMPLE"), tests=[
        *n.launches(41.0, 330.0, env=set_only(NVLS)), *n.launches(17.0, 460.0, env={"NCCL_NVLS_ENABLE": "1"})]), ALGORITHM, rival=REGRESSION),
    planted("NVLS tree against ring, no large size measured", n.host(env=NVLS | {"NCCL_ALGO": "allreduce:nvlstree"}, hardware=n.H100, tests=[
        *n.launches(39.0, env={"NCCL_ALGO": "allreduce:nvlstree"}), *n.launches(17.0, env={"NCCL_ALGO": "allreduce:ring"})]), ALGORITHM, rival=REGRESSION),
    planted("the default is an eighth slower than ring with LL", n.host(log=n.nccl_log(), tests=[
        *n.launches(27.0, 1500.0), *n.launches(24.0, 1500.0, env={"NCCL_ALGO": "allreduce:ring"})]), ALGORITHM, rival=REGRESSION),
    planted("2.29 beside 2.28 on H100", n.host(hardware=n.H100, log=n.nccl_log("2.29.7", graph=NVL, channels=32), tests=[*n.launches(24.0, nccl="2.29.7"), *n.launches(15.5)]), REGRESSION, rival=IGNORED),
    planted("2.29 beside 2.28, an eighth", n.host(log=n.nccl_log("2.29.2"), tests=[*n.launches(27.0, 1500.0, nccl="2.29.2"), *n.launches(24.0, 1500.0)]), REGRESSION, rival=IGNORED),
    planted("peer-to-peer off: half the speed for one, twice for many", n.host(env=OFF, tests=[
        *n.launches(48.0, 1100.0, env={"NCCL_P2P_DISABLE": "1"}), *n.launches(26.0, 2200.0)]), TRADE, rival="measure.confounded"),
    planted("peer-to-peer to SYS: an eighth either way", n.host(env=SYS, log=n.nccl_log(env=SYS), tests=[
        *n.launches(24.0, 1700.0, env={"NCCL_P2P_LEVEL": "SYS"}), *n.launches(27.0, 1500.0)]), TRADE, rival="measure.confounded"),
    planted("sixteen channels: 70 % at a prefill, a third lost at 42 KiB", n.host(env=CHANNELS, log=n.nccl_log(env=CHANNELS, channels=16), tests=[
        *n.launches(35.0, 900.0, env={"NCCL_MIN_NCHANNELS": "16"}), *n.launches(26.0, 1530.0)]), SIZE, rival=IGNORED),
    planted("Simple alone: an eighth at both ends", n.host(env=n.ON | {"NCCL_PROTO": "allreduce:Simple"}, tests=[
        *n.launches(27.0, 1500.0, env={"NCCL_PROTO": "allreduce:Simple"}), *n.launches(24.0, 1700.0)]), SIZE, rival=IGNORED),
)
SERVER = (
    planted("NVLink that the engine does not see", n.host(hardware=n.H100, topology=n.links(8, n.nvlink), log=NVL_LOG, server=n.refusal("CustomAllReduceV2", ranks=8)), REFUSED, rival=FALLBACK),
    planted("first all-reduce never ends, all ranks say so", n.host(
        tp=4, log=n.nccl_log(ranks=4, tokens=()), server=n.watchdog(range(4)), topology=n.links(4, lambda i, j: "NODE"),
        tests=[n.stopped(), n.report({14336: 41.0, n.VERIFY: 44.0}, {"NCCL_P2P_DISABLE": "1"}, ranks=4)]), HANG, rival="runtime.dp-attention"),
    planted("first all-reduce never ends, one rank says so", n.host(
        engine="vllm", version="0.32.0", tp=2, log=n.nccl_log(ranks=2, tokens=(), version="2.26.2"), server=n.watchdog([1]),
        tests=[n.stopped(2), n.report({14336: 30.0, n.VERIFY: 33.0}, {"NCCL_P2P_DISABLE": "1"}, ranks=2)]), HANG, rival="runtime.dp-attention"),
    planted("no decode round replays a graph", n.host(log=n.nccl_log(), server=n.decode(replayed=False, speed=56.8), more="--disable-cuda-graph"), EAGER, rival=FALLBACK),
    planted("graphs up to two requests, four are served", n.host(
        log=n.nccl_log(), more="--cuda-graph-max-bs 2", server=n.decode(20) + n.decode(4, running=4, speed=150.0, replayed=False)), EAGER, rival=FALLBACK),
)
CASES = (*SEARCH, *SETTINGS, *TABLES, *SERVER)
