"""The served environment: every way it is written down, and no secret past the reader."""

import pytest

from eagle_forensics.evidence.environment import is_secret, read_env, redacted
from eagle_forensics.evidence.records import EvidenceError

PLAIN = {"NCCL_PROTO": "LL", "HF_TOKEN": "(redacted)", "NAME": "a b"}

FILES = {
    "lines": b"# the server\nNCCL_PROTO=LL\nexport HF_TOKEN=hf_abc\n\nNAME='a b'\n",
    "byte order mark": b"\xef\xbb\xbfNCCL_PROTO=LL\r\nHF_TOKEN=hf_abc\r\nNAME=\"a b\"\r\n",
    "proc": b"NCCL_PROTO=LL\0HF_TOKEN=hf_abc\0NAME=a b\0",
    "json": b'{"NCCL_PROTO": "LL", "HF_TOKEN": "hf_abc", "NAME": "a b"}',
}


@pytest.mark.parametrize("kind", FILES)
def test_files(tmp_path, kind):
    (tmp_path / "env").write_bytes(FILES[kind])
    assert read_env(tmp_path / "env") == PLAIN and read_env(str(tmp_path / "env")) == PLAIN


def test_a_mapping():
    assert read_env({"NCCL_PROTO": "LL", "HF_TOKEN": "hf_abc", "NAME": "a b", "N": 3, "E": None}) == PLAIN | {"N": "3", "E": ""}


def test_a_printed_value_of_several_lines(tmp_path):
    (tmp_path / "env").write_text("F=() {  echo\n}\nNCCL_PROTO=LL\n")
    assert read_env(tmp_path / "env") == {"F": "() {  echo\n}", "NCCL_PROTO": "LL"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "BASIC_AUTH", "DB_PASS", "SLACK_WEBHOOK", "apikey", "SLACK_TOKEN_PROD", "VLLM_API_KEY", "MY_CREDENTIALS"])
def test_secrets(name):
    assert is_secret(name) and redacted(name, "v") == "(redacted)" and redacted(name, "") == ""


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_PROTO", "SGLANG_SIMULATE_ACC_TOKEN_MODE", "MAX_TOKENS", "AUTHOR", "KEYBOARD", "COMPASS_DIR", "BYPASSED"])
def test_no_secrets(name):
    assert not is_secret(name)


@pytest.mark.parametrize(("flag", "secret"), [("api_key", True), ("speculative_token_map", False), ("ssl_keyfile", False), ("ssl_keyfile_password", True), ("speculative_num_draft_tokens", False)])
def test_flags_are_secret_by_their_last_word(flag, secret):
    assert is_secret(flag, setting=True) is secret


def test_a_password_in_a_url_is_redacted():
    assert read_env({"HTTPS_PROXY": "http://me:pw@proxy:80/x", "URL": "http://plain:80"}) == {"HTTPS_PROXY": "http://(redacted)@proxy:80/x", "URL": "http://plain:80"}


@pytest.mark.parametrize(("content", "said"), [(b"hello world\n", "line 1 is 'hello world'; expected NAME=value"), (b"\xff\xfe", "not UTF-8 at byte 0"), (b"{]", "not valid JSON")])
def test_files_that_are_no_environment(tmp_path, content, said):
    (tmp_path / "env").write_bytes(content)
    with pytest.raises(EvidenceError, match=said):
        read_env(tmp_path / "env")


def test_a_missing_file():
    with pytest.raises(EvidenceError, match=r"nowhere: cannot be read \(No such file.*serving.env"):
        read_env("nowhere")


def test_secrets_among_the_parameters_of_a_url():
    assert redacted("X_URL", "https://h/p?v=2&token=abc&X-Amz-Signature=d#e") == "https://h/p?v=2&token=(redacted)&X-Amz-Signature=(redacted)#e"
    assert redacted("X_URL", "https://h/p?max_tokens=5&tokenizer=x") == "https://h/p?max_tokens=5&tokenizer=x"
