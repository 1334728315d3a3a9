"""The clients against a server that speaks each engine's HTTP, well and badly."""

import asyncio
from dataclasses import replace

import pytest

from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.records import Choice, Sampling, Server
from eagle_forensics.evidence.transport import KEY_VARIABLE, Failure, Patience, Transport
from tests.acceptance.pretend import pretending

FAST = Patience(connect_s=5, silence_s=10, total_s=20, busy_tries=2, busy_wait_s=0.01)
IMPATIENT = Patience(connect_s=5, silence_s=0.6, total_s=20)
IDS = (5, 6, 7)


def ask(url, action, patience=FAST):
    async def run():
        async with Transport(url, patience) as transport:
            return await action(await connect(transport))

    return asyncio.run(run())


def answer(url, patience=FAST, max_tokens=40):
    return ask(url, lambda c: c.answer("p", "chat", IDS, Sampling(0.0, max_tokens)), patience)


def test_sglang_gives_its_effective_arguments_without_secrets():
    with pretending() as (url, _):
        server = ask(url, lambda c: c.server())
    assert (server.engine, server.version, server.speculative, server.steps, server.topk, server.draft_tokens) == ("sglang", "0.5.23", True, 3, 1, 4)
    assert server.arguments["api_key"] == "(redacted)" and "sk-very-secret" not in repr(server)
    assert any("40 decode steps" in n for n in server.notes) and server.simulated is None


def test_sglang_counts_of_one_answer():
    with pretending() as (url, p):
        a = answer(url)
    assert a.ok and a.completion_tokens == 40 == len(a.output_ids) and a.finish == "length" and 0 < a.first_s <= a.seconds
    assert a.acceptance.rounds == sum(p.histogram(IDS)) and a.acceptance.accepted == 8 + 2 * 4 + 3 * 3
    assert a.acceptance.reached == (15, 7, 3) and not a.acceptance.estimated


@pytest.mark.parametrize("names, exact", [
    (("spec_accept_token_num", "spec_draft_token_num"), True), (("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"), True), ((), False)])
def test_every_version_of_the_fields_is_read(names, exact):
    with pretending(names=names) as (url, p):
        a = answer(url)
    assert a.acceptance.rounds == sum(p.histogram(IDS)) and a.acceptance.estimated is not exact
    assert a.acceptance.accepted == (25 if exact else 40 - 1 - a.acceptance.rounds)


def test_a_server_without_speculation_has_no_counts():
    with pretending(speculative=False) as (url, _):
        assert ask(url, lambda c: c.server()).speculative is False
        assert answer(url).acceptance is None


def test_counts_that_contradict_each_other_are_dropped_and_named():
    with pretending(fault="contradiction") as (url, _):
        a = answer(url)
    assert a.ok and a.acceptance is None and "positions add up to 25 accepted drafts, the total says 26" in a.notes[0]


def test_vllm_counts_by_its_counters_and_per_request():
    with pretending(engine="vllm", version="0.32.0", per_request=True) as (url, _):
        server, a = ask(url, lambda c: c.server()), answer(url)
        counted = ask(url, lambda c: c.counters())
    assert (server.engine, server.version, server.speculative, server.steps) == ("vllm", "0.32.0", True, 3)
    assert any("VLLM_SERVER_DEV_MODE" in n for n in server.notes)
    assert a.completion_tokens == 40 == len(a.output_ids) and a.acceptance.accepted == 25
    assert (counted.rounds, counted.accepted, counted.reached) == (a.acceptance.rounds, 25, (15, 7, 3))
    assert len(a.by_round) == a.acceptance.rounds and sum(a.by_round) == a.acceptance.rounds + 25 and set(a.by_round) == {1, 2, 3, 4}


@pytest.mark.parametrize("engine, off", [("sglang", -1), ("vllm", 0)])
def test_nothing_of_the_sampling_is_left_to_the_servers_defaults(engine, off):
    with pretending(engine=engine, version="0.5.23" if engine == "sglang" else "0.32.0") as (url, p):
        answer(url)
    said = p.bodies[0]["sampling_params"] if engine == "sglang" else p.bodies[0]
    assert {k: said[k] for k in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")} == {"temperature": 0.0, "top_p": 1.0, "top_k": off, "min_p": 0.0, "repetition_penalty": 1.0}


def test_an_error_inside_a_stream_of_vllm_is_the_status_it_names():
    with pretending(engine="vllm", version="0.32.0", fault="refused event") as (url, _):
        a = answer(url)
    assert (a.ok, a.kind, a.output_ids) == (False, "status", None) and a.error == "/v1/completions answered 400: Token id 99 is out of vocabulary"


def test_arguments_of_vllm_stand_in_groups():
    said = {"model_config": {"dtype": "torch.float32", "enforce_eager": True}, "device_config": {"device": "cpu"}, "speculative_config": {"device": "cuda"}}
    server = Server("http://x", "vllm", "0.32.0", said, True, 3, 1, 3, "i")
    assert (server.dtype, server.argument("enforce_eager"), server.argument("device"), server.argument("tp_size")) == ("float32", True, "cpu", None)


@pytest.mark.parametrize("fault, kind, text", [
    ("garbage", "malformed", "not JSON"), ("cut", "down", "before the answer was finished"), ("hang", "hang", "stopped answering"),
    ("always busy", "busy", "answered 429: slow down")])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_failed_answer_says_what_failed(engine, fault, kind, text):
    with pretending(engine=engine, fault=fault) as (url, _):
        a = answer(url, IMPATIENT if fault == "hang" else FAST)
    assert not a.ok and a.kind == kind and a.acceptance is None and a.output_ids is None
    assert text in a.error or (fault, engine) == ("garbage", "vllm")


def test_a_busy_server_is_asked_again():
    with pretending(fault="busy") as (url, p):
        assert answer(url).ok and p.answers == 2


def test_a_redirect_is_not_followed():
    with pretending(fault="redirect") as (url, p), pytest.raises(ValueError, match="neither SGLang"):
        ask(url, lambda c: c.server())
    assert all(path in ("/server_info", "/get_server_info", "/version") for _, path, _ in p.asked)


def test_a_server_that_is_not_up_is_named():
    with pretending() as (url, _):
        pass
    with pytest.raises(Failure, match="not up") as caught:
        ask(url, lambda c: c.server())
    assert caught.value.kind == "down"


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-from-the-environment")
    with pretending() as (url, p):
        a = answer(url)
    assert p.asked[-1][2]["authorization"] == "Bearer sk-from-the-environment" and "sk-from" not in repr(a)


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with pretending() as (url, _):
        assert answer(url).ok


def test_password_in_the_url_is_sent_but_not_shown():
    with pretending() as (url, p):
        seen = ask(url.replace("http://", "http://me:hunter22@"), lambda c: c.server())
    assert p.asked[-1][2]["authorization"].startswith("Basic") and "hunter22" not in seen.url


@pytest.mark.parametrize("env, found", [({"SGLANG_SIMULATE_ACC_LEN": "2.5"}, "SGLANG_SIMULATE_ACC_LEN=2.5"), ({"SGLANG_SIMULATE_ACC_LEN": "-1"}, None)])
def test_a_simulation_is_seen(env, found):
    with pretending(env=env) as (url, _):
        assert ask(url, lambda c: c.server()).simulated == found


def test_likeliest_tokens():
    with pretending() as (url, _):
        assert ask(url, lambda c: c.choices(IDS, 2)) == (Choice(11, -0.5), Choice(12, -0.51))


def test_flush_reaches_sglang_and_is_reported_where_it_cannot():
    with pretending() as (url, p):
        assert ask(url, lambda c: c.flush()) is None and p.flushed == 1
    with pretending(engine="vllm", version="0.32.0") as (url, _):
        assert "VLLM_SERVER_DEV_MODE" in ask(url, lambda c: c.flush())


def test_canonical_counts_and_their_other_definitions():
    found = counters.Acceptance(100, 80, 300, (50, 20, 10))
    assert found.accept_length == 1.8 and found.survival == (0.5, 0.2, 0.1) and found.conditional == (0.5, 0.4, 0.5)
    rows = {r["figure"]: r["value"] for r in counters.as_defined(found, "sglang", "0.5.9", steps=3, completion_tokens=181)}
    assert rows["accept rate as sglang 0.5.9 prints it"] == pytest.approx(1.8 / 4) and rows["spec_accept_length"] == 1.81
    assert rows["share of drafts accepted"] == pytest.approx(80 / 300)
    assert "counts whole" in counters.as_defined(found, "vllm", "0.32.0", steps=3)[0]["definition"]
    assert "counts whole" not in counters.as_defined(replace(found, estimated=True), "sglang", "0.5.2", steps=3)[0]["definition"]
    rows = {r["figure"]: r["value"] for r in counters.as_defined(found, "sglang", "0.5.23", steps=3)}
    assert rows["accept rate as sglang 0.5.23 prints it"] == pytest.approx(0.8 / 3)


@pytest.mark.parametrize("before, after, text", [
    (counters.Acceptance(10, 5), counters.Acceptance(9, 6), "rounds 10 -> 9"), (counters.Acceptance(10, 5, 30, (5,)), counters.Acceptance(11, 5, 33, (4, 1)), "position 1 5 -> 4")])
def test_counters_never_go_backwards(before, after, text):
    with pytest.raises(counters.Backwards, match=text):
        counters.difference(before, after)


def test_a_position_that_appears_between_two_readings_counts_from_zero():
    found = counters.difference(counters.Acceptance(10, 5, 30, (5,)), counters.Acceptance(20, 12, 60, (10, 2)))
    assert (found.rounds, found.accepted, found.reached) == (10, 7, (5, 2)) and found.contradiction is None


def test_counts_add_up_position_by_position():
    both = counters.total([counters.Acceptance(10, 3, 30, (2, 1)), counters.Acceptance(5, 5, 15, (3, 1, 1))])
    assert (both.rounds, both.accepted, both.proposed, both.reached) == (15, 8, 45, (5, 2, 1))
    assert counters.total([counters.Acceptance(1, 0), counters.Acceptance(1, 1, 3, (1,))]).reached is None and counters.total([]) is None
