"""Reported figures: conversions between definitions, with the numbers of known cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_forensics.engines import metrics


def test_counters_give_the_accept_length():
    assert metrics.counts_to_accept_length(12208, 4816) == pytest.approx(3.535, abs=5e-4)
    assert metrics.accept_length_to_accept_rate("vllm", "0.33.0", 1 + 12208 / 4816, draft_tokens=7) == pytest.approx(12208 / 33712)


@pytest.mark.parametrize(("version", "agrees"), [("0.5.10", True), ("0.5.10.post1", True), ("0.5.11", False), ("0.5.13", False)])
def test_one_log_line_two_definitions(version, agrees):
    assert metrics.rate_agrees("sglang", version, 1.80, 0.30, draft_tokens=6) is agrees


def test_the_true_rate_of_that_line():
    assert metrics.accept_length_to_accept_rate("sglang", "0.5.13", 1.8, draft_tokens=6) == pytest.approx(0.16)
    assert metrics.accept_rate_to_accept_length("sglang", "0.5.10", 0.30, draft_tokens=6) == pytest.approx(1.8)
    assert metrics.accept_rate_to_accept_length("sglang", "0.5.13", 0.16, draft_tokens=6) == pytest.approx(1.8)


def test_survival_or_conditional_decides_the_length():
    rates = (0.633, 0.404, 0.264)
    assert metrics.accept_length_from_survival(rates) == pytest.approx(2.301)
    assert metrics.accept_length_from_conditional(rates) == pytest.approx(1.956, abs=5e-4)


@given(al=st.floats(1, 2), version=st.sampled_from(["0.5.4", "0.5.10.post1", "0.5.11", "0.5.23"]), k=st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_rate_and_length_are_inverse(al, version, k):
    rate = metrics.accept_length_to_accept_rate("sglang", version, al, draft_tokens=k + 1)
    assert metrics.accept_rate_to_accept_length("sglang", version, rate, draft_tokens=k + 1) == pytest.approx(al)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(sum))
@settings(max_examples=60, deadline=None)
def test_the_histogram_and_the_counts_agree(histogram):
    accepted = sum(k * n for k, n in enumerate(histogram))
    survival = metrics.survival_from_histogram(histogram)
    assert metrics.accept_length_from_survival(survival) == pytest.approx(metrics.counts_to_accept_length(accepted, sum(histogram)))
    assert list(survival) == sorted(survival, reverse=True)


@pytest.mark.parametrize("call", [
    lambda: metrics.accept_rate_to_accept_length("sglang", "0.5.9", 30, draft_tokens=6),
    lambda: metrics.accept_rate_to_accept_length("sglang", "0.5.9", 0.3, draft_tokens=1),
    lambda: metrics.accept_length_to_accept_rate("sglang", "0.5.9", 7, draft_tokens=6),
    lambda: metrics.counts_to_accept_length(3, 0),
    lambda: metrics.survival_from_histogram([0, 0]),
])
def test_impossible_figures_are_refused(call):
    with pytest.raises(ValueError):
        call()


def test_definitions_name_both_meanings_of_the_log_rate():
    found = metrics.definitions("sglang", "accept rate")
    assert {m.versions for m in found} == {"0.5.4-0.5.10.post1", ">=0.5.11"}
