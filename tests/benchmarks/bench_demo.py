"""The main job: seconds and peak memory of `demo --offline` with a warm cache, children included."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def figures() -> dict[str, float]:
    from eagle_forensics import demo

    demo.prepare()
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-m", "eagle_forensics", "demo", "--offline", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(child, peak), daemon=True)
        watcher.start()
        code = child.wait()
        watcher.join(2)
        return {"demo.seconds": time.perf_counter() - began, "demo.peak_mib": peak[0] / 2**20, "demo.exit_code": float(code)}


def _watch(child: subprocess.Popen, peak: list[int]) -> None:
    while child.poll() is None:
        peak[0] = max(peak[0], sum(_resident(pid) for pid in _family(child.pid)))
        time.sleep(0.5)


def _family(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    family, grown = {root}, True
    while grown:
        more = {p for p, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return family


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
