"""Conversions between definitions of acceptance, with the figures of published logs."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_forensics import stats
from eagle_forensics.acceptance import estimators as e
from eagle_forensics.engines.metrics import (
    accept_length_from_survival,
    counts_to_accept_length,
    survival_from_histogram,
)

rates = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


def test_counters_of_a_published_run():
    al = counts_to_accept_length(12208, 4816)
    assert al == pytest.approx(3.535, abs=5e-4)
    assert e.DRAFT_RATE.rate(al, 7) == pytest.approx(12208 / 33712) == pytest.approx(0.362, abs=5e-4)


def test_one_log_line_means_two_things_in_two_versions():
    assert e.TOKEN_RATE.rate(1.80, 5) == pytest.approx(0.30)
    assert e.DRAFT_RATE.rate(1.80, 5) == pytest.approx(0.16)
    assert e.TOKEN_RATE.rate(1.0, 3) == 0.25, "nothing accepted reads 25 % in the old definition"


@given(st.floats(1, 9), st.integers(1, 8), st.sampled_from(e.KNOWN_RATES))
def test_a_rate_and_its_accept_length_are_inverse(al, steps, definition):
    assert definition.accept_length(definition.rate(al, steps), steps) == pytest.approx(al)


@given(rates)
def test_survival_and_conditional_are_inverse(conditional):
    survival = tuple(accumulate(conditional, mul))
    assert e.conditional_of(survival) == pytest.approx(conditional)
    assert list(survival) == sorted(survival, reverse=True)


def test_a_position_never_reached_has_no_conditional_rate():
    assert e.conditional_of((0.5, 0.0, 0.0)) == (0.5, 0.0, None)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(sum))
def test_histogram_and_survival_give_one_accept_length(counts):
    al = e.from_histogram(counts)
    assert al.value == pytest.approx(accept_length_from_survival(survival_from_histogram(counts)))
    assert al.value - al.low == pytest.approx(
        e.sampling_half_width(al.value, sum(counts), len(counts), survival_from_histogram(counts)), abs=1e-6)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(sum))
def test_without_survival_the_sampling_error_is_never_understated(counts):
    al, rounds = e.from_histogram(counts), sum(counts)
    known = e.sampling_half_width(al.value, rounds, len(counts), survival_from_histogram(counts))
    assert e.sampling_half_width(al.value, rounds, len(counts)) >= known - 1e-9


def test_requests_are_resampled_whole():
    alike = e.accept_length_of_requests([10] * 20, [10] * 20)
    apart = e.accept_length_of_requests([0] * 10 + [20] * 10, [10] * 20)
    assert alike.value == apart.value == 2
    assert apart.high - apart.low > alike.high - alike.low


@pytest.mark.parametrize(("al", "ceiling", "survival", "word"), [
    (2.4, 2, None, "above the ceiling"), (0.6, 2, None, "bonus"), (2.0, 4, (0.5, 0.6), "rises"),
    (2.3, 4, (0.6, 0.4, 0.2), "sums to"), (1.5, 2, (0.4, 0.1), "at most 1"),
])
def test_contradictions_are_named(al, ceiling, survival, word):
    assert any(word in text for text in e.contradictions(stats.printed(al, 2), ceiling, survival))


def test_consistent_figures_are_not_accused():
    assert e.contradictions(stats.printed(2.019, 3), 4, (0.544, 0.303, 0.172)) == ()
    assert e.contradictions(stats.printed(2.0, 1), 2, (1.0,)) == ()


@pytest.mark.parametrize(("engine", "version", "nothing_accepted"), [("sglang", "0.5.10", 0.25), ("sglang", "0.5.13", 0.0), ("vllm", "0.32.0", 0.0)])
def test_the_stated_definition_follows_engine_and_version(engine, version, nothing_accepted):
    stated = e.stated_rate(engine, version, 3)
    assert stated.rate(1.0, 3) == nothing_accepted and version in stated.name


@pytest.mark.parametrize("unknown", [(None, "1"), ("sglang", None), ("trtllm", "1.0")])
def test_an_unknown_definition_is_not_guessed(unknown):
    assert e.stated_rate(*unknown, 3) is None
