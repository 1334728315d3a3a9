"""Runs the code cells of notebooks in this process: the same cells as a kernel runs, without its start, without display or drawing, without waiting for the disk."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import nbformat

from eagle_forensics.suite.files import read_json
from eagle_forensics.suite.runner import select
from tests.lineup.outcome import Outcome, Planted, outcome


def run_in_process(case: Planted, case_file: Path, run_dir: Path) -> Outcome:
    """Run a case's notebooks in one fresh run folder and read what they wrote."""
    began = time.monotonic()
    for path in select(case.notebooks).values():
        _run_cells(path, {"case": str(case_file), "run_dir": str(run_dir), **dict(case.parameters)})
    return outcome(read_json(run_dir / "findings.json"), time.monotonic() - began)


def _run_cells(path: Path, parameters: dict[str, Any]) -> None:
    space: dict[str, Any] = {"__name__": path.stem}
    with contextlib.ExitStack() as undrawn:
        for patch in (mock.patch("IPython.display.display", _nothing), mock.patch("eagle_forensics.show.figure", _close), mock.patch.object(plt.Figure, "tight_layout", _nothing),
                      mock.patch("os.fsync"), contextlib.redirect_stdout(io.StringIO())):
            undrawn.enter_context(patch)
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{path.name}:{cell.id}", "exec"), space)
                if "parameters" in cell.metadata.get("tags", []):
                    space |= {k: v for k, v in parameters.items() if k in space}


def _close(fig: Any, alt: str, caption: str) -> None:
    """In the place of `show.figure`: figures are built, not drawn, which is most of the time a notebook takes."""
    plt.close(fig)


def _nothing(*items: Any, **more: Any) -> None:
    pass
