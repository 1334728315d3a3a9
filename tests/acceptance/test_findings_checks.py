"""Findings on the figures themselves: definitions, comparability, sanity."""

import pandas as pd
import pytest

from eagle_forensics.acceptance import findings_checks as f
from eagle_forensics.acceptance.findings_cost import ceiling
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.finding import Status
from tests.acceptance.tables import SWEEP, live

LOG = live(1.80, steps=5, accept_rate=0.30, engine="sglang")


@pytest.mark.parametrize(("version", "status"), [("0.5.10", Status.PASS), ("0.5.13", Status.FAIL)])
def test_one_log_line_is_right_in_one_version_and_wrong_in_the_next(version, status):
    found = f.definition(runs(LOG.assign(engine_version=version)))
    assert found.status is status
    assert "share of accepted drafts is 0.16" in found.statement
    assert status is Status.PASS or (found.fault == "measure.definition" and "would print 0.16" in found.statement)


def test_without_a_stated_definition_a_known_one_suffices():
    assert f.definition(runs(LOG)).status is Status.PASS
    assert f.definition(runs(live(1.80, steps=5, accept_rate=0.55))).status is Status.FAIL


def test_the_prefill_token_in_one_of_two_figures_is_no_contradiction():
    """2.153 with and 2.130 without it, on one run; a rate of another definition still is one."""
    assert f.definition(runs(live(2.153, steps=3, accept_rate=0.377))).status is Status.PASS
    assert f.definition(runs(live(2.153, steps=3, accept_rate=0.441))).status is Status.FAIL


def test_accept_length_above_the_ceiling_is_a_definition_fault():
    found = f.definition(runs(live(4.6)))
    assert found.fault == "measure.definition" and "above the ceiling 4" in found.statement


def test_rows_that_the_reader_left_out_do_not_vanish():
    assert f.definition(runs(SWEEP), problems=["line 3: accept_length is 4.6"]).status is Status.INCONCLUSIVE


def full(label, **more):
    return {"label": label, "engine": "sglang", "engine_version": "0.5.9", "temperature": 0.0, "concurrency": 1, "prompts_hash": "p",
            "env_hash": "e", "tokens_per_second": 90.0, **more}


def test_the_last_gain_of_the_incident_is_confounded_by_its_environment():
    table = [full("base", speculative=0), full("tuned", speculative=1, steps=2, accept_length=2.06, tokens_per_second=94.0, env_hash="tuned")]
    found = f.confounded(runs(pd.DataFrame(table)))
    assert (found.status, found.fault, found.observed) == (Status.FAIL, "measure.confounded", ["env_hash"])
    assert ceiling(runs(pd.DataFrame(table))).status is Status.INCONCLUSIVE


def test_comparable_runs_pass_and_unrecorded_settings_do_not():
    table = pd.DataFrame([full("base", speculative=0), full("spec", speculative=1, steps=2, accept_length=2.06)])
    assert f.confounded(runs(table)).status is Status.PASS
    unknown = f.confounded(runs(table.drop(columns="env_hash")))
    assert unknown.status is Status.INCONCLUSIVE and not unknown.required and unknown.observed == ["env_hash"]


@pytest.mark.parametrize(("cells", "status"), [
    ({"distinct_output_tokens": 2}, Status.FAIL), ({"distinct_output_tokens": 900}, Status.PASS), ({}, Status.SKIPPED)])
def test_sanity(cells, status):
    assert f.sanity(runs(live(2.0, **cells))).status is status


@pytest.mark.parametrize("pinned", [1.0, 4.0])
def test_a_pinned_accept_length_is_not_believed(pinned):
    assert f.sanity(runs(live(pinned, distinct_output_tokens=900))).status is Status.INCONCLUSIVE
