"""Atomic writes, plain JSON, redaction, terminal text, input digests."""

import errno
import os
from pathlib import Path

import pytest

from eagle_forensics.case import load_case
from eagle_forensics.suite import files, provenance
from eagle_forensics.suite.redact import is_secret, redact, redact_argv, redact_tree
from eagle_forensics.suite.terminal import visible
from tests.suite import tiny


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    files.write_json(target, {"a": 1})

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_json(target, {"a": 2})
    assert files.read_json(target) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*a\.json"):
        files.write_text(tmp_path / "a.json", "x")
    assert not list(tmp_path.iterdir())


def test_half_a_file_is_no_file(tmp_path):
    (tmp_path / "x.json").write_text('{"a": ')
    assert files.read_json(tmp_path / "x.json") is None and files.read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize("text", [
    "http://me:S3CRET@host/x", "Authorization: Bearer S3CRET.abc", "--api-key S3CRET", "--api-key=S3CRET", "HF_TOKEN=S3CRET x",
    "curl -H 'Authorization: S3CRET'", "hf_S3CRETS3CRETS3CRETS3CRET", "https://h/p?a=1&token=S3CRET", "http://h/?X-Amz-Signature=S3CRET#x", '{"api_key": "S3CRET"}',
])
def test_secrets_are_blanked(text):
    assert "S3CRET" not in redact(text) and "[redacted]" in redact(text)


@pytest.mark.parametrize("text", ["--max-tokens 5 --tokenizer x", "accept length 1.6 of 16 tokens", "http://host:30000/v1?max_tokens=5&tokenizer=x&keyboard=y", "token: the"])
def test_ordinary_text_is_kept(text):
    assert redact(text) == text


@pytest.mark.parametrize("text", ["--ssl-keyfile-password S3CRET", "--api_key S3CRET", "OPENAI_KEY=S3CRET x", "AWS_SECRET_ACCESS_KEY=S3CRET", "MY_TOKEN='S3CRET'", 'launch = "x --a \\"hf_token\\": \\"S3CRET\\""'])
def test_secrets_of_a_launch_command_are_blanked(text):
    assert "S3CRET" not in redact(text)


def test_names_that_hold_secrets():
    assert all(map(is_secret, ("HF_TOKEN", "SGLANG_API_KEY", "db_password", "api-key", "X_SECRET", "CI_JOB_TOKEN")))
    assert not any(map(is_secret, ("token", "max_tokens", "tokenizer", "num_draft_tokens", "token_ids", "TOKENIZERS_PARALLELISM")))
    assert redact_tree({"api_key": "x", "n": [{"token": "the"}], "e": "http://a:b@c"}) == {
        "api_key": "[redacted]", "n": [{"token": "the"}], "e": "http://[redacted]@c"}
    assert redact_argv(["run", "--api-key", "x", "y"]) == ["run", "--api-key", "[redacted]", "y"]


def test_terminal_escapes_do_not_reach_the_terminal():
    assert visible("a\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;http://x\x1b\\b\x9b2J\x07\u202e") == "aredb\\x07\\x202e"
    assert visible("x" * 3000).endswith("characters more)")


def test_large_inputs_are_hashed_by_their_header(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "WHOLE_FILE", 100)
    header = b'{"a":{"dtype":"F32","shape":[50],"data_offsets":[0,200]}}'
    model = tmp_path / "c" / "draft" / "model.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(len(header).to_bytes(8, "little") + header + bytes(200))
    (model.parent / "config.json").write_text("{}")
    case = load_case(tiny.case(tmp_path / "c", "name: x\ndrafter: {path: ./draft}\nmeasurements: ./none.csv\n"))
    original = provenance._file
    monkeypatch.setattr(provenance, "_file", lambda path, whole=100: original(path, min(whole, 100)))
    folder, absent = provenance.inputs(case)
    assert folder["files"] == 2 and "of large files the header" in folder["method"] and absent["digest"] is None
    before = folder["digest"]
    model.write_bytes(model.read_bytes().replace(b"50", b"25"))
    assert provenance.inputs(case)[0]["digest"] != before
    assert original(model, 100)["method"] == "size and sha256 of the safetensors header"


def test_the_source_of_the_suite_is_identified():
    assert len(provenance.source_sha256()) == 64
    assert Path(provenance.__file__).name == "provenance.py" and "gpus" in provenance.host()


def test_a_device_or_pipe_is_recorded_and_not_read(tmp_path):
    import os

    from eagle_forensics.case import Case

    os.mkfifo(tmp_path / "log")
    (entry,) = provenance.inputs(Case.model_validate({"name": "a", "serving": {"log": tmp_path / "log"}}))
    assert entry["digest"] is None and entry["method"] == "not read: not a regular file"
