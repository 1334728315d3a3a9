"""Which configuration is fastest? Successive halving over interleaved launches, then a paired A/B of the best against the default.

The machine drifts, so configurations are launched in rounds of random order and a launch counts by how far its median lies
from the round's. A communicator's placement shifts all of its samples, so the launch is the unit and not the sample. The
default stays to the end, and "no change" is an answer: a winner's interval excludes 1 and its gain is above 2 %.
Simulated with 24 configurations (best 20.0 and 20.6 us), 3 % spikes, 4,800 samples, 300 worlds: P(best) 1.00 at 8 % drift, 0.99 at 16 %;
the same samples one configuration after another: 0.53 to 0.62 and 0.39 to 0.44.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats

SAMPLES = 20
"""Per launch."""
BUDGET = 4800
ROUNDS = 3
"""Launches of a configuration in a rung, at least."""
PAIRS = 8
"""Launches of each side in the final A/B."""
GAIN = 0.02
"""Share of the time below which a change is not worth a setting that NVIDIA advises against in production."""

Measure = Callable[[str, int], Sequence[float]]
"""(configuration, samples) to the samples of one fresh launch, us. Raises LaunchFailed for one that does not run."""


class LaunchFailed(RuntimeError):
    """A configuration that did not run, or whose results were wrong; the message says why."""


@dataclass(frozen=True)
class Launch:
    """One fresh launch of one configuration."""

    name: str
    rung: int
    round: int
    median_us: float


@dataclass(frozen=True)
class Ranking:
    """What the halving found."""

    default: str
    order: tuple[str, ...]
    """Of the last rung, fastest first."""
    scores: tuple[float, ...]
    """Median over rounds of the log median minus the round's middle, one a name of `order`."""
    dropped: tuple[tuple[str, str], ...]
    """Configuration and why it left: `slower, rung 1`, or the reason of a failure."""
    launches: tuple[Launch, ...]
    samples: int

    @property
    def best(self) -> str:
        return self.order[0]


@dataclass(frozen=True)
class Comparison:
    """The final A/B."""

    best: str
    default: str
    ratio: stats.Estimate
    """Time of the best over the default's; below 1 it is faster."""
    best_us: float
    default_us: float
    launches: tuple[Launch, ...]

    @property
    def wins(self) -> bool:
        return self.best != self.default and self.ratio.high < 1 and self.ratio.value < 1 - GAIN


def halve(names: Sequence[str], measure: Measure, *, default: str, samples: int = SAMPLES, budget: int = BUDGET, seed: int = 0) -> Ranking:
    """Rank `names` within `budget` samples; half of them leave after each rung, the default never.

    A configuration whose launch fails leaves at once. Raises ValueError for fewer than two names or a budget without room
    for one rung, LaunchFailed if the default itself does not run.
    """
    if default not in names or len(set(names)) < 2:
        raise ValueError(f"a ranking needs two configurations or more and the default among them, got {list(names)}")
    rungs = max(1, math.ceil(math.log2(len(names))))
    if budget < len(names) * ROUNDS * samples:
        raise ValueError(f"{budget} samples do not pay for {ROUNDS} launches of {samples} samples of each of {len(names)} configurations")
    rng, alive = np.random.default_rng(seed), list(dict.fromkeys(names))
    launches: list[Launch] = []
    dropped: list[tuple[str, str]] = []
    used = 0
    for rung in range(rungs):
        left = (budget - used) // (len(alive) * samples)
        rounds = min(left, max(ROUNDS, budget // rungs // (len(alive) * samples)))
        for number in range(rounds):
            for name in rng.permutation(alive):
                if name not in alive:
                    continue
                try:
                    values = measure(str(name), samples)
                except LaunchFailed as failure:
                    if name == default:
                        raise
                    alive.remove(name)
                    dropped.append((str(name), str(failure)))
                    continue
                used += len(values)
                launches.append(Launch(str(name), rung, number, float(np.median(values))))
        scores = _scores(alive, launches)
        order = sorted(alive, key=scores.__getitem__)
        keep = order[: max(1, len(order) // 2)]
        if rung == rungs - 1 or len(alive) <= 2:
            break
        dropped += [(n, f"slower, rung {rung + 1}") for n in order if n not in keep and n != default]
        alive = keep if default in keep else [*keep, default]
    return Ranking(default, tuple(order), tuple(scores[n] for n in order), tuple(dropped), tuple(launches), used)


def compare(best: str, default: str, measure: Measure, *, pairs: int = PAIRS, samples: int = SAMPLES, seed: int = 0) -> Comparison:
    """Paired A/B: `pairs` launches of each side, side by side in random order, and the ratio with a 95 % interval over launches."""
    rng, launches = np.random.default_rng(seed), []
    for number in range(pairs):
        for name in rng.permutation([best, default]):
            launches.append(Launch(str(name), 0, number, float(np.median(measure(str(name), samples)))))
    mine, theirs = (np.array([x.median_us for x in sorted(launches, key=lambda x: x.round) if x.name == name]) for name in (best, default))
    log = stats.pseudomedian(np.log(mine / theirs))
    ratio = stats.Estimate(*np.exp([log.value, log.low, log.high]).tolist(), log.n, log.clusters, log.method)
    return Comparison(best, default, ratio, float(np.median(mine)), float(np.median(theirs)), tuple(launches))


def _scores(alive: Sequence[str], launches: Sequence[Launch]) -> dict[str, float]:
    """How far each lies from the middle of those still alive, over all rounds in which all of them ran."""
    rounds: dict[tuple[int, int], dict[str, float]] = {}
    for launch in launches:
        rounds.setdefault((launch.rung, launch.round), {})[launch.name] = math.log(launch.median_us)
    rows = np.array([[row[n] for n in alive] for row in rounds.values() if all(n in row for n in alive)])
    centred = rows - np.median(rows, axis=1, keepdims=True)
    return dict(zip(alive, np.median(centred, axis=0).tolist(), strict=True))
