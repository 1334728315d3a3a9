"""The real pair: the battery ranks the trained wiring first, and rows of the table that its training measured come out again.

All 29 rows: `make wirings`.
"""

import pytest

from eagle_forensics.drafter.correctness import paired_accuracy
from eagle_forensics.drafter.wirings.battery import run_battery
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from tests.drafter.wiring_table import FROM_DUMP, TABLE, bench, differences

pytestmark = [pytest.mark.demo, pytest.mark.timeout(2400)]
ROWS = ("right [2,15,27]", "order b,a,c", "final in place of c", "norm_before_residual=True", "d2t read as absolute ids")


@pytest.fixture(scope="module")
def case():
    return bench()


def test_rows_of_the_table_lie_in_our_intervals(case):
    found = evaluate_all(case.drafter, case.sequences, [FROM_DUMP[row] for row in ROWS], 5, norm=case.norm)
    assert differences(ROWS, found) == []
    first = found[0].accuracy(0)
    assert first.n == 10_879 and first.value == pytest.approx(TABLE[ROWS[0]]["acc"][0], abs=0.002)


def test_one_boundary_early_is_told_from_the_trained_ones(case):
    """.573 against .606 on 10,879 tokens: paired, the interval excludes 0."""
    early, right = evaluate_all(case.drafter, case.computed, [case.set_wiring(b) for b in ((1, 14, 26), (2, 15, 27))], 1)
    gap = paired_accuracy(early, right)
    assert gap.high < 0 and gap.value == pytest.approx(TABLE["off by -1 [1,14,26]"]["acc"][0] - TABLE["right [2,15,27]"]["acc"][0], abs=0.004)
    few = paired_accuracy(*evaluate_all(case.drafter, case.computed[:2], [case.set_wiring(b) for b in ((1, 14, 26), (2, 15, 27))], 1))
    assert not few.excludes(0), "two texts do not settle it"


def test_the_battery_ranks_the_trained_wiring_first(case):
    from eagle_forensics.drafter.wirings.candidates import standard_battery

    tried = [w for w in standard_battery(case.drafter, case.trained.planes, case.slots, norm=case.norm, rope=case.rope) if "rope" not in w.label]
    results = run_battery(case.drafter, case.sequences, tried, 3, norm=case.norm, keep=[tried[0]])
    assert results[0].wiring == Wiring(("slot 0", "slot 1", "slot 2"), name="trained")
    assert results[1].difference.high < 0, results[1].label
