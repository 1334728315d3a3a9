"""Alpha-beta fits: public figures recovered, an outlier that does not bend, a protocol break only with evidence."""

import json
from pathlib import Path

import numpy as np
import pytest

from eagle_forensics.nccl.curves import crossover, fit, switch

K = 1024
LL = {32 * K: 26.20, 64 * K: 25.59, 128 * K: 32.09, 256 * K: 37.26}
SIMPLE = {32 * K: 48.16, 64 * K: 48.69, 128 * K: 51.56, 256 * K: 56.48}


def test_public_figures_are_recovered():
    low, plain = fit(LL), fit(SIMPLE)
    assert (round(low.alpha_us.value, 2), round(low.bandwidth.value, 2)) == (24.02, 19.32) and low.worst_residual < 0.075
    assert (round(plain.alpha_us.value, 1), round(plain.bandwidth.value, 1)) == (46.6, 26.8) and plain.worst_residual < 0.009
    assert crossover(low, plain) == pytest.approx(1.57e6, rel=0.01)
    assert crossover(plain, low) is None


def test_one_bad_size_does_not_bend_the_curve():
    clean = {n: 13 + n / 11600 for n in (16 * K, 32 * K, 64 * K, 128 * K, 256 * K)}
    assert fit({**clean, 64 * K: 71.2}).alpha_us.value == pytest.approx(13, rel=0.06)


def test_real_gloo_samples_make_a_curve_with_an_interval():
    raw = json.loads((Path(__file__).parent / "fixtures" / "gloo_bench_real_ws2_raw_seconds.json").read_text())
    samples = {14336 * t: np.array(v) * 1e6 for t, v in zip((1, 2, 3, 4, 6, 8, 16, 32, 64), raw if isinstance(raw, list) else raw.values(), strict=True)}
    launches = [{n: float(np.percentile(v[i::8], 20)) for n, v in samples.items()} for i in range(8)]
    found = fit({n: float(np.percentile(v, 20)) for n, v in samples.items()}, launches)
    assert found.alpha_us.value == pytest.approx(340, rel=0.03) and found.bandwidth.value == pytest.approx(1.61, rel=0.03)
    assert found.worst_residual < 0.06 and found.alpha_us.low < found.alpha_us.value < found.alpha_us.high


def test_few_launches_have_no_interval():
    assert fit(LL).alpha_us.bounded is None and fit(LL).alpha_us.method == "1 launch: no interval"
    assert fit(LL, [LL, LL]).alpha_us.method == "2 launches: no interval"


def test_a_break_needs_the_curve_and_the_log():
    sizes = [2**k * K for k in range(2, 14)]
    rng = np.random.default_rng(0)
    broken = {n: (20 + n / 13000 if n < 256 * K else 60 + n / 40000) * rng.normal(1, 0.01) for n in sizes}
    assert switch(broken, [256 * K]).bytes == 256 * K
    assert switch(broken) is None
    assert switch({n: 20 + n / 13000 for n in sizes}, [256 * K]) is None


@pytest.mark.parametrize("times", [{1024: 5.0}, {1024: 5.0, 2048: 0.0}, {}])
def test_what_cannot_be_fitted_is_refused(times):
    with pytest.raises(ValueError, match="positive times at two sizes"):
        fit(times)
