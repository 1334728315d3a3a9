"""Microseconds of an all-reduce to tokens per second: the incident's figures."""

import pytest

from eagle_forensics import stats
from eagle_forensics.evidence.experts import Experts
from eagle_forensics.nccl.sizes import plan
from eagle_forensics.nccl.tokens import Round, cost, rounds, worth

KIMI = Experts(384, 8)
PLAN = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=2)


def run(steps, al, speed, base=88.8):
    cycle = 1e3 * al / speed
    return Round(f"{steps} steps", steps, stats.printed(al, 1), stats.Estimate(cycle, cycle * 0.97, cycle * 1.03, 0, 0, ""), stats.printed(base, 1))


INCIDENT = [run(1, 1.6, 56.8), run(15, 1.9, 46.7), run(5, 1.8, 54.8)]


def exactly(value):
    return stats.Estimate(value, value, value, 0, 0, "")


def test_the_incidents_rounds_fit_one_line():
    found = cost(INCIDENT, KIMI)
    assert (round(found.fixed_ms.value, 2), round(found.load_ms.value, 3)) == (26.40, 1.051)
    assert [round(r.cycle_ms.value - found.round_ms(r.tokens), 2) for r in INCIDENT] == [-0.31, -0.14, 0.46]
    assert [round(r.cycle_ms.value, 2) for r in INCIDENT] == [28.17, 40.69, 32.85]
    assert found.round_ms(1) == pytest.approx(27.45, abs=0.01) and found.penalty_ms == pytest.approx(16.2, abs=0.05)
    assert found.fixed_ms.low < 26.4 < found.fixed_ms.high


def test_a_quarter_off_the_verify_explains_the_reported_speed():
    found = cost(INCIDENT, KIMI)
    cut = 1 - 0.95 * 0.27
    cycles = {n: found.round_ms(n) * cut for n in (2, 3, 4, 6, 8, 16)}
    assert [round(c, 1) for c in cycles.values()] == [21.2, 21.9, 22.7, 24.1, 25.4, 30.4]
    assert 94 * cycles[3] / 1e3 == pytest.approx(2.06, abs=0.005) and 2.06 / (cycles[3] * 88.8 / 1e3) == pytest.approx(1.059, abs=0.001)


def test_two_step_counts_fix_no_line():
    with pytest.raises(ValueError, match="3 different"):
        cost(INCIDENT[:2], KIMI)


def test_a_faster_all_reduce_speeds_up_the_baseline_too():
    found = worth(run(2, 2.0, 90.0), PLAN, exactly(22.0))
    assert found.tuned_baseline == pytest.approx(1e3 / (1e3 / 88.8 - 2.706))
    assert found.tokens_per_second.value == pytest.approx(2000 / (2000 / 90 - 2.706 - 6 * 0.022))
    assert found.confounded_speedup > found.speedup and found.tokens_per_second.low < found.tokens_per_second.value
    assert found.break_even.value == pytest.approx((2000 / 90 - 2.838) * found.tuned_baseline / 1e3)


def test_a_saving_longer_than_the_step_is_refused():
    with pytest.raises(ValueError, match="cannot have taken that long"):
        worth(run(2, 2.0, 90.0), PLAN, exactly(95.0))


def test_rounds_come_from_the_record_of_notebook_04():
    one = {"label": "a", "steps": 1, "comparable": True, **{k: {"value": 2.0, "low": 1.9, "high": 2.1} for k in
           ("accept_length", "cycle_ms_interval", "baseline_tokens_per_second")}}
    assert [r.tokens for r in rounds({"runs": [one, {**one, "comparable": False}, {**one, "steps": None}, {"label": "old", "steps": 1, "cycle_ms": 2.0}]})] == [2]
    assert rounds(None) == ()
