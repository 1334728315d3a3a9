"""Which step count pays: a published sweep to its printed digits."""

import pandas as pd
import pytest

from eagle_forensics.acceptance import cost
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.evidence.experts import Experts, distinct_experts
from tests.acceptance.tables import INCIDENT, SWEEP

RUNS = runs(SWEEP)


def swept():
    return cost.sweep(cost.fit_cycle(RUNS), cost.accept_lengths(RUNS), RUNS[0].tokens_per_second,
                      {r.steps: r.tokens_per_second.value for r in RUNS[1:]})


def test_the_cost_line():
    fit = cost.fit_cycle(RUNS)
    assert [round(c, 2) for c in fit.cycles_ms] == [10.20, 11.41, 12.47, 13.71, 14.53, 15.19]
    assert (round(fit.fixed_ms.value, 2), round(fit.step_ms.value, 3)) == (8.35, 1.016)
    assert fit.step_ms.low < 1.016 < fit.step_ms.high


def test_four_steps_serve_best_not_the_longest():
    best = swept().best
    assert (best.steps, round(best.measured_speedup, 3)) == (4, 1.746)
    assert max(swept().choices, key=lambda c: c.accept_length).steps == 7


def test_seven_steps_are_told_apart_from_four_and_five_are_not():
    assert swept().ratio(7).high < 1
    assert swept().ratio(5).high > 1
    by_steps = {c.steps: c.probability_best for c in swept().choices}
    assert by_steps[4] > by_steps[5] > 0.1 and by_steps[7] < 0.01
    assert sum(by_steps.values()) == pytest.approx(1)


def test_two_step_counts_fix_no_line():
    with pytest.raises(ValueError, match=r"3 different step counts.*\[1, 5\]"):
        cost.fit_cycle(runs(INCIDENT.iloc[[1, 3]]))


def test_break_even_and_speed_are_two_readings_of_one_line():
    fit = cost.fit_cycle(RUNS)
    even = fit.break_even(4, 1e3 / 7.07)
    assert fit.tokens_per_second(4, even) == pytest.approx(1e3 / 7.07)


def test_accept_length_at_unmeasured_steps_comes_from_the_longest_run():
    table = pd.DataFrame([{"label": "a", "speculative": 1, "steps": 3, "accept_length": 2.1, "accepted_per_position": "0.6;0.3;0.2"}])
    assert {k: round(v.value, 2) for k, v in cost.accept_lengths(runs(table)).items()} == {1: 1.6, 2: 1.9, 3: 2.1}


def test_an_accept_length_read_off_positions_carries_their_sampling():
    table = pd.DataFrame([{"label": "a", "speculative": 1, "steps": 3, "accept_length": 2.1, "accepted_per_position": "0.6;0.3;0.2", "rounds": 400}])
    known, unknown = (cost.accept_lengths(runs(t))[2] for t in (table, table.drop(columns="rounds")))
    assert known.high - known.low == pytest.approx(0.001 + 2 * 1.96 * (0.6 + 3 * 0.3 - 0.9**2) ** 0.5 / 20) and known.n == 400
    assert unknown.high - unknown.low == pytest.approx(0.001)


def test_an_unknown_step_count_is_refused():
    with pytest.raises(ValueError, match="not among those compared"):
        swept().ratio(9)


def table(cycle, steps):
    return runs(pd.DataFrame([{"label": f"K = {k}", "speculative": 1, "steps": k, "accept_length": f"{1 + 0.6 * (1 - 0.5**k):.6f}",
                               "tokens_per_second": f"{1e3 * (1 + 0.6 * (1 - 0.5**k)) / cycle(k):.6f}"} for k in steps]))


KIMI = Experts(384, 8)


def test_three_coefficients_come_back_from_their_own_formula():
    fit = cost.fit_cycle(table(lambda k: 20 + 0.5 * k + 1.05 * distinct_experts(k + 1, 384, 8) / 8, (1, 3, 7, 15, 31)), KIMI)
    assert [round(c.value, 3) for c in (fit.fixed_ms, fit.step_ms, fit.experts_ms)] == [20.0, 0.5, 1.05] and fit.untold is None
    assert fit.text() == "cycle = 20.00 + 0.500 x steps + 1.050 x (distinct experts of 384 / 8) ms"
    assert fit.at(63) == pytest.approx(20 + 31.5 + 1.05 * distinct_experts(64, 384, 8) / 8, rel=1e-4)


def test_the_experts_curve_is_not_a_line_over_steps():
    """Far from the measured steps a line promises a cost that the experts, all touched by then, do not have."""
    rows = table(lambda k: 20 + 0.5 * k + 1.05 * distinct_experts(k + 1, 384, 8) / 8, (1, 3, 7, 15))
    assert cost.fit_cycle(rows).at(63) > 1.2 * cost.fit_cycle(rows, KIMI).at(63)


def test_noise_over_few_steps_does_not_tell_drafts_from_experts():
    noise = dict(zip((1, 2, 3, 4, 5), (0.3, -0.2, 0.25, -0.3, 0.1), strict=True))
    fit = cost.fit_cycle(table(lambda k: 20 + 0.5 * k + 1.05 * distinct_experts(k + 1, 384, 8) / 8 + noise[k], (1, 2, 3, 4, 5)), KIMI)
    assert "cannot be told from 0" in fit.untold


def test_three_counts_of_a_mixture_give_the_incidents_cost_and_say_what_they_do_not_fix():
    fit = cost.fit_cycle(runs(INCIDENT), KIMI)
    assert (round(fit.fixed_ms.value, 2), fit.step_ms, round(fit.experts_ms.value, 3)) == (26.40, None, 1.051)
    assert "3 step counts do not fix three coefficients" in fit.untold
    assert cost.fit_cycle(runs(INCIDENT)).untold is None


def test_above_temperature_0_the_runs_of_a_sweep_answer_with_other_texts():
    table = pd.DataFrame([{"label": str(k), "speculative": 1, "steps": k, "accept_length": 1 + 0.4 * k, "rounds": 2000} for k in (1, 2, 3)])
    greedy, sampled = (cost.accept_lengths(runs(table.assign(temperature=t)))[2] for t in (0.0, 1.0))
    assert greedy.high - greedy.low == pytest.approx(0.1) and sampled.high - sampled.low == pytest.approx(0.1 + 2 * 1.96 * (5 * 0.8 * 1.2 / 2000) ** 0.5)
