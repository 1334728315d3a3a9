"""The real vLLM 0.32.0 on the CPU, float32, with the demo's target and drafter: its counters against the offline walk, to the integer.

Four servers: without speculation; the trained boundaries, at top level of the config and counted per request; the incident's embedding
first, whose counts are read off `/metrics` around each answer; and the checkpoint as it is in SGLang's spelling, which vLLM reads one
boundary down. vLLM counts a last round whole where the answer is cut in it, so the walk is on the text as the target goes on.
Needs `make vllm-env`. The limits of time are those of a machine that does much else.
"""

import asyncio
from pathlib import Path

import pytest

from eagle_forensics.acceptance.clients.counters import difference, total
from eagle_forensics.acceptance.clients.records import Sampling
from eagle_forensics.acceptance.live import findings as live_findings
from eagle_forensics.acceptance.live import paired, sanity
from eagle_forensics.demo import servers
from eagle_forensics.demo.stage import DATA
from eagle_forensics.drafter.served import study as served_study
from eagle_forensics.finding import Status
from tests.acceptance import served_text

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("vllm-server"), pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
BOUNDARIES = {"right": (2, 15, 27), "wrong": (0, 2, 15), "shifted": (1, 14, 26)}
STEPS = 3
BAD = {"unknown token": (1, 10_000_000), "too long": (1,) * 1500}
each = pytest.mark.parametrize("name", list(BOUNDARIES))


@pytest.fixture(scope="module")
def ran(demo_target, asked, tmp_path_factory):
    """(measurements, logs, what else was asked of the right one)"""
    python = servers.vllm_python(ROOT)
    if python is None:
        pytest.skip("no .venv-vllm here: `make vllm-env` makes it (2.5 GB, 2 minutes)")
    folder = tmp_path_factory.mktemp("served")
    drafters = {name: servers.with_ids(DATA / "drafter", BOUNDARIES[name], folder / name, top_level=True) for name in ("right", "wrong")}
    served = {"without": servers.vllm(python, demo_target), "right": servers.vllm(python, demo_target, drafters["right"], steps=STEPS),
              "wrong": servers.vllm(python, demo_target, drafters["wrong"], steps=STEPS, extra=("--per-request-spec-decode-metrics", "none")),
              "shifted": servers.vllm(python, demo_target, DATA / "drafter", steps=STEPS)}
    more = {}

    async def also(name, client):
        if name == "right":
            before, few = await client.counters(), asked.prompts[:4]
            more["together"] = await asyncio.gather(*(client.answer(p.id, p.domain, p.ids, Sampling(0.0, 16)) for p in few))
            more["counted together"] = difference(before, await client.counters())
            more["bad"] = {text: await client.answer(text, "bad", ids, Sampling(0.0, 16)) for text, ids in BAD.items()}
            more["likeliest"] = await client.choices(few[0].ids, 3)

    return *served_text.measure(served, (("right", "without"), ("wrong", "shifted")), asked, folder, also), more


@pytest.fixture(scope="module")
def measured(ran):
    return ran[0]


@pytest.fixture(scope="module")
def walked(measured, asked, exact, drafter):
    """Accepted drafts of each round of each answer, by the walk under the boundaries that the server reads."""
    found = {}
    for name, boundaries in BOUNDARIES.items():
        longer = served_text.continued(exact, served_text.texts(measured[name], asked), STEPS)
        sequences = served_text.correctness(drafter, longer, boundaries, STEPS).sequences
        found[name] = [served_text.whole_rounds(s, a.completion_tokens, STEPS) for s, a in zip(sequences, measured[name].answers, strict=True)]
    return found


def reached(rounds):
    return tuple(sum(n > i for n in rounds) for i in range(STEPS))


@each
def test_rounds_and_positions_equal_the_offline_walk_to_the_integer(measured, walked, name):
    m = measured[name]
    print(f"{name}: verify rounds {m.counted.rounds} by /metrics, {sum(map(len, walked[name]))} walked; accepted per position {m.counted.reached}; "
          f"accept length {m.accept_length.text()}")
    assert [a.acceptance.rounds for a in m.answers] == list(map(len, walked[name]))
    assert [a.acceptance.reached for a in m.answers] == list(map(reached, walked[name]))
    assert m.counted.reached == reached([n for rounds in walked[name] for n in rounds])


@each
def test_notebook_04_walks_the_served_text_to_the_same_counts(measured, asked, demo_target, tmp_path, name):
    text = served_text.walk(measured[name], asked, tmp_path, demo_target, DATA / "drafter", trained=BOUNDARIES["right"], served=BOUNDARIES[name])
    assert served_text.under(text, BOUNDARIES[name]).missed == 0
    (said,) = served_study.findings(text)
    print(said.statement)
    assert said.status is Status.PASS if name == "right" else (said.status, said.fault) == (Status.FAIL, "wiring.layer-offset")


@each
def test_every_answer_came_and_its_counts_add_up_to_the_running_counters(measured, asked, name):
    m = measured[name]
    assert m.complete and len(m.good) == len(asked.prompts) and all(a.completion_tokens == len(a.output_ids) for a in m.good) and not m.problems
    assert (m.counted.rounds, m.counted.accepted, m.counted.proposed, m.counted.reached) == (
        m.acceptance.rounds, m.acceptance.accepted, m.acceptance.proposed, m.acceptance.reached)
    assert m.counted.proposed == STEPS * m.counted.rounds and not m.acceptance.estimated
    assert live_findings.reconciled(m).status is Status.PASS


@each
def test_speculation_is_lossless_token_for_token(measured, asked, name):
    pairs, different = sanity.divergences(measured[name].answers, measured["without"].answers)
    print(f"{name}: {pairs - len(different)} of {pairs} answers the same without speculation")
    assert pairs == len(asked.prompts) and different == ()


def test_the_prediction_made_before_on_other_text_contains_the_measurement(measured, drafter):
    said = served_text.predictions(drafter, measured, BOUNDARIES, "embedding first")
    assert said["right"].status is Status.PASS, said["right"].statement
    assert said["wrong"].status is Status.FAIL, said["wrong"].statement


def test_the_layers_are_read_raw_and_from_the_top_level_first(ran, measured):
    for name, boundaries in BOUNDARIES.items():
        assert f"Using auxiliary layers from speculative config: {boundaries}" in ran[1][name]
    assert measured["right"].accept_length.value > 1.5 and measured["wrong"].accept_length.value < 1.3


def test_the_server_says_the_rounds_in_order(measured, walked):
    assert [list(a.by_round) for a in measured["right"].answers] == [[n + 1 for n in rounds] for rounds in walked["right"]]
    assert all(a.by_round is None for a in measured["wrong"].answers)


def test_answers_at_the_same_time_are_counted_each_for_itself(ran):
    together, counted = total(a.acceptance for a in ran[2]["together"]), ran[2]["counted together"]
    assert (together.rounds, together.accepted, together.reached) == (counted.rounds, counted.accepted, counted.reached)


@pytest.mark.parametrize("what, said", [("unknown token", "out of vocabulary"), ("too long", "maximum context length")])
def test_a_refused_request_is_kept_with_its_reason(ran, what, said):
    refused = ran[2]["bad"][what]
    print(refused.error)
    assert not refused.ok and refused.kind == "status" and "answered 400" in refused.error and said in refused.error
    assert refused.output_ids is None and refused.acceptance is None


def test_the_likeliest_next_tokens_begin_with_the_one_that_was_chosen(ran, measured):
    likeliest = ran[2]["likeliest"]
    assert len(likeliest) == 3 and likeliest[0].token == measured["right"].answers[0].output_ids[0]


def test_only_speculation_differs_between_the_paired_servers(measured):
    found = paired.server_differences(measured["right"].server, measured["without"].server)
    print("differs:", found.fields, "follows:", found.following, "compared:", found.compared)
    assert not found.confounded and found.compared > 300
    assert measured["right"].server.dtype == "float32"
    assert (measured["right"].server.speculative, measured["without"].server.speculative, measured["right"].server.steps) == (True, False, STEPS)


def test_speed_is_paired_prompt_by_prompt(measured, asked):
    found = paired.speed(measured["right"], measured["without"])
    print("speed ratio", found)
    assert found.pairs == len(asked.prompts) and found.ratio.low < found.ratio.value < found.ratio.high
