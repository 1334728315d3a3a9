"""The real SGLang 0.5.23 on the CPU, float32, with the demo's target and drafter: its verify counts against the offline walk, to the integer.

Three servers: without speculation; the trained ids with 3 steps; and two of the incident's mistakes in one, the wrong ids (embedding first)
with 1 step of "16" draft tokens. Needs `make sglang-env`. The limits of time are those of a machine that does much else.
"""

from pathlib import Path

import pytest

from eagle_forensics.acceptance.live import paired, sanity, splits
from eagle_forensics.demo import servers
from eagle_forensics.demo.stage import DATA
from eagle_forensics.drafter.served import study as served_study
from eagle_forensics.finding import Status
from tests.acceptance import served_text

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang-server"), pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
BOUNDARIES = {"right": (2, 15, 27), "wrong": (0, 2, 15)}
STEPS = {"right": 3, "wrong": 1}


@pytest.fixture(scope="module")
def measured(demo_target, asked, tmp_path_factory):
    python = servers.sglang_python(ROOT)
    if python is None:
        pytest.skip("no .venv-sglang here: `make sglang-env` makes it (2.8 GB, 2 minutes)")
    folder = tmp_path_factory.mktemp("served")
    wrong = servers.with_ids(DATA / "drafter", [-1, 1, 14], folder / "wrong")
    served = {"without": servers.sglang(python, demo_target), "right": servers.sglang(python, demo_target, DATA / "drafter", steps=3),
              "wrong": servers.sglang(python, demo_target, wrong, steps=1, draft_tokens=16)}
    return served_text.measure(served, (("right", "without"), ("wrong",)), asked, folder)


@pytest.fixture(scope="module")
def offline(measured, asked, demo_target, tmp_path_factory):
    """Notebook 04's walk on each served text."""
    return {name: served_text.walk(measured[0][name], asked, tmp_path_factory.mktemp(name), demo_target, DATA / "drafter",
                                   trained=BOUNDARIES["right"], served=BOUNDARIES[name]) for name in STEPS}


@pytest.mark.parametrize("name", list(STEPS))
def test_verify_counts_equal_the_offline_walk_to_the_integer(measured, offline, name):
    served = [a.acceptance.rounds for a in measured[0][name].answers]
    walked = served_text.under(offline[name], BOUNDARIES[name])
    print(f"{name}: verify calls {sum(served)} served, {sum(walked.rounds)} walked; accept length {measured[0][name].accept_length.text()}")
    assert list(walked.rounds) == list(walked.served) == served


def test_the_walk_names_the_wiring_that_is_served(offline):
    (right,), (wrong,) = (served_study.findings(offline[name]) for name in STEPS)
    print(right.statement, wrong.statement, sep="\n")
    assert right.status is Status.PASS and (wrong.status, wrong.fault) == (Status.FAIL, "wiring.layer-offset")


@pytest.mark.parametrize("name", list(STEPS))
def test_every_answer_came_and_the_counts_agree_with_the_running_counter(measured, asked, name):
    m = measured[0][name]
    assert m.complete and len(m.good) == len(asked.prompts) and all(a.completion_tokens == len(a.output_ids) for a in m.good)
    assert m.counted.rounds == m.acceptance.rounds and not m.acceptance.estimated
    assert len(m.acceptance.reached) <= STEPS[name]


@pytest.mark.parametrize("name", list(STEPS))
def test_speculation_is_lossless_token_for_token(measured, asked, name):
    pairs, different = sanity.divergences(measured[0][name].answers, measured[0]["without"].answers)
    assert pairs == len(asked.prompts) and different == ()


def test_the_prediction_made_before_on_other_text_contains_the_measurement(measured, drafter):
    said = served_text.predictions(drafter, measured[0], BOUNDARIES, "embedding first")
    assert said["right"].status is Status.PASS, said["right"].statement
    assert said["wrong"].status is Status.FAIL, said["wrong"].statement


def test_wrong_ids_and_sixteen_draft_tokens_of_one_step_cost_what_they_cost(measured):
    found, logs = measured
    assert found["right"].accept_length.value > 1.5 and found["wrong"].accept_length.value < 1.3
    assert (found["wrong"].server.steps, found["wrong"].server.draft_tokens) == (1, 2)
    assert "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in logs["wrong"]
    assert found["wrong"].acceptance.proposed == found["wrong"].acceptance.rounds


def test_the_stream_brings_the_rounds_in_order(measured):
    m = measured[0]["right"]
    ordered = [a for a in m.answers if a.by_round]
    print(f"{len(ordered)} of {len(m.answers)} streams in order;", splits.first_round(m).statement)
    for a in ordered:
        assert sum(a.by_round) == a.completion_tokens - 1 and len(a.by_round) == a.acceptance.rounds and max(a.by_round) <= 4


def test_only_speculation_differs_between_the_paired_servers(measured):
    found = paired.server_differences(measured[0]["right"].server, measured[0]["without"].server)
    print("differs:", found.fields, "follows:", found.following, "compared:", found.compared)
    assert not found.confounded and found.compared > 400
    assert not paired.server_differences(measured[0]["right"].server, measured[0]["wrong"].server).confounded


def test_speed_is_paired_prompt_by_prompt(measured, asked):
    found = paired.speed(measured[0]["right"], measured[0]["without"])
    print("speed ratio", found)
    assert found.pairs == len(asked.prompts) and found.ratio.low < found.ratio.value < found.ratio.high
