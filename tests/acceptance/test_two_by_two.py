"""Environment and speculation told apart by all four runs, and by nothing less."""

import pandas as pd
import pytest

from eagle_forensics.acceptance.runs import runs
from eagle_forensics.acceptance.two_by_two import two_by_two
from eagle_forensics.finding import Status


def table(old_base, old_spec, new_base, new_spec, **more):
    rows = [("a", 0, "old", old_base), ("b", 1, "old", old_spec), ("c", 0, "new", new_base), ("d", 1, "new", new_spec)]
    return runs(pd.DataFrame([{"label": label, "speculative": s, "steps": 2 if s else None, "accept_length": 2.06 if s else None, "env_hash": e, "tokens_per_second": v,
                               "temperature": 0.0} | more for label, s, e, v in rows if v]))


def test_a_gain_that_is_the_environments_is_not_speculations():
    found = two_by_two(table(88.8, 71.3, 118.4, 94.2))
    assert found.status is Status.INCONCLUSIVE and not found.required and "all of the gain is the environment's" in found.statement
    assert "1.061" in found.statement and "0.796" in found.statement and "1.333" in found.statement


def test_a_gain_that_is_speculations_passes():
    found = two_by_two(table(88.8, 71.3, 89.1, 94.2))
    assert found.status is Status.PASS and found.observed == pytest.approx(1.057, abs=1e-3)


def test_a_gain_within_the_printing_is_not_known():
    assert "not known at this precision" in two_by_two(table(88.8, 71.3, 94.2, 94.2)).statement


def test_three_runs_or_another_difference_say_nothing():
    assert two_by_two(table(88.8, 71.3, None, 94.2)) is None
    mixed = table(88.8, 71.3, 118.4, 94.2)
    assert two_by_two((*mixed[:3], *table(None, None, None, 94.2, temperature=1.0))) is None
