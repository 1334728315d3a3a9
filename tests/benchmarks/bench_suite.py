"""What the suite itself costs: the command line's start, and kernels, export and merge around notebooks that do nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from eagle_forensics.suite.runner import NOTEBOOKS_ENV, run_case
from tests.suite import tiny


def figures() -> dict[str, float]:
    return {"suite.help_s": _help(), "suite.overhead_s": _overhead()}


def _help() -> float:
    """Median wall seconds of `--help`."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "eagle_forensics", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _overhead() -> float:
    """Seconds of a run of five notebooks that open a session, add a finding and finish."""
    with tempfile.TemporaryDirectory() as folder:
        books, case = tiny.five(Path(folder) / "notebooks"), tiny.case(Path(folder) / "case")
        with patch.dict("os.environ", {NOTEBOOKS_ENV: str(books)}):
            began = time.perf_counter()
            run_case(case, out=Path(folder) / "runs")
            return time.perf_counter() - began
