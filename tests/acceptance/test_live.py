"""A measurement against the hostile server: interleaved, stopped early, and through every fault with what there is."""

import asyncio
import json
import re
import time
from dataclasses import replace

import pytest

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import simulation
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Sampling, Server
from eagle_forensics.acceptance.live import findings as live_findings
from eagle_forensics.acceptance.live import frames as live_frames
from eagle_forensics.acceptance.live import measure as live
from eagle_forensics.acceptance.live import paired
from eagle_forensics.acceptance.live import study as live_study
from eagle_forensics.acceptance.live.workload import Prompt, render
from eagle_forensics.case import Case
from eagle_forensics.evidence.answers import read_answers
from eagle_forensics.evidence.decode_log import Window
from eagle_forensics.evidence.transport import KEY_VARIABLE, Failure, Patience, Transport
from eagle_forensics.finding import Status
from tests.acceptance.pretend import pretending

FAST = Patience(connect_s=5, silence_s=10, total_s=20, busy_tries=2, busy_wait_s=0.01)
IMPATIENT = Patience(connect_s=5, silence_s=0.6, total_s=20, busy_tries=2, busy_wait_s=0.01)
PROMPTS = tuple(Prompt(f"p{i}", ("chat", "code")[i % 2], ids=(i, i * i % 31, 3)) for i in range(40))
ALL = live.Settings(Sampling(0.0, 50), half_width=None)


def measure(urls, settings=ALL, prompts=PROMPTS, patience=FAST, **more):
    async def run():
        clients = {}
        transports = [Transport(u, patience, connections=66, most=1 << 20) for u in urls.values()]
        try:
            for label, transport in zip(urls, transports, strict=True):
                clients[label] = await connect(transport)
            return await live.measure(clients, render(prompts, None), settings, **more)
        finally:
            for transport in transports:
                await transport.__aexit__()

    return asyncio.run(run())


def one(settings=ALL, prompts=PROMPTS, **what):
    with pretending(**what) as (url, p):
        return measure({"spec": url}, settings, prompts, IMPATIENT if what.get("fault") == "hang" else FAST)["spec"], p


def test_counts_over_all_answers_and_by_the_counter():
    m, p = one()
    rounds = sum(10 + sum(x.ids) % 7 + 15 for x in PROMPTS)
    assert m.complete and m.stopped == "all prompts" and len(m.good) == 40 and p.answers == 42 and p.flushed == 1
    assert m.acceptance.rounds == rounds == m.counted.rounds and m.acceptance.accepted == 40 * 25
    assert m.accept_length.value == pytest.approx(1 + 1000 / rounds) and m.accept_length.clusters == 40
    assert m.accept_length.low < m.accept_length.value < m.accept_length.high
    assert live_findings.measured(m).status is Status.PASS and live_findings.reconciled(m).status is Status.PASS and live_findings.sane(m).status is Status.PASS


def test_it_stops_once_the_interval_is_narrow():
    m, _ = one(live.Settings(Sampling(0.0, 50), half_width=0.2))
    assert m.stopped == "interval" and m.complete and len(m.answers) == 16
    assert (m.accept_length.high - m.accept_length.low) / 2 <= 0.2
    said = live_findings.measured(m)
    assert said.status is Status.PASS and "the interval was within +- 0.2" in said.statement


def test_concurrent_answers_keep_the_order_of_the_workload():
    m, _ = one(live.Settings(Sampling(0.0, 50), concurrency=8, half_width=None))
    assert [a.prompt for a in m.answers] == [p.id for p in PROMPTS] and m.counted.rounds == m.acceptance.rounds


def test_one_answer_of_a_domain_has_no_interval():
    frame = live_frames.domains_frame(one(prompts=PROMPTS[:3])[0]).set_index("domain")
    assert frame.loc["chat", "low"] < frame.loc["chat", "accept length"] and frame.loc["code", ["low", "high"]].isna().all()


def test_prompts_of_a_log_keep_their_own_length():
    m, _ = one(prompts=(Prompt("a", "x", ids=(1,), max_tokens=5), Prompt("b", "x", ids=(2,))))
    assert [a.completion_tokens for a in m.answers] == [5, 50]


def test_progress_has_an_end_in_sight():
    said = []
    with pretending() as (url, _):
        measure({"spec": url}, progress=said.append)
    assert said[:2] == ["spec: warm-up"] * 2 and said[2].startswith("8 of 40 prompts") and "s left; accept length 1." in said[2]


def test_two_servers_take_turns_on_the_same_prompts():
    kept = []
    with pretending() as (a, p), pretending(speculative=False) as (b, q):
        found = measure({"spec": a, "base": b}, keep=lambda label, answers: kept.extend((label, x.prompt) for x in answers))
    assert [x for x, _ in kept[:2]] in (["spec", "base"], ["base", "spec"]) and {x for _, x in kept[:2]} == {"p0"}
    firsts = [kept[i][0] for i in range(0, 80, 2)]
    assert 10 < firsts.count("spec") < 30 and p.answers == q.answers == 42
    assert found["base"].acceptance is None and live_findings.measured(found["base"]).status is Status.SKIPPED
    compared = paired.server_differences(found["spec"].server, found["base"].server)
    assert not compared.confounded and live_findings.comparable(found["spec"], found["base"]).status is Status.PASS
    assert paired.speed(found["spec"], found["base"]).pairs == 40


def test_a_second_difference_is_confounded():
    with pretending(arguments={"dtype": "bfloat16"}) as (a, _), pretending(speculative=False, arguments={"dtype": "float32"}) as (b, _):
        found = measure({"spec": a, "base": b}, prompts=PROMPTS[:2])
    said = live_findings.comparable(found["spec"], found["base"])
    assert said.status is Status.FAIL and said.fault == "measure.confounded" and said.observed == ["dtype"] and "bfloat16" in said.statement


def test_a_difference_within_a_group_of_arguments_is_named_by_itself():
    def server(**more):
        return Server("http://x", "vllm", "0.32.0", {"model_config": {"dtype": "torch.float32", "seed": 0, **more}, "instance_id": str(more), "lora_config": None}, True, 3, 1, 3, "i")

    found = paired.server_differences(server(), server(dtype="torch.bfloat16"))
    assert found.fields == (("model_config.dtype", "torch.float32", "torch.bfloat16"),) and found.compared == 3


def test_what_vllm_changes_with_speculation_is_named_and_not_counted_against_the_pair():
    def server(speculative, blocks, scheduled, metrics):
        said = {"cache_config": {"num_gpu_blocks": blocks, "kv_cache_memory_bytes": 1 << 30}, "scheduler_config": {"max_num_scheduled_tokens": scheduled},
                "observability_config": {"per_request_spec_decode_metrics": metrics}, "speculative_config": {"method": "eagle3"} if speculative else None}
        return Server("http://x", "vllm", "0.32.0", said, speculative, 3, 1, 3, "i")

    found = paired.server_differences(server(True, 176, 2048, "detailed"), server(False, 182, None, "none"))
    assert not found.confounded and [name for name, _, _ in found.following] == ["cache_config.num_gpu_blocks", "scheduler_config.max_num_scheduled_tokens"]


def test_what_sglang_changes_with_speculation_on_a_gpu_is_named_and_not_counted_against_the_pair():
    def server(speculative, graphs, memory, tokens):
        said = {"cuda_graph_config": {"decode": {"bs": graphs, "max_bs": graphs[-1]}, "prefill": {"bs": [4, 8]}}, "mem_fraction_static": memory, "max_total_num_tokens": tokens}
        return Server("http://x", "sglang", "0.5.23", said, speculative, 3, 1, 4, "i")

    found = paired.server_differences(server(True, [1, 2, 3, 48], 0.83, 401_000), server(False, [1, 2, 4, 160], 0.85, 452_000))
    assert not found.confounded and {name for name, _, _ in found.following} == {"cuda_graph_config.decode.bs", "cuda_graph_config.decode.max_bs", "mem_fraction_static", "max_total_num_tokens"}


def test_a_baseline_that_speculates_is_none():
    with pretending() as (a, _), pretending() as (b, _):
        found = measure({"spec": a, "base": b}, prompts=PROMPTS[:2])
    assert live_findings.comparable(found["spec"], found["base"]).fault == "measure.confounded"


def test_vllm_counts_are_read_around_single_answers():
    m, p = one(engine="vllm", version="0.32.0", prompts=PROMPTS[:12])
    assert len(m.parts) == 12 and m.acceptance.rounds == m.counted.rounds == p.drafts - 2 * 15 - sum(10 + sum(x.ids) % 7 for x in PROMPTS[:2])
    assert m.acceptance.accepted == 12 * 25 and m.acceptance.reached == (180, 84, 36)
    together, _ = one(live.Settings(Sampling(0.0, 50), concurrency=4, half_width=None), PROMPTS[:12], engine="vllm", version="0.32.0")
    assert together.parts == () and together.accept_length.value == pytest.approx(m.accept_length.value)
    assert together.accept_length.method == "standard error of the histogram" and live_findings.measured(together).status is Status.PASS
    assert "too narrow" in live_findings.measured(together).statement and "too narrow" not in live_findings.measured(m).statement


def test_a_server_that_is_not_up():
    with pretending() as (url, _):
        pass
    with pytest.raises(Failure, match="not up"):
        measure({"spec": url})


def test_a_simulation_is_refused():
    with pytest.raises(live.Refused, match=r"SGLANG_SIMULATE_ACC_LEN=3\.0"):
        one(env={"SGLANG_SIMULATE_ACC_LEN": "3.0"})


def test_one_failure_in_ten_is_counted_and_the_rest_is_measured():
    m, _ = one(fault="tenth")
    assert m.complete and len(m.good) == 36 and len(m.parts) == 36
    assert any("4 of 40 answers failed" in p and "answered 500" in p for p in m.problems)
    said = live_findings.measured(m)
    assert said.status is Status.PASS and any("4 of 40" in (e.note or "") for e in said.evidence)


@pytest.mark.parametrize("fault, text", [("die", "the server is gone"), ("hang", "the server is gone|stopped answering"), ("always busy", "answers failed, last: .*429"), ("garbage", "answers failed"),
    ("elsewhere", "answers failed, last: .*a redirect, which is not followed"), ("huge", "answers failed, last: .*more than 1048576 bytes")])
def test_a_server_that_goes_bad_leaves_what_it_gave(fault, text):
    m, _ = one(fault=fault, after=12)
    assert not m.complete and 8 <= len(m.good) <= 10 and m.acceptance.rounds > 0
    assert re.search(text, m.stopped)
    said = live_findings.measured(m)
    assert said.status is Status.INCONCLUSIVE and said.statement.startswith("Partial: spec: ") and said.observed is not None


def test_a_server_that_never_answers_gives_nothing():
    m, _ = one(fault="cut", prompts=PROMPTS[:6])
    said = live_findings.measured(m)
    assert m.acceptance is None and said.status is Status.INCONCLUSIVE and "0 of 3 answers came" in said.statement and said.observed is None
    assert live_findings.sane(m).status is Status.SKIPPED


def test_a_restart_with_other_arguments_ends_the_run_and_drops_what_is_doubtful():
    m, _ = one(fault="restart", after=20)
    assert not m.complete and "started again with other arguments (speculative_num_draft_tokens, speculative_num_steps)" in m.stopped
    assert len(m.answers) == 16 and any("8 answers after the last sight" in p for p in m.problems)


def test_counters_that_go_backwards_are_named_and_not_used():
    m, _ = one(fault="backwards", after=20)
    assert m.counted is None and any("counters went backwards (rounds" in p for p in m.problems) and m.acceptance.rounds > 0
    m, _ = one(fault="backwards", after=20, engine="vllm", version="0.32.0")
    assert any("counters went backwards" in p for p in m.problems)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_counters_that_are_no_numbers_leave_what_the_answers_say(engine):
    m, _ = one(fault="no number", after=20, engine=engine, version="0.32.0" if engine == "vllm" else "0.5.23", per_request=True)
    assert m.complete and m.counted is None and len(m.parts) == 40


def test_no_fields_of_speculation_is_no_measurement():
    m, _ = one(fault="no fields", prompts=PROMPTS[:8])
    said = live_findings.measured(m)
    assert m.complete and m.parts == () and said.status is Status.INCONCLUSIVE and "none of them carries counts" in said.statement


@pytest.mark.parametrize("windows, status, text", [
    ([(1.8, 0.27), (1.7, 0.23)], Status.PASS, "average 1.750"), ([(1.8, 0.45)], Status.INCONCLUSIVE, "do not follow the definition of sglang 0.5.23"),
    ([(2.5, 0.5)], Status.INCONCLUSIVE, "average 2.500"), ([], Status.SKIPPED, "No decode lines")])
def test_the_log_is_held_against_the_counts(windows, status, text):
    m, _ = one(prompts=PROMPTS[:4])
    low = replace(m, answers=tuple(replace(a, acceptance=Acceptance(r, x, 3 * r)) for a, r, x in zip(m.answers, (20, 20, 20, 20), (10, 14, 16, 20), strict=True)))
    said = live_findings.logged(low, [Window("sglang", al, rate) for al, rate in windows])
    assert said.status is status and text in said.statement


def test_loops_are_behind_the_gate():
    said = live_findings.sane(one(tokens=(1, 2, 3) * 20, prompts=PROMPTS[:8])[0])
    assert said.status is Status.FAIL and said.fault == "measure.degenerate-output" and said.competitor and said.interval
    few = live_findings.sane(one(tokens=(1, 2, 3) * 20, prompts=PROMPTS[:7])[0])
    assert few.status is Status.INCONCLUSIVE and few.fault is None and "7 of 7 answers are loops" in few.statement


@pytest.mark.parametrize("ratio, status, text", [((1.2, 1.1, 1.3), Status.PASS, None), ((1.0, 0.9, 1.1), Status.INCONCLUSIVE, "Ask more prompts"), ((0.7, 0.6, 0.8), Status.INCONCLUSIVE, "any drafter can win")])
def test_only_a_gain_is_a_pass(ratio, status, text):
    said = live_findings.faster(paired.Speed(stats.Estimate(*ratio, 12, 12, "t"), ratio[0], 6, 12))
    assert said.status is status and (text or "") in (said.next_step or "") and not said.required


def test_the_busy_time_counts_overlap_once():
    m, _ = one(prompts=PROMPTS[:1])
    a = m.answers[0]
    answers = tuple(replace(a, started_s=s, seconds=d, completion_tokens=10) for s, d in ((0.0, 2.0), (1.0, 2.0), (10.0, 1.0)))
    assert replace(m, answers=answers).busy_s == 4.0 and replace(m, answers=answers).tokens_per_second == 7.5


def case(url, base=None):
    return Case.model_validate({"name": "x", "serving": {"engine": "sglang", "url": url, "baseline_url": base}})


def own_prompts(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"id": p.id, "domain": p.domain, "input_ids": p.ids}) + "\n" for p in PROMPTS[:16]))
    return file


def test_study_of_two_urls_writes_answers_and_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-key-of-the-user")
    with pretending() as (a, _), pretending(speculative=False) as (b, _):
        work = live_study.begin(case(a.replace("//", "//me:hunter22@"), b), tmp_path / "live", prompts=own_prompts(tmp_path), half_width=0, max_tokens=50, patience=FAST)
    statuses = {f.id: f.status for f in (*live_study.measured(work), *live_study.reconciled(work))}
    assert statuses["acceptance.live"] is statuses["acceptance.lossless"] is statuses["acceptance.live-confounded"] is Status.PASS
    written = "".join(f.read_text() for f in (tmp_path / "live").iterdir()) + json.dumps(live_study.record(work)) + live_frames.servers_frame(work.all).to_json()
    assert written.count('"prompt": "p0"') == 2
    for secret in ("sk-key-of-the-user", "hunter22", "sk-very-secret"):
        assert secret not in written
    assert set(live_frames.domains_frame(work.speculation)["domain"]) == {"chat", "code"}
    assert "accept rate as sglang 0.5.23 prints it" in set(live_frames.definitions_frame(work.speculation)["figure"])
    run = live_frames.as_run(work.speculation)
    assert run.is_speculative and run.ceiling == 4 and run.tokens_per_second.low < run.tokens_per_second.value and live_frames.as_run(work.baseline).is_baseline


def test_study_asks_for_the_gap_where_answers_part(tmp_path):
    with pretending(tokens=tuple(range(50))) as (a, _), pretending(speculative=False, tokens=(*range(20), 12, *range(21, 50))) as (b, _):
        work = live_study.begin(case(a, b), tmp_path, prompts=own_prompts(tmp_path), half_width=0, max_tokens=50, limit=2, patience=FAST)
    assert work.pairs == 2 and [d.position for d in work.divergences] == [20, 20]
    said = live_study.measured(work)[-1]
    assert said.status is Status.INCONCLUSIVE and "2 of 2 greedy answers part" in said.statement


def test_a_log_that_cannot_be_read_takes_nothing_of_what_was_measured(tmp_path):
    with pretending() as (url, _):
        broken = Case.model_validate({"name": "x", "serving": {"url": url, "log": tmp_path / "no such log"}})
        work = live_study.begin(broken, tmp_path / "live", prompts=own_prompts(tmp_path), limit=2, patience=FAST)
    said = live_study.measured(work)[0]
    assert said.status is Status.PASS and any("no such log" in (e.note or "") for e in said.evidence) and work.opening == ()


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / "live").write_text("a file")
    with pretending() as (url, _):
        (said,) = live_study.measured(live_study.begin(case(url), tmp_path / "live", prompts=own_prompts(tmp_path), patience=FAST))
    assert said.status is Status.ERROR and "live" in said.statement


def test_study_opens_with_a_server_that_is_not_up(tmp_path):
    with pretending() as (url, _):
        pass
    work = live_study.begin(case(url), tmp_path, prompts=own_prompts(tmp_path), patience=FAST)
    (said,) = live_study.measured(work)
    assert said.status is Status.ERROR and "the server is not up" in said.statement and said.next_step and work.measurements == {}


@pytest.mark.parametrize("what, status, text", [({"env": {"SGLANG_SIMULATE_ACC_LEN": "2"}}, Status.ERROR, "simulates acceptance"), ({"fault": "redirect"}, Status.ERROR, "neither SGLang")])
def test_study_opens_with_why_it_cannot(tmp_path, what, status, text):
    with pretending(**what) as (url, _):
        work = live_study.begin(case(url), tmp_path, prompts=own_prompts(tmp_path), patience=FAST)
    (said,) = live_study.measured(work)
    assert said.status is status and text in said.statement and work.measurements == {}


def test_study_without_a_server_measures_and_says_nothing(tmp_path):
    work = live_study.begin(case(None), tmp_path / "live", launch_baseline="python -m server")
    assert work.measurements == {} and live_study.measured(work) == live_study.reconciled(work) == live_study.told_apart(work) == []
    assert not (tmp_path / "live").exists()


@pytest.mark.parametrize("command, why", [
    ("SGLANG_SIMULATE_ACC_LEN=3.0 python -m sglang.launch_server --model-path m", r"SGLANG_SIMULATE_ACC_LEN=3\.0"), ("env SIMULATE_ACC_LEN=2 python -m server", "SIMULATE_ACC_LEN=2"),
    ("bash -c 'SGLANG_SIMULATE_ACC_LEN=2 exec python -m server'", "SGLANG_SIMULATE_ACC_LEN=2"), ("SGLANG_SIMULATE_UNIFORM_EXPERTS=true python -m server", "UNIFORM_EXPERTS"),
    ("""vllm serve m --speculative-config '{"method": "eagle3", "rejection_sample_method": "synthetic"}'""", "synthetic")])
def test_a_launch_line_that_simulates_is_never_started(tmp_path, command, why):
    work = live_study.begin(case(None), tmp_path, launch=command, prompts=own_prompts(tmp_path))
    (said,) = live_study.measured(work)
    assert said.status is Status.ERROR and re.search(why, said.statement) and "the launch command of speculation" in said.statement
    assert not (tmp_path / "speculation.log").exists()


@pytest.mark.parametrize("serving", [{"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}}, {"launch": "SGLANG_SIMULATE_ACC_LEN=3 python -m sglang.launch_server --model-path m"}])
def test_papers_of_a_simulating_server_refuse_its_url(tmp_path, serving):
    with pretending() as (url, p):
        work = live_study.begin(Case.model_validate({"name": "x", "serving": {"url": url, **serving}}), tmp_path, prompts=own_prompts(tmp_path), patience=FAST)
    assert "simulates acceptance" in live_study.measured(work)[0].statement and p.asked == []


def test_a_variable_that_is_off_or_no_number_simulates_nothing(monkeypatch):
    assert simulation.by_environment({"SGLANG_SIMULATE_ACC_LEN": "-1", "SIMULATE_ACC_LEN": "x", "SGLANG_SIMULATE_ACC_METHOD": "match-expected", "SGLANG_SIMULATE_UNIFORM_EXPERTS": "false"}) is None


def test_study_measures_a_grid_and_a_repetition_on_the_same_prompts(tmp_path):
    with pretending() as (a, _), pretending(speculative=False) as (b, _):
        work = live_study.begin(case(a, b), tmp_path / "live", prompts=own_prompts(tmp_path), half_width=0, max_tokens=50, concurrency=[1, 4], temperature=[0.0, 0.7],
                                again=True, patience=FAST)
    assert [(m.settings.sampling.temperature, m.settings.concurrency) for m in work.all] == [(0.0, 1)] * 2 + [(0.0, 4)] * 2 + [(0.7, 1)] * 2
    assert {f.id: f.status for f in live_study.told_apart(work)} == {
        "acceptance.split-rounds": Status.SKIPPED, "acceptance.split-length": Status.SKIPPED, "acceptance.split-domains": Status.PASS, "acceptance.split-cache": Status.SKIPPED,
        "acceptance.split-load": Status.PASS, "acceptance.split-temperature": Status.PASS}
    assert sorted(f.name for f in (tmp_path / "live").glob("*.jsonl"))[0] == "answers_baseline.jsonl" and len(list((tmp_path / "live").glob("answers_*.jsonl"))) == 8
    left = read_answers(tmp_path / "live")
    assert (left.engine, left.steps, left.temperature, left.where) == ("sglang", 3, 0.0, tmp_path / "live")
    assert [(a.prompt, a.rounds, a.output_ids) for a in left.answers] == [(a.prompt, a.acceptance.rounds, a.output_ids) for a in work.speculation.good]


def test_a_grid_without_a_point_is_refused(tmp_path):
    with pretending() as (url, _):
        (said,) = live_study.measured(live_study.begin(case(url), tmp_path, prompts=own_prompts(tmp_path), concurrency=[0]))
    assert said.status is Status.ERROR and "concurrencies from 1 on" in said.statement


def test_study_runs_inside_a_running_loop(tmp_path):
    async def notebook(url):
        return live_study.begin(case(url), tmp_path, prompts=own_prompts(tmp_path), limit=2, patience=FAST)

    with pretending() as (url, _):
        assert asyncio.run(notebook(url)).speculation.complete


def test_sixty_four_streams_at_once():
    prompts = [Prompt(f"p{i}", "x", ids=(i, 1)) for i in range(128)]
    began = time.monotonic()
    m, _ = one(live.Settings(Sampling(0.0, 50), concurrency=64, warm_up=0, half_width=None), prompts)
    assert m.complete and len(m.good) == 128 and time.monotonic() - began < 30
