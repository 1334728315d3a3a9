"""A server that the suite starts itself: started from its launch command, watched until it answers, always stopped again.

`serving(command, ...)` is a context manager; a crash of this process, Ctrl-C or SIGKILL end the server too (`keeper.py`).
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from eagle_forensics.evidence import environment, shell

START_S = 600.0
"""A large target takes minutes to load; the small one of the demo 20 to 60 s."""
GRACE_S = 20.0
"""Seconds between SIGTERM and SIGKILL; SGLang and vLLM on a CPU end within 5."""
POLL_S = 0.5
HOST = "127.0.0.1"
HERE = (HOST, "localhost", "0.0.0.0", "::", "::1")
"""Addresses on which a server is asked at `HOST`."""
INNER = re.compile(r"""([A-Za-z_][A-Za-z0-9_-]*)["']?(?:\s*[=:]\s*|\s+)["']?(?:(?:Bearer|Basic)\s+)?([^\s"',;}&]+)""")
"""A name and its value within a word of a command."""
TOKENS = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,})\b")

Progress = Callable[[str], None]


class ServeError(RuntimeError):
    """A server that did not start or did not stay up; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Launch:
    """A command ready to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables set on top of this process's own environment."""
    port: int
    host: str = HOST

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """The command as text, secrets blanked."""
        words = list(self.argv)
        for i, word in enumerate(words):
            name, _, value = word.partition("=")
            if value and name.startswith("-"):
                words[i] = f"{name}={environment.redacted(name, value, setting=True)}"
            elif i and words[i - 1].startswith("-") and "=" not in words[i - 1]:
                words[i] = environment.redacted(words[i - 1], word, setting=True)
        text = shlex.join([*(f"{k}={v}" for k, v in environment.redact(self.env).items()), *words])
        for secret in sorted(_secrets(self.argv, self.env), key=len, reverse=True):
            text = text.replace(secret, environment.REDACTED)
        return text


def launch(command: str | Sequence[str], env: Mapping[str, str] | None = None, port: int | None = None) -> Launch:
    """The command with its own variables split off and a port: `{port}` is filled in, `--port N` is kept, else one is added.

    ValueError for a text that is not exactly one command.
    """
    env = dict(env or {})
    if isinstance(command, str):
        found = shell.commands(command, "the launch command")
        if len(found) != 1:
            raise ValueError(f"the launch command holds {len(found)} commands; expected one that starts a server in the foreground.")
        argv, env = list(found[0].words), {**found[0].env, **env}
    else:
        argv = list(command)
    if not argv or argv[0].startswith("-"):
        raise ValueError("the launch command has no program; expected the whole line, such as `python -m sglang.launch_server --model-path ...`.")
    if (open_words := shell.unresolved(argv)) and Path(argv[0]).name not in ("sh", "bash", "zsh", "dash"):
        raise ValueError(f"the launch command holds {open_words[0]!r:.80}, which no shell fills in here; write the value, or start it with `bash -c '...'`.")
    if (host := _flag(argv, "--host")) not in (None, *HERE):
        raise ValueError(f"the launch command serves on --host {host!r:.60}; a server that is started here is asked at {HOST}. Leave --host out.")
    written = _flag(argv, "--port")
    if port is None and written not in (None, "{port}") and not (written.isdecimal() and 0 < int(written) < 65536):
        raise ValueError(f"the launch command has --port {written!r:.60}; expected a number from 1 to 65535, `{{port}}`, or no --port at all.")
    port = port or (int(written) if written and written.isdecimal() else free_port())
    argv = [word.replace("{port}", str(port)) for word in argv]
    if _flag(argv, "--port") is None:
        argv += ["--port", str(port)]
    if _flag(argv, "--host") is None:
        argv += ["--host", HOST]
    return Launch(tuple(argv), env, port)


@dataclass
class Server:
    """A running server. `stop` is idempotent."""

    launch: Launch
    log: Path
    keeper: subprocess.Popen[bytes]
    pid: int
    """Of the server's first process."""
    ready_s: float = 0.0

    @property
    def url(self) -> str:
        return self.launch.url

    @property
    def alive(self) -> bool:
        return self.keeper.poll() is None

    def tail(self, lines: int = 5) -> str:
        """The last lines of the log that hold anything."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                return " / ".join(line.strip()[:200] for line in deque((x for x in file if x.strip()), lines))
        except OSError:
            return ""

    def stop(self) -> int:
        """End the server and everything it started; its exit status."""
        if self.keeper.stdin and not self.keeper.stdin.closed:
            with suppress(OSError):
                self.keeper.stdin.close()
        try:
            return self.keeper.wait(GRACE_S + 30)
        finally:
            if self.keeper.stdout:
                self.keeper.stdout.close()


def start(ready_to_run: Launch, log: Path, *, grace_s: float = GRACE_S, cwd: Path | None = None) -> Server:
    """Start without waiting for it to answer. ServeError if the program cannot be run or the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ready_to_run.host, ready_to_run.port))
        except OSError as error:
            raise ServeError(f"port {ready_to_run.port} is taken ({error.strerror}): another server would be measured. End it or leave --port out.") from None
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"$ {ready_to_run.shown}\n", encoding="utf-8")
    env = {**os.environ, **ready_to_run.env}
    task = {"argv": ready_to_run.argv, "env": env, "cwd": str(cwd) if cwd else None, "log": str(log.resolve()), "grace_s": grace_s,
            "secrets": sorted(_secrets(ready_to_run.argv, env))}
    keeper = subprocess.Popen([sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, start_new_session=True)
    try:
        keeper.stdin.write(json.dumps(task).encode() + b"\n")
        keeper.stdin.flush()
        said = json.loads(keeper.stdout.readline() or b"{}")
    except BaseException:
        _end(keeper)
        raise
    if "pid" not in said:
        _end(keeper)
        raise ServeError(f"the server could not be run: {said.get('failed', 'no answer of its keeper')}. Check the launch command.")
    return Server(ready_to_run, log, keeper, said["pid"])


def wait_ready(server: Server, *, timeout_s: float = START_S, health: str = "/health", progress: Progress | None = None) -> float:
    """Seconds until the server answers 200 on its health page. ServeError if it ends before, or does not within the time."""
    began = told = time.monotonic()
    with httpx.Client(base_url=server.url, follow_redirects=False, trust_env=False, timeout=10) as client:
        while True:
            if not server.alive:
                raise ServeError(f"the server ended with status {server.keeper.returncode} before it was ready; its log {server.log.name} ends: {server.tail()}")
            with suppress(httpx.HTTPError):
                if client.get(health).status_code == 200:
                    return time.monotonic() - began
            now = time.monotonic()
            if now - began > timeout_s:
                raise ServeError(f"the server did not answer {health} within {timeout_s:.0f} s; its log {server.log.name} ends: {server.tail()}")
            if progress and now - told > 5:
                told = now
                progress(f"waiting for the server, {now - began:.0f} s: {server.tail(1)[:120]}")
            select.select([], [], [], POLL_S)


@contextmanager
def serving(command: str | Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, port: int | None = None, timeout_s: float = START_S,
            grace_s: float = GRACE_S, cwd: Path | None = None, progress: Progress | None = None) -> Iterator[Server]:
    """A server that answers, for the length of a with block; afterwards it and all its children are gone, however the block ends."""
    server = start(launch(command, env, port), log, grace_s=grace_s, cwd=cwd)
    try:
        server.ready_s = wait_ready(server, timeout_s=timeout_s, progress=progress)
        if progress:
            progress(f"the server is ready after {server.ready_s:.0f} s")
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _flag(argv: Sequence[str], name: str) -> str | None:
    found = None
    for i, word in enumerate(argv):
        if word == name and i + 1 < len(argv):
            found = argv[i + 1]
        elif word.startswith(name + "="):
            found = word.partition("=")[2]
    return found


def _secrets(argv: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """Values that must not reach the log: of variables and flags whose name says so, also inside a word (`bash -c`, `docker run -e`, JSON), and tokens by their form."""
    found = {value for name, value in env.items() if environment.is_secret(name)}
    for i, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name.startswith("-") and environment.is_secret(re.sub(r"^-+", "", name).replace("-", "_"), setting=True):
            found.add(value or (argv[i + 1] if i + 1 < len(argv) else ""))
        found |= {value for name, value in INNER.findall(word) if environment.is_secret(name.replace("-", "_"), setting=True)}
        found |= set(TOKENS.findall(word))
    return {value for value in found if len(value) >= 4}


def _end(keeper: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        keeper.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        keeper.wait(5)
    if keeper.poll() is None:
        keeper.send_signal(signal.SIGKILL)
        keeper.wait()
