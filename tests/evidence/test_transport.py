"""The one way to a server: what it refuses and where it stops, against a server that answers with fixed bytes."""

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from eagle_forensics.evidence.transport import Failure, Patience, Transport

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def saying(head, body=b"", times=1):
    """URL of a server that reads one request a connection and answers `head`, then `body` so many times."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(head + b"connection: close\r\n\r\n")
                        for _ in range(times):
                            connection.sendall(body)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def ask(url, action, **more):
    async def run():
        async with Transport(url, Patience(total_s=10), **more) as transport:
            return await action(transport)

    return asyncio.run(run())


async def stream(transport):
    return [event async for event in transport.events("/generate", {})]


@pytest.mark.parametrize("head", [OK, OK + b"content-length: 1000000\r\n"])
def test_a_huge_answer_is_cut_off_before_it_is_held(head):
    with saying(head, b"x" * 1000, 1000) as url, pytest.raises(Failure, match="more than 5000 bytes") as caught:
        ask(url, lambda t: t.text("GET", "/metrics"), most=5000)
    assert caught.value.kind == "large"


def test_a_stream_without_an_end_is_cut_off():
    with saying(OK, b"data: {}\n\n" * 100, 100) as url, pytest.raises(Failure, match="streamed more than 16000 bytes") as caught:
        ask(url, stream, most=1000)
    assert caught.value.kind == "large"


def test_an_event_without_an_end_is_cut_off():
    with saying(OK, b"x" * 1000, 1000) as url, pytest.raises(Failure, match="an event of more than 5000 bytes"):
        ask(url, stream, most=5000)


def test_a_stream_ends_with_done_and_comments_are_no_events():
    with saying(OK, b': ping\n\ndata: {"a": 1}\n\ndata: [DONE]\n\ndata: late\n\n') as url:
        assert ask(url, stream) == [b'{"a": 1}']


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed_wherever_it_points(status):
    with saying(OK, b"{}") as other, saying(b"HTTP/1.1 %d Moved\r\nlocation: %s/metrics\r\ncontent-length: 0\r\n" % (status, other.encode())) as url:
        for action in (lambda t: t.text("GET", "/metrics"), stream):
            with pytest.raises(Failure, match="not followed") as caught:
                ask(url, action)
            assert (caught.value.kind, caught.value.status) == ("redirect", status)


@pytest.mark.parametrize("rest", ["/?api_key=s3cret-value", "/v1?token=s3cret-value", "#s3cret-value"])
def test_a_key_in_the_url_is_refused_without_showing_it(rest):
    with pytest.raises(Failure, match="EAGLE_FORENSICS_API_KEY") as caught:
        Transport("http://127.0.0.1:1" + rest)
    assert "s3cret" not in str(caught.value) and caught.value.kind == "down"
