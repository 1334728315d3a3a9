"""Which notebooks of a run may work at once, and how all of them are stopped.

A notebook reads what others recorded, so it starts when those have ended, however they ended: a check whose record is absent
says so itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

AFTER: Mapping[str, tuple[str, ...]] = {"02": ("01",), "03": ("01",), "04": ("01", "02"), "05": ("01", "04")}
"""Number of a notebook -> numbers of those whose records it reads. `tests/suite/test_schedule.py` holds it against the notebooks."""


class Kernel(Protocol):
    """What can be killed at once."""

    def kill_now(self) -> None: ...


class Kernels:
    """The kernels at work in a batch of runs; `stop` kills them, and no further one starts."""

    def __init__(self) -> None:
        self._held: list[Kernel] = []
        self._lock = threading.Lock()
        self.stopped = False

    def add(self, kernel: Kernel) -> None:
        """Keep a kernel that has started; killed at once where everything was stopped in the meantime."""
        with self._lock:
            self._held.append(kernel)
            late = self.stopped
        if late:
            kernel.kill_now()

    def stop(self) -> None:
        """Kill every kernel. Each waiting `execute` then raises KeyboardInterrupt."""
        with self._lock:
            self.stopped = True
            held = list(self._held)
        for kernel in held:
            kernel.kill_now()


def in_order(names: Sequence[str], work: Callable[[str], Any], jobs: int, kernels: Kernels) -> dict[str, Any]:
    """`work` of every notebook, at most `jobs` at once and each after those it reads from; results in the order of `names`.

    One job works in the calling thread. An exception of `work`, and KeyboardInterrupt in the caller, stops all kernels and is raised.
    """
    if jobs < 2:
        return {name: work(name) for name in names}
    numbers = {name[:2] for name in names}
    waiting = {name: {n for n in AFTER.get(name[:2], ()) if n in numbers} for name in names}
    running: dict[Future[Any], str] = {}
    done: dict[str, Any] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                for name in [n for n, needs in waiting.items() if not needs][:jobs - len(running)]:
                    del waiting[name]
                    running[pool.submit(work, name)] = name
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    name = running.pop(future)
                    done[name] = future.result()
                    for needs in waiting.values():
                        needs.discard(name[:2])
        except BaseException:
            kernels.stop()
            raise
    return {name: done[name] for name in names}
