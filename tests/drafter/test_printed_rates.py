"""Printed rates and an accept length: the definition that joins them, or none."""

import pytest

from eagle_forensics.drafter.printed_rates import printed_finding, read_rates
from eagle_forensics.finding import Status


@pytest.mark.parametrize(("rates", "length", "other"), [((0.633, 0.404, 0.264), 2.30, 1.956), ((0.648, 0.419, 0.278), 2.345, 1.995)])
def test_a_card_that_calls_survival_rates_conditional(rates, length, other):
    """The published card of a Kimi-K2.6 drafter, before and after its fine-tuning."""
    found = read_rates(rates, length)
    assert found.definition == "survival" and found.implied["conditional"] == pytest.approx(other, abs=5e-4)
    assert "only so read" in found.text


def test_every_definition_is_found_from_its_own_figures():
    assert read_rates((0.8, 0.7, 0.6), 1 + 0.8 + 0.56 + 0.336).definition == "conditional"
    assert read_rates((0.8, 0.5, 0.3), 1.6).definition == "survival, no bonus"
    assert read_rates((0.8, 0.7, 0.6), 0.8 + 0.56 + 0.336).definition == "conditional, no bonus"
    assert read_rates((0.4,), 2.2, drafted=3).definition == "draft rate"
    assert read_rates((0.5, 0.6), 1 + 0.5 + 0.3).definition == "conditional"  # rising rates are no survival


def test_it_abstains_where_several_fit_and_where_none_does():
    one = read_rates((0.6,), 1.6)
    assert one.definition is None and one.equivalent and set(one.fits) == {"survival", "conditional"} and "cannot tell" in one.text
    near = read_rates((0.95, 0.02), 1.97)
    assert near.definition is None and not near.equivalent
    none = read_rates((0.6, 0.3, 0.1), 3.5)
    assert none.fits == () and "No known definition" in none.text


@pytest.mark.parametrize("rates", [(), (63.3, 40.4), (-0.1,)])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(ValueError, match="0 to 1"):
        read_rates(rates, 2.0)
    with pytest.raises(ValueError, match="at least 0"):
        read_rates((0.5,), -1)


def test_logged_rates_are_held_against_their_name():
    card = {"cond_acc_0": 0.633, "cond_acc_1": 0.404, "cond_acc_2": 0.264, "accept_length": 2.30}
    found = printed_finding(card)
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, "data.metric-definition") and "name stands for conditional" in found.statement
    right = printed_finding({name.replace("cond", "full"): value for name, value in card.items()})
    assert right.status is Status.PASS and right.fault is None
    assert printed_finding(card | {"accept_length": 3.6}).status is Status.INCONCLUSIVE
    assert printed_finding(card | {"accept_length": 3.6}).fault is None


@pytest.mark.parametrize("logged", [{}, {"full_acc_0": 0.6, "full_acc_1": 0.3}, {"full_acc_0": 0.6, "full_acc_2": 0.3, "tau": 1.9}, {"full_acc_0": 0.6, "tau": 1.6}])
def test_too_little_in_the_log_says_nothing(logged):
    assert printed_finding(logged) is None
