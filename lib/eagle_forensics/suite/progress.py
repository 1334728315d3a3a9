"""Progress of a run on a terminal: one live line a cell; elsewhere one line a notebook."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from eagle_forensics.suite.execute import NotebookOutcome
from eagle_forensics.suite.terminal import visible


@dataclass(frozen=True)
class Step:
    """One event of a run."""

    position: int
    """Of the notebook, 1-based."""
    total: int
    notebook: str
    seconds: float = 0.0
    """Since the notebook started."""
    cell: int = 0
    cells: int = 0
    outcome: NotebookOutcome | None = None
    """Set once the notebook has ended."""
    note: str = ""
    """Set for a remark about the whole run (`resuming ...`, `writing the post-mortem`)."""

    def __str__(self) -> str:
        return line(self)


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """No progress at all."""


def to_stream(stream: TextIO | None = None, indent: str = "") -> Progress:
    """Progress for a stream (stderr): live on a terminal, one line a notebook elsewhere."""
    out = stream or sys.stderr
    live = out.isatty()
    width = shutil.get_terminal_size((100, 24)).columns - 1

    def report(step: Step) -> None:
        clear = "\r" + " " * width + "\r" if live else ""
        if step.note:
            out.write(f"{clear}{indent}{step.note}\n")
        elif step.outcome:
            out.write(f"{clear}{indent}{line(step)}\n")
        elif live:
            out.write(f"{clear}{(indent + line(step))[:width]}")
        out.flush()

    return report


def line(step: Step) -> str:
    """`[3/5] 03_layer_matching  cell 7/12  12 s`; when it has ended, how."""
    head = f"[{step.position}/{step.total}] {step.notebook}"
    if step.note:
        return step.note
    if step.outcome is None:
        return f"{head}  cell {step.cell}/{step.cells}  {step.seconds:.0f} s"
    if step.outcome.resumed:
        return f"{head}  kept from the interrupted run"
    if step.outcome.complete:
        return f"{head}  done  {step.outcome.seconds:.0f} s"
    return f"{head}  {step.outcome.kind}  {step.outcome.seconds:.0f} s\n      {visible(step.outcome.reason)}"
