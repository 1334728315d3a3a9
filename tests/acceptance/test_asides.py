"""Prompts under a grammar and free, and the same questions in longer prompts: whom a loss accuses, and when nobody."""

import asyncio
import json
from dataclasses import replace

import pytest

from eagle_forensics.acceptance.live import asides
from eagle_forensics.acceptance.live import study as live_study
from eagle_forensics.acceptance.live.asides import Asides
from eagle_forensics.acceptance.live.padding import padded
from eagle_forensics.acceptance.live.workload import STRUCTURED, Prompt, read_prompts, render
from eagle_forensics.case import Case
from eagle_forensics.finding import Status
from tests.acceptance.pretend import pretending
from tests.acceptance.test_splits import answer, measurement


def bound(**more):
    return measurement(lambda i: answer(i, **more))


def test_fewer_accepted_under_a_grammar_on_the_same_answers_is_the_engines():
    found = asides.structured(Asides(measurement(), bound(rounds=35)))
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "runtime.grammar", "data.domain") and found.observed < 0
    assert asides.structured(Asides(measurement(), bound())).status is Status.PASS
    assert asides.structured(Asides()) is None


def test_on_other_text_a_loss_under_a_grammar_is_a_suspicion_with_its_rival():
    found = asides.structured(Asides(measurement(), bound(rounds=35, output_ids=(9, 9, 9))))
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, "runtime.grammar") and "not rejected" in found.competitor.why_rejected and not found.required


def test_a_server_without_a_grammar_backend_is_said():
    found = asides.structured(Asides(measurement(), bound(error="answered 400: no grammar backend", kind="status")))
    assert found.status is Status.SKIPPED and "no grammar backend" in found.statement


def test_a_fall_on_the_same_questions_in_longer_prompts_is_a_suspicion():
    short, long = measurement(), bound(accepted=10)
    long = replace(long, workload=long.workload.of([replace(p, ids=(*p.ids, 5, 5)) for p in long.workload.prompts]))
    found = asides.lengths(Asides(lengths=(short, long)))
    assert (found.status, found.fault, found.competitor.fault) == (Status.INCONCLUSIVE, "drafter.rope", "data.domain") and "prompts of 4 against 2 tokens" in found.statement
    assert asides.lengths(Asides(lengths=(short, replace(long, answers=short.answers)))).status is Status.PASS
    assert asides.lengths(Asides(lengths=(short, bound(error="too long", kind="status")))).status is Status.SKIPPED
    assert asides.lengths(Asides(lengths=(short,))) is None


def test_padding_puts_other_text_between_the_shared_head_and_the_question():
    work = render([Prompt(f"p{i}", "own", ids=(1, 2, 10 + i, 20 + i, 9)) for i in range(4)], None)
    found = padded(work, 11, 3)
    assert [len(p.ids) for p in found.prompts] == [11] * 3 and [p.id for p in found.prompts] == ["p0", "p1", "p2"]
    assert found.prompts[0].ids == (1, 2, 11, 21, 12, 22, 13, 23, 10, 20, 9), "the shared head and end stand once, at their ends"
    assert padded(work, 5, 3).prompts[1].ids == work.prompts[1].ids and found.prompts_hash != padded(work, 12, 3).prompts_hash
    with pytest.raises(ValueError, match="0 of 4 prompts are that short, 3 are needed"):
        padded(work, 4, 3)
    with pytest.raises(ValueError, match="at least two"):
        asides.plan(work, None, structured=False, lengths=[5])


def test_the_built_in_structured_prompts_hold_a_schema_each():
    found = read_prompts(STRUCTURED)
    assert len(found) == 8 and all(set(json.loads(p.json_schema)["required"]) == set(json.loads(p.json_schema)["properties"]) for p in found)
    assert not any(p.free.constraint for p in found)


@pytest.mark.parametrize("row, constraint", [
    ({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}, {"json_schema": '{"type": "object"}'}),
    ({"prompt": "x", "response_format": {"type": "json_object"}}, {"json_schema": '{"type": "object"}'}), ({"prompt": "x", "structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"obj": {"text": "x", "sampling_params": {"json_schema": "{}"}}}, {"json_schema": "{}"}), ({"prompt": "x", "response_format": {"type": "text"}}, {})])
def test_a_replayed_constraint_is_kept(tmp_path, row, constraint):
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert read_prompts(tmp_path / "log.jsonl")[0].constraint == constraint


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_constraint_reaches_the_server_in_its_own_words(engine):
    from eagle_forensics.acceptance.clients.connect import connect
    from eagle_forensics.acceptance.clients.records import Sampling
    from eagle_forensics.evidence.transport import Transport

    async def ask(url, sampling):
        async with Transport(url) as transport:
            return await (await connect(transport)).answer("a", "x", (1, 2), sampling)

    with pretending(engine=engine, version="0.32.0" if engine == "vllm" else "0.5.23") as (url, p):
        assert asyncio.run(ask(url, Sampling(0.0, 8, json_schema='{"type": "object"}'))).ok and asyncio.run(ask(url, Sampling(0.0, 8, regex="a+"))).ok
        assert asyncio.run(ask(url, Sampling(0.0, 8))).ok
    said = [b.get("structured_outputs") if engine == "vllm" else {k: v for k, v in b["sampling_params"].items() if k in ("json_schema", "regex")} for b in p.bodies]
    schema, expression, nothing = said
    assert schema == ({"json": '{"type": "object"}'} if engine == "vllm" else {"json_schema": '{"type": "object"}'}) and expression == {"regex": "a+"} and not nothing


def test_the_study_asks_both_ways_and_at_every_length(tmp_path):
    rows = [{"id": f"p{i}", "input_ids": [1, 2, 10 + i], "json_schema": "{}"} for i in range(10)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pretending() as (url, p):
        case = Case.model_validate({"name": "x", "serving": {"url": url}})
        work = live_study.begin(case, tmp_path / "live", prompts=tmp_path / "prompts.jsonl", max_tokens=40, warm_up=0, half_width=0, structured=True, prompt_lengths=[8, 16], progress=None)
    assert [len(m.answers) for m in (work.aside.free, work.aside.constrained, *work.aside.lengths)] == [10, 10, 8, 8]
    constrained = ["json_schema" in b["sampling_params"] for b in p.bodies]
    assert constrained[:10] == [True] * 10 and constrained[10:20] == [False] * 10 and constrained[20:30] == [True] * 10
    assert [len(b["input_ids"]) for b in p.bodies[30:]] == [8] * 8 + [16] * 8
    assert {"acceptance.split-grammar", "acceptance.split-padded"} <= {f.id for f in live_study.told_apart(work)}
