"""A sweep over servers that are started one after another: its order, its mishaps, what it keeps, what it says."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.acceptance import study
from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Answer, Sampling, Server
from eagle_forensics.acceptance.live.measure import Measurement, Settings
from eagle_forensics.acceptance.live.workload import Prompt, render
from eagle_forensics.acceptance.sweep import findings as findings_sweep
from eagle_forensics.acceptance.sweep import run as live_sweep
from eagle_forensics.acceptance.sweep.run import SweepWork
from eagle_forensics.acceptance.sweep.visits import Role, Visit
from eagle_forensics.case import Case
from eagle_forensics.evidence.transport import Patience
from eagle_forensics.finding import Status

ROOT = Path(__file__).resolve().parents[2]
FAST = Patience(connect_s=5, silence_s=10, total_s=20, busy_tries=2, busy_wait_s=0.01)
LINE = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.acceptance.pretend_steps --speculative-algorithm EAGLE3 --speculative-num-steps 3"
CASE = Case(name="x")


def sweep(folder, *extra, steps=(0, 1, 2, 3), **more):
    own = folder / "own.jsonl"
    own.write_text("".join(json.dumps({"id": f"p{i}", "domain": ("chat", "code")[i % 2], "input_ids": [i, i * i % 31, 3]}) + "\n" for i in range(12)))
    return live_sweep.begin(CASE, folder / "sweep", launch=" ".join([LINE, *extra]), steps=steps, prompts=own, max_tokens=50, warm_up=1, patience=FAST, start_s=30, **more)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return sweep(folder), folder


def test_every_count_on_the_same_prompts_and_the_recommended_one_on_others(swept):
    work, _ = swept
    assert [(v.steps, v.role) for v in work.visits[:1]] == [(0, Role.SWEEP)] and {v.steps for v in work.visits if v.role is Role.SWEEP} == {0, 1, 2, 3}
    assert [v.role for v in work.visits[-3:]] == [Role.AGAIN, Role.FRESH_BASE, Role.FRESH] and work.configured == 3
    asked = {v.name: [a.prompt for a in v.first.answers] for v in work.visits}
    first, other = asked["steps-0_sweep"], asked["steps-0_fresh-baseline"]
    assert len(first) == len(other) == 6 and not set(first) & set(other) and all(a in (first, other) for a in asked.values())
    assert {a.domain for a in work.visits[0].first.answers} == {"chat", "code"}
    assert next(r.label for r in work.runs) == "no speculation" and {r.steps for r in work.runs} == {0, 1, 2, 3} and len(work.runs) == 5
    assert work.visits[-1].steps == (work.recommended or work.sweep.best.steps)
    said = findings_sweep.measured(work)
    assert said.observed == 4 and any("18 of 18 greedy answers are the same" in e.note for e in said.evidence)


def test_a_second_call_goes_on_from_the_files(swept):
    work, folder = swept
    (folder / "sweep" / "steps-2_sweep.json").write_text("{}")
    again = sweep(folder)
    assert [v.name for v in again.visits if v.role is Role.SWEEP and not v.reused] == ["steps-2_sweep"]
    assert not again.at(Role.AGAIN).reused and not again.at(Role.FRESH).reused, "the end belongs to the servers measured now"
    assert again.at(Role.SWEEP, 3).first.answers == work.at(Role.SWEEP, 3).first.answers
    assert not any(v.reused for v in sweep(folder, "--other", steps=(3,)).visits), "another command, another measurement"


def test_one_count_that_fails_is_labelled_and_the_others_are_measured(tmp_path):
    work = sweep(tmp_path, "--broken", "2", "--dies", "1")
    (dead,), partial = [v for v in work.visits if v.steps == 2], work.at(Role.SWEEP, 1)
    assert "ended with status 3" in dead.problem and dead.runs == () and dead.first is None
    assert "the server is gone" in partial.problem and 0 < len(partial.measurements[0].good) < 6 and partial.runs == ()
    assert [r.steps for r in work.runs] == [0, 3, 0] and work.sweep is None and work.recommended is None
    lines = (tmp_path / "sweep" / "answers_steps-1_sweep.jsonl").read_text().splitlines()
    assert len(lines) == len(partial.measurements[0].answers), "answers are kept as they come"
    said = findings_sweep.measured(work)
    assert said.status is Status.INCONCLUSIVE and said.observed == 2 and "answers came before" in " ".join(e.note for e in said.evidence)
    assert findings_sweep.confirmed(work).status is Status.SKIPPED


def test_a_server_that_serves_other_steps_than_it_was_asked_for_does_not_count(tmp_path):
    work = sweep(tmp_path, "--stuck-at", "3", steps=(1, 3))
    assert "says that it serves 3 steps" in work.at(Role.SWEEP, 1).problem and work.at(Role.SWEEP, 3).problem is None
    assert work.at(Role.AGAIN) is None and "baseline" not in str(work.visits)


@pytest.mark.parametrize(("more", "text"), [
    ({"launch": ""}, "`launch` is empty"), ({"launch": "vllm serve t"}, "does not speculate"), ({"launch": f"SGLANG_SIMULATE_ACC_LEN=3 {LINE}"}, "simulates acceptance"),
    ({"launch": LINE, "concurrency": (0,)}, "from 1 on"), ({"launch": LINE, "temperature": ()}, "at least one of each"), ({"launch": LINE, "limit": 1}, "two or more")])
def test_what_cannot_be_swept_is_said_before_anything_is_started(tmp_path, more, text):
    (tmp_path / "own.jsonl").write_text('{"input_ids": [1]}\n{"input_ids": [2]}\n')
    work = live_sweep.begin(CASE, tmp_path / "sweep", steps=(0, 1), prompts=tmp_path / "own.jsonl", **more)
    assert [f.status for f in work.opening] == [Status.ERROR] and text in work.opening[0].statement and not (tmp_path / "sweep").exists()
    assert live_sweep.begin(CASE, tmp_path, launch="nonsense").opening == ()


def test_the_step_counts_are_shuffled_and_the_baseline_comes_first():
    orders = {live_sweep.order((1, 2, 3, 5, 0), seed) for seed in range(20)}
    assert all(o[0] == 0 and sorted(o) == [0, 1, 2, 3, 5] for o in orders) and len(orders) > 10


LENGTHS = {1: 1.5, 2: 1.8, 3: 1.9, 5: 1.95}
WORK = render(tuple(Prompt(f"p{i}", "chat", ids=(i,)) for i in range(12)), None)


def visit(steps, role=Role.SWEEP, *, ms=None, al=None, offset=0, base_ms=20.0):
    """A measured visit: a round of 20 + 3 x steps ms, accept lengths that differ a little from prompt to prompt."""
    ms = ms or (20 + 3 * steps if steps else base_ms)
    answers = []
    for i in range(12):
        rounds = 40 + (i + offset) % 3
        tokens = round(rounds * ((al or LENGTHS[steps]) + 0.02 * ((i % 5) - 2))) if steps else 60
        seconds = (rounds if steps else tokens) * (ms + 0.2 * ((i * 7 + offset) % 5 - 2)) / 1e3
        found = Acceptance(rounds, tokens - rounds, rounds * steps, None, "made up") if steps else None
        answers.append(Answer(f"p{i}", "chat", 5, (i,) * 5, "", tokens + 1, 0, "length", found, None, 0.0, 0.1, seconds + 0.1))
    server = Server("http://x", "sglang", "0.5.23", {}, bool(steps), steps or None, 1, steps + 1, "one")
    return Visit(steps, role, (Measurement(str(role), server, Settings(Sampling(), half_width=None), WORK, tuple(answers), "all prompts", True),))


def made(fresh=None, fresh_base=None, again=None, **more):
    noise = {1: 0.15, 2: -0.2, 3: 0.1, 5: -0.05}
    visits = [visit(0), *(visit(k, ms=20 + 3 * k + e) for k, e in noise.items()), again or visit(0, Role.AGAIN, offset=1),
              fresh_base or visit(0, Role.FRESH_BASE, offset=2), fresh or visit(2, Role.FRESH, offset=2)]
    return SweepWork((0, 1, 2, 3, 5), 3, tuple(visits), 2, **more)


def test_the_cost_comes_back_and_two_steps_serve_best():
    work = made()
    fit = work.sweep.fit
    assert fit.fixed_ms.value == pytest.approx(20, abs=0.4) and fit.step_ms.value == pytest.approx(3, abs=0.1) and work.sweep.best.steps == 2
    assert work.sweep.best.probability_wins == 1 and work.sweep.best.probability_best > 0.9
    assert live_sweep.advise(work.runs, "sglang", None).steps == 2 and findings_sweep.measured(work).status is Status.PASS


@pytest.mark.parametrize(("more", "status", "text"), [
    ({}, Status.PASS, "as promised, and it beats plain decoding"),
    ({"fresh": visit(2, Role.FRESH, al=1.3)}, Status.INCONCLUSIVE, "the promise is not met. Accept length 1.29"),
    ({"fresh": visit(2, Role.FRESH, al=2.2)}, Status.PASS, "more than promised, and it beats plain decoding"),
    ({"fresh": visit(2, Role.FRESH, ms=40)}, Status.INCONCLUSIVE, "a round 39.9"),
    ({"fresh_base": visit(0, Role.FRESH_BASE, base_ms=14.2, offset=2)}, Status.INCONCLUSIVE, "cannot be told"),
    ({"fresh_base": visit(0, Role.FRESH_BASE, base_ms=10)}, Status.INCONCLUSIVE, "it loses all the same"),
    ({"fresh": Visit(2, Role.FRESH, problem="port taken")}, Status.INCONCLUSIVE, "was not measured: port taken")])
def test_the_fresh_server_is_held_against_the_promise_and_the_baseline(more, status, text):
    said = findings_sweep.confirmed(made(**more))
    assert said.status is status and text in said.statement, said.statement


def test_where_every_count_loses_the_best_of_them_confirms_it():
    slow = made(fresh_base=visit(0, Role.FRESH_BASE, base_ms=8))
    slow = replace(slow, recommended=0, visits=tuple(v if v.steps or v.role is Role.FRESH_BASE else visit(0, v.role, base_ms=8) for v in slow.visits))
    assert slow.fresh_steps == 2
    said = findings_sweep.confirmed(slow)
    assert said.status is Status.PASS and "loses to plain decoding, as the sweep said" in said.statement


def test_a_drifting_machine_is_shown_and_abstains_where_it_decides():
    assert "no drift to be seen" in findings_sweep.measured(made()).statement
    slower = made(again=visit(0, Role.AGAIN, base_ms=22))
    said = findings_sweep.measured(slower)
    assert said.status is Status.PASS and "0.91" in said.statement and "both are in the baseline's interval" in said.statement
    assert slower.sweep.baseline.low < 1e3 / 22 < 1e3 / 20 < slower.sweep.baseline.high
    deciding = findings_sweep.measured(made(again=visit(0, Role.AGAIN, base_ms=13)))
    assert deciding.status is Status.INCONCLUSIVE and "drift decides" in deciding.statement


def test_a_count_between_those_that_were_swept_can_serve_best():
    """The longest run's survival gives the accept length at four steps too: as on a real vLLM, nothing was measured at the recommended count."""
    survival = (0.8, 0.65, 0.55, 0.5, 0.02)
    longest = visit(5, al=1 + sum(survival), ms=37.5)
    m = longest.measurements[0]
    answers = tuple(replace(a, acceptance=replace(a.acceptance, reached=tuple(round(s * a.acceptance.rounds) for s in survival))) for a in m.answers)
    short = [visit(k, al=1 + sum(survival[:k]), ms=20 + 3.5 * k) for k in (1, 2, 3)]
    work = SweepWork((0, 1, 2, 3, 5), 3, (visit(0), *short, replace(longest, measurements=(replace(m, answers=answers),)), visit(0, Role.AGAIN, offset=1),
                                          visit(0, Role.FRESH_BASE, offset=2), visit(4, Role.FRESH, al=3.5, ms=34, offset=2)), 4)
    assert work.sweep.best.steps == 4 and work.at(Role.SWEEP, 4) is None
    assert findings_sweep.measured(work).status is Status.PASS
    said = findings_sweep.confirmed(work)
    assert "A fresh server at 4 steps" in said.statement and any("not known" in e.note for e in said.evidence), said.statement


def prediction(factor):
    return {"steps": {str(k): {"value": v * factor, "low": v * factor - 0.03, "high": v * factor + 0.03} for k, v in LENGTHS.items()}}


@pytest.mark.parametrize(("factor", "status", "text"), [(1.0, Status.PASS, "wiring is not the lever"), (1.4, Status.INCONCLUSIVE, "1.40 times as much"), (0.7, Status.INCONCLUSIVE, "more than predicted")])
def test_what_right_wiring_would_bring_on_this_cost(factor, status, text):
    said = findings_sweep.right_wiring(made(), prediction(factor))
    assert said.status is status and text in said.statement
    assert findings_sweep.right_wiring(made(), None) is None


def test_the_notebook_walks_a_sweep():
    work = study.begin(CASE, predicted=prediction(1.0), layers=None, arguments=None, sweep=made())
    ids = [f.id for step in (study.swept_live, study.predicted_against_measured, study.ceiling, study.steps, study.confirmed) for f in step(work)]
    assert ids == ["acceptance.sweep", "acceptance.live-sanity", "acceptance.live-prediction", "acceptance.ceiling", "acceptance.steps", "acceptance.sweep-prediction", "acceptance.sweep-confirmed"]
    (steps,) = [f for f in study.steps(work) if f.id == "acceptance.steps"]
    assert steps.status is Status.FAIL and steps.fault == "cost.wrong-step-count" and (steps.observed, steps.expected) == (3, 2), "the launch line says 3"
    table = study.choices_table(work)
    assert list(table.steps) == [1, 2, 3, 5] and table.loc[table.steps == 2, "beats none in"].item() == "100%"
    assert "--speculative-num-steps 2" in study.recommendation(work).write[0] and study.speed_picture(work) is not None and len(study.sweep_table(work)) == 8
    assert study.record(work)["sweep"]["fresh"]["steps"] == 2 and study.record(work)["recommended"]["steps"] == 2
