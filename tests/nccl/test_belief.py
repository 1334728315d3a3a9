"""NCCL's belief against its log; what a case's evidence comes to; what is advised on which machine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.experts import Experts
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.records import Call, Pattern, Trace
from eagle_forensics.finding import Status
from eagle_forensics.nccl import advice, findings, gains, traces
from eagle_forensics.nccl.belief import believe, chain
from eagle_forensics.nccl.harness import Measured
from eagle_forensics.nccl.memory import expert_read
from eagle_forensics.nccl.search import search, space
from eagle_forensics.nccl.sizes import decode_sizes, plan
from eagle_forensics.nccl.tokens import cost
from tests.nccl.test_search import FALLBACK, world
from tests.nccl.test_tokens import INCIDENT

FIXTURES = Path(__file__).parent / "fixtures"
PLAN = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=2)


MOE = {"num_experts_per_tok": 8, "hidden_size": 7168, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 1,
       "quantization_config": {"bits": 4, "group_size": 32}}


def log(name):
    return read_nccl_log(FIXTURES / f"nccl_debug_{name}.log")


def belief(name, **more):
    return believe(log(name), decode_sizes(PLAN), **{"capability": "12.0", **more})


def test_the_model_names_every_choice_of_a_healthy_log():
    found = belief("2.28_graphxml")
    assert all(r.agrees for r in found.rows) and {r.logged.protocol for r in found.rows} == {"LL"} and not found.deviations
    verdict = findings.choice(log("2.28_graphxml"), found)
    assert verdict.status is Status.PASS and "At all 7 decode sizes" in verdict.statement and "RING/LL" in verdict.statement


def test_a_lost_graph_is_told_step_by_step():
    found = belief("2.27_fallback")
    steps = chain(found, log("2.27_fallback"))
    assert found.fallback and all(r.agrees for r in found.rows)
    assert "no path for pattern 4, 1" in steps[0] and "0.1 GB/s, SYS, 1 channel" in steps[1] and "shared memory" in steps[2]
    assert "339 us for RING/SIMPLE and 522 us for RING/LL" in steps[3] and "RING/SIMPLE" in steps[4]
    assert chain(belief("2.28_graphxml"), log("2.28_graphxml")) == []
    shown = findings.graph(log("2.27_fallback"), PLAN, belief=found)
    assert shown.fault == "nccl.graph-fallback" and any("339 us" in e.note for e in shown.evidence)


def test_another_choice_than_the_models_is_no_accusation():
    healthy = log("2.28_graphxml")
    picks = tuple(replace(p, protocol="SIMPLE") for p in healthy.picks)
    odd = replace(healthy, picks=picks)
    found = findings.choice(odd, believe(odd, decode_sizes(PLAN), capability="12.0"))
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, None) and "RING/SIMPLE instead of RING/LL" in found.statement


def test_a_table_unlike_the_models_is_said():
    healthy = log("2.28_graphxml")
    beliefs = tuple(replace(b, latency_us=b.latency_us + 5) if (b.collective, b.algorithm, b.protocol) == ("AllReduce", "RING", "LL") else b for b in healthy.beliefs)
    assert believe(replace(healthy, beliefs=beliefs), decode_sizes(PLAN), capability="12.0").deviations[0].startswith("RING/LL: log 25.6 us")


@pytest.mark.parametrize(("name", "more", "word"), [
    ("2.21_numeric", {}, "no ring and tree graph"), ("2.28_graphxml", {"capability": None}, "compute capability is not known"),
    ("2.28_graphxml", {"capability": "twelve"}, "not of the form"),
])
def test_without_what_it_needs_the_model_is_not_asked(name, more, word):
    found = belief(name, **more)
    assert found.system is None and word in found.unknown
    assert findings.choice(log(name), found).status is Status.SKIPPED


def test_a_release_that_was_not_read_is_not_guessed():
    future = replace(log("2.28_graphxml"), version="2.99.1")
    assert "was not read" in believe(future, decode_sizes(PLAN), capability="12.0").unknown


def test_several_communicators_are_not_mixed():
    healthy = log("2.28_graphxml")
    other = replace(healthy, patterns=(*healthy.patterns, replace(healthy.patterns[0], bandwidth=12.0)))
    assert "several graphs of pattern 4" in believe(other, decode_sizes(PLAN), capability="12.0").unknown
    absent = replace(healthy, patterns=(*healthy.patterns, Pattern(3, 0, 0.0, 0.0, "NVL", "PIX"), Pattern(5, 0, 0.0, 0.0, "DIS", "DIS")))
    found = believe(absent, decode_sizes(PLAN), capability="12.0")
    assert found.system is not None and not found.fallback and findings.graph(absent, PLAN, belief=found).status is Status.PASS
    both = replace(healthy, picks=(*healthy.picks, *(replace(p, protocol="SIMPLE") for p in healthy.picks)))
    assert all(r.logged is None for r in believe(both, decode_sizes(PLAN), capability="12.0").rows)
    said = findings.graph(both, PLAN)
    assert said.status is Status.INCONCLUSIVE and "RING/LL and RING/SIMPLE" in said.statement


def test_a_failed_search_under_which_decode_uses_ll_is_no_accusation():
    lost = log("2.27_fallback")
    worked_around = replace(lost, picks=tuple(replace(p, protocol="LL") for p in lost.picks))
    said = findings.graph(worked_around, PLAN)
    assert (said.status, said.fault) == (Status.INCONCLUSIVE, None) and "does not pay for Simple" in said.statement


def found_winner():
    where = space(release="2.27.5", link="pcie", sizes=(43008,), system=FALLBACK, trusted=False)
    return search(where, world({"NCCL_PROTO=LL": 0.54}), budget=1600)


def test_a_winner_must_pass_its_gates():
    found = found_winner()
    settings = dict(found.refined.env)
    good = replace(log("2.27_fallback"), environment=settings)
    launch = Measured(settings, "nccl", 8, "gpu", "2.13", "2.27.5", {43008: 0}, {43008: (26.0,)}, {}, 0, 1.0, good)
    passed = gains.gates(settings, launch, (1787.0, 1800.0))
    assert all(g.passed for g in passed)
    verdict = gains.searched(found, passed, fallback=True)
    assert (verdict.status, verdict.fault) == (Status.FAIL, "nccl.graph-fallback") and "NCCL_PROTO=allreduce:LL,Simple" in verdict.remedy
    assert gains.searched(found, passed).fault == "nccl.algorithm"
    for checks, word in ((gains.gates(settings, launch, (1787.0, 20114.0)), "20114 us"), (gains.gates(settings, replace(launch, log=None), (1.0, 1.0)), "no NCCL log"),
                         (gains.gates(settings, replace(launch, log=log("2.27_fallback")), (1.0, 1.0)), "does not show NCCL_PROTO"), (gains.gates(settings, None, None), "not checked")):
        open_gate = gains.searched(found, checks)
        assert open_gate.status is Status.INCONCLUSIVE and open_gate.fault is None and word in open_gate.statement


def test_no_change_passes():
    where = space(release="2.27.5", link="pcie", sizes=(43008,), system=FALLBACK, trusted=False)
    verdict = gains.searched(search(where, world({}), budget=1600))
    assert verdict.status is Status.PASS and verdict.observed == "no change" and "none beats the default" in verdict.statement
    assert gains.searched(None, reason="bench: off").status is Status.SKIPPED


def test_the_cost_of_a_round_says_where_the_lever_is():
    fitted = cost(INCIDENT, Experts(384, 8))
    unmeasured = gains.cost(INCIDENT, fitted, PLAN)
    assert unmeasured.status is Status.INCONCLUSIVE and "26.40 ms plus 1.051 ms per 8 distinct experts" in unmeasured.statement and "fixed 16.2 ms" in unmeasured.statement
    slow = gains.cost(INCIDENT, fitted, PLAN, 48.2)
    assert slow.status is Status.INCONCLUSIVE and "21 % of the round" in slow.statement and "plain decode rises" in slow.statement
    fast = gains.cost(INCIDENT, fitted, PLAN, 10.0)
    assert fast.status is Status.PASS and "NCCL is not the lever" in fast.statement
    assert gains.cost((), None, PLAN).status is Status.SKIPPED


def steps(**more):
    given = {"plan": PLAN, "link": "pcie", "gpus": 8, "nodes": 1, "belief": belief("2.27_fallback"), "found": None, "cost": None}
    return [s.do for s in advice.steps(**{**given, **more})]


def test_a_winner_is_credited_with_its_own_saving_and_the_baseline_with_it():
    fitted, found = cost(INCIDENT, Experts(384, 8)), found_winner()
    said = gains.cost(INCIDENT, fitted, PLAN, 48.2, found=found, read=expert_read(MOE, "RTX PRO 6000", 8)).statement
    saved = found.won.default_us * (1 - found.won.ratio.value)
    assert f"The setting that won, {saved:.1f} us less on each," in said and "accept length" in said and "0.829 ms at the memory's peak, 1.037 ms at 80 %" in said
    assert float(re.search(r": ([\d.]+) times plain decode", said)[1]) < float(re.search(r"look like ([\d.]+)", said)[1])


def test_open_gates_keep_the_winner_out_of_the_advice():
    found = found_winner()
    assert steps(found=found, checks=gains.gates({}, None, None))[0] == "Not yet NCCL_PROTO=allreduce:LL,Simple"
    shut = gains.gates({}, None, (1787.0, 20114.0))
    assert not any(s.startswith("Set ") for s in steps(found=found, checks=shut))


def test_each_machine_has_its_own_advice():
    lost = steps()
    assert "NCCL_P2P_LEVEL=SYS" in lost[0] and "GRAPH_FILE" in lost[1] and not any("CHANNELS" in s or "CTAS" in s for s in lost)
    assert steps(link="nvswitch") == ["Leave NCCL alone"] and steps(nodes=2) == ["Keep tensor parallelism within one node"]
    assert steps(found=found_winner())[0] == "Set NCCL_PROTO=allreduce:LL,Simple"
    assert steps(belief=belief("2.28_graphxml"))[0] == "Find out first" and steps(plan=None) == []
    assert steps(cost=cost(INCIDENT, Experts(384, 8)))[-1] == "Look for the fixed cost of a round"


def test_adaptive_steps_leave_out_what_loses():
    assert advice.adaptive(INCIDENT, None) == {"1": {"candidate_steps": [0]}} and advice.adaptive(INCIDENT, 2) == {"1": {"candidate_steps": [0, 2]}}


def test_the_cost_of_a_call_is_its_fastest_rank():
    def trace(rank, *us):
        return Trace(Path(f"r{rank}"), "kineto", tuple(Call("allreduce", "nccl", t, 43008, rank, seq) for seq, t in enumerate(us)), rank)

    both, = traces.carried([trace(0, 30.0, 90.0), trace(1, 26.0, 25.0)])
    assert (both.calls, both.ranks, both.cost_us, both.skew_us) == (4, 2, 25.5, 34.5)
    one, = traces.carried([trace(0, 30.0, 90.0)])
    assert one.skew_us is None and one.cost_us == pytest.approx(36.0)
    assert traces.ways([trace(0, 30.0)]) == {"nccl": 1}
