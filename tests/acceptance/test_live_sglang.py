"""The real SGLang 0.5.23 on the CPU, float32, with the demo's target and drafter: its verify counts against the offline walk, to the integer.

Four servers: without speculation, the trained ids, the incident's wrong ids (embedding first), and the incident's 1 step of "16" draft
tokens. Needs `make sglang-env`; about 4 minutes on two cores.
"""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from eagle_forensics.acceptance import live, paired, sanity, serve
from eagle_forensics.acceptance.clients import Sampling, Transport, connect
from eagle_forensics.acceptance.workload import Prompt, read_prompts, render
from eagle_forensics.demo import servers
from eagle_forensics.demo.stage import DATA, sequences
from eagle_forensics.demo.target import DemoError, target_folder

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang-server")]
ROOT = Path(__file__).resolve().parents[2]
TOKENS = 40
BOUNDARIES = {"right": (2, 15, 27), "wrong": (0, 2, 15), "trap": (2, 15, 27)}
STEPS = {"right": 3, "wrong": 3, "trap": 1}


@pytest.fixture(scope="module")
def target():
    try:
        return target_folder()
    except DemoError as error:
        pytest.skip(f"the demo's target cannot be had: {error}")


@pytest.fixture(scope="module")
def workload(target):
    """One built-in prompt of each domain, and three of the drafter's own held-out ones."""
    own = [Prompt(f"held-out-{i}", row.family, ids=row.prompt_ids) for i, row in enumerate(sequences()[::30])]
    return render([*read_prompts()[:5], *own], target)


@pytest.fixture(scope="module")
def measured(target, workload, tmp_path_factory):
    python = servers.sglang_python(ROOT)
    if python is None:
        pytest.skip("no .venv-sglang here: `make sglang-env` makes it (2.6 GB, 2 minutes)")
    folder = tmp_path_factory.mktemp("served")
    drafters = {"right": DATA / "drafter", "trap": DATA / "drafter", "wrong": servers.with_ids(DATA / "drafter", [-1, 1, 14], folder / "wrong")}
    served = {"without": servers.sglang(python, target)}
    served |= {name: servers.sglang(python, target, drafters[name], steps=STEPS[name], draft_tokens=16 if name == "trap" else None) for name in STEPS}
    settings = live.Settings(Sampling(0.0, TOKENS), warm_up=1, half_width=None)
    found, logs = {}, {}
    for group in (("right", "without"), ("wrong", "trap")):
        with ExitStack() as stack:
            running = {name: serve.start(serve.launch(served[name].command, served[name].env), folder / f"{name}.log") for name in group}
            for server in running.values():
                stack.callback(server.stop)
            for server in running.values():
                serve.wait_ready(server, timeout_s=400)

            async def run(running=running):
                async with Transport(running[group[0]].url) as a, Transport(running[group[1]].url) as b:  # noqa: B023
                    clients = dict(zip(group, [await connect(a), await connect(b)], strict=True))  # noqa: B023
                    return await live.measure(clients, workload, settings)

            found |= asyncio.run(run())
            logs |= {name: server.log.read_text(errors="replace") for name, server in running.items()}
    return found, logs


@pytest.fixture(scope="module")
def offline(measured, workload, target, tmp_path_factory):
    """Correctness of the drafter on each served text under the boundaries that the server reads."""
    import torch
    from safetensors.torch import load_file, save_file

    from eagle_forensics.drafter.model import load_drafter
    from eagle_forensics.drafter.recorded import Recorded
    from eagle_forensics.drafter.wiring import Wiring, evaluate
    from eagle_forensics.evidence.drafts import read_draft
    from eagle_forensics.evidence.states import target_states
    from eagle_forensics.evidence.targets import read_target

    exact = tmp_path_factory.mktemp("float32")
    save_file({n: t.float() for n, t in load_file(target / "model.safetensors").items()}, exact / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (exact / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32", "dtype": "float32"}))
    model, prompts = read_target(exact), {p.id: p.ids for p in workload.prompts}
    drafter = load_drafter(read_draft(DATA / "drafter"), model, embedding_from="target")
    found = {}
    for name, boundaries in BOUNDARIES.items():
        answers = measured[0][name].answers
        texts = [(*prompts[a.prompt], *a.output_ids) for a in answers]
        states = target_states(model, texts, boundaries, cache=False)
        rows = [Recorded({f"b={b}": states.plane(i, b) for b in boundaries}, torch.tensor(text), torch.arange(len(text)) >= len(prompts[a.prompt]), a.prompt)
                for i, (a, text) in enumerate(zip(answers, texts, strict=True))]
        found[name] = evaluate(drafter, rows, Wiring(tuple(f"b={b}" for b in boundaries)), 3)
    return found


@pytest.mark.parametrize("name", list(STEPS))
def test_verify_counts_equal_the_offline_walk_to_the_integer(measured, offline, name):
    served = [a.acceptance.rounds for a in measured[0][name].answers]
    walked = [s.rounds(STEPS[name]).rounds for s in offline[name].sequences]
    print(f"{name}: verify calls {sum(served)} served, {sum(walked)} walked; accept length {measured[0][name].accept_length.text()}")
    assert walked == served


@pytest.mark.parametrize("name", list(STEPS))
def test_every_answer_came_and_the_counts_agree_with_the_running_counter(measured, workload, name):
    m = measured[0][name]
    assert m.complete and len(m.good) == len(workload.prompts) and all(a.completion_tokens == len(a.output_ids) for a in m.good)
    assert m.counted.rounds == m.acceptance.rounds and not m.acceptance.estimated
    assert len(m.acceptance.reached) <= STEPS[name]


@pytest.mark.parametrize("name", list(STEPS))
def test_speculation_is_lossless_token_for_token(measured, workload, name):
    pairs, different = sanity.divergences(measured[0][name].answers, measured[0]["without"].answers)
    assert pairs == len(workload.prompts) and different == ()


def test_wrong_ids_cost_what_they_cost(measured):
    right, wrong = (measured[0][n].accept_length for n in ("right", "wrong"))
    assert right.value > 1.5 and wrong.value < 1.3 and wrong.value < right.value


def test_sixteen_draft_tokens_of_one_step_are_two(measured):
    found, logs = measured
    assert (found["trap"].server.steps, found["trap"].server.draft_tokens) == (1, 2)
    assert "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in logs["trap"]
    assert found["trap"].acceptance.proposed == found["trap"].acceptance.rounds and found["trap"].acceptance.accept_length <= 2


def test_only_speculation_differs_between_the_paired_servers(measured):
    found = paired.server_differences(measured[0]["right"].server, measured[0]["without"].server)
    print("differs:", found.fields, "follows:", found.following, "compared:", found.compared)
    assert not found.confounded and found.compared > 400
    other = paired.server_differences(measured[0]["right"].server, measured[0]["trap"].server)
    assert not other.confounded


def test_speed_is_paired_prompt_by_prompt(measured, workload):
    found = paired.speed(measured[0]["right"], measured[0]["without"])
    print("speed ratio", found)
    assert found.pairs == len(workload.prompts) and found.ratio.low < found.ratio.value < found.ratio.high
