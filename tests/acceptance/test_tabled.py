"""Runs of the table that differ in one thing alone: who is accused, who is only suspected, who passes."""

import numpy as np
import pandas as pd
import pytest

from eagle_forensics.acceptance.papers import Papers
from eagle_forensics.acceptance.recorded import Recorded
from eagle_forensics.acceptance.rendering import rendering
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.acceptance.tabled.fall import fall
from eagle_forensics.acceptance.tabled.heads import by_head
from eagle_forensics.acceptance.tabled.study import splits
from eagle_forensics.acceptance.tabled.switches import rules
from eagle_forensics.faults import catalogue
from eagle_forensics.finding import Status

SAME = {"speculative": 1, "engine": "sglang", "engine_version": "0.5.23", "steps": 3, "topk": 1, "temperature": 0, "concurrency": 1, "prompts_hash": "9c", "env_hash": "e1",
        "dataset": "d", "rounds": 20000}
WIRED = {"engine": "SGLang 0.5.23", "trained_by_ids": [2, 16, 29], "served": {"boundaries": {"eager": [2, 16, 29], "graph": [2, 16, 29]}}}


def table(*rows):
    return runs(pd.DataFrame([{"label": f"run {i}"} | SAME | row for i, row in enumerate(rows)]).astype(object).map(lambda v: None if v != v else f"{v:.2f}" if isinstance(v, float) else v))


def said(*rows, papers=None):
    return {f.id: f for f in splits(table(*rows), papers or Papers(layers=WIRED))}


def pair(column, off, on, **more):
    return {"accept_length": off, column: 0} | more, {"accept_length": on, column: 1} | more


def test_the_rules_name_faults_of_the_catalogue():
    assert {r["fault"] for r in rules().values()} | {r["rival"] for r in rules().values()} <= set(catalogue())


@pytest.mark.parametrize(("column", "fault", "more"), [
    ("prefix_cache", "runtime.stale-draft-cache", {}), ("dp_attention", "runtime.dp-attention", {}), ("cuda_graph", "runtime.graph-dtype", {}),
    ("grammar", "runtime.grammar", {"outputs_hash": "aa"}), ("images", "runtime.multimodal", {})])
def test_a_switch_that_costs_accept_length(column, fault, more):
    found = said(*pair(column, 2.39, 2.26, **more))[f"acceptance.by-{column.replace('_', '-')}"]
    assert (found.status, found.fault) == (Status.FAIL, fault) and found.competitor.fault in catalogue() and found.remedy
    assert said(*pair(column, 2.39, 2.30, **more))[found.id].status is Status.PASS, "less than the smallest published loss"
    assert said(*pair(column, 2.26, 2.39, **more))[found.id].status is Status.PASS
    few = said(*pair(column, 2.39, 2.26, **more | {"rounds": 200, "outputs_hash": None}))[found.id]
    assert (few.status, few.fault) == (Status.INCONCLUSIVE, "measure.not-enough-data") and "About 10395 rounds" in few.next_step


@pytest.mark.parametrize("missing", ["temperature", "concurrency", "prompts_hash", "env_hash", "engine_version"])
def test_what_is_not_recorded_is_an_assumption(missing):
    found = said(*pair("prefix_cache", 2.6, 1.9, **{missing: None}))["acceptance.by-prefix-cache"]
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, "runtime.stale-draft-cache") and missing in found.statement and found.required


def test_repeats_must_agree():
    assert said(*pair("prefix_cache", 2.6, 1.9), {"accept_length": 2.58, "prefix_cache": 1})["acceptance.by-prefix-cache"].status is Status.PASS


def test_a_grammar_changes_the_text_so_equal_text_is_needed():
    for more in ({}, {"outputs_hash": None}):
        assert said(*pair("grammar", 2.6, 1.7, **more))["acceptance.by-grammar"].status is Status.INCONCLUSIVE
    first, second = pair("grammar", 2.6, 1.7)
    assert said(first | {"outputs_hash": "a"}, second | {"outputs_hash": "b"})["acceptance.by-grammar"].status is Status.INCONCLUSIVE


def test_images_change_the_prompts_but_not_the_questions():
    described, shown = pair("images", 2.4, 1.1)
    assert said(described, shown | {"prompts_hash": "0b"})["acceptance.by-images"].status is Status.FAIL
    assert said(described | {"dataset": None}, shown | {"prompts_hash": "0b", "dataset": None})["acceptance.by-images"].status is Status.INCONCLUSIVE
    assert "acceptance.by-images" not in said(described, shown | {"dataset": "other"})


def test_graphs_that_capture_other_layers_are_another_fault():
    other = WIRED | {"served": {"boundaries": {"eager": [4, 11, 21], "graph": [2, 16, 29]}}}
    assert said(*pair("cuda_graph", 2.6, 1.9), papers=Papers(layers=other))["acceptance.by-cuda-graph"].fault == "wiring.graph-default-layers"
    assert said(*pair("cuda_graph", 2.6, 1.9), papers=Papers())["acceptance.by-cuda-graph"].status is Status.INCONCLUSIVE


def test_one_text_needs_no_rounds():
    a, b = table(*pair("prefix_cache", 2.39, 2.26, outputs_hash="aa", rounds=None))
    assert fall(a, b).same_text and fall(a, b).kind == "shown"
    a, b = table(*pair("prefix_cache", 2.39, 2.26, outputs_hash="aa", rounds=None, temperature=1))
    assert not fall(a, b).same_text and fall(a, b).kind == "open"


LOADS = ({"accept_length": 2.41, "concurrency": 2}, {"accept_length": 2.27, "concurrency": 32})


def test_a_load_that_costs_accept_length():
    assert said(*LOADS)["acceptance.by-concurrency"].status is Status.FAIL
    adaptive = said(*LOADS, papers=Papers(arguments={"adaptive": True}))["acceptance.by-concurrency"]
    assert (adaptive.status, adaptive.fault) == (Status.INCONCLUSIVE, "runtime.batch-metadata")


def gains(high, al=2.40, load=32):
    plain = {"speculative": 0, "steps": None, "topk": None, "rounds": None}
    return ({"accept_length": 2.40, "tokens_per_second": 180.0}, plain | {"tokens_per_second": 100.0},
            {"accept_length": al, "tokens_per_second": high, "concurrency": load}, plain | {"tokens_per_second": 2000.0, "concurrency": load})


def test_only_the_gain_falls_with_the_load():
    found = said(*gains(1700.0))["acceptance.gain-by-concurrency"]
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "cost.concurrency", "runtime.batch-metadata")
    assert said(*gains(2400.0))[found.id].status is Status.PASS
    assert said(*gains(1700.0, al=2.0))[found.id].status is Status.INCONCLUSIVE
    limited = said(*gains(1700.0, load=64), papers=Papers(arguments={"max_running_requests": 48}))[found.id]
    assert (limited.status, limited.competitor.fault, limited.required) == (Status.INCONCLUSIVE, "cost.admission-limit", True)


def versions(old, new, **more):
    return {"accept_length": old, "engine_version": "0.5.20"} | more, {"accept_length": new} | more


def test_a_release_that_loses_accept_length():
    found = said(*versions(2.80, 2.62))["acceptance.by-version"]
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "runtime.regression", "measure.confounded")
    assert said(*versions(2.62, 2.80))[found.id].status is Status.PASS
    assert said(*versions(2.80, 2.62, env_hash=None))[found.id].status is Status.INCONCLUSIVE
    unknown, wrong = (said(*versions(2.80, 2.62), papers=Papers(layers=layers))[found.id] for layers in ({}, WIRED | {"trained_by_ids": [3, 17, 30]}))
    assert unknown.status is wrong.status is Status.INCONCLUSIVE and unknown.required and not wrong.required


def test_a_rule_of_acceptance_shows_above_temperature_0_alone():
    hot = versions(2.35, 2.10, temperature=1.0)
    found = said(*versions(2.71, 2.70), *hot)["acceptance.by-version"]
    assert (found.status, found.fault) == (Status.FAIL, "runtime.acceptance-rule")
    assert said(*hot)[found.id].status is Status.INCONCLUSIVE
    assert said(*versions(2.71, 2.40), *hot)[found.id].fault == "runtime.regression"
    assert said(*versions(2.71, 2.70), *versions(2.10, 2.35, temperature=1.0))[found.id].status is Status.PASS, "the version that is served is the better one"


def heads(*rows, **papers):
    return by_head(table(*({"accept_length": al, "dataset": d, "drafter": name, "prompts_hash": d} for d, own, other in rows for name, al in (("own", own), ("public", other)))), "own", Recorded(**papers))


def test_a_head_that_is_weak_in_some_text_only():
    found = heads(("law", 1.48, 2.30), ("chat", 2.60, 2.61), whole=True)
    assert (found.status, found.fault) == (Status.FAIL, "data.domain") and "law" in found.statement
    assert heads(("law", 1.48, 2.30), ("chat", 2.60, 2.61)).status is Status.INCONCLUSIVE, "its draft vocabulary may lack the tokens"
    assert heads(("law", 1.48, 2.30), ("chat", 2.20, 2.61), whole=True).fault == "data.too-little"
    assert heads(("law", 2.30, 2.30), whole=True).status is Status.PASS and by_head(table({"accept_length": 2.0}), "own", Recorded()) is None


def reused(ours, theirs, **more):
    return ({"accept_length": 2.5, "tokens_per_second": 150.0, "cache_hit_rate": ours, "context_length": 4000} | more,
            {"speculative": 0, "steps": None, "topk": None, "rounds": None, "tokens_per_second": 100.0, "cache_hit_rate": theirs, "context_length": 4000} | more)


@pytest.mark.parametrize(("ours", "more", "status"), [(0.71, {}, Status.FAIL), (0.88, {}, Status.PASS), (0.95, {}, Status.PASS),
                                                      (0.45, {"context_length": None}, Status.INCONCLUSIVE), (0.45, {"prompts_hash": None}, Status.INCONCLUSIVE)])
def test_hits_of_the_prefix_cache(ours, more, status):
    assert said(*reused(ours, 0.92, **more))["acceptance.prefix-reuse"].status is status


CONTEXTS = tuple({"accept_length": al, "context_length": n} for n, al in ((1000, 2.30), (2000, 2.29), (8000, 1.90)))


@pytest.mark.parametrize(("reach", "status"), [(2048, Status.FAIL), (32768, Status.INCONCLUSIVE), (None, Status.INCONCLUSIVE), (500, Status.INCONCLUSIVE)])
def test_a_fall_beyond_the_drafts_own_range(reach, status):
    found = said(*CONTEXTS, papers=Papers(reach=reach))["acceptance.by-context"]
    assert (found.status, found.fault) == (status, "drafter.rope")


def test_a_fall_that_begins_within_the_range_is_not_the_ranges():
    rows = tuple({"accept_length": al, "context_length": n} for n, al in ((1000, 2.30), (2000, 1.90), (8000, 1.60)))
    assert said(*rows, papers=Papers(reach=4096))["acceptance.by-context"].status is Status.INCONCLUSIVE


def clustered(rng, rounds, responses=None, rate=0.6, steps=3):
    """Accept length of identical servers over answers that are easy or hard to draft as a whole; variance five times that of independent rounds."""
    survival = rate ** np.arange(1, steps + 1)
    variance = (survival * (2 * np.arange(1, steps + 1) - 1)).sum() - survival.sum() ** 2
    responses = responses or max(1, rounds // 67)
    return round(float(np.clip(1 + survival.sum() + rng.normal(0, (5 * variance / rounds * responses) ** 0.5, responses).mean(), 1, steps + 1)), 2)


@pytest.mark.parametrize("rounds", [500, 2000, 20000])
def test_equal_servers_are_accused_in_less_than_one_table_of_twenty(rounds):
    """Eight runs of one server under other switches, loads, versions and renderings; with independent rounds 12 to 45 of 100 such tables accused."""
    rng, accused = np.random.default_rng(0), 0
    off = dict.fromkeys(("prefix_cache", "dp_attention", "images", "cuda_graph"), 0)
    for _ in range(100):
        rows = [off, *(off | {name: 1} for name in off), off | {"concurrency": 32}, off | {"engine_version": "0.5.20"}, *(off | {"prompts_hash": f"h{i}"} for i in range(4))]
        tabled = table(*(row | {"accept_length": clustered(rng, rounds), "rounds": rounds} for row in rows))
        accused += any(f.status is Status.FAIL for f in (*splits(tabled, Papers(layers=WIRED)), rendering(tabled)))
    assert accused < 5


def test_rounds_come_in_responses():
    few = said(*pair("prefix_cache", 2.39, 2.26, rounds=8000))["acceptance.by-prefix-cache"]
    assert few.fault == "measure.not-enough-data" and said(*pair("prefix_cache", 2.39, 2.26, rounds=12000))[few.id].status is Status.FAIL


@pytest.mark.parametrize(("high", "status"), [(1990.0, Status.INCONCLUSIVE), (1940.0, Status.FAIL)])
def test_what_the_clock_alone_moves_is_no_loss(high, status):
    assert said(*gains(high))["acceptance.gain-by-concurrency"].status is status
