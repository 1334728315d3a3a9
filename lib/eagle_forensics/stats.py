"""The one place for statistics: intervals, paired differences, multiple comparisons.

Tokens of one sequence are correlated, so every interval over tokens resamples *sequences* (clusters), never tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
FEW = 30
"""Sequences below which an interval is Student's t over linearised sequence totals. Measured share of simulated 95 % intervals of a
paired difference that hold the truth: bootstrap 0.52 at 2 sequences, 0.83 at 5, 0.91 at 12, 0.93 at 30, 0.95 at 79; t 0.93 to 0.95 at all."""


@dataclass(frozen=True)
class Estimate:
    """A number with what is needed to doubt it: 95 % interval, n observations in `clusters` independent groups, method."""

    value: float
    low: float
    high: float
    n: int
    clusters: int
    method: str

    @property
    def interval(self) -> tuple[float, float]:
        return (self.low, self.high)

    @property
    def bounded(self) -> tuple[float, float] | None:
        """The interval where there is one; None for a single sequence. This is what a Finding carries."""
        return self.interval if np.isfinite(self.low) and np.isfinite(self.high) else None

    def excludes(self, value: float) -> bool:
        """True if `value` lies outside the interval."""
        return not self.low <= value <= self.high

    def text(self, digits: int = 3) -> str:
        """`0.606 [0.589, 0.623], n = 10879`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}], n = {self.n}"


def wilson(successes: int, n: int) -> Estimate:
    """Proportion of independent trials with Wilson's interval. Raises ValueError for n = 0."""
    if n <= 0:
        raise ValueError("a proportion needs at least one observation, got n = 0")
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    z = _quantile((1 + LEVEL) / 2)
    centre = (successes + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(successes * (n - successes) / n + z**2 / 4)
    low, high = 0.0 if successes == 0 else float(centre - half), 1.0 if successes == n else float(centre + half)
    return Estimate(successes / n, low, high, int(n), int(n), "Wilson")


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Estimate:
    """sum(numerators) / sum(denominators), one pair a sequence, with a percentile bootstrap over sequences (below `FEW`: t).

    For accuracy: correct and evaluated tokens. For accept length: generated tokens and verify rounds.
    With fewer than two sequences the interval is unbounded (nan is never returned: low = -inf, high = inf).
    """
    num, den = np.asarray(numerators, float), np.asarray(denominators, float)
    keep = den > 0
    num, den = num[keep], den[keep]
    if len(den) == 0:
        raise ValueError("nothing to average: every sequence has a zero denominator")
    value = float(num.sum() / den.sum())
    if len(den) < 2:
        return Estimate(value, -np.inf, np.inf, int(den.sum()), len(den), "one sequence: no interval")
    if len(den) < FEW:
        half = _t_half((num - value * den) / den.sum(), LEVEL)
        least, most = (num / den).min() >= 0, (num <= den).all()
        return Estimate(value, max(value - half, 0.0) if least else value - half, min(value + half, 1.0) if most else value + half,
                        int(den.sum()), len(den), f"t over {len(den)} sequences")
    draws = _resampled(num, seed) / _resampled(den, seed)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), int(den.sum()), len(den), f"bootstrap over {len(den)} sequences")


SEQUENTIAL_LEAST = 16
"""Requests before the first look of `narrow_enough`. Simulated (400 runs, a look every 8 requests): the intervals at which such a run stopped
hold the truth in 0.94 to 0.95 of the runs from 16 requests on, in 0.91 to 0.93 from 8 on."""


def narrow_enough(estimate: Estimate, half_width: float, least: int = SEQUENTIAL_LEAST) -> bool:
    """Whether a measurement may stop: at least `least` independent groups and an interval of at most +- `half_width`.

    The rule looks at the width alone, never at the value, so looking often favours no verdict.
    """
    return estimate.clusters >= least and (estimate.high - estimate.low) / 2 <= half_width


LIKELY_SHARE = 0.95
"""Share of hits that the bet of `majority_evidence` expects: one that sees 19 of 20 agree is won fastest, one miss costs 3.6 hits."""


def majority_evidence(hits: Sequence[bool], population: int) -> np.ndarray:
    """Evidence after every draw that more than half of `population` things are hits; drawn at random without replacement, in this order.

    A bet against the share of hits that would be left if exactly half were (Waudby-Smith and Ramdas 2020): where at most half are hits,
    the chance that the evidence *ever* reaches 1 / rate is at most `rate` (Ville), however often one looks. Infinite: more than half are seen.
    """
    path, evidence, found = np.empty(len(hits)), 1.0, 0
    for drawn, hit in enumerate(hits):
        evidence *= _payoff(bool(hit), found, drawn, population)
        found += bool(hit)
        path[drawn] = evidence
    return path


def _payoff(hit: bool, found: int, drawn: int, population: int) -> float:
    left = min(max((population / 2 - found) / (population - drawn), 0.0), 1.0)
    bet = max(LIKELY_SHARE, left)
    if hit:
        return bet / left if left > 0 else np.inf
    return (1 - bet) / (1 - left) if left < 1 else 1.0


def draws_needed(hits: Sequence[bool], population: int, rate: float, most: int) -> int | None:
    """Further draws after which `majority_evidence` reaches 1 / rate if all of them are hits; None if `most` are not enough."""
    evidence = majority_evidence(hits, population)[-1] if len(hits) else 1.0
    found, drawn = int(sum(hits)), len(hits)
    for further in range(most + 1):
        if evidence >= 1 / rate:
            return further
        if drawn + further >= population:
            return None
        evidence *= _payoff(True, found + further, drawn + further, population)
    return None


def unseen_share(n: int) -> float:
    """Share of the population that can be of another kind although n draws were all of one: more would have shown in 95 % of such draws."""
    return 1 - (1 - LEVEL) ** (1 / n) if n else 1.0


def paired_difference(
    first: Sequence[float], second: Sequence[float], denominators: Sequence[float],
    second_denominators: Sequence[float] | None = None, *, seed: int = 0, level: float = LEVEL,
) -> Estimate:
    """Ratio of `first` minus ratio of `second` on the same sequences, bootstrap over sequences (same draw for both; below `FEW`: t)."""
    a, b, da = (np.asarray(x, float) for x in (first, second, denominators))
    db = da if second_denominators is None else np.asarray(second_denominators, float)
    keep = (da > 0) & (db > 0)
    a, b, da, db = a[keep], b[keep], da[keep], db[keep]
    if len(da) == 0:
        raise ValueError("nothing to compare: every sequence has a zero denominator")
    value = float(a.sum() / da.sum() - b.sum() / db.sum())
    if len(da) < 2:
        return Estimate(value, -np.inf, np.inf, int(da.sum()), len(da), "one sequence: no interval")
    if len(da) < FEW:
        half = _t_half((a - a.sum() / da.sum() * da) / da.sum() - (b - b.sum() / db.sum() * db) / db.sum(), level)
        return Estimate(value, value - half, value + half, int(da.sum()), len(da), f"paired t over {len(da)} sequences")
    draws = _resampled(a, seed) / _resampled(da, seed) - _resampled(b, seed) / _resampled(db, seed)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), int(da.sum()), len(da), f"paired bootstrap over {len(da)} sequences")


def median_over_groups(groups: Sequence[np.ndarray], *, seed: int = 0) -> Estimate:
    """Median of all values of `groups` (one array a sequence), with a percentile bootstrap over the groups.

    With fewer than two non-empty groups the interval is unbounded. Raises ValueError without any value.
    """
    groups = [np.asarray(g, float) for g in groups if len(g)]
    if not groups:
        raise ValueError("no values: a median needs at least one")
    values = np.concatenate(groups)
    value = float(np.median(values))
    if len(groups) < 2:
        return Estimate(value, -np.inf, np.inf, len(values), len(groups), "one sequence: no interval")
    draws = _weighted_medians(values, np.repeat(np.arange(len(groups)), [len(g) for g in groups]), _draws(len(groups), seed))
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), len(values), len(groups), f"bootstrap over {len(groups)} sequences")


def _weighted_medians(values: np.ndarray, owner: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Lower median of `values` for each row of `counts`, in which every value counts as often as its owner: first the block of sorted values, then the value."""
    order = np.argsort(values, kind="stable")
    owner, values, n, groups = owner[order], values[order], len(values), counts.shape[1]
    size = math.isqrt(n - 1) + 1
    blocks = -(-n // size)
    held = np.bincount(np.arange(n) // size * groups + owner, minlength=blocks * groups).reshape(blocks, groups)
    upto = np.cumsum(counts @ held.T, axis=1)
    half = (upto[:, -1] + 1) // 2
    block = (upto >= half[:, None]).argmax(axis=1)
    before = np.where(block > 0, upto[np.arange(len(counts)), block - 1], 0)
    out = np.empty(len(counts))
    for b in np.unique(block):
        mine, here = np.flatnonzero(block == b), slice(b * size, (b + 1) * size)
        inner = before[mine, None] + np.cumsum(counts[mine][:, owner[here]], axis=1)
        out[mine] = values[here][(inner >= half[mine, None]).argmax(axis=1)]
    return out


def paired_difference_t(first: Sequence[float], second: Sequence[float], denominators: Sequence[float], *, level: float = LEVEL) -> Estimate:
    """As `paired_difference` with one denominator, by Student's t over the linearised sequence totals.

    For few sequences and levels far beyond 95 %, where the tail of a bootstrap is too coarse (successive elimination).
    """
    a, b, d = (np.asarray(x, float) for x in (first, second, denominators))
    keep = d > 0
    a, b, d = a[keep], b[keep], d[keep]
    if len(d) == 0:
        raise ValueError("nothing to compare: every sequence has a zero denominator")
    value, m = float((a - b).sum() / d.sum()), len(d)
    if m < 2:
        return Estimate(value, -np.inf, np.inf, int(d.sum()), m, "one sequence: no interval")
    half = _t_half((a - b - value * d) / d.sum(), level)
    return Estimate(value, value - half, value + half, int(d.sum()), m, f"paired t over {m} sequences, level {level:.4f}")


def _quantile(share: float, dof: int | None = None) -> float:
    """Of the normal distribution, or of Student's t. The import stands here since it takes a third of a second that a match never needs; `scipy.stats` takes three."""
    from scipy import special

    return float(special.ndtri(share) if dof is None else special.stdtrit(dof, share))


def _t_half(residuals: np.ndarray, level: float) -> float:
    """Half width of a t interval from one linearised residual a sequence, at least two."""
    m = len(residuals)
    return float(_quantile((1 + level) / 2, m - 1) * np.sqrt(m / (m - 1) * np.square(residuals).sum()))


def pseudomedian(differences: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Estimate:
    """Hodges-Lehmann centre of paired differences: median of the means of all pairs, one difference a launch or sequence.

    Interval: percentile bootstrap over the differences; below `FEW` of them the signed-rank test inverted, exact. Measured
    share of simulated 95 % intervals that hold the truth, normal differences: bootstrap 0.91 at 8 and 0.92 at 12, signed rank
    0.97 and 0.96. Fewer than six differences cannot carry 95 %: unbounded. Raises ValueError without any.
    """
    d = np.asarray(differences, float)
    n = len(d)
    if n == 0:
        raise ValueError("nothing to compare: no paired difference")
    walsh = np.sort(_walsh(d[None])[0])
    value = float(np.median(walsh))
    if n >= FEW:
        draws = np.median(_walsh(d[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]), axis=1)
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
        return Estimate(value, float(low), float(high), n, n, f"Hodges-Lehmann, bootstrap over {n} pairs")
    sums = np.array([1.0])
    for rank in range(1, n + 1):  # exact distribution of the signed-rank sum
        sums = np.convolve(sums, [0.5, *[0.0] * (rank - 1), 0.5])
    cut = int(np.searchsorted(np.cumsum(sums), (1 - level) / 2, side="right"))
    if cut == 0:
        return Estimate(value, -np.inf, np.inf, n, n, f"Hodges-Lehmann, {n} pairs: too few for an interval")
    return Estimate(value, float(walsh[cut - 1]), float(walsh[-cut]), n, n, f"Hodges-Lehmann, signed rank over {n} pairs")


def _walsh(rows: np.ndarray) -> np.ndarray:
    """[R, n] to the means of all pairs of each row, itself included: [R, n (n + 1) / 2]."""
    first, second = np.triu_indices(rows.shape[1])
    return (rows[:, first] + rows[:, second]) / 2


def simultaneous_level(comparisons: int) -> float:
    """Per-comparison confidence level so that `comparisons` intervals hold together at 95 % (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(1, comparisons)


def _resampled(values: np.ndarray, seed: int) -> np.ndarray:
    """Sums over `RESAMPLES` bootstrap draws of the sequences; the same seed gives the same draws for every array."""
    return _draws(len(values), seed) @ values


@lru_cache(maxsize=4)
def _draws(n: int, seed: int) -> np.ndarray:
    """[RESAMPLES, n] how often each draw holds each sequence; kept, since a battery asks for the same ones hundreds of times."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)


def printed(value: float, decimals: int) -> Estimate:
    """A figure known only as it was printed with `decimals` decimals: the interval is what rounds to it, half a unit each side.

    Not a sampling interval: it holds the printing alone, so n and clusters are 0.
    """
    half = 0.5 * 10.0**-decimals
    return Estimate(float(value), float(value) - half, float(value) + half, 0, 0, f"rounding to {decimals} decimals")


def chance_of_equal_counts(mean: float, n: int) -> float:
    """Chance that two unrelated series of n counts, Poisson with this mean, agree in every one of them."""
    from scipy import special

    return float(special.ive(0, 2 * mean) ** n)


def interval_of(draws: Sequence[float], value: float, n: int, method: str) -> Estimate:
    """`value` with the central 95 % of simulated or resampled `draws`."""
    low, high = np.quantile(np.asarray(draws, float), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high), n, n, method)


@dataclass(frozen=True)
class Linear:
    """Least-squares fit y = sum of coefficients x columns, with t intervals."""

    coefficients: tuple[Estimate, ...]
    covariance: tuple[tuple[float, ...], ...]
    dof: int

    def at(self, row: Sequence[float]) -> float:
        """The fit at one row of the columns."""
        return sum(c.value * x for c, x in zip(self.coefficients, row, strict=True))

    def draws(self, size: int, seed: int = 0) -> np.ndarray:
        """Plausible coefficients [size, columns]: multivariate t around the fit."""
        rng = np.random.default_rng(seed)
        normal = rng.multivariate_normal(np.zeros(len(self.coefficients)), self.covariance, size=size, method="eigh")
        scale = np.sqrt(self.dof / rng.chisquare(self.dof, size))
        return np.array([c.value for c in self.coefficients]) + normal * scale[:, None]


def linear(columns: Sequence[Sequence[float]], y: Sequence[float]) -> Linear:
    """Fit y on `columns` (one row a point; a constant is a column of ones). ValueError unless the points fix every coefficient and leave a residual."""
    design, ys = np.asarray(columns, float), np.asarray(y, float)
    different = len(np.unique(design, axis=0))
    if different <= design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError(f"{design.shape[1]} coefficients with intervals need at least {design.shape[1] + 1} different points, got {different}")
    found = np.linalg.lstsq(design, ys, rcond=None)[0]
    dof = len(ys) - design.shape[1]
    covariance = ((ys - design @ found) ** 2).sum() / dof * np.linalg.inv(design.T @ design)
    halves = _quantile((1 + LEVEL) / 2, dof) * np.sqrt(np.diag(covariance))
    method = f"least squares, t with {dof} degrees of freedom"
    return Linear(tuple(Estimate(float(v), float(v - h), float(v + h), len(ys), len(ys), method) for v, h in zip(found, halves, strict=True)),
                  tuple(map(tuple, covariance.tolist())), dof)


@dataclass(frozen=True)
class Line:
    """Least-squares line y = intercept + slope x."""

    fit: Linear

    @property
    def intercept(self) -> Estimate:
        return self.fit.coefficients[0]

    @property
    def slope(self) -> Estimate:
        return self.fit.coefficients[1]

    def at(self, x: float) -> float:
        return self.fit.at((1.0, x))

    def draws(self, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Plausible (intercepts, slopes), [size] each."""
        found = self.fit.draws(size, seed)
        return found[:, 0], found[:, 1]


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit y = intercept + slope x. Raises ValueError below three different x: two points leave no residual to judge by."""
    if len({float(v) for v in x}) < 3:
        raise ValueError(f"a line with an interval needs at least 3 different x, got {len({float(v) for v in x})}")
    return Line(linear([(1.0, float(v)) for v in x], y))


def function_of_sums(function: Callable[[np.ndarray], np.ndarray], columns: np.ndarray, n: int, *, seed: int = 0) -> Estimate:
    """A smooth function of several sums over sequences, bootstrap over sequences (below `FEW`: jackknife with t).

    `columns` [sequences, c]: what each sequence adds to each sum. `function` maps sums [..., c] to values [...].
    """
    columns = np.asarray(columns, float)
    m, value = len(columns), float(function(columns.sum(0)))
    if m < 2:
        return Estimate(value, -np.inf, np.inf, n, m, "one sequence: no interval")
    if m < FEW:
        without = function(columns.sum(0) - columns)
        half = float(_quantile((1 + LEVEL) / 2, m - 1) * np.sqrt((m - 1) / m * np.square(without - without.mean()).sum()))
        return Estimate(value, value - half, value + half, n, m, f"jackknife t over {m} sequences")
    return interval_of(function(_resampled(columns, seed)), value, n, f"bootstrap over {m} sequences")
