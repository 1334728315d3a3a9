"""The capture command and notebook 03's capture against servers that imitate SGLang and vLLM; the file for serving hosts in plain torch."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from eagle_forensics.case import Case, Dump, Serving, Training
from eagle_forensics.engines.returning import ONHOST, how_to_return
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.live import LiveServer
from eagle_forensics.evidence.records import EvidenceError, LaunchLine
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import capturing, study
from tests.evidence.servers import serving
from tests.fingerprint.tiny import HIDDEN, TinyTarget, sequences

TARGET, TEXTS = TinyTarget(), sequences(3, 40)
TRAINED = (1, 3, 5)


def pretend(boundaries=TRAINED, version="0.5.23", drafter="models/draft", hand_out=True):
    """SGLang that serves the tiny target's states at these boundaries."""
    arguments = {"model_path": "models/t", "dtype": "bfloat16", "tp_size": 1, "speculative_draft_model_path": drafter}

    def answer(path, body):
        if path.startswith("/server_info"):
            return 200, {**arguments, "version": version, "launch_command": "--model-path models/t --port 30000", "internal_states": [{}]}
        if path == "/flush_cache":
            return 200, "ok"
        if path == "/tokenize":
            return 200, {"tokens": [ord(c) % 40 for c in body["prompt"]]}
        if path != "/generate":
            return 404, {}
        states = TARGET.run(torch.tensor(body["input_ids"]))[0]
        rows = torch.cat([states[b] for b in boundaries], -1).tolist()
        return 200, {"output_ids": [1], "meta_info": {"hidden_states": [rows]} if hand_out else {}}
    return answer


def dump(folder):
    folder.mkdir()
    for number, ids in enumerate(TEXTS):
        states = TARGET.run(ids)[0]
        torch.save({"input_ids": ids, "loss_mask": torch.ones(len(ids)), "hidden_states": [states[b].clone() for b in (*TRAINED, 6)]}, folder / f"data_{number}.pt")
    return folder


def noted(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_a_capture_says_where_it_comes_from_and_what_it_proves(tmp_path):
    with serving(pretend()) as (url, asked):
        done = capturing.capture(url.replace("://", "://me:secret@"), tmp_path / "out", hidden=HIDDEN)
    told = noted(tmp_path / "out")
    assert (told["engine"], told["engine_version"], told["url"], told["served_dtype"], told["path_kind"], told["drafter"]) == ("sglang", "0.5.23", url, "bfloat16", "eager", "models/draft")
    assert "secret" not in done.text() + (tmp_path / "out" / "manifest.json").read_text()
    assert "one path alone" in done.text() and "--disable-cuda-graph" in done.text() and "4 prompts, 128 tokens of 3 x 64" in done.text()
    assert len(read_capture(tmp_path / "out")) == len(capturing.TEXTS) and sum(path == "/flush_cache" for path, _ in asked) == len(capturing.TEXTS)


def test_without_a_drafter_the_capture_does_not_speak_for_one(tmp_path):
    with serving(pretend(drafter=None)) as (url, _):
        done = capturing.capture(url, tmp_path / "out", hidden=HIDDEN)
    assert capturing.NO_DRAFTER in done.text() and capturing.NO_DRAFTER in noted(tmp_path / "out")["notes"]


def test_what_is_missing_comes_with_the_line_that_gives_it(tmp_path):
    with serving(pretend(hand_out=False)) as (url, _), pytest.raises(EvidenceError) as caught:
        capturing.capture(url, tmp_path / "out", hidden=HIDDEN)
    assert "--model-path models/t --port 30000 --enable-return-hidden-states --disable-radix-cache" in str(caught.value)
    with serving(pretend(boundaries=(6,), drafter=None)) as (url, _), pytest.raises(EvidenceError, match="last state") as caught:
        capturing.capture(url, tmp_path / "out", hidden=HIDDEN, ids=[1, 14, 26])
    assert "--enable-return-aux-hidden-states --return-aux-hidden-state-layer-ids 1 14 26 --disable-radix-cache" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("engine", "version", "drafter", "says", "says_not"), [
    ("sglang", "0.5.23", "d", "Restart it with: its own arguments", "aux"), ("sglang", "0.5.23", None, "or, without a drafter: python -m sglang", "ID, ID"),
    ("sglang", "0.5.9", None, "this release returns the last state only", "or, without"), ("sglang", None, None, "this release returns the last state only", "or, without"),
    ("vllm", "0.32.0", None, '"extract_hidden_states"', "sglang")])
def test_the_launch_line_by_engine_and_release(engine, version, drafter, says, says_not):
    arguments = LaunchLine((), {"model_path": "m", **({"speculative_draft_model_path": drafter} if drafter else {})}, "x")
    text = how_to_return(LiveServer("http://x", engine, version, arguments, None, "/server_info"))
    assert says in text and says_not not in text


def test_prompts_of_a_file_and_of_a_dump(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"input_ids": [1, 2]}\n\n{"text": "words"}\n{"prompt": "other words"}\n')
    assert capturing.prompts_of_file(tmp_path / "p.jsonl") == [[1, 2], "words", "other words"]
    assert sorted(map(len, capturing.prompts_of_dump(dump(tmp_path / "dump")))) == sorted(map(len, TEXTS))
    for text in ("", "{}", "no json", '{"input_ids": ["1"]}', '{"input_ids": [-1]}'):
        (tmp_path / "p.jsonl").write_text(text)
        with pytest.raises(EvidenceError, match="JSON object a line"):
            capturing.prompts_of_file(tmp_path / "p.jsonl")


def worked(tmp_path, url):
    case = Case(name="a", training=Training(dump=Dump(path=dump(tmp_path / "dump"))), serving=Serving(engine="sglang", url=url))
    return study.begin(case, layers=None, max_samples=8, seed=0)


def by_id(findings):
    return {f.id: f for f in findings}


def test_the_notebook_asks_only_when_it_is_told_to(tmp_path):
    with serving(pretend()) as (url, asked):
        work = worked(tmp_path, url)
        assert study.captured(work, tmp_path, wanted=False) == (work, []) and not asked
    (skipped,) = study.captured(worked(tmp_path / "b", None) if (tmp_path / "b").mkdir() is None else work, tmp_path, wanted=True)[1]
    assert skipped.status is Status.SKIPPED and "serving.url" in skipped.statement


@pytest.mark.parametrize(("boundaries", "status", "said"), [((1, 3, 5), Status.PASS, "hold the same 3 states"), ((0, 2, 4), Status.INCONCLUSIVE, "slot 0 is none of them"),
                                                            ((3, 5, 6), Status.INCONCLUSIVE, "slot 0 is slot 1, slot 1 is slot 2")])
def test_without_a_bank_the_capture_is_held_against_the_dump(tmp_path, boundaries, status, said):
    with serving(pretend(boundaries)) as (url, _):
        work, found = study.captured(worked(tmp_path, url), tmp_path / "run", wanted=True)
    assert found[0].status is Status.PASS and (tmp_path / "run" / "evidence" / "03_capture" / "manifest.json").is_file()
    held = by_id(study.served(work))
    assert held["layers.capture-0"].status is Status.INCONCLUSIVE, "nothing here names a boundary"
    assert held["layers.capture-0-dump"].status is status and said in held["layers.capture-0-dump"].statement


def test_a_server_that_gives_nothing_is_a_finding_with_the_line(tmp_path):
    with serving(pretend(hand_out=False)) as (url, _):
        work, (finding,) = study.captured(worked(tmp_path, url), tmp_path / "run", wanted=True)
    assert finding.status is Status.INCONCLUSIVE and not finding.required and "--enable-return-hidden-states" in finding.statement and not work.case.captures


def hook_module():
    spec = importlib.util.spec_from_file_location("fed_hook", ONHOST / "fed_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hook_writes_what_reaches_fc_a_bounded_number_of_times(tmp_path):
    module = hook_module()
    target, draft, fc = torch.nn.Embedding(40, 4), torch.nn.Embedding(40, 4), torch.nn.Linear(12, 4)
    target.register_forward_hook(module.factory({"folder": str(tmp_path)}))
    own = module.factory({"folder": str(tmp_path / "fed"), "calls": 2, "min_rows": 3})
    draft.register_forward_hook(own)
    fc.register_forward_hook(own)
    ids = torch.arange(5)
    for step in range(4):
        target(tokens := ids.clone())
        draft(tokens.add_(1))  # SGLang shifts the ids in place
        fc(torch.full((5, 12), float(step)))
        fc(torch.zeros(1, 12))
    assert sorted(p.name for p in (tmp_path / "fed").iterdir()) == ["call0000.rank0of1.safetensors", "call0001.rank0of1.safetensors"]
    first, second = read_capture(tmp_path / "fed", 4)
    assert [p.data.shape for p in first.planes] == [(5, 4)] * 3 and torch.equal(second.planes[2].data, torch.ones(5, 4))
    assert torch.equal(first.input_ids, ids), "the target's tokens, not the drafter's, which are shifted by one"
    assert (first.rank, first.ranks, first.provenance.path_kind) == (0, 1, "eager")


def test_files_for_serving_hosts_need_nothing_of_this_suite():
    for file in ONHOST.glob("*.py"):
        assert "eagle_forensics" not in file.read_text(encoding="utf-8"), file.name


def test_the_command_line(tmp_path):
    with serving(pretend()) as (url, _):
        done = subprocess.run([sys.executable, "-m", "eagle_forensics", "capture", url, "--out", str(tmp_path / "out"), "--dump", str(dump(tmp_path / "dump")), "--tokens", "8"],
                              capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "3 prompts, 24 tokens of 192 numbers" in done.stdout and "Give --target" in done.stdout, done.stderr
    refused = subprocess.run([sys.executable, "-m", "eagle_forensics", "capture", "http://127.0.0.1:9", "--out", str(tmp_path / "no")], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "no answer" in refused.stderr and "Traceback" not in refused.stderr
