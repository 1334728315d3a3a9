"""A server that the suite starts is always gone again: after the block, after a crash, after the parent's death by SIGKILL."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from eagle_forensics.acceptance.live import serve

SERVER = """
import http.server, os, subprocess, sys, time
port = int(sys.argv[sys.argv.index('--port') + 1])
child = subprocess.Popen([sys.executable, '-c', 'import os, time; os.setsid(); time.sleep(300)'])
grand = subprocess.Popen([sys.executable, '-c', 'import subprocess, sys; p = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"]); print(p.pid, flush=True)'], stdout=subprocess.PIPE)
orphan = int(grand.stdout.readline())
grand.wait()
print('children', child.pid, orphan, 'key', os.environ.get('SOME_API_KEY'), sys.argv[-1], flush=True)
if 'die' in sys.argv: sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if 'sick' in sys.argv else 200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()
"""


def command(*extra):
    return [sys.executable, "-c", SERVER, *extra]


def gone(pids, seconds=10):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(alive(p) for p in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(log: Path):
    line = next(x for x in log.read_text().splitlines() if x.startswith("children"))
    return [int(x) for x in line.split()[1:3]]


def wait_for(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_it_answers_in_the_block_and_leaves_nothing_behind(tmp_path):
    said = []
    with serve.serving(command(), tmp_path / "server.log", grace_s=1, progress=said.append) as server:
        assert httpx.get(server.url + "/health").status_code == 200 and server.alive
        pids = [server.pid, *children(server.log)]
        assert all(map(alive, pids))
    assert gone(pids) and not server.alive and "ready after" in said[-1]
    assert server.stop() == server.stop()


def test_an_error_in_the_block_ends_it_too(tmp_path):
    with pytest.raises(ZeroDivisionError), serve.serving(command(), tmp_path / "server.log", grace_s=1) as server:
        pids = [server.pid, *children(server.log)]
        raise ZeroDivisionError
    assert gone(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_death_of_the_parent_ends_it(tmp_path, how):
    code = (f"from pathlib import Path\nimport time\nfrom tests.acceptance.test_live_serve import command\nfrom eagle_forensics.acceptance.live import serve\n"
            f"with serve.serving(command(), Path({str(tmp_path / 'server.log')!r}), grace_s=1) as s:\n    print(s.pid, s.keeper.pid, flush=True)\n    time.sleep(300)\n")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2])
    pids = [int(x) for x in parent.stdout.readline().split()]
    pids += children(tmp_path / "server.log")
    assert all(map(alive, pids))
    parent.send_signal(how)
    parent.wait(20)
    assert gone(pids, 15)


def test_the_death_of_its_keeper_ends_the_server(tmp_path):
    server = serve.start(serve.launch(command()), tmp_path / "server.log", grace_s=1)
    try:
        serve.wait_ready(server, timeout_s=20)
        os.kill(server.keeper.pid, signal.SIGKILL)
        assert gone([server.pid])
    finally:
        server.stop()
        for pid in children(tmp_path / "server.log"):
            os.kill(pid, signal.SIGKILL)


def test_a_server_that_ends_says_so_with_its_last_lines(tmp_path):
    with pytest.raises(serve.ServeError, match=r"ended with status 3 before it was ready; its log server.log ends: .*children"), \
            serve.serving(command("die"), tmp_path / "server.log", grace_s=1):
        pass
    assert gone(children(tmp_path / "server.log"))


def test_a_server_that_is_never_healthy_is_given_up(tmp_path):
    with pytest.raises(serve.ServeError, match=r"did not answer /health within 2 s"), serve.serving(command("sick"), tmp_path / "server.log", timeout_s=2, grace_s=1):
        pass
    assert gone(children(tmp_path / "server.log"))


def test_a_program_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(serve.ServeError, match="no-such-program: No such file"), serve.serving("no-such-program --port 1", tmp_path / "log"):
        pass


def test_secrets_reach_neither_log_nor_text(tmp_path):
    run = [*command("--api-key", "topsecret-1"), "last"]
    with serve.serving(run, tmp_path / "server.log", env={"SOME_API_KEY": "topsecret-2"}, grace_s=1) as server:
        wait_for(lambda: "children" in server.log.read_text())
    text = (tmp_path / "server.log").read_text()
    assert "key [redacted]" in text and "topsecret" not in text and "topsecret" not in server.launch.shown


def test_a_taken_port_is_refused_rather_than_another_server_measured(tmp_path):
    with serve.serving(command(), tmp_path / "one.log", grace_s=1) as server, pytest.raises(serve.ServeError, match=rf"port {server.launch.port} is taken"):
        serve.start(serve.launch(command(), port=server.launch.port), tmp_path / "two.log")


def test_the_command_keeps_its_variables_and_its_port():
    made = serve.launch("A=1 python -m x --port 4711 --flag 'two words'")
    assert (made.argv, made.env, made.port) == (("python", "-m", "x", "--port", "4711", "--flag", "two words", "--host", "127.0.0.1"), {"A": "1"}, 4711)
    filled = serve.launch("python -m x --url http://h:{port} --host ::1")
    assert filled.argv[-2:] == ("--port", str(filled.port)) and f"http://h:{filled.port}" in filled.argv and filled.argv.count("--host") == 1


@pytest.mark.parametrize("text, message", [("a; b", "holds 2 commands"), ("", "holds 0 commands"), ("--port 3", "no program")])
def test_a_text_that_is_not_one_command_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        serve.launch(text)


SECRET = "s3cr3tVALUE99"


@pytest.mark.parametrize("command", [
    f"bash -c 'HF_TOKEN={SECRET} python -m x --api-key {SECRET}'", f"docker run -e HF_TOKEN={SECRET} --env=HF_TOKEN={SECRET} image:1 --model m",
    f"python -m x --header 'Authorization: Bearer {SECRET}'", f"sudo env A=1 HF_TOKEN={SECRET} python -m x",
    f"""python -m x --speculative-config '{{"hf_token": "{SECRET}"}}'"""])
def test_a_secret_inside_a_word_of_the_command_is_not_shown(command):
    assert SECRET not in serve.launch(command).shown


def test_what_is_no_secret_of_a_command_stays_as_written():
    line = "python -m sglang.launch_server --model-path m --max-total-tokens 4096 --tokenizer-path t --chunked-prefill-size 512 --port 8000 --host 127.0.0.1"
    assert serve.launch(line).shown == line


@pytest.mark.parametrize("said, command", [("99999", "x --port 99999"), ("0", "x --port=0"), ("10.0.0.1", "x --host 10.0.0.1"), ("$PORT", "x --port $PORT"), ("`id`", "x `id`")])
def test_a_command_that_would_be_waited_for_in_vain_is_refused(said, command):
    with pytest.raises(ValueError, match=re.escape(said)):
        serve.launch(command)


def test_of_two_ports_the_one_that_the_server_takes_is_asked():
    assert serve.launch("x --port 8000 --port 8001").port == 8001


def test_a_shell_of_its_own_fills_in_its_variables():
    assert serve.launch("bash -c 'exec python -m x --port $PORT'").argv[2] == "exec python -m x --port $PORT"
