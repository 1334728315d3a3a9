"""The findings of notebook 05: accusations with proof, and the commands where proof is missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.topology import read_topology
from eagle_forensics.finding import Status, Verdict, verdict
from eagle_forensics.nccl import findings as f
from eagle_forensics.nccl.live import Live
from eagle_forensics.nccl.sizes import plan

FIXTURES = Path(__file__).parent / "fixtures"
PLAN = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=2)


def tables(*names):
    return [read_nccl_tests(FIXTURES / f"nccltests_{n}.txt") for n in names]


def log(name):
    return read_nccl_log(FIXTURES / f"nccl_debug_{name}.log")


@pytest.mark.parametrize(("tp", "device"), [(1, None), (1, "cuda"), (8, "cpu")])
def test_one_rank_or_cpu_takes_nccl_off_the_path(tp, device):
    found = f.evaluate(tp=tp, device=device)
    assert found[0].status is Status.PASS and "not on the path" in found[0].statement
    assert verdict(found) is Verdict.PASS
    assert all(x.status is Status.SKIPPED for x in found[1:])


def test_an_environment_that_nobody_reads_is_not_accused():
    found = f.evaluate(tp=1, live=Live({"NCCL_P2P_LEVEL": "sys"}, proven=False))
    assert verdict(found) is Verdict.PASS


def test_nothing_known_is_not_a_pass():
    found = f.evaluate(tp=None)
    assert {x.status for x in found} == {Status.SKIPPED} and verdict(found) is Verdict.INCONCLUSIVE
    assert len({x.id for x in found}) == len(found) == 14


def test_each_missing_piece_names_its_command():
    steps = {x.id: x.next_step for x in f.evaluate(tp=8, device="cuda", plan=PLAN)}
    assert "all_reduce_perf" in steps["nccl.plan"] and "-b 14336" in steps["nccl.curve"]
    assert "NCCL_DEBUG=INFO" in steps["nccl.graph"] and "INIT,ENV,GRAPH,TUNING" in steps["nccl.graph"]
    assert "nvidia-smi topo -m" in steps["nccl.topology"] and "environ" in steps["nccl.environment"]


def test_the_plan_is_told_in_numbers():
    text = f.messages(PLAN, 8).statement
    assert "123 all-reduces of 43,008 bytes" in text and "1.23 ms" in text


def test_a_graph_fallback_is_named_with_its_effect():
    found = f.graph(log("2.27_fallback"), PLAN)
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "nccl.graph-fallback", "cost.no-cuda-graph")
    assert "0.1 GB/s, SYS" in found.statement and "SIMPLE at 43,008 bytes" in found.statement
    assert "2.7 to 2.8 ms" in found.predicted_effect and "Not channels" in found.next_step
    measured = f.graph(log("2.27_fallback"), PLAN, tables("v2.13_simple", "v2.18_ll"))
    assert "2.7 ms less a round" in measured.predicted_effect


def test_a_healthy_graph_passes_and_a_silent_log_does_not():
    assert f.graph(log("2.28_graphxml"), PLAN).status is Status.PASS
    silent = f.graph(log("2.21_numeric"), PLAN)
    assert silent.status is Status.INCONCLUSIVE and "cannot be excluded" in silent.statement
    assert f.graph(replace(log("2.28_graphxml"), picks=()), PLAN).status is Status.INCONCLUSIVE


def test_a_failed_search_accuses_nobody_where_decode_may_not_go_by_it():
    lost, whole = log("2.27_fallback"), log("2.28_graphxml")
    for proto, status in (("LL", Status.INCONCLUSIVE), (None, Status.FAIL)):
        served = {"NCCL_PROTO": proto} if proto else {}
        assert f.graph(replace(lost, picks=()), PLAN, served=served).status is status
        assert f.graph(replace(lost, picks=(), environment=served), PLAN).status is status
    assert f.graph(lost, PLAN, served={"NCCL_PROTO": "Simple"}).status is Status.FAIL, "the log shows what it goes by"
    two = f.graph(replace(lost, patterns=(*lost.patterns, *whole.patterns)), PLAN)
    assert two.status is Status.INCONCLUSIVE and "several communicators" in two.statement


def test_a_log_that_lost_half_its_graphs_is_no_pass():
    whole = log("2.28_graphxml")
    for kept in (whole.patterns[:1], whole.patterns[1:2], ()):
        found = f.graph(replace(whole, patterns=kept), PLAN)
        assert found.status is Status.INCONCLUSIVE and "no ring and tree graph" in found.statement


def test_curves_are_read_at_decode_size_only():
    found = f.curve(tables("v2.13_simple", "v2.18_ll"), PLAN)
    assert "48.21 us" in found.statement and "26.23 us" in found.statement and "2.70 ms a round" in found.statement
    assert found.status is Status.INCONCLUSIVE and not found.required
    other = f.curve(tables("v2.18_ll"), plan({"num_hidden_layers": 2, "hidden_size": 1000}, tp=2, steps=2))
    assert "No row of 6,000 bytes" in other.statement


def test_times_of_wrong_results_are_not_used():
    assert f.curve(tables("v2.18_ll", "v2.18_ll128_wrong"), PLAN).status is Status.ERROR


@pytest.mark.parametrize(("name", "status", "word"), [("pcie8", Status.INCONCLUSIVE, "28 pairs go"), ("nvlink4_nic", Status.PASS, "NVLink")])
def test_links(name, status, word):
    found = f.links(read_topology(FIXTURES / f"nvidia_smi_topo_{name}.txt").counts)
    assert found.status is status and word in found.statement
