"""The ranking in simulated worlds: share of 300 in which the fastest of 24 configurations is found, at 8 % drift."""

from __future__ import annotations

import numpy as np

from eagle_forensics.nccl.ranking import halve

CONFIGURATIONS, WORLDS, DRIFT = 24, 300, 0.08


def figures() -> dict[str, float]:
    found = [world(seed, DRIFT) for seed in range(WORLDS)]
    return {"nccl.rank_p_best": float(np.mean([hit for hit, _ in found])), "nccl.rank_samples": float(np.mean([used for _, used in found]))}


class Machine:
    """A machine that drifts from launch to launch: 4 % noise, 3 % of samples two to six times as long, 1.5 % offset a launch."""

    def __init__(self, times: np.ndarray, drift: float, rng: np.random.Generator):
        self.times, self.drift, self.rng, self.level = times, drift, rng, 0.0

    def __call__(self, name: str, samples: int) -> np.ndarray:
        self.level = 0.97 * self.level + self.rng.normal(0, self.drift * 0.25)
        x = self.times[int(name)] * np.exp(self.level + self.rng.normal(0, 0.015) + self.rng.normal(0, 0.04, samples))
        spikes = self.rng.random(samples) < 0.03
        x[spikes] *= self.rng.uniform(2, 6, spikes.sum())
        return x


def times(rng: np.random.Generator) -> np.ndarray:
    """The best 20.0 us, two close ones, the rest 22 to 48."""
    return rng.permutation(np.concatenate([[20.0, 20.6, 21.2], rng.uniform(22, 48, CONFIGURATIONS - 3)]))


def world(seed: int, drift: float) -> tuple[bool, int]:
    """Whether the halving finds the best of one world, and the samples it used."""
    rng = np.random.default_rng(1000 + seed)
    true = times(rng)
    default = str(int(np.argsort(true)[CONFIGURATIONS // 2]))
    ranking = halve([str(i) for i in range(CONFIGURATIONS)], Machine(true, drift, rng), default=default, seed=seed)
    return ranking.best == str(int(true.argmin())), ranking.samples
