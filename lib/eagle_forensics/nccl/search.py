"""Which settings are worth a launch on this machine, and how are they searched?

What changes the way a message goes (algorithm, protocol, transport) is categorical and small: all of it is tried, but for what
NCCL's own model says cannot change the choice at decode size. What scales a way (channels, threads, buffers) has one sweet
spot: one variable at a time inside the best two ways (AutoCCL, NSDI 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eagle_forensics.nccl import ranking
from eagle_forensics.nccl.ranking import (
    Comparison,
    LaunchFailed,
    Measure,
    Ranking,
    compare,
    halve,
)
from eagle_forensics.nccl.registry import version
from eagle_forensics.nccl.tuning import System, choose, communicator_channels

DEFAULT = "default"
AXES: Mapping[str, tuple[int, ...]] = {"NCCL_MAX_CTAS": (1, 2, 4, 8), "NCCL_MIN_CTAS": (4, 8, 16), "NCCL_NTHREADS": (64, 128, 256, 512)}
"""Resource variables and the values tried in order."""
FUNCTION_PREFIX = (2, 24)


@dataclass(frozen=True)
class Configuration:
    """Settings of one launch, on top of the engine's own."""

    name: str
    env: Mapping[str, str]
    why: str


@dataclass(frozen=True)
class Space:
    """What is tried, the default first, and what is not, with the reason."""

    tried: tuple[Configuration, ...]
    skipped: tuple[tuple[Configuration, str], ...]


@dataclass(frozen=True)
class Found:
    """Result of a search."""

    ranking: Ranking
    refined: Configuration
    """Best configuration after the coordinate descent."""
    comparison: Comparison | None
    """Final A/B; None if the default was best all along."""
    tried: tuple[Configuration, ...]
    failed: tuple[tuple[str, str], ...]

    @property
    def won(self) -> Comparison | None:
        """The A/B, if another setting than the default won it."""
        return self.comparison if self.comparison is not None and self.comparison.wins else None

    @property
    def changes(self) -> dict[str, str]:
        """What the best configuration sets that the default has not: the narrowest block to write down."""
        default = self.tried[0].env
        return {k: v for k, v in self.refined.env.items() if default.get(k) != v}


def space(*, release: str | None, link: str | None, sizes: Sequence[int], system: System | None = None, base: Mapping[str, str] | None = None,
          trusted: bool = True) -> Space:
    """The configurations for this machine. `link`: `pcie`, `nvlink`, `nvswitch`; `trusted`: False if the graph search failed, then
    the model's choices still prune nothing that a new graph would change."""
    base = dict(base or {})
    if system is not None and release is not None and not _chooses(system, release, sizes, base):
        system = None
    modern = release is None or version(release) >= FUNCTION_PREFIX
    allreduce = "allreduce:" if modern else ""
    default = Configuration(DEFAULT, base, "as served")
    ways = [("proto-ll", {"NCCL_PROTO": f"{allreduce}LL,Simple" if modern else "LL"}, "low-latency protocol: half the bandwidth, lowest latency"),
            ("algo-tree", {"NCCL_ALGO": f"{allreduce}tree"}, "fewer hops between nodes"),
            ("algo-ring", {"NCCL_ALGO": f"{allreduce}ring"}, "the plain choice")]
    if link in ("nvlink", "nvswitch"):
        ways.append(("no-nvls", {"NCCL_NVLS_ENABLE": "0"}, "NVLS has a fixed cost of 25 us"))
    transports = [("p2p-sys", {"NCCL_P2P_LEVEL": "SYS"}, "peer-to-peer across sockets; the default ends at PXB, beyond it shared memory is used"),
                  ("p2p-off", {"NCCL_P2P_DISABLE": "1"}, "shared memory throughout: the control for a broken peer-to-peer")] if link in ("pcie", None) else []
    tried, skipped = [default], []
    for name, env, why in (*ways, *transports):
        c = Configuration(name, {**base, **env}, why)
        reason = _pointless(c, default, system, release, sizes) if system is not None and release is not None and trusted else None
        (skipped.append((c, reason)) if reason else tried.append(c))
    tried += [Configuration(f"{t}+{w}", {**base, **te, **we}, f"{tw}; {ww}")
              for t, te, tw in transports[:1] for w, we, ww in ways[:2] if w in {c.name for c in tried}]
    for name, values in AXES.items():
        reason = _resource_pointless(name, values, system, release, sizes, base) if system is not None and release is not None else None
        if reason:
            skipped.append((Configuration(name.removeprefix("NCCL_").lower(), {**base, name: str(values[-1])}, "channels or threads"), reason))
    return Space(tuple(tried), tuple(skipped))


def search(where: Space, run: Callable[[Configuration, int], Sequence[float]], *, axes: Mapping[str, Sequence[int]] = AXES,
           samples: int = ranking.SAMPLES, budget: int = ranking.BUDGET, pairs: int = ranking.PAIRS, seed: int = 0) -> Found:
    """Rank, refine the best two ways, and hold the best against the default.

    `run(configuration, samples)` gives the samples of one fresh launch, us. Raises LaunchFailed if the default does not run,
    ValueError if there is nothing to search.
    """
    known = {c.name: c for c in where.tried}

    def launch(name: str, count: int) -> Sequence[float]:
        return run(known[name], count)

    skipped = {next(iter(set(c.env) - set(where.tried[0].env)), "") for c, _ in where.skipped}
    names = [c.name for c in where.tried]
    if len(names) < 2:
        raise ValueError("nothing to search: the model says that no setting changes the choice at these sizes")
    rank = halve(names, launch, default=DEFAULT, samples=samples, budget=budget, seed=seed)
    best, failed = rank.best, [(n, why) for n, why in rank.dropped if not why.startswith("slower")]
    for start in [n for n in rank.order if n != DEFAULT][:2] if best != DEFAULT else []:
        refined = _descend(known[start], launch, known, {k: v for k, v in axes.items() if k not in skipped}, samples, failed, seed)
        best = _better(best, refined, launch, samples, seed)
    comparison = None
    if best != DEFAULT:
        try:
            comparison = compare(best, DEFAULT, launch, pairs=pairs, samples=samples, seed=seed)
        except LaunchFailed as failure:
            failed.append((best, str(failure)))
            best = DEFAULT
    return Found(rank, known[best], comparison, tuple(known.values()), tuple(failed))


def _descend(start: Configuration, launch: Measure, known: dict[str, Configuration], axes: Mapping[str, Sequence[int]], samples: int,
             failed: list[tuple[str, str]], seed: int) -> str:
    """One variable at a time: up its values while each is faster than the best so far."""
    best = start.name
    for variable, values in axes.items():
        for value in values:
            env = {**known[best].env, variable: str(value)}
            name = f"{start.name}+{variable.removeprefix('NCCL_').lower()}={value}"
            known[name] = Configuration(name, env, f"{start.why}; {variable} {value}")
            try:
                better = _better(best, name, launch, samples, seed)
            except LaunchFailed as failure:
                failed.append((name, str(failure)))
                break
            if better == best and best != start.name:
                break  # past the sweet spot
            best = better
    return best


def _better(first: str, second: str, launch: Measure, samples: int, seed: int) -> str:
    """The faster of two over a few interleaved launches; the first unless the second gains more than a setting is worth."""
    if first == second:
        return first
    found = compare(second, first, launch, pairs=ranking.ROUNDS, samples=samples, seed=seed)
    return second if found.ratio.value < 1 - ranking.GAIN else first


def _chooses(system: System, release: str, sizes: Sequence[int], env: Mapping[str, str]) -> bool:
    """Whether the model knows the served choice; not with an environment that leaves NCCL no algorithm, or a release it does not cover."""
    try:
        return all(choose(system, release, n, env) for n in sizes)
    except ValueError:
        return False


def _pointless(c: Configuration, default: Configuration, system: System, release: str, sizes: Sequence[int]) -> str | None:
    changed = {k: v for k, v in c.env.items() if default.env.get(k) != v}
    if not set(changed) <= {"NCCL_ALGO", "NCCL_PROTO"}:
        return None
    try:
        same = all(_way(system, release, n, c.env) == _way(system, release, n, default.env) for n in sizes)
    except ValueError as error:
        return str(error)
    return "NCCL makes the same choice at every decode size without it" if same else None


def _way(system: System, release: str, size: int, env: Mapping[str, str]) -> tuple[str, str, int | None]:
    found = choose(system, release, size, env)
    return found.algorithm, found.protocol, found.channels


def _resource_pointless(name: str, values: Sequence[int], system: System, release: str, sizes: Sequence[int], base: Mapping[str, str]) -> str | None:
    if "CTAS" not in name:
        return None
    before = [choose(system, release, n, base).channels for n in sizes]
    after = [[choose(system, release, n, {**base, name: str(v)}).channels for n in sizes] for v in values]
    if all(a == before for a in after):
        used = max((b for b in before if b is not None), default=None)
        return f"decode sizes fill {used} of {communicator_channels(system, base)} channels whatever it says" if used else "NVLS takes its own channels"
    return None
