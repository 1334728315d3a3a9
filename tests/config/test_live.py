"""The server's own words against the launch line and the rules: both are quoted, the server is right about itself."""

import json

import pytest

from eagle_forensics.config.checks import argument_findings
from eagle_forensics.config.claims import claims
from eagle_forensics.config.frames import argument_frame, evidence_frame
from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.live import live_findings
from eagle_forensics.finding import Status
from tests.config.papers import DEEPSEEK_TARGET, GOOD_LAUNCH, papers
from tests.evidence.servers import serving
from tests.evidence.test_live import INFO

WARNING = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
LAUNCH = "--speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"


def server_args(steps=1, tokens=2) -> str:
    return (f"[2026-01-01 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=1, speculative_algorithm='EAGLE3', speculative_num_steps={steps}, "
            f"speculative_eagle_topk=1, speculative_num_draft_tokens={tokens}, max_running_requests=48, api_key='sk-1')\n")


def findings(folder, log: str, name="server.log", **papers_of):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(log)
    found = inspect(papers(folder, serving={"log": name}, **({"version": "0.5.8", "launch": LAUNCH} | papers_of)))
    return {f.id: f for f in live_findings(found)}, found


def test_the_log_agrees_with_the_rules_and_quotes_the_warning(tmp_path):
    """Known case A01, from the log's side."""
    items, _ = findings(tmp_path, f"WARNING {WARNING}\n" + server_args())
    item = items["config.live-arguments"]
    assert item.status is Status.PASS and item.observed["num_draft_tokens"] == "2" and "is adjusted to" in item.statement


def test_another_server_than_the_launch_line(tmp_path):
    items, _ = findings(tmp_path, server_args(steps=5, tokens=6))
    item = items["config.live-arguments"]
    assert item.status is Status.INCONCLUSIVE and item.required and item.fault is None
    assert "num_steps: the server says 5, the rules give 1" in item.statement and "num_draft_tokens: the server says 6, the rules give 2" in item.statement


def test_a_saved_reply_of_server_info_is_read_too(tmp_path):
    reply = json.dumps({"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4, "version": "0.5.8"})
    items, _ = findings(tmp_path, reply, name="server_info.json")
    assert "num_steps: the server says 3, the rules give 1" in items["config.live-arguments"].statement


def test_the_log_stands_in_for_a_missing_launch_line(tmp_path):
    _, found = findings(tmp_path, server_args(steps=3, tokens=4), launch=None)
    assert found.arguments.effective["num_steps"] == 3


@pytest.mark.parametrize(("layers", "status", "fault"), [("(2, 15, 27)", Status.PASS, None), ("(1, 14, 26)", Status.FAIL, "wiring.layer-offset")])
def test_vllm_says_what_it_captures(tmp_path, layers, status, fault):
    items, found = findings(tmp_path, f"INFO Using Eagle3 auxiliary layers from config: {layers}\n", engine="vllm", version="0.33.0", launch=None, ids=[2, 15, 27], place="top_level")
    item = items["config.live-layers"]
    assert (item.status, item.fault) == (status, fault)
    assert any(c.who.startswith("server log") for c in claims(found))


def test_a_rule_of_ours_that_the_log_contradicts_is_ours_to_doubt(tmp_path):
    items, _ = findings(tmp_path, "INFO Using auxiliary layers from speculative config: (3, 4, 5)\n", engine="vllm", version="0.33.0", launch=None, trainer=None, layer_ids=None,
                        ids=[2, 15, 27], place="top_level")
    item = items["config.live-layers"]
    assert item.status is Status.INCONCLUSIVE and item.required and "our rule" in item.statement


def test_a_log_without_a_start_is_not_a_verdict(tmp_path):
    items, _ = findings(tmp_path, "Decode batch. accept len: 1.80\n")
    assert [f.status for f in items.values()] == [Status.INCONCLUSIVE]


def test_no_log_no_finding(tmp_path):
    assert live_findings(inspect(papers(tmp_path))) == []


def live(folder, info=INFO, **papers_of):
    with serving({} if info is None else {"/server_info": info}) as (url, _):
        found = inspect(papers(folder, serving={"url": url}, **({"launch": LAUNCH} | papers_of)))
    return {f.id: f for f in [*live_findings(found), *argument_findings(found)]}, found


def test_a_live_server_that_is_the_one_of_the_case(tmp_path):
    items, found = live(tmp_path)
    item = items["config.live-server"]
    assert "tp_size" not in item.observed, "a launch line cut to its speculative part says nothing about the rest"
    assert item.status is Status.PASS and item.observed["num_draft_tokens"] == "2" and item.observed["version"] == "0.5.23"
    row = next(c for c in claims(found) if c.who == "live server, SGLang 0.5.23")
    assert row.boundaries == (2, 15, 27) and "num_draft_tokens 2" in row.says
    assert set(argument_frame(found)["live server"]) >= {"2", "EAGLE3", "48"}


def test_a_live_server_of_another_start(tmp_path):
    items, _ = live(tmp_path, launch=LAUNCH.replace("steps 1", "steps 3").replace("tokens 16", "tokens 4") + " --tp 8 --speculative-draft-model-path drafter")
    item = items["config.live-server"]
    assert item.status is Status.INCONCLUSIVE and item.required and item.fault == "args.draft-budget-overridden"
    assert "num_steps: the live server says 1, the launch line comes to 3" in item.statement
    assert "started with other arguments (--speculative-num-draft-tokens 16 instead of 4, --speculative-num-steps 1 instead of 3)" in item.statement


def test_a_live_server_that_does_not_speculate(tmp_path):
    info = {k: v for k, v in INFO.items() if not k.startswith("speculative_")} | {"launch_command": "--model-path target"}
    item = live(tmp_path, info)[0]["config.live-server"]
    assert item.fault == "args.algorithm-mismatch" and "algorithm: the live server says none, the launch line comes to EAGLE3" in item.statement


def test_another_release_than_the_case_says_captures_by_its_own_rule(tmp_path):
    items, found = live(tmp_path, version="0.5.9", target=DEEPSEEK_TARGET, ids=[2, 30, 58], layer_ids=[2, 30, 58, 60])
    assert "version: the live server says 0.5.23, the case says 0.5.9" in items["config.live-server"].statement
    said = {c.who: c.boundaries for c in claims(found) if c.about == "served"}
    assert said["SGLang 0.5.9, eager path"] == (3, 31, 59) and said["live server, SGLang 0.5.23"] == (2, 30, 58)


def test_a_live_server_stands_in_for_what_the_case_leaves_out(tmp_path):
    """Known case A01 from the server alone: 16 were typed, 2 took effect."""
    items, found = live(tmp_path, engine=None, version=None, launch=None)
    assert found.engine == "SGLang 0.5.23" and items["config.live-server"].status is Status.PASS
    assert items["config.draft-budget"].fault == "args.draft-budget-overridden" and items["config.draft-budget"].observed == 2


def test_a_server_that_is_not_there_is_missing_evidence_and_no_more(tmp_path):
    items, found = live(tmp_path, None, launch=GOOD_LAUNCH)
    item = items["config.live-server"]
    assert item.status is Status.INCONCLUSIVE and not item.required and "has neither /server_info" in item.statement and not found.problems
    assert items["config.draft-budget"].status is Status.PASS
    assert dict(zip(*(evidence_frame(found)[c] for c in ("evidence", "state")), strict=True))["live server"] == "no answer"


def test_no_url_nobody_is_asked(tmp_path):
    assert "config.live-server" not in {f.id for f in live_findings(inspect(papers(tmp_path)))}


def test_a_live_server_tells_the_version_that_the_case_leaves_out(tmp_path):
    _, found = live(tmp_path, version=None)
    assert found.case.serving.version == "0.5.23" and found.served.version == "0.5.23"


@pytest.mark.parametrize("engine", [None, "sglang"])
def test_a_version_that_is_no_release_stops_nothing(tmp_path, engine):
    items, found = live(tmp_path, info=INFO | {"version": "main-<b>x"}, engine=engine, version=None)
    assert found.case.serving.version is None and "no release number" in found.problems["serving.url"]
    assert found.loads is None and items
