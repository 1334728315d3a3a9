"""What does NCCL believe an all-reduce costs, and which algorithm, protocol and channels does it pick?

    time(us) = latency + bytes / (1000 x bandwidth in GB/s), least over what is enabled

A chooser, not a clock: NCCL's own figure for Simple on eight PCIe ranks is 89 us where 48 us are measured; its choice is
usually right. Sources and constants by release: tuning.toml. One node from 2.19 on; several nodes (ring and tree) from 2.23.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from eagle_forensics.nccl.registry import version

PROTOCOLS = ("LL", "LL128", "SIMPLE")
ALGORITHMS = ("TREE", "RING", "NVLS")
"""In NCCL's order: of two equal costs the first is taken."""
LL128_LINKS = ("LOC", "NVL", "NVB")
LL128_NETWORK_LINKS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB")
WITHOUT_PREFIXES = (2, 24)
PCI_BANDWIDTH = 12.0
"""GB/s below which a ring runs Simple with 256 threads (topo.h PCI_BW)."""
TREE_PATTERN = 3


class UnsupportedRelease(ValueError):
    """A release or a machine that the cost model was not read for."""


@dataclass(frozen=True)
class Graph:
    """One result of NCCL's graph search, as its log prints it."""

    channels: int
    bandwidth: float
    """GB/s a channel within the node."""
    link: str
    """Farthest link within the node: `NVL`, `PIX`, `PHB`, `SYS`."""
    network_bandwidth: float = 0.0
    network_link: str = "LOC"
    pattern: int | None = None


@dataclass(frozen=True)
class System:
    """What the choice depends on."""

    ranks: int
    capability: int
    """Compute capability of the slowest GPU times ten: 90, 120."""
    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    nodes: int = 1
    cpu: str = "intel"
    """`amd` or `intel`; matters between nodes only."""


@dataclass(frozen=True)
class Cost:
    """Latency in us and algorithm bandwidth in GB/s of one way to do an all-reduce."""

    latency_us: float
    bandwidth: float

    def time_us(self, size: int, correction: float = 1.0) -> float:
        return self.latency_us + size / (1e3 * self.bandwidth * correction)


@dataclass(frozen=True)
class Choice:
    """What NCCL picks for one message."""

    bytes: int
    algorithm: str
    protocol: str
    time_us: float
    """NCCL's own estimate."""
    channels: int | None
    """None for NVLS, which takes its own."""
    others: Mapping[tuple[str, str], float]
    """Estimate of every enabled way, us."""


def costs(system: System, release: str, env: Mapping[str, str] | None = None) -> Mapping[tuple[str, str], Cost]:
    """Cost of every enabled (algorithm, protocol) of an all-reduce. `env`: NCCL_ALGO and NCCL_PROTO are obeyed.

    Raises UnsupportedRelease where the model was not read, ValueError for a setting NCCL would refuse.
    """
    number, env = version(release), env or {}
    k = _constants(number)
    if system.nodes > 1 and number < version(_table()["several_nodes"]):
        raise UnsupportedRelease(f"NCCL {release}: the model over several nodes was read from {_table()['several_nodes']} on")
    algorithms = _enabled(env.get("NCCL_ALGO"), ALGORITHMS, number)
    protocols = _enabled(env.get("NCCL_PROTO"), PROTOCOLS, number)
    found = {}
    for name, graph in zip(ALGORITHMS, (system.tree, system.ring, system.nvls), strict=True):
        for protocol in PROTOCOLS:
            if graph is None or name not in algorithms or protocol not in protocols or (name == "NVLS" and protocol != "SIMPLE"):
                continue
            if protocol == "LL128" and not (_entries(env.get("NCCL_PROTO")) or _ll128(graph, system.capability, k)):
                continue
            bandwidth = _bandwidth(name, protocol, graph, system, k)
            if bandwidth > 0:
                found[name, protocol] = Cost(_latency(name, protocol, graph, system, k), bandwidth)
    return found


def choose(system: System, release: str, size: int, env: Mapping[str, str] | None = None) -> Choice:
    """What NCCL picks for an all-reduce of `size` bytes. Raises as `costs`, and ValueError if nothing is enabled."""
    table = costs(system, release, env)
    if not table:
        raise ValueError(f"NCCL {release} has no algorithm left for an all-reduce with {dict(env or {})}: it aborts, or falls back to a plain ring before 2.24")
    times = {way: cost.time_us(size, _correction(*way, size)) for way, cost in table.items()}
    algorithm, protocol = min(times, key=times.__getitem__)
    return Choice(size, algorithm, protocol, times[algorithm, protocol], channels(system, algorithm, protocol, size, env), times)


def channels(system: System, algorithm: str, protocol: str, size: int, env: Mapping[str, str] | None = None) -> int | None:
    """Channels one call uses: as many as the bytes fill. Ring LL needs 8 bytes x 512 threads x ranks a channel, 32 KiB at 8 ranks."""
    if algorithm == "NVLS":
        return None
    available = communicator_channels(system, env)
    threads = 640 if protocol == "LL128" else 512
    if algorithm == "RING" and protocol == "SIMPLE" and system.ring.bandwidth * system.ring.channels <= PCI_BANDWIDTH:
        threads = 256
    each = 64 if protocol == "SIMPLE" else 8 * (system.ranks if (algorithm, protocol) == ("RING", "LL") else 1)
    return max(1, min(available, size // (threads * each)))


def communicator_channels(system: System, env: Mapping[str, str] | None = None) -> int:
    """Channels of the communicator: twice those of the graphs, cut at the maximum, then duplicated up to the minimum."""
    count, env = 2 * min(system.ring.channels, system.tree.channels), env or {}
    for names, bound in ((("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"), min), (("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"), max)):
        for name in names:
            if (text := env.get(name, "")).isdigit() and int(text) > 0:
                count = bound(count, int(text))
    return count


def generation(capability: int, release: tuple[int, ...]) -> str:
    """The column of the constants; before 2.25 Blackwell was judged as Hopper."""
    if capability >= 100 and release >= (2, 25):
        return "blackwell"
    return "hopper" if capability >= 90 else "ampere" if capability >= 80 else "volta"


def _latency(name: str, protocol: str, graph: Graph, system: System, k: Mapping[str, Any]) -> float:
    at = PROTOCOLS.index(protocol)
    if name == "NVLS":
        return k["nvls_latency"]
    kind = name.lower()
    within = k["nvlink" if graph.link == "NVL" else "pci"][kind][at]
    nodes, each = system.nodes, system.ranks // system.nodes
    between = k["net"]["tree" if each == 1 else kind][at]
    if name == "TREE":
        return k["base"][kind][at] + 2 * ((each - 1) * within + int(math.log2(nodes)) * between)
    if nodes > 1:
        within = max(within, _table()["network_overhead"][system.cpu] * (3 if protocol == "SIMPLE" else 1))
    crossings = 2 * (nodes - 1)
    return k["base"][kind][at] + (2 * (system.ranks - 1) - crossings) * within + crossings * between


def _bandwidth(name: str, protocol: str, graph: Graph, system: System, k: Mapping[str, Any]) -> float:
    column, n = min(system.nodes, 3) - 1, graph.channels
    gpu = k["generation"](system.capability)
    low = k["ll_max"][gpu if system.nodes == 1 else "ampere" if system.cpu == "amd" else "volta"][column]
    one = graph.bandwidth if system.nodes <= 2 else graph.network_bandwidth
    ring_share = system.ranks / (2 * (system.ranks - 1))
    bus = n * one
    if name == "NVLS":
        if not k["nvls_efficiency"]:  # until 2.27
            return bus * 5 / 6
        return 0.0 if n < 2 else bus * k["nvls_efficiency"].get(gpu, 0.0) * (n - 1) / n * 2 * ring_share
    if name == "RING":
        share = {"LL": min(low, bus * k["ring_ll_share"]), "LL128": min(bus * 0.92, n * k["ring_ll128"][gpu][column]), "SIMPLE": bus}[protocol]
        return share * ring_share
    bus = min(bus * 0.92, n * k["tree_max"][gpu][column])
    if protocol == "LL":
        bus = min(bus / 3.8, low)
    elif protocol == "LL128":
        bus = min(bus * (7 / 9 if system.nodes == 1 else 120 / 128), n * k["tree_ll128"][gpu][column])
    return 0.5 * bus * (0.85 if graph.pattern == TREE_PATTERN else 1.0)


def _ll128(graph: Graph, capability: int, k: Mapping[str, Any]) -> bool:
    allowed = k["ll128_capabilities"]
    reach = (*LL128_NETWORK_LINKS, "PXN") if capability >= 90 else LL128_NETWORK_LINKS
    return graph.link in LL128_LINKS and graph.network_link in (*reach, "DIS") and (capability in allowed if allowed else capability >= 70)


def _correction(algorithm: str, protocol: str, size: int) -> float:
    at = (size >> 6).bit_length() - 1
    factors = _table()["tree_correction"][protocol]
    return factors[at] if algorithm == "TREE" and 0 <= at < len(factors) else 1.0


def _enabled(setting: str | None, words: tuple[str, ...], release: tuple[int, ...]) -> set[str]:
    """The words that NCCL_ALGO or NCCL_PROTO leaves to an all-reduce; all without a setting."""
    if setting and ":" in setting and release < WITHOUT_PREFIXES:
        return set()  # no token matches
    chosen = set(words)
    for listed in _entries(setting):
        tokens = {t.strip().upper() for t in listed.lstrip("^").split(",")}
        chosen = {w for w in words if (w in tokens) != listed.startswith("^")}
    return chosen


def _entries(setting: str | None) -> list[str]:
    """The lists of a setting that concern an all-reduce. Any of them, `^LL` too, switches LL128 from "where it is safe" to on or off."""
    parts = [entry.rpartition(":") for entry in (setting or "").split(";") if entry.strip()]
    return [listed.strip() for function, colon, listed in parts if not colon or function.strip().lower() == "allreduce"]


@cache
def _table() -> Mapping[str, Any]:
    return MappingProxyType(tomllib.loads(resources.files(__package__).joinpath("tuning.toml").read_text(encoding="utf-8")))


@cache
def _constants(release: tuple[int, ...]) -> Mapping[str, Any]:
    table = _table()
    if not version(table["oldest"]) <= release[:3] <= version(table["newest"]):
        raise UnsupportedRelease(f"NCCL {'.'.join(map(str, release))}: its cost model was not read; known are {table['oldest']} to {table['newest']}")
    merged: dict[str, Any] = {}
    for era in table["era"]:
        if version(era["from"]) <= release:
            for key, value in era.items():
                merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    merged["generation"] = lambda capability: generation(capability, release)
    return MappingProxyType(merged)
