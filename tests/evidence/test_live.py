"""A live server asked about itself: what it says is read, whatever it is; what it does wrong is a message.

`data/server_info_sglang_0.5.23.json` is cut from `ServerArgs.resolved_dict()` of SGLang 0.5.23 (91 of 547 fields, names of models replaced, invented
secrets) and the fields that its `/server_info` adds.
"""

import json
import time
from pathlib import Path

import pytest

from eagle_forensics.evidence import live
from eagle_forensics.evidence.live import LiveError, read_live
from eagle_forensics.evidence.transport import KEY_VARIABLE, Patience
from tests.evidence.servers import serving

INFO = json.loads((Path(__file__).parent / "data" / "server_info_sglang_0.5.23.json").read_text())
VLLM = {"vllm_config": {"model_config": {"model": "m", "dtype": "bfloat16", "max_model_len": 4096}, "parallel_config": {"tensor_parallel_size": 8},
                        "speculative_config": {"method": "eagle3", "model": "d", "num_speculative_tokens": 3, "draft_model_config": {"x": 1}}}, "vllm_env": {"VLLM_API_KEY": "hf_secret"}}


def test_sglang_tells_what_took_effect_and_what_was_typed():
    with serving({"/server_info": INFO}) as (url, asked):
        server = read_live(url + "/")
    assert (server.engine, server.version, server.endpoint, server.url) == ("sglang", "0.5.23", "/server_info", url)
    assert server.arguments.arguments["speculative_num_draft_tokens"] == "2" and server.asked.arguments["speculative_num_draft_tokens"] == "16"
    assert [path.split("?")[0] for path, _ in asked] == ["/server_info"]


def test_no_secret_leaves_the_reader():
    with serving({"/server_info": INFO}) as (url, _):
        server = read_live(url.replace("://", "://user:sk-user@"))
    assert "sk-" not in repr(server) and "hf_secret" not in repr(server) and "user" not in server.url
    assert server.arguments.arguments["api_key"] == "(redacted)"


def test_an_older_sglang_has_the_older_endpoint():
    with serving({"/get_server_info": {k: v for k, v in INFO.items() if k != "launch_command"} | {"version": "0.5.4"}}) as (url, _):
        server = read_live(url)
    assert (server.version, server.endpoint, server.asked) == ("0.5.4", "/get_server_info", None)


def test_vllm_tells_its_version_and_model():
    with serving({"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "name", "root": "models/m", "max_model_len": 4096}]}}) as (url, _):
        server = read_live(url)
    assert (server.engine, server.version) == ("vllm", "0.32.0") and server.arguments.arguments == {"model": "models/m", "max_model_len": "4096"}
    assert "VLLM_SERVER_DEV_MODE" in server.notes[0]


def test_vllm_in_developer_mode_tells_all():
    with serving({"/server_info": VLLM, "/version": {"version": "0.32.0"}}) as (url, asked):
        server = read_live(url)
    assert server.version == "0.32.0" and server.arguments.arguments["speculative_config"] == {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    assert asked == [("/server_info?config_format=json", None), ("/version", None)] and "hf_secret" not in repr(server)


def redirect(handler):
    handler.send_response(302)
    handler.send_header("location", "http://127.0.0.1:1/elsewhere")
    handler.send_header("content-length", "0")
    handler.end_headers()


def endless(handler):
    handler.send_response(200)
    handler.send_header("content-length", str(300_000_000))
    handler.end_headers()
    for _ in range(300):
        handler.wfile.write(b" " * 1_000_000)


def dribble(handler):
    """A byte now and then: no single read ever times out."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize(("replies", "said"), [
    ({}, "has neither /server_info"), ({"/version": {"version": 3}}, "has neither /server_info"), ({"/server_info": 500}, "status 500; expected 200"), ({"/server_info": 401}, "asks for a key"),
    ({"/server_info": b"<html>"}, "not valid JSON"), ({"/server_info": b"\xff\xfe\x00"}, "not UTF-8"), ({"/server_info": [1]}, "holds a JSON list"), ({"/server_info": {}}, "no launch arguments"),
    ({"/server_info": b"[" * 100_000}, "unreadable JSON"), ({"/server_info": {"vllm_config": "VllmConfig(model='m')"}}, "`vllm_config` is text"), ({"/server_info": redirect}, "redirects elsewhere"),
    ({"/server_info": endless}, "more than 4000000 bytes"), ({"/version": {"version": "0.32.0"}, "/v1/models": 500}, "status 500")],
    ids=["404", "odd version", "500", "401", "html", "binary", "list", "empty", "nested", "text config", "redirect", "300 MB", "models 500"])
def test_a_server_that_does_not_answer_as_it_should(replies, said):
    with serving(replies) as (url, asked), pytest.raises(LiveError if "JSON" not in said and "UTF" not in said and "launch" not in said else ValueError) as caught:
        read_live(url)
    assert said in str(caught.value) and url in str(caught.value) and len(str(caught.value)) < 500
    assert all(path.startswith(("/server_info", "/get_server_info", "/version", "/v1/models")) for path, _ in asked)


@pytest.mark.parametrize("hang", [lambda handler: time.sleep(1.5), dribble], ids=["silent", "dribbling"])
def test_a_server_that_never_ends_is_left(monkeypatch, hang):
    monkeypatch.setattr(live, "PATIENCE", Patience(total_s=0.4))
    began = time.perf_counter()
    with serving({"/server_info": hang}) as (url, _), pytest.raises(LiveError, match=r"no whole reply within 0\.4 s"):
        read_live(url)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://nobody.invalid", "http://[::1]:9/x"])
def test_nobody_there(url):
    with pytest.raises(LiveError, match=r"(no answer|no whole reply).*"):
        read_live(url)


def test_only_the_server_is_asked_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving({"/server_info": INFO}) as (url, _):
        assert read_live(url).version == "0.5.23"


def test_a_key_comes_from_the_environment_alone_and_is_not_shown(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-of-the-user")
    sent = []

    def keyed(handler):
        sent.append(handler.headers.get("authorization"))
        handler.send_response(403)
        handler.send_header("content-length", "0")
        handler.end_headers()

    with serving({"/server_info": keyed}) as (url, _), pytest.raises(LiveError, match=KEY_VARIABLE) as caught:
        read_live(url)
    assert sent == ["Bearer sk-of-the-user"] and "sk-of" not in str(caught.value)


def test_inside_the_event_loop_of_a_notebook():
    import asyncio

    async def cell():
        return read_live(url)

    with serving({"/server_info": INFO}) as (url, _):
        assert asyncio.run(cell()).version == "0.5.23"
