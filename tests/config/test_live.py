"""The server's own words against the launch line and the rules: both are quoted, the server is right about itself."""

import json

import pytest

from eagle_forensics.config.claims import claims
from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.live import live_findings
from eagle_forensics.finding import Status
from tests.config.papers import papers

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
