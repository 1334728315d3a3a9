"""The interconnect again: two faults at once, together with notebook 04's tables, hosts that are right, and too little evidence."""

from __future__ import annotations

from functools import partial

from tests.lineup import interconnect as n
from tests.lineup import outcome
from tests.lineup import papers as p
from tests.lineup.fast.nccl import (
    BOTH_OFF,
    CHANNELS,
    EAGER,
    FALLBACK,
    IGNORED,
    LARGE,
    NVL,
    OFF,
    PINNED,
    REFUSED,
    REGRESSION,
    SIZE,
    SOCKETS,
    SYS,
    TRADE,
    UNSAFE,
)

planted = partial(outcome.planted, notebooks=(5,))
healthy = partial(outcome.healthy, notebooks=(5,))
abstains = partial(outcome.abstains, notebooks=(5,))
CANNOT_WIN, CONFOUNDED, BUDGET, GRAPHS = "cost.cannot-win", "measure.confounded", "args.draft-budget-overridden", "wiring.graph-default-layers"
LOWER = n.ON | {"NCCL_P2P_LEVEL": "sys"}
HASHED = p.COLUMNS + ",env_hash,prompts_hash,temperature"


def two_environments(old: str, new: str) -> str:
    """A baseline under one environment and a run with speculation under another."""
    return "\n".join((HASHED, f"plain,sglang,0.5.23,0,,,,,,,88.8,,1,{old},a1,0", f"two steps,sglang,0.5.23,1,2,1,3,,2.06,,94.0,,1,{new},a1,0")) + "\n"


SPECULATION = p.table(p.base("90.0"), p.run("a", 2, "2.06", "110.0"))
EAGER_ROWS = p.table(p.base("90.0"), p.run("a", 1, "1.6", "56.8"))
DOUBLE = (
    planted("level in lower case, and no path", n.host(env=LOWER, log=n.lost_log()), IGNORED, FALLBACK),
    planted("eager rounds, and no path", n.host(log=n.lost_log(), server=n.decode(replayed=False, speed=40.0)), EAGER, FALLBACK),
    planted("sixteen channels and no peer-to-peer, each with its own table", n.host(env=OFF | CHANNELS, tests=[
        *n.launches(48.0, 700.0, env={"NCCL_P2P_DISABLE": "1", "NCCL_MIN_NCHANNELS": "16"}), *n.launches(40.0, 1000.0, env={"NCCL_P2P_DISABLE": "1"}),
        *n.launches(30.0, 1100.0, env={"NCCL_MIN_NCHANNELS": "16"})]), SIZE, TRADE),
    planted("LL128 forced, and a level that NCCL does not know", n.host(env=n.ON | {"NCCL_PROTO": "LL,LL128,Simple", "NCCL_P2P_LEVEL": "NODE"}), UNSAFE, IGNORED),
    planted("2.29 is slower, and a buffer of four bytes", n.host(env=n.ON | {"NCCL_BUFFSIZE": "4M"}, hardware=n.H100, log=n.nccl_log("2.29.7", graph=NVL, channels=32, env={"NCCL_BUFFSIZE": "4"}), tests=[
        *n.launches(24.0, nccl="2.29.7"), *n.launches(15.5)]), REGRESSION, IGNORED),
    planted("a tuner file pins large messages, and rounds are eager", n.host(log=n.nccl_log(plugin=3, channels=8, large=LARGE), server=n.decode(replayed=False)), PINNED, EAGER),
    planted("one-shot kernel refused, and rounds are eager", n.host(
        tp=4, env=SYS, log=n.nccl_log(ranks=4, env=SYS), topology=n.links(4, n.switches), server=n.refusal() + n.decode(replayed=False)), EAGER),
    planted("both transports off, and a dead variable", n.host(env=BOTH_OFF | {"NCCL_LL_THRESHOLD": "65536"}), SOCKETS, IGNORED),
    planted("cannot win on a machine whose search fails: the incident", n.host(
        steps=1, env=n.ON, log=n.lost_log(), rows=p.INCIDENT, topology=n.links(8, n.two_sockets)), CANNOT_WIN, FALLBACK, notebooks=(4, 5)),
    planted("cannot win while rounds are eager", n.host(
        steps=1, log=n.nccl_log(), rows=EAGER_ROWS, server=n.decode(length=1.6, speed=56.8, replayed=False, drafts=1)), CANNOT_WIN, EAGER, notebooks=(4, 5)),
    planted("a baseline of the old environment, and a level in lower case", n.host(env=LOWER, log=n.nccl_log(), rows=two_environments("old", "tuned")), CONFOUNDED, IGNORED, notebooks=(4, 5)),
    planted("incident papers with the log of its machine", n.host(
        version="0.5.9", steps=1, asked=16, env=n.ON, log=n.lost_log(), rows=p.INCIDENT, base=p.KIMI.but(**p.OLD_IDS)),
        BUDGET, CANNOT_WIN, GRAPHS, FALLBACK, notebooks=(1, 4, 5)),
)
CONFOUND = (
    planted("94 tok/s tuned against 88.8 before", n.host(log=n.nccl_log(env=SYS), env=SYS, rows=two_environments("before", "tuned")), CONFOUNDED, notebooks=(4, 5)),
)
HEALTHY = (
    healthy("eight PCIe GPUs with a graph and LL", n.host(log=n.nccl_log(), topology=n.links(8, n.two_sockets))),
    healthy("a level of SYS that the log shows", n.host(env=SYS, log=n.nccl_log(env=SYS))),
    healthy("level 4 is a number of old: SYS", n.host(env=n.ON | {"NCCL_P2P_LEVEL": "4"}, log=n.nccl_log(env=SYS))),
    healthy("eight H100 with LL128 among the protocols", n.host(env=n.ON | {"NCCL_PROTO": "LL,LL128,Simple"}, hardware=n.H100, log=n.nccl_log(graph=NVL, channels=32, env={"NCCL_PROTO": "LL,LL128,Simple"}))),
    healthy("four H100 by NVLink, NCCL 2.21 of an old server", n.host(tp=4, version="0.4.6", hardware=n.H100, topology=n.links(4, n.nvlink), log=n.nccl_log("2.21.5", ranks=4, graph=(24, 20.0, "NVL"), channels=24))),
    healthy("the engine's own kernel switched off by hand on NVLink", n.host(more="--disable-custom-all-reduce", hardware=n.H100, topology=n.links(8, n.nvlink), log=n.nccl_log(graph=NVL, channels=32))),
    healthy("two PCIe GPUs", n.host(tp=2, log=n.nccl_log("2.26.2", ranks=2, graph=(2, 12.0, "PHB")), topology=n.links(2, lambda i, j: "PHB"), server=n.decode())),
    healthy("vLLM on four GPUs over two sockets, its kernel refused", n.host(
        engine="vllm", version="0.32.0", tp=4, log=n.nccl_log(ranks=4), topology=n.links(4, lambda i, j: "SYS" if i < 2 <= j else "NODE"), server=n.refusal("Custom allreduce"))),
    healthy("eight GPUs over two sockets, SGLang refuses its kernel", n.host(log=n.nccl_log(), topology=n.links(8, n.two_sockets), server=n.refusal(ranks=8) + n.decode())),
    healthy("a limit of two channels that decode does not fill", n.host(env=n.ON | {"NCCL_MAX_NCHANNELS": "2"}, log=n.nccl_log(env={"NCCL_MAX_NCHANNELS": "2"}, channels=2))),
    healthy("a tuner file with channels written out", n.host(log=n.nccl_log(plugin=7, channels=8, large={n.PREFILL: 8, 1 << 20: 4}))),
    healthy("a start for the log's sake prints more than the server", n.host(env={"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT"}, log=n.nccl_log())),
    healthy("a container's own names, and NVLS off by name", n.host(env=n.ON | {"NCCL_VERSION": "2.28.9-1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0"}, log=n.nccl_log(env={"NCCL_SOCKET_IFNAME": "eth0"}))),
    healthy("channels that help a prefill alone", n.host(env=CHANNELS, log=n.nccl_log(env=CHANNELS, channels=16), tests=[
        *n.launches(26.1, 900.0, env={"NCCL_MIN_NCHANNELS": "16"}), *n.launches(26.0, 1530.0)])),
    healthy("a newer release that is faster", n.host(log=n.nccl_log("2.29.7"), tests=[*n.launches(24.0, nccl="2.29.7"), *n.launches(31.0)])),
    healthy("the served setting is the faster of two", n.host(env=SYS, log=n.nccl_log(env=SYS), tests=[*n.launches(26.0, 1500.0, env={"NCCL_P2P_LEVEL": "SYS"}), *n.launches(48.0, 1600.0)])),
    healthy("one GPU: a misspelt level that nobody reads", n.host(tp=1, env=LOWER)),
    healthy("a server on processors", n.host(tp=2, more="--device cpu", env=LOWER)),
    healthy("one eager line of a prefill among captured rounds", n.host(log=n.nccl_log(), server=n.decode(20) + n.decode(1, replayed=False))),
    healthy("kinds of graph that the machine has not", n.host(log=n.nccl_log() + n.info(
        *(f"Pattern {k}, crossNic 0, nChannels 0, bw 0.000000/0.000000, type DIS/DIS, sameChannels 1" for k in (2, 5))))),
    healthy("LL alone on PCIe", n.host(env=n.ON | {"NCCL_PROTO": "LL"}, log=n.nccl_log(env={"NCCL_PROTO": "LL"}))),
    healthy("a release that came after, with a variable of its own", n.host(env=n.ON | {"NCCL_NEW_POLICY": "1"}, log=n.nccl_log("2.32.3"))),
    healthy("stages over two groups of four", n.host(tp=4, more="--pp-size 2", log=n.nccl_log(ranks=4), hardware=n.RTX | {"count": 8})),
    healthy("two batch sizes, all captured", n.host(log=n.nccl_log(), server=n.decode(10) + n.decode(6, running=8, speed=400.0))),
    healthy("a kernel refused in one group, a trace shows it at work", n.host(
        tp=4, log=n.nccl_log(ranks=4), topology=n.links(4, n.switches), server=n.refusal(), profile=n.trace(*("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>(...)",) * 12))),
    healthy("two nodes of eight: a network card set by name", n.host(
        tp=16, more="--nnodes 2", env=n.ON | {"NCCL_IB_HCA": "mlx5_0"}, hardware=n.H100, log=n.nccl_log(ranks=16, nodes=2, graph=NVL, channels=16, env={"NCCL_IB_HCA": "mlx5_0"}))),
    healthy("peer-to-peer off on purpose, and the log shows shared memory", n.host(env=OFF, log=n.nccl_log(env=OFF, via="SHM/direct/direct"))),
    healthy("speculation that wins over a sound interconnect", n.host(log=n.nccl_log(), rows=SPECULATION, server=n.decode(speed=110.0)), notebooks=(4, 5)),
)
ABSTAIN = (
    abstains("a log without lines of TUNING", n.host(env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH"}, log=n.nccl_log(tokens=(), subsystems="INIT,ENV,GRAPH"))),
    abstains("a log without GRAPH: a silent failure is not excluded", n.host(env={"NCCL_DEBUG": "INFO"}, log=n.nccl_log(graph=None, subsystems="INIT,ENV,TUNING"))),
    abstains("rows of 32 MB alone", n.host(env=CHANNELS, tests=[*(n.report({32 << 20: t}, {"NCCL_MIN_NCHANNELS": "16"}) for t in (1500.0,) * 4), *(n.report({32 << 20: t}) for t in (2500.0,) * 4)],
             log=n.nccl_log(env=CHANNELS, tokens=()))),
    abstains("one launch of each setting", n.host(log=n.nccl_log(tokens=()), tests=[*n.launches(48.0, count=1), *n.launches(26.0, count=1, env={"NCCL_PROTO": "allreduce:LL,Simple"})])),
    abstains("two releases, the served one is not known", n.host(env=None, log=n.nccl_log(None, tokens=()), tests=[*n.launches(24.0, nccl="2.29.7"), *n.launches(15.5)])),
    abstains("two releases under two settings", n.host(env=None, log=n.nccl_log("2.29.7", tokens=()), tests=[*n.launches(24.0, nccl="2.29.7", env={"NCCL_PROTO": "Simple"}), *n.launches(15.5)])),
    abstains("no path under a protocol set by name, choices not logged", n.host(env=n.ON | {"NCCL_PROTO": "allreduce:LL,Simple"}, log=n.lost_log(env={"NCCL_PROTO": "allreduce:LL,Simple"}, tokens=()))),
    abstains("two groups in one log, one of them finds no path", n.host(log=n.nccl_log() + n.lost_log("2.28.9", ranks=2, choice="RING LL"))),
    abstains("no path, yet decode goes by LL", n.host(env=n.ON | {"NCCL_PROTO": "LL"}, log=n.lost_log(env={"NCCL_PROTO": "LL"}, choice="RING LL"))),
    abstains("Simple at decode on a graph that was found", n.host(log=n.nccl_log(choice="RING SIMPLE"))),
    abstains("a timeout at the first collective, nothing else", n.host(tp=4, server=n.watchdog(range(4)))),
    abstains("a timeout at the first collective, nccl-tests runs with peer-to-peer", n.host(
        tp=4, log=n.nccl_log(ranks=4, tokens=()), server=n.watchdog(range(3)), tests=[n.report({n.VERIFY: 26.0}, ranks=4), n.report({n.VERIFY: 44.0}, {"NCCL_P2P_DISABLE": "1"}, ranks=4)])),
    abstains("ranks that time out at different collectives", n.host(tp=4, log=n.nccl_log(ranks=4), server=n.watchdog([0], 5730, "BROADCAST") + n.watchdog([3], 5729, "BROADCAST"))),
    abstains("one-shot kernel refused on four GPUs behind switches", n.host(
        engine="vllm", version="0.32.0", tp=4, log=n.nccl_log(ranks=4), topology=n.links(4, n.switches), server=n.refusal("Custom allreduce")), "PASS", "INCONCLUSIVE", suspects=(REFUSED,)),
    abstains("one-shot kernel refused on four GPUs of one socket, peer-to-peer to SYS", n.host(
        tp=4, env=SYS, log=n.nccl_log(ranks=4, env=SYS), topology=n.links(4, lambda i, j: "NODE"), server=n.refusal() + n.decode()), "PASS", "INCONCLUSIVE", suspects=(REFUSED,)),
    abstains("kernel refused on one socket, no log of NCCL", n.host(tp=4, env=None, topology=n.links(4, n.switches), server=n.refusal())),
    abstains("kernel refused for want of peer access", n.host(tp=4, env=None, topology=n.links(4, n.switches), server=n.refusal(why="your platform lacks GPU P2P capability or P2P test failed"))),
    abstains("nothing of the interconnect but the launch line", n.host(env=None)),
    abstains("sockets within a node, for no reason that the log shows", n.host(env=None, log=n.nccl_log(via="NET/Socket/0", tokens=()))),
    abstains("large messages on one channel without a plugin", n.host(env=None, log=n.nccl_log(channels=8, large=LARGE, tokens=()))),
    abstains("values that do not compare equal, environment not recorded as LL128", n.host(env=None, tests=[n.report({n.VERIFY: 36.7, 917504: 100.1}, bad=16)]), "ERROR"),
    abstains("a log without a line of NCCL", n.host(env=None, log="server started\nserver stopped\n"), "ERROR"),
    abstains("a run of nccl-tests that stopped, nothing else", n.host(tp=4, env=None, tests=[n.stopped()])),
    abstains("a link matrix that is cut", n.host(topology=n.links(8, n.two_sockets)[:180]), "ERROR"),
)
CASES = (*DOUBLE, *CONFOUND, *HEALTHY, *ABSTAIN)
