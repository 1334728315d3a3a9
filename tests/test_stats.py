"""Intervals cover, pairs are paired, clusters are clusters."""

import numpy as np
import pytest

from eagle_forensics import stats


def test_wilson_matches_the_textbook():
    estimate = stats.wilson(8, 10)
    assert estimate.value == 0.8
    assert estimate.interval == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert stats.wilson(0, 7).low == 0.0 and stats.wilson(7, 7).high == 1.0


@pytest.mark.parametrize("successes, n", [(0, 1), (1, 7), (39, 40), (333, 1000)])
def test_wilson_is_scipys(successes, n):
    from scipy.stats import binomtest

    expected = binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert stats.wilson(successes, n).interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_observed_is_refused():
    with pytest.raises(ValueError, match="n = 0"):
        stats.wilson(0, 0)
    with pytest.raises(ValueError, match="8 successes in 7"):
        stats.wilson(8, 7)
    with pytest.raises(ValueError, match="zero denominator"):
        stats.ratio_of_sums([0], [0])


def test_one_sequence_has_no_interval():
    estimate = stats.ratio_of_sums([3], [10])
    assert estimate.value == 0.3 and not estimate.excludes(0.99)


def test_the_interval_over_sequences_covers_at_its_level():
    """Sequences with their own accuracies: the interval must cover the true mean in about 95 of 100 samples."""
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(200):
        p = rng.beta(6, 4, size=60)
        n = np.full(60, 100)
        estimate = stats.ratio_of_sums(rng.binomial(n, p), n, seed=seed)
        covered += not estimate.excludes(0.6)
    assert 0.90 <= covered / 200 <= 0.99


def test_an_interval_over_tokens_would_be_too_narrow():
    rng = np.random.default_rng(2)
    p, n = rng.beta(2, 2, size=40), np.full(40, 200)
    hits = rng.binomial(n, p)
    by_sequence = stats.ratio_of_sums(hits, n)
    by_token = stats.wilson(int(hits.sum()), int(n.sum()))
    assert by_sequence.high - by_sequence.low > 3 * (by_token.high - by_token.low)


def test_pairing_sees_a_difference_that_two_intervals_hide():
    rng = np.random.default_rng(3)
    n = np.full(79, 138)
    base = rng.binomial(n, rng.beta(6, 4, size=79))
    better = np.minimum(base + rng.binomial(6, 0.8, size=79), n)
    first, second = stats.ratio_of_sums(better, n), stats.ratio_of_sums(base, n)
    assert first.low < second.high, "the separate intervals overlap"
    assert stats.paired_difference(better, base, n).low > 0


def test_the_same_seed_gives_the_same_interval():
    hits, n = list(range(30)), [40] * 30
    first = stats.ratio_of_sums(hits, n, seed=4)
    assert first == stats.ratio_of_sums(hits, n, seed=4)
    assert first != stats.ratio_of_sums(hits, n, seed=5)


def test_more_comparisons_widen_the_level():
    assert stats.simultaneous_level(1) == pytest.approx(0.95)
    assert stats.simultaneous_level(20) == pytest.approx(0.9975)


@pytest.mark.parametrize("sequences", [2, 5, 12])
def test_few_sequences_do_not_make_a_difference_of_nothing(sequences):
    """No true difference: a percentile bootstrap excludes 0 in half of the samples of two sequences, in one of six of five."""
    rng = np.random.default_rng(6)
    missed = {"one denominator": 0, "two": 0, "ratio": 0}
    for _ in range(300):
        n = rng.integers(40, 400, sequences)
        p = rng.beta(12, 8, sequences)
        a, b = rng.binomial(n, p), rng.binomial(n, np.clip(p + rng.normal(0, 0.05, sequences), 0, 1))
        missed["one denominator"] += stats.paired_difference(a, b, n).excludes(0)
        missed["two"] += stats.paired_difference(a, b, n, n + 0.0).excludes(0)
        missed["ratio"] += stats.ratio_of_sums(a, n).excludes(0.6)
    assert all(count / 300 <= 0.10 for count in missed.values()), missed


def test_a_share_stays_a_share_and_the_two_t_intervals_are_one():
    share = stats.ratio_of_sums([9, 2], [10, 10])
    assert (share.low, share.high) == (0.0, 1.0)
    a, b, n = [9, 7, 30], [5, 6, 21], [10, 9, 40]
    assert stats.paired_difference(a, b, n).interval == pytest.approx(stats.paired_difference_t(a, b, n).interval)


def test_a_pseudomedian_is_the_textbooks_and_ignores_one_outlier():
    """Signed-rank interval of ten differences: Walsh averages 9 and 47 of 55 at 95 % (critical value 8)."""
    d = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30, -0.4])
    found, walsh = stats.pseudomedian(d), np.sort([(a + b) / 2 for i, a in enumerate(d) for b in d[i:]])
    assert found.value == pytest.approx(np.median(walsh)) and found.interval == (walsh[8], walsh[46])
    assert stats.pseudomedian([*d, 500.0]).value < 2.0


def test_few_pairs_carry_no_interval_and_none_are_refused():
    assert stats.pseudomedian([1.0, 1.1, 0.9, 1.0, 1.2]).bounded is None
    assert stats.pseudomedian([1.0, 1.1, 0.9, 1.0, 1.2, 1.05]).interval == (0.9, 1.2)
    with pytest.raises(ValueError, match="no paired difference"):
        stats.pseudomedian([])


def test_intervals_of_pseudomedians_cover():
    rng = np.random.default_rng(0)
    for n, repeats, least in ((8, 200, 0.9), (40, 20, 0.8)):
        hits = [not stats.pseudomedian(rng.normal(0.3, 1, n)).excludes(0.3) for _ in range(repeats)]
        assert np.mean(hits) >= least


@pytest.mark.parametrize(("population", "half"), [(40, 20), (41, 20), (200, 100)])
def test_a_majority_is_found_in_halves_no_more_often_than_the_rate(population, half):
    """Looking after every draw without replacement, down to the whole population."""
    rng, wrong = np.random.default_rng(4), 0
    for _ in range(1500):
        hits = rng.permutation(np.arange(population) < half)
        wrong += stats.majority_evidence(hits, population).max() >= 1 / 0.1
    assert wrong / 1500 <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 1500)
    assert wrong > 15, "the bet is close to fair, not idle"


def test_of_several_answers_one_below_half_is_found_no_more_often_than_twice_the_rate():
    """The union over the answers that `fingerprint.sampling` counts as two, at the rate where it is worst: two answers of a half, or many."""
    rng = np.random.default_rng(5)
    for shares in ((0.5, 0.5), (0.5, 0.25, 0.25), (0.4, 0.4, 0.2), (0.2,) * 5):
        wrong = 0
        for _ in range(1500):
            votes = rng.choice(len(shares), 60, p=shares)
            wrong += any(stats.majority_evidence(votes == answer, 10**9).max() >= 1 / 0.05 for answer in range(len(shares)))
        assert wrong / 1500 <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 1500), shares


def test_a_clear_majority_is_found_by_a_few_draws():
    assert stats.draws_needed((), 10**6, 0.001 / 8, 100) == 15
    assert stats.majority_evidence([True] * 15, 10**6)[-1] >= 8000 > stats.majority_evidence([True] * 13, 10**6)[-1]
    assert stats.draws_needed([False], 10**6, 0.001 / 8, 100) == 17 + 1
    assert stats.draws_needed((), 6, 1e-9, 100) == 4, "four of six are a majority for certain"
    assert stats.draws_needed([False] * 3, 6, 0.5, 100) is None
    assert stats.draws_needed([True] * 2, 10**6, 1e-9, 10) is None
    assert stats.majority_evidence([True, False] * 20, 10**6)[-1] < 1


def test_what_all_draws_lack_can_still_be_a_minority():
    assert stats.unseen_share(15) == pytest.approx(0.181, abs=0.001)
    assert 0.95 ** stats.unseen_share(0) < 1


def test_counts_of_unrelated_series_rarely_agree_unless_they_are_near_zero():
    rng = np.random.default_rng(0)
    a, b = rng.poisson(1.5, (2, 20000, 3))
    assert stats.chance_of_equal_counts(1.5, 3) == pytest.approx((a == b).all(1).mean(), abs=0.004)
    assert stats.chance_of_equal_counts(0, 16) == 1 and stats.chance_of_equal_counts(10, 16) < 1e-15
