"""The one way to a server: a connection pool without redirects and proxies, every wait and every answer bounded, every failure named.

Only paths below the given URL are asked. An API key comes from the environment variable `KEY_VARIABLE` alone, is sent as a
bearer token and appears in no text.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from eagle_forensics.evidence.environment import USER_INFO

KEY_VARIABLE = "EAGLE_FORENSICS_API_KEY"
MAX_BODY = 64 << 20
"""Bytes of one answer; the largest useful one (/metrics, /server_info) has a few hundred KiB."""


def shown(url: str) -> str:
    """The URL without user, password and query."""
    return USER_INFO.sub(r"\1", str(url)).split("?")[0].split("#")[0]


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server."""

    connect_s: float = 5.0
    silence_s: float = 60.0
    """Longest pause between two pieces of an answer; prefill of a long prompt on a CPU takes tens of seconds."""
    total_s: float = 900.0
    """Longest answer."""
    busy_tries: int = 4
    """How often a 429 or 503 is asked again."""
    busy_wait_s: float = 1.0
    """Wait before the first of these; doubled each time, or what `Retry-After` says, at most 30 s."""


class Failure(Exception):
    """An answer that did not come. `kind`: `down`, `hang`, `busy`, `status`, `redirect`, `large`, `malformed`."""

    def __init__(self, kind: str, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.kind, self.status = kind, status


class Transport:
    """Requests to one base URL. Use as an async context manager. Failure for a URL that is none."""

    def __init__(self, url: str, patience: Patience | None = None, *, connections: int = 64, most: int = MAX_BODY) -> None:
        self.patience, self._most = patience or Patience(), most
        self.url = shown(url).rstrip("/")
        """The URL as it may be shown: user and password are left out."""
        headers = {"accept-encoding": "identity"}
        self._key = os.environ.get(KEY_VARIABLE, "").encode()
        if self._key:
            headers["authorization"] = f"Bearer {self._key.decode()}"
        try:
            address = httpx.URL(str(url).rstrip("/"))
        except httpx.InvalidURL as error:
            raise Failure("down", f"not a URL ({error})") from None
        if address.query or address.fragment:
            raise Failure("down", f"{self.url}: a base address is expected, without `?` and `#`; a key is given in {KEY_VARIABLE} alone")
        wait = httpx.Timeout(self.patience.silence_s, connect=self.patience.connect_s, pool=None)
        self._http = httpx.AsyncClient(
            base_url=address.copy_with(userinfo=b""), auth=(address.username, address.password) if address.userinfo else None, headers=headers,
            timeout=wait, follow_redirects=False, trust_env=False,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections))

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def content(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of a 200 answer. Failure for everything else."""
        async with self._answer(method, path, body) as answer:
            return await self._read(answer, path)

    async def text(self, method: str, path: str, body: Any = None) -> str:
        """The body of a 200 answer as text."""
        return (await self.content(method, path, body)).decode("utf-8", "replace")

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a 200 answer. Failure for everything else, also for text that is none."""
        text = await self.text(method, path, body)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Failure("malformed", f"{path} answered text that is not JSON: {text[:80]!r}") from None

    async def events(self, path: str, body: Any) -> AsyncIterator[bytes]:
        """The data of each server-sent event of an answer, until `[DONE]` or its end."""
        async with self._answer("POST", path, body) as answer:
            rest, size = b"", 0
            try:
                async for piece in answer.aiter_bytes():
                    size += len(piece)
                    if size > 16 * self._most:
                        raise Failure("large", f"{path} streamed more than {16 * self._most} bytes")
                    *events, rest = (rest + piece).split(b"\n\n")
                    if len(rest) > self._most:
                        raise Failure("large", f"{path} streamed an event of more than {self._most} bytes")
                    for event in events:
                        data = event.strip().removeprefix(b"data:").strip()
                        if data == b"[DONE]":
                            return
                        if data and not data.startswith(b":"):
                            yield self._without_key(data)
            except httpx.HTTPError as error:
                raise _failure(error, path) from None
            if rest.strip():
                yield self._without_key(rest.strip().removeprefix(b"data:").strip())

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        """A 200 answer, its body not yet read; busy answers are asked again."""
        wait = self.patience.busy_wait_s
        try:
            async with asyncio.timeout(self.patience.total_s):
                for attempt in range(self.patience.busy_tries + 1):
                    async with self._http.stream(method, path, json=body) as answer:
                        if answer.status_code == 200:
                            yield answer
                            return
                        if answer.status_code not in (429, 503) or attempt == self.patience.busy_tries:
                            raise await self._refused(answer, path)
                        asked = answer.headers.get("retry-after", "")
                    await asyncio.sleep(min(float(asked) if asked.replace(".", "", 1).isdigit() else wait, 30.0))
                    wait *= 2
        except TimeoutError:
            raise Failure("hang", f"{path} was not answered in full within {self.patience.total_s:g} s") from None
        except httpx.HTTPError as error:
            raise _failure(error, path) from None

    async def _refused(self, answer: httpx.Response, path: str) -> Failure:
        status = answer.status_code
        if answer.is_redirect:
            return Failure("redirect", f"{path} answered {status}, a redirect, which is not followed: only the given URL is asked", status)
        said = " ".join((await self._read(answer, path)).decode("utf-8", "replace").split())[:160]
        kind = "busy" if status in (429, 503) else "status"
        return Failure(kind, f"{path} answered {status}" + (f": {said}" if said else ""), status)

    async def _read(self, answer: httpx.Response, path: str) -> bytes:
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > self._most:
                raise Failure("large", f"{path} answered more than {self._most} bytes")
        return self._without_key(bytes(body))

    def _without_key(self, said: bytes) -> bytes:
        """What a server said, without the key that it was sent: answers and errors are kept and shown."""
        return said.replace(self._key, b"(redacted)") if len(self._key) >= 4 else said


def _failure(error: httpx.HTTPError, path: str) -> Failure:
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return Failure("down", f"no connection for {path}: the server is not up, or not at this address")
    if isinstance(error, httpx.TimeoutException):
        return Failure("hang", f"{path}: the server stopped answering")
    return Failure("down", f"the connection broke while {path} was answered ({type(error).__name__})")
