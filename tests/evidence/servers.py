"""A tiny HTTP server in this process whose every reply a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Any
"""A JSON value, bytes, a status, a pair of status and JSON value, or a function that writes to the handler itself."""


@contextmanager
def serving(answer: Callable[[str, Any], Reply] | Mapping[str, Reply]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Base URL of a server, and the paths and bodies it was sent (None by GET).

    `answer`: what it replies to a path and a body; or the replies by path, whatever the body and the query, and 404 elsewhere.
    """
    reply_to = (lambda path, _: answer.get(path.split("?")[0], 404)) if isinstance(answer, Mapping) else answer
    asked: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def reply(self, body: Any) -> None:
            asked.append((self.path, body))
            reply = reply_to(self.path, body)
            try:
                if callable(reply):
                    reply(self)
                    return
                status, value = reply if isinstance(reply, tuple) else (reply, b"") if isinstance(reply, int) else (200, reply)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # the client hung up, as it should
                pass

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
