"""Tables against each other: a release or setting is accused only by launches that do not overlap, with one thing different and that thing served."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.records import NcclTests, Timing
from eagle_forensics.finding import Status
from eagle_forensics.nccl.contrast import LAUNCHES, settings, versions
from eagle_forensics.nccl.sizes import plan

FIXTURES = Path(__file__).parent / "fixtures"
PLAN = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=2)
LARGE = 8192 * 14336


def launches(us, *, nccl="2.27.5", env=None, n=LAUNCHES, large=None, spread=0.02, **more):
    """`n` tables of `us` at verify size and the next one, each launch a little slower than the one before."""
    return [NcclTests(Path(f"{nccl}-{us}-{i}.json"), "all_reduce_perf", "2.19", nccl, 8, tuple(
        Timing(size, False, time * (1 + spread * i / n), dtype="bfloat16") for size, time in ((43008, us), (57344, us * 1.05), *(((LARGE, large),) if large else ()))),
        False, environment=env if env is not None else {}, **more) for i in range(n)]


def test_a_slower_served_release_is_named_with_its_cost():
    found = versions([*launches(48.0, nccl="2.29.1"), *launches(26.0, nccl="2.28.9")], PLAN, "2.29.1")
    assert (found.status, found.fault, found.competitor.fault, found.n) == (Status.FAIL, "nccl.version-regression", "nccl.env-ignored", 4)
    assert "2.29.1 is slower" in found.statement and "Here: 2.28.9" in found.remedy and "2.7 ms less" in found.predicted_effect
    assert found.interval[0] > 1.7 and found.interval[1] < 2.0


@pytest.mark.parametrize(("slow", "served", "status", "word"), [
    (launches(48.0, nccl="2.29.1"), "2.28.9", Status.PASS, "2.28.9 is faster"), (launches(48.0, nccl="2.29.1"), None, Status.INCONCLUSIVE, "not known"),
    (launches(48.0, nccl="2.29.1"), "2.30.7", Status.INCONCLUSIVE, "not known"), (launches(48.0, nccl="2.29.1", n=3), "2.29.1", Status.INCONCLUSIVE, "fewer than 4"),
    (launches(26.5, nccl="2.29.1"), "2.29.1", Status.PASS, "no difference"), (launches(40.0, nccl="2.29.1", spread=-2), "2.29.1", Status.INCONCLUSIVE, "overlap"),
    ([*launches(48.0, nccl="2.29.1"), *launches(25.0, nccl="2.29.1", n=1)], "2.29.1", Status.INCONCLUSIVE, "overlap"),
    (launches(48.0, nccl="2.29.1", env={"NCCL_PROTO": "Simple"}), "2.29.1", Status.SKIPPED, "not compared"), (launches(48.0, nccl="2.29.1", graph=True), "2.29.1", Status.SKIPPED, "not compared"),
    ([replace(t, environment=None) for t in launches(48.0, nccl="2.29.1")], "2.29.1", Status.SKIPPED, "not compared"),
    ([replace(t, failed=True) for t in launches(48.0, nccl="2.29.1")], "2.29.1", Status.SKIPPED, "not compared"),
])
def test_no_release_is_accused_on_less(slow, served, status, word):
    found = versions([*slow, *launches(26.0, nccl="2.28.9")], PLAN, served)
    assert (found.status, word in found.statement, found.fault) == (status, True, None), found.statement


P2P = {"NCCL_P2P_LEVEL": "SYS"}
LL = {"NCCL_PROTO": "allreduce:LL,Simple"}


@pytest.mark.parametrize(("first", "second", "served", "status", "fault"), [
    (launches(48.0), launches(26.0, env=LL), {}, Status.FAIL, "nccl.algorithm"), (launches(48.0), launches(26.0, env=LL), LL, Status.PASS, None),
    (launches(48.0), launches(26.0, env=LL), None, Status.INCONCLUSIVE, None), (launches(48.0), launches(26.0, env=LL), {"NCCL_PROTO": "LL"}, Status.INCONCLUSIVE, None),
    (launches(48.0, n=2), launches(26.0, env=LL), {}, Status.INCONCLUSIVE, None), (launches(27.0), launches(26.0, env=LL), {}, Status.PASS, None),
    (launches(48.0, large=1000), launches(26.0, env=P2P, large=1500), P2P, Status.FAIL, "nccl.p2p-trade"),
    (launches(48.0, large=1000), launches(26.0, env=P2P, large=1500), {}, Status.FAIL, "nccl.p2p-trade"),
    (launches(48.0, large=1000), launches(26.0, env=P2P, large=900), P2P, Status.PASS, None),
    (launches(48.0, large=1000), launches(26.0, env=P2P, large=1040), P2P, Status.PASS, None),
    (launches(48.0, large=1000), launches(26.0, env=P2P, large=700), {}, Status.FAIL, "nccl.algorithm"), (launches(48.0, large=1000), launches(26.0, env=P2P, large=700), P2P, Status.PASS, None),
    (launches(48.0, large=1787), launches(26.0, env=LL, large=20114), {}, Status.INCONCLUSIVE, None),
    (launches(48.0), launches(26.0, env={**LL, "NCCL_DEBUG": "INFO"}), {"NCCL_DEBUG": "WARN"}, Status.FAIL, "nccl.algorithm"),
    (launches(26.0, large=1787), launches(26.1, env={"NCCL_MIN_CTAS": "16"}, large=900), {"NCCL_MIN_CTAS": "16"}, Status.PASS, None),
])
def test_settings_by_the_cases_own_tables(first, second, served, status, fault):
    found, = settings([*first, *second], PLAN, served)
    assert (found.status, found.fault) == (status, fault), found.statement
    assert not found.required and (fault is None or found.competitor.fault != fault)


def test_a_failed_search_is_the_fault_behind_a_slow_default():
    assert settings([*launches(48.0), *launches(26.0, env=LL)], PLAN, {}, fallback=True)[0].fault == "nccl.graph-fallback"


def test_text_tables_prove_nothing():
    tables = [read_nccl_tests(FIXTURES / f"nccltests_{n}.txt") for n in ("v2.13_simple", "v2.18_ll")] * 4
    assert all(t.environment is None for t in tables) and settings(tables, PLAN, {})[0].status is Status.SKIPPED
    assert versions([], None, None, off="one rank").next_step is None


CTAS = {"NCCL_MIN_CTAS": "16"}


def test_a_setting_chosen_by_large_messages_is_named_only_where_decode_pays_for_it():
    dear, free = (settings([*launches(26.0, large=1787), *launches(us, env=CTAS, large=900)], PLAN, CTAS)[0] for us in (31.0, 26.1))
    assert (dear.status, dear.fault, dear.competitor.fault, dear.id) == (Status.FAIL, "nccl.wrong-size", "nccl.env-ignored", "nccl.large-messages")
    assert "0.6 ms less" in dear.predicted_effect and free.status is Status.PASS and "says nothing of decode" in free.statement
    nvls = {"NCCL_ALGO": "allreduce:nvls"}
    assert settings([*launches(17.0, large=460), *launches(41.0, env=nvls, large=330)], PLAN, nvls)[0].fault == "nccl.algorithm"
    unchosen, = settings([*launches(31.0, large=900), *launches(26.0, env=CTAS, large=1787)], PLAN, {})
    assert unchosen.status is Status.INCONCLUSIVE, "nobody set anything"


def test_each_of_two_settings_is_named():
    off, both = {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1", **CTAS}
    tables = [*launches(48.0, env=both, large=700), *launches(40.0, env=off, large=1000), *launches(30.0, env=CTAS, large=1100)]
    found = settings(tables, PLAN, both)
    assert {f.id: f.fault for f in found} == {"nccl.trade": "nccl.p2p-trade", "nccl.large-messages": "nccl.wrong-size"}
    assert settings(tables[:4] + tables[8:], PLAN, both)[0].fault == "nccl.p2p-trade"


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_the_tables_does_not_matter(turned):
    slow, fast, odd = launches(48.0, nccl="2.29.1"), launches(26.0, nccl="2.28.9"), launches(25.0, nccl="2.29.1", n=1)
    given = [*fast, *slow] if turned else [*slow, *fast]
    assert versions(given, PLAN, "2.29.1").status is Status.FAIL
    assert versions([*given, *odd], PLAN, "2.29.1").status is Status.INCONCLUSIVE
