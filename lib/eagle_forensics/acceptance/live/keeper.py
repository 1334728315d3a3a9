"""The process between the suite and a server it started: it keeps the log, and ends the server with all its children.

Run as a script with nothing but the standard library. The suite writes one JSON line to its standard input (command, environment,
log, secrets, grace) and holds that pipe open: its end - closed, crashed, killed - is the order to stop. As a child subreaper the
keeper inherits every orphan of the server, so nothing that the server started can outlive it. Linux only.
"""

import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.2


def descendants(root):
    """Process ids below `root`, by /proc; zombies are none."""
    children = {}
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(process.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end(processes, how):
    for process in processes:
        try:
            os.kill(process, how)
        except ProcessLookupError:
            pass


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def copy_log(source, path, secrets):
    """Lines of the server's output into the log, with the values of secrets blanked."""
    with pathlib.Path(path).open("ab", buffering=0) as log:
        for line in source:
            for secret in secrets:
                line = line.replace(secret, b"[redacted]")
            log.write(line)


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the suite, which closes the pipe
    parent = os.getppid()
    task = json.loads(sys.stdin.buffer.readline())
    secrets = sorted((s.encode() for s in task["secrets"]), key=len, reverse=True)
    try:
        server = subprocess.Popen(
            task["argv"], env=task["env"], cwd=task["cwd"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    except OSError as error:
        print(json.dumps({"failed": f"{task['argv'][0]}: {error.strerror}"}), flush=True)
        return 127
    print(json.dumps({"pid": server.pid}), flush=True)
    threading.Thread(target=copy_log, args=(server.stdout, task["log"], secrets), daemon=True).start()
    code = None
    while code is None:
        ready = select.select([sys.stdin], [], [], POLL_S)[0]
        code = server.poll()
        if (ready and not sys.stdin.buffer.read(1)) or os.getppid() != parent:
            break
    end(([server.pid] if code is None else []), signal.SIGTERM)
    deadline = time.monotonic() + task["grace_s"]
    while descendants(os.getpid()) and time.monotonic() < deadline:
        server.poll()
        time.sleep(POLL_S / 4)
    while left := descendants(os.getpid()):
        end(left, signal.SIGKILL)
        time.sleep(POLL_S / 4)
        server.poll()
    code = server.wait() if code is None else code
    reap()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
