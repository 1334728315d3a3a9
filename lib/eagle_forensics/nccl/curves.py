"""How long does an all-reduce of n bytes take on this machine? t(n) = alpha + beta n, fitted to what was measured.

Alpha is the latency, 1/beta the algorithm bandwidth: NCCL's own (latency, bandwidth) pair has the same form. Fitted in log
space, so that a relative error counts the same at 14 KB and at 1 MB, with a loss that one bad size does not bend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_forensics import stats

SOFT = 0.05
"""Relative residual from which a size counts less and less: about the noise of a median."""
BIC_GAIN = 10.0
"""A second segment is believed above this: odds of 150 to 1."""
REFITS = 200
LAUNCHES = 5
"""Launches below which no interval is given: resampling fewer draws the same few tables again."""


@dataclass(frozen=True)
class Curve:
    """t(n) = alpha + n / bandwidth."""

    alpha_us: stats.Estimate
    bandwidth: stats.Estimate
    """GB/s, algorithm bandwidth."""
    worst_residual: float
    """Largest relative distance of a size from the curve."""
    sizes: tuple[int, ...]

    def at(self, size: float) -> float:
        """Microseconds at `size` bytes."""
        return self.alpha_us.value + size / (1e3 * self.bandwidth.value)


@dataclass(frozen=True)
class Switch:
    """A change of protocol within one measured curve."""

    below: Curve
    above: Curve
    bytes: int
    """First size of the upper segment."""
    bic_gain: float


def fit(times_us: Mapping[int, float], launches: Sequence[Mapping[int, float]] = (), *, seed: int = 0) -> Curve:
    """The curve through one time a size (a median or a low quantile). `launches`: the same of each launch, for the interval.

    Raises ValueError below two sizes or for a time that is not positive.
    """
    log_a, log_b, residuals = _fit(times_us)
    tables = [x for x in launches if set(x) >= set(times_us)]
    rng, draws = np.random.default_rng(seed), []
    if len(tables) >= LAUNCHES:
        stacked = np.array([[x[n] for n in times_us] for x in tables])
        for _ in range(REFITS):
            again = np.median(stacked[rng.integers(0, len(tables), len(tables))], axis=0)
            draws.append(_fit(dict(zip(times_us, again.tolist(), strict=True)))[:2])
    how = f"bootstrap over {len(tables)} launches" if draws else f"{max(len(tables), 1)} launch{'es' * (len(tables) > 1)}: no interval"
    return Curve(_estimate(np.exp(log_a), [math.exp(a) for a, _ in draws], len(tables), how),
                 _estimate(np.exp(-log_b) / 1e3, [math.exp(-b) / 1e3 for _, b in draws], len(tables), how),
                 float(np.abs(np.expm1(residuals)).max()), tuple(times_us))


def switch(times_us: Mapping[int, float], logged: Sequence[int] = ()) -> Switch | None:
    """A change of protocol inside the measured sizes, or None. `logged`: first sizes at which the log shows another choice.

    Needs both: two segments that fit better by BIC, and a change of choice in the log at that size. A curve alone bends for
    many reasons.
    """
    sizes = sorted(times_us)
    found = []
    for at in (s for s in sizes if s in logged):
        low, high = ({n: times_us[n] for n in sizes if keep(n)} for keep in (lambda n, at=at: n < at, lambda n, at=at: n >= at))
        if min(len(low), len(high)) >= 3:
            gain = _bic([_fit(times_us)[2]], 2) - _bic([_fit(low)[2], _fit(high)[2]], 5)
            found.append(Switch(fit(low), fit(high), at, gain))
    best = max(found, key=lambda s: s.bic_gain, default=None)
    return best if best is not None and best.bic_gain > BIC_GAIN else None


def crossover(low_latency: Curve, high_bandwidth: Curve) -> float | None:
    """Bytes from which the second curve is faster; None if it is so nowhere or everywhere."""
    slope = 1 / (1e3 * low_latency.bandwidth.value) - 1 / (1e3 * high_bandwidth.bandwidth.value)
    rise = high_bandwidth.alpha_us.value - low_latency.alpha_us.value
    return rise / slope if slope > 0 and rise > 0 else None


def _fit(times_us: Mapping[int, float]) -> tuple[float, float, np.ndarray]:
    from scipy.optimize import least_squares

    n, t = np.array(list(times_us), float), np.array(list(times_us.values()), float)
    if len(set(n.tolist())) < 2 or not (np.isfinite(t).all() and (t > 0).all()):
        raise ValueError(f"a curve needs positive times at two sizes or more, got {dict(times_us)}")
    log_t = np.log(t)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(x[0], x[1] + np.log(n)) - log_t

    start = [math.log(t.min() * 0.9), math.log(max(np.median(t / n) * 0.1, 1e-9))]
    found = least_squares(residuals, start, loss="soft_l1", f_scale=SOFT)
    return float(found.x[0]), float(found.x[1]), residuals(found.x)


def _bic(residuals: Sequence[np.ndarray], parameters: int) -> float:
    r = np.concatenate(residuals)
    return len(r) * math.log(max(float(np.mean(r**2)), 1e-12)) + parameters * math.log(len(r))


def _estimate(value: float, draws: Sequence[float], n: int, how: str) -> stats.Estimate:
    if not draws:
        return stats.Estimate(float(value), -np.inf, np.inf, max(n, 1), max(n, 1), how)
    return stats.interval_of(draws, float(value), n, how)
