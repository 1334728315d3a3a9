"""A tiny HTTP server in this process whose every reply a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Any
"""A JSON value, bytes, a status, or a function that writes to the handler itself."""


@contextmanager
def answering(replies: Mapping[str, Reply]) -> Iterator[tuple[str, list[str]]]:
    """Base URL of a server that answers these paths (404 elsewhere), and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            reply: Reply | Callable = replies.get(self.path.split("?")[0], 404)
            try:
                if callable(reply):
                    reply(self)
                    return
                body = reply if isinstance(reply, bytes) else b"" if isinstance(reply, int) else json.dumps(reply).encode()
                self.send_response(reply if isinstance(reply, int) else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client hung up, as it should
                pass

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(answer: Callable[[str, Any], tuple[int, Any]]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Base URL of a server whose GET and POST answers come from `answer(path, body) -> (status, object)`, and the paths and bodies it was sent."""
    asked: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def reply(self, body: Any) -> None:
            asked.append((self.path, body))
            status, value = answer(self.path, body)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null"))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
