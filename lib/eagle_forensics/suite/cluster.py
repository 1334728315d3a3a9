"""Runs a batch on an existing Dask cluster: one task a run, on workers that see the same files.

A worker that dies loses nothing: the scheduler gives its runs to another one, which resumes them from their run folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eagle_forensics.suite.matrix import Planned

RETRIES = 3
"""Times a run may lose its worker."""


ANSWER_S = 20
"""Seconds in which the scheduler must answer."""


class ClusterError(ValueError):
    """A cluster that cannot be used; the message says what to do."""


def on_cluster(address: str, planned: Sequence[Planned], work: Callable[[Planned], Any]) -> Iterator[tuple[Planned, Any]]:
    """(run, its result or the exception that ended it) as they end. `work` and its results travel by pickle."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise ClusterError("--cluster needs Dask: pip install 'eagle-forensics[cluster]', here and on the workers.") from None
    try:
        client = Client(address, timeout=ANSWER_S)
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(f"--cluster {address}: no Dask scheduler answers there ({type(error).__name__}). Give its address as "
                           "`dask scheduler` prints it: tcp://host:8786.") from None
    with client:
        futures = {client.submit(work, run, pure=False, retries=RETRIES): run for run in planned}
        try:
            for future in as_completed(futures):
                error = future.exception()
                yield futures[future], future.result() if error is None else error
        except KeyboardInterrupt:
            client.cancel(list(futures))
            raise
