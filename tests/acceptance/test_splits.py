"""Splits that tell faults apart: each accuses only where nothing else can have changed, and abstains with its rival elsewhere."""

from dataclasses import replace

import pytest

from eagle_forensics import stats
from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Answer, Sampling, Server, rounds_in_order
from eagle_forensics.acceptance.live import measure as live
from eagle_forensics.acceptance.live import splits
from eagle_forensics.acceptance.live.workload import Prompt, render
from eagle_forensics.finding import Status

PROMPTS = render([Prompt(f"p{i}", ("chat", "code", "german")[i % 3], ids=(i, 1)) for i in range(24)], None)
SERVER = Server("http://x", "sglang", "0.5.23", {"device": "cuda"}, True, 3, 1, 4, "i")


def answer(i, accepted=30, rounds=30, **more):
    fields = {"output_ids": (i, 2, 3), "prompt_tokens": 10 + i, "completion_tokens": 61, "cached_tokens": 0, "first_s": 0.1, "seconds": 1.1,
              "acceptance": Acceptance(rounds, accepted + i % 4, 3 * rounds)}
    return Answer(f"p{i}", PROMPTS.prompts[i].domain, **(fields | more))


def measurement(make=answer, *, concurrency=1, temperature=0.0, server=SERVER, label="speculation"):
    settings = live.Settings(Sampling(temperature, 64), concurrency=concurrency)
    return live.Measurement(label, server, settings, PROMPTS, tuple(make(i) for i in range(24)), "all prompts", True)


def slower(by):
    return lambda i: answer(i, rounds=30 + by)


def test_a_first_round_that_accepts_more_is_a_suspicion_only_where_graphs_are_replayed():
    good_start = measurement(lambda i: answer(i, by_round=(4, 1, 2, 1, 2 + i % 2)))
    said = splits.first_round(good_start)
    assert (said.status, said.fault, said.competitor.fault) == (Status.INCONCLUSIVE, "wiring.graph-default-layers", "wiring.layer-offset") and not said.required
    assert splits.first_round(replace(good_start, server=replace(SERVER, arguments={"disable_cuda_graph": True}))).status is Status.PASS
    assert splits.first_round(measurement(lambda i: answer(i, by_round=(1 + i % 2, 1, 2, 1, 1)))).status is Status.PASS
    assert splits.first_round(measurement()).status is Status.SKIPPED


def test_rounds_are_in_order_only_if_every_event_is_a_round():
    counts = Acceptance(3, 2, 9)
    assert rounds_in_order([1, 3, 4, 6], counts) == (2, 1, 2)
    assert rounds_in_order([1, 4, 6], counts) is rounds_in_order([2, 3, 4, 6], counts) is rounds_in_order([1, 3, 3, 6], counts) is rounds_in_order([], counts) is None
    assert rounds_in_order([1, 2], None) is None


def test_long_prompts_that_accept_less_are_a_suspicion_with_its_rival():
    said = splits.prompt_length(measurement(lambda i: answer(i, accepted=40 if i < 12 else 10)))
    assert (said.status, said.fault, said.competitor.fault) == (Status.INCONCLUSIVE, "drafter.rope", "data.domain")
    flat = splits.prompt_length(measurement())
    assert flat.status is Status.PASS and "beyond 33 tokens" in flat.statement


def test_prompts_of_two_lengths_are_split_between_them_and_those_of_one_not_at_all():
    def of(*lengths):
        m = measurement()
        return splits.prompt_length(replace(m, answers=tuple(replace(a, prompt_tokens=n) for a, n in zip(m.answers, lengths, strict=False))))

    uneven = of(*[5] * 20, *[9] * 4)
    assert uneven.status is Status.PASS and "less than 9 tokens" in uneven.statement and abs(uneven.observed) < 0.2
    assert of(5, 5, *[9] * 10).observed == pytest.approx(0, abs=0.2), "the cut lies where lengths change, not at the middle answer"
    assert of(*[5] * 24).status is of(5, *[9] * 10).status is Status.SKIPPED


def test_a_domain_that_falls_behind_is_named():
    said = splits.domains(measurement(lambda i: answer(i, accepted=5 if i % 3 == 2 else 30)))
    assert (said.status, said.fault) == (Status.INCONCLUSIVE, "data.domain") and "lowest accept length is german" in said.statement
    assert splits.domains(measurement()).status is Status.PASS


def test_fewer_accepted_out_of_the_cache_on_the_same_answers_is_the_drafters_cache():
    cold, warm = measurement(), measurement(lambda i: answer(i, rounds=35, cached_tokens=8))
    said = splits.cached(cold, warm)
    assert (said.status, said.fault, said.competitor.fault) == (Status.FAIL, "runtime.stale-draft-cache", "wiring.graph-default-layers") and said.observed < 0
    assert splits.cached(cold, measurement(lambda i: answer(i, cached_tokens=8))).status is Status.PASS
    assert splits.cached(cold, measurement(lambda i: answer(i, rounds=35, cached_tokens=8, output_ids=(9,)))).status is Status.SKIPPED, "another answer proves nothing"
    assert splits.cached(cold, measurement(slower(5))).status is Status.SKIPPED, "nothing came out of the cache"


def test_less_reuse_of_the_cache_with_speculation_is_a_cost():
    cold, warm = measurement(), measurement(lambda i: answer(i, cached_tokens=8))
    said = splits.cached(cold, warm, measurement(lambda i: answer(i, cached_tokens=40)))
    assert (said.status, said.fault, said.competitor.fault) == (Status.INCONCLUSIVE, "cost.prefix-cache", "runtime.stale-draft-cache")
    assert "of 24 prompts 192 tokens came out of the cache with speculation, 960 without" in said.statement


@pytest.mark.parametrize("engine, arguments, less", [("sglang", {"page_size": 1}, 1), ("sglang", {"page_size": 64}, 64), ("vllm", {"cache_config": {"block_size": 32}}, 32)])
def test_the_last_block_that_a_draft_computes_again_is_no_loss_of_the_cache(engine, arguments, less):
    server = replace(SERVER, engine=engine, arguments=arguments)
    cold, warm = measurement(server=server), measurement(lambda i: answer(i, cached_tokens=64), server=server)
    assert splits.cached(cold, warm, measurement(lambda i: answer(i, cached_tokens=64 + less))).status is Status.PASS
    assert splits.cached(cold, warm, measurement(lambda i: answer(i, cached_tokens=65 + less))).fault == "cost.prefix-cache"


def test_fewer_accepted_under_load_on_the_same_answers_is_the_batchs_metadata():
    said = splits.concurrency([{"speculation": measurement()}, {"speculation": measurement(slower(5), concurrency=8)}])
    assert (said.status, said.fault, said.competitor.fault) == (Status.FAIL, "runtime.batch-metadata", "cost.concurrency")


def test_speculation_that_adapts_to_the_load_is_no_fault():
    fewer = measurement(lambda i: answer(i, acceptance=Acceptance(40, 20 + i % 4, 40)), concurrency=8)
    said = splits.concurrency([{"speculation": measurement()}, {"speculation": fewer}])
    assert said.status is Status.INCONCLUSIVE and said.fault is None and "adapts to the load" in said.statement


def test_a_gain_that_turns_into_a_loss_under_load_is_a_cost():
    def plain(seconds):
        return lambda i: answer(i, acceptance=None, seconds=seconds)

    quick = {"speculation": measurement(), "baseline": measurement(plain(3.1), label="baseline")}
    loaded = {"speculation": measurement(concurrency=8), "baseline": measurement(plain(0.6), concurrency=8, label="baseline")}
    said = splits.concurrency([quick, loaded])
    assert (said.status, said.fault, said.competitor.fault) == (Status.FAIL, "cost.concurrency", "runtime.batch-metadata")
    assert splits.concurrency([quick, {"speculation": measurement(concurrency=8)}]).status is Status.PASS


def test_a_gain_means_the_same_at_every_load():
    def timed(first, rest, **more):
        return measurement(lambda i: answer(i, first_s=first, seconds=first + rest), **more)

    points = [{"speculation": timed(1.2, 1.0, concurrency=n), "baseline": timed(1.0, 1.1, concurrency=n, label="baseline")} for n in (1, 8)]
    said = splits.concurrency(points)
    assert said.status is Status.PASS and "0.95x at 1; 0.95x at 8" in said.statement, "decoding alone is faster; with prefill, as under load, it is not"


def test_an_accusation_among_three_splits_needs_more_than_an_interval_of_its_own():
    cold, under_load = measurement(), measurement(lambda i: answer(i, rounds=30 + (i < 5)), concurrency=8)
    pairs = splits.same_answers(cold, under_load)
    assert splits.paired_answers(pairs, 0, stats.LEVEL).high < 0 < splits.paired_answers(pairs, 0, splits.ACCUSING).high
    assert splits.concurrency([{"speculation": cold}, {"speculation": under_load}]).status is Status.PASS


@pytest.mark.parametrize("by, status", [(5, Status.INCONCLUSIVE), (0, Status.PASS)])
def test_a_loss_above_temperature_zero_is_never_more_than_a_suspicion(by, status):
    said = splits.temperature([{"speculation": measurement()}, {"speculation": measurement(slower(by), temperature=0.7)}])
    assert said.status is status and (said.fault == "runtime.acceptance-rule") is (by > 0)
