"""Findings are claims with rivals, and the verdict is never green by default."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle_forensics.finding import Competitor, Finding, NotebookFindings, Status, Verdict, verdict

RIVAL = Competitor(fault="wiring.plane-order", margin="0.3", why_rejected="no order recovers it")


def finding(status=Status.PASS, id="layers.slot-0", **more):
    if status is Status.FAIL:
        more = {"fault": "wiring.layer-offset", "competitor": RIVAL, "refuted_by": "equal tensors", **more}
    return Finding(id=id, question="which?", status=status, statement="so", notebook="03_layer_matching", **more)


@pytest.mark.parametrize("missing", ["fault", "competitor", "refuted_by"])
def test_a_fail_names_its_fault_rival_and_refutation(missing):
    with pytest.raises(ValidationError, match=missing):
        finding(Status.FAIL, **{missing: None})


def test_a_threshold_needs_a_reason():
    with pytest.raises(ValidationError, match="threshold_why"):
        finding(threshold=0.1)


def test_unknown_fields_and_infinite_numbers_are_refused():
    with pytest.raises(ValidationError):
        finding(color="red")
    with pytest.raises(ValidationError):
        finding(interval=(0.1, float("inf")))


def test_finding_ids_are_unique_in_a_notebook():
    with pytest.raises(ValidationError, match=r"layers\.slot-0"):
        NotebookFindings(notebook="03_layer_matching", complete=True, findings=(finding(), finding()))


def test_a_finding_survives_json():
    item = finding(Status.FAIL, observed={"eager": [2, 3]}, interval=(0.1, 0.2), n=5)
    assert Finding.model_validate_json(item.model_dump_json()) == item


@pytest.mark.parametrize(("states", "missing", "expected"), [
    ([], 0, Verdict.INCONCLUSIVE),
    (["skipped"], 0, Verdict.INCONCLUSIVE),
    (["pass", "skipped"], 0, Verdict.PASS),
    (["pass", "inconclusive"], 0, Verdict.INCONCLUSIVE),
    (["pass", "error"], 0, Verdict.ERROR),
    (["pass"], 1, Verdict.ERROR),
    (["fail", "error"], 1, Verdict.FAIL),
])
def test_the_algebra(states, missing, expected):
    assert verdict([finding(Status(s), id=f"layers.x-{i}") for i, s in enumerate(states)], missing) is expected


def test_an_optional_inconclusive_does_not_hold_back_a_pass():
    assert verdict([finding(), finding(Status.INCONCLUSIVE, id="layers.extra", required=False)]) is Verdict.PASS


@given(st.lists(st.sampled_from(list(Status)), max_size=8), st.integers(0, 3))
def test_pass_needs_a_pass_and_nothing_worse(states, missing):
    outcome = verdict([finding(s, id=f"layers.x-{i}") for i, s in enumerate(states)], missing)
    if outcome is Verdict.PASS:
        assert Status.PASS in states and missing == 0
        assert not {Status.FAIL, Status.ERROR, Status.INCONCLUSIVE} & set(states)
    if Status.FAIL in states:
        assert outcome is Verdict.FAIL


def test_exit_codes_are_the_documented_ones():
    assert {v.value: v.exit_code for v in Verdict} == {"PASS": 0, "FAIL": 1, "ERROR": 3, "INCONCLUSIVE": 4}
