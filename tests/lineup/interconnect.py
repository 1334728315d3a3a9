"""What a server's interconnect leaves behind: NCCL's log, nccl-tests reports, decode lines, watchdog lines, link matrices; and the case of such a host.

Forms: NCCL's INFO lines of 2.24 to 2.30, nccl-tests -J version 3, SGLang's scheduler, PyTorch's ProcessGroupNCCL, `nvidia-smi topo -m`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.lineup import papers

HIDDEN, LAYERS = 7168, 61
VERIFY = HIDDEN * 2 * 3
"""Bytes of a verify of three tokens: 43,008."""
TOKENS = (1, 2, 3, 4, 6, 8, 16)
PREFILL = 4096 * HIDDEN * 2
ON = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}
"""What a server is started with whose log holds graphs and choices."""
RTX = {"gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "count": 8, "compute_capability": "12.0", "link": "pcie"}
H100 = {"gpu": "NVIDIA H100 80GB HBM3", "count": 8, "compute_capability": "9.0", "link": "nvswitch"}


def nccl_log(version: str | None = "2.28.9", ranks: int = 8, env: Mapping[str, str] | None = None, graph: tuple[int, float, str] | None = (2, 24.0, "PHB"),
             lost: Sequence[int] = (), via: str = "P2P/IPC", choice: str = "RING LL", tokens: Sequence[int] = TOKENS, hidden: int = HIDDEN, channels: int = 4,
             large: Mapping[int, int] | None = None, plugin: int = 0, nodes: int = 1, subsystems: str | None = ON["NCCL_DEBUG_SUBSYS"]) -> str:
    """`graph`: channels, GB/s and link; `choice`: algorithm and protocol at the sizes of `tokens`; `large`: bytes to channels of larger messages."""
    made = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", **({"NCCL_DEBUG_SUBSYS": subsystems} if subsystems else {})}
    lines = [f"NCCL version {version}+cuda12.8"] if version else []
    lines += [f"{name} set by environment to {value}{'.' * value.isdigit()}" for name, value in (made | {k: v for k, v in (env or {}).items() if k.startswith("NCCL_") and k != "NCCL_DEBUG"}).items()]
    for pattern in (4, 1):
        if pattern in lost:
            lines.append(f"Could not find a path for pattern {pattern}, falling back to simple order")
            lines.append(f"Pattern {pattern}, crossNic 0, nChannels 1, bw 0.100000/0.000000, type SYS/DIS, sameChannels 1")
        elif graph:
            lines.append(f"Pattern {pattern}, crossNic 0, nChannels {graph[0]}, bw {graph[1]:.6f}/{graph[1]:.6f}, type {graph[2]}/PIX, sameChannels 1")
    lines.append(f"comm 0x55d0 rank 0 nRanks {ranks} nNodes {nodes} localRanks {ranks // nodes} localRank 0 MNNVL 0")
    lines.append(f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels, 2 p2p channels per peer")
    lines += [f"Channel {c:02}/0 : {r}[{r}] -> {(r + 1) % ranks}[{(r + 1) % ranks}] via {via}" for c in range(2) for r in range(ranks)]
    lines.append("Connected all rings, use ring PXN 0 GDR 1")
    lines += [f"TUNER/ExamplePlugin: Applied config for collType=allreduce, bytes={hidden * 2 * (i + 1)}" for i in range(plugin)]
    algorithm, protocol = choice.split()
    for size, used in [*((hidden * 2 * t, max(1, min(channels, hidden * 2 * t // (4096 * ranks)))) for t in tokens), *(large or {}).items()]:
        way = (algorithm, protocol) if size <= hidden * 2 * 16 else ("RING", "SIMPLE")
        lines.append(f"AllReduce: {size} Bytes -> Algo {way[0]} proto {way[1]} channel{{Lo..Hi}}={{0..{used - 1}}}")
    return info(*lines)


def info(*lines: str) -> str:
    """Further lines of that log."""
    return "".join(f"node1:41000:41033 [0] NCCL INFO {line}\n" for line in lines)


def lost_log(version: str = "2.27.5", **more: Any) -> str:
    """A search that finds no path, as a dual-socket AMD host with eight Blackwell GPUs prints it."""
    return nccl_log(version, **{"lost": (4, 1), "via": "SHM/direct/direct", "choice": "RING SIMPLE", "channels": 2, **more})


def report(times: Mapping[int, float], env: Mapping[str, str] | None = None, nccl: str = "2.28.9", ranks: int = 8, bad: int = 0) -> str:
    """nccl-tests -J of one launch: bytes to us. `bad`: values that did not compare equal in the last row."""
    major, minor, patch = map(int, nccl.split("."))
    results = []
    for i, (size, us) in enumerate(times.items()):
        speed = size / us / 1e3
        half = {"time": us, "alg_bw": speed, "bus_bw": speed * 2 * (ranks - 1) / ranks, "nwrong": float(bad) if i == len(times) - 1 else 0.0}
        results.append({"size": size, "count": size // 2, "type": "bfloat16", "redop": "sum", "root": "-1", "out_of_place": half, "in_place": half})
    return json.dumps({
        "version": 3, "args": ["all_reduce_perf", "-g", "1", "-d", "bfloat16", "-J", "out.json"], "env": [f"{k}={v}" for k, v in (env or {}).items()],
        "nccl_version": major * 10000 + minor * 100 + patch, "config": {"nthreads": 1, "ngpus": 1, "iterations": 200, "graph": 20, "devices": [{"rank": r, "device": r} for r in range(ranks)]},
        "results": results, "out_of_bounds": {"count": bad, "okay": "true" if not bad else "false"}}, indent=1)


def launches(us: float, large: float | None = None, count: int = 5, **more: Any) -> list[str]:
    """Launches of one setting: `us` at 43,008 bytes, `large` at a prefill of 4,096 tokens; they differ by up to 2 %."""
    small = {VERIFY: us, VERIFY * 4 // 3: us * 1.03}
    return [report({n: t * (1 + 0.005 * i) for n, t in (small | ({PREFILL: large} if large else {})).items()}, **more) for i in range(count)]


def decode(lines: int = 8, running: int = 1, length: float = 2.06, speed: float = 90.0, replayed: bool = True, drafts: int = 2) -> str:
    """Decode lines of SGLang 0.5.11 and later."""
    return "".join(f"[2026-03-01 10:0{i % 10}:00 TP0] Decode batch, #running-req: {running}, #token: {420 + 80 * i}, token usage: 0.01, accept len: {length:.2f}, accept rate: "
                   f"{(length - 1) / drafts:.2f}, cuda graph: {replayed}, gen throughput (token/s): {speed + 0.1 * (i % 3):.2f}, #queue-req: 0\n" for i in range(lines))


def refusal(name: str = "CustomAllreduce", why: str = "it's not supported on more than two PCIe-only GPUs", ranks: int = 4) -> str:
    """SGLang 0.5.23 names its class; 0.5.9 and vLLM write `Custom allreduce`."""
    return "".join(f"[2026-03-01 09:59:0{r} TP{r}] {name} is disabled because {why}. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n" for r in range(ranks))


def trace(*kernels: str) -> str:
    """A profile of one rank: these kernels, one after another."""
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4}, "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000.0 + 60 * i, "dur": 12.0, "args": {"device": 0, "stream": 7, "correlation": 500 + i}} for i, name in enumerate(kernels)]})


def watchdog(ranks: Sequence[int], number: int = 1, op: str = "ALLREDUCE") -> str:
    """A rank of PyTorch whose collective did not end."""
    return "".join(f"[rank{r}]:[E301 16:06:04.53{r}131842 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, "
                   f"NumelIn=128, NumelOut=128, Timeout(ms)=600000) ran for 60000{r} milliseconds before timing out.\n" for r in ranks)


def stopped(ranks: int = 4) -> str:
    """nccl-tests that printed the head of its table and never a row."""
    head = "# nThread 1 nGpus 1 minBytes 14336 maxBytes 229376 step: 14336(bytes) warmup iters: 50 iters: 200 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    who = "".join(f"#  Rank  {r} Group  0 Pid  4100{r} on      node1 device  {r} [0000:{r + 1}1:00] NVIDIA RTX PRO 6000 Blackwell Server Edition\n" for r in range(ranks))
    return head + who + "#\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"


def links(gpus: int, kind: Callable[[int, int], str]) -> str:
    """The matrix; `kind` of a pair with first < second."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = ["\t".join([names[i], *(" X " if i == j else kind(min(i, j), max(i, j)) for j in range(gpus)), "0-63", str(int(i >= gpus / 2)), "N/A"]) for i in range(gpus)]
    return "\n".join(["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]), *rows]) + "\n"


def two_sockets(i: int, j: int) -> str:
    return "SYS" if i < 4 <= j else "NODE"


def switches(i: int, j: int) -> str:
    return "PIX" if i // 2 == j // 2 else "PXB"


def nvlink(i: int, j: int) -> str:
    return "NV18"


def host(*, tp: int = 8, steps: int = 2, asked: int | None = None, before: str = "", more: str = "", engine: str = "sglang", version: str = "0.5.23", env: Mapping[str, str] | str | None = ON, log: str | None = None,
         tests: Sequence[str] = (), profile: str | None = None, topology: str | None = None, server: str | None = None, hardware: Mapping[str, Any] = RTX, hidden: int = HIDDEN, layers: int = LAYERS,
         base: papers.Papers = papers.LLAMA, rows: str | None = None) -> papers.Papers:
    """A served target of Kimi's size. `asked`: draft tokens of the launch line; `before`: what stands before the command; `env`: as written in the case, or a dump of the process's; `log`: NCCL's; `server`: the engine's own."""
    files = {name: text for name, text in (("nccl.log", log), ("topo.txt", topology), ("server.log", server), ("trace.json", profile), ("environ", env if isinstance(env, str) else None)) if text}
    named = {f"tests/{i}.{'json' if text.startswith('{') else 'txt'}": text for i, text in enumerate(tests)}
    launch = (f"{papers.VLLM_LAUNCH} --tensor-parallel-size {tp} {more}" if engine == "vllm" else papers.sglang_launch(steps, 1, asked or steps + 1, more=f"--tp {tp} {more}")).strip()
    launch = f"{before} python3 -m sglang.launch_server {launch}" if before else launch
    serving = {"engine": engine, "version": version, "launch": launch, "env": "./environ" if isinstance(env, str) else dict(env) if env is not None else None,
               "log": "./server.log" if server else None, "hardware": dict(hardware, count=tp)}
    nccl = {"debug_log": "./nccl.log" if log else None, "topology": "./topo.txt" if topology else None, "tests": [f"./{name}" for name in named] or None, "traces": ["./trace.json"] if profile else None}
    case = {key: {k: v for k, v in part.items() if v is not None} for key, part in (("serving", serving), ("nccl", nccl))}
    return base.but(target={"hidden_size": hidden, "num_hidden_layers": layers, **dict(base.target or {})}, files=files | named, rows=rows, case={k: v for k, v in case.items() if v})
