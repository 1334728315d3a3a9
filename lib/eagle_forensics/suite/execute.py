"""Runs one notebook headlessly: this interpreter over IPC sockets, with timeouts, progress and a reason for every failure.

papermill's exit code and metadata are no verdict (a dead kernel, a timeout and `sys.exit(0)` leave a notebook that looks
green). Whether a notebook is complete is read from its findings file and from nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eagle_forensics.suite.files import write_text
from eagle_forensics.suite.redact import redact, redact_tree
from eagle_forensics.suite.runfolder import RunFolder
from eagle_forensics.suite.schedule import Kernels

CELL_TIMEOUT_S = 1800
CELL_TIMEOUT_ENV = "EAGLE_FORENSICS_CELL_TIMEOUT"
"""Environment variable with another limit for a cell, in seconds."""
START_TIMEOUT_S = 120
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Kind = Literal["finished", "raised", "exited", "kernel died", "timeout", "kernel did not start", "interrupted", "unfinished", "unusable"]


@dataclass(frozen=True)
class NotebookOutcome:
    """How the execution of a notebook ended."""

    notebook: str
    complete: bool
    """The findings file says so; nothing else is believed."""
    kind: Kind
    reason: str
    """One sentence: what happened, in which cell, what to do. Empty when complete."""
    seconds: float
    cell: int | None = None
    """Cell at which it stopped, 1-based over all code cells that run."""
    cells: int = 0
    resumed: bool = False
    """Kept from the interrupted run instead of executed."""


CellHook = Callable[[int, int], None]
"""Called as (cell, cells) when a cell starts, both 1-based over the code cells that run."""


def execute(source: Path, folder: RunFolder, parameters: Mapping[str, Any], *, env: Mapping[str, str] | None = None,
            cell_timeout: int = CELL_TIMEOUT_S, start_timeout: int = START_TIMEOUT_S, on_cell: CellHook | None = None,
            kernels: Kernels | None = None) -> NotebookOutcome:
    """Execute `source` into the run folder and say how it ended.

    Raises KeyboardInterrupt after stopping the kernel, also where `kernels` were stopped from another thread.
    """
    import nbformat

    name, kernels = source.stem, kernels or Kernels()
    if kernels.stopped:
        raise KeyboardInterrupt
    folder.findings_file(name).unlink(missing_ok=True)
    began = time.monotonic()
    try:
        node = nbformat.read(source, as_version=4)
    except Exception as error:
        return NotebookOutcome(name, False, "unusable", f"{name} cannot be read as a notebook: {_line(error)}. Restore {source}.", 0.0)
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    watch = _Watch(node, on_cell)
    error: BaseException | None = None
    with tempfile.TemporaryDirectory(prefix="ef-") as sockets:
        log = folder.path / "logs" / f"{name}.kernel.log"
        manager = _manager(sockets, env or {}, log, kernels)
        try:
            _papermill(node, parameters, watch, manager, source.parent, cell_timeout, start_timeout)
        except Exception as caught:
            error = caught
        except KeyboardInterrupt as caught:
            error = caught
        finally:
            _save(watch.executed or node, folder.path / "notebooks" / source.name)
            if log.exists() and not log.stat().st_size:
                log.unlink()
    if isinstance(error, KeyboardInterrupt):
        raise error
    if kernels.stopped:
        raise KeyboardInterrupt
    complete = folder.complete(name)
    kind, reason = ("finished", "") if complete else _classify(name, error, watch, cell_timeout, start_timeout)
    return NotebookOutcome(name, complete, kind, reason, time.monotonic() - began, watch.cell or None, watch.cells)


class _Watch:
    """Follows nbclient through a notebook: the executed node, the current cell, the first error that stopped it."""

    def __init__(self, node: Any, on_cell: CellHook | None):
        self.executed: Any = None
        self.on_cell = on_cell
        self.cell, self.cells = 0, sum(map(_runs, node.cells))
        self.where = ""
        self.started = False

    def start(self, cell: Any, cell_index: int) -> None:
        self.started = True
        if _runs(cell) and "injected-parameters" not in cell.metadata.get("tags", []):
            self.cell = min(self.cell + 1, self.cells)
            self.where = next((line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("#")), "")
            if self.on_cell:
                self.on_cell(self.cell, self.cells)

    def stopped_by(self) -> Any | None:
        """The error output of the last cell that ran, if any."""
        outputs = [o for c in (self.executed.cells if self.executed else []) if c.cell_type == "code" for o in c.get("outputs", [])
                   if o.output_type == "error" and "raises-exception" not in c.metadata.get("tags", [])]
        return outputs[-1] if outputs else None


def _runs(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip()) and "skip-execution" not in cell.metadata.get("tags", [])


def _papermill(node: Any, parameters: Mapping[str, Any], watch: _Watch, manager: type, cwd: Path, cell_timeout: int,
               start_timeout: int) -> None:
    import papermill
    from papermill.engines import NBClientEngine, papermill_engines

    class Engine(NBClientEngine):
        """nbclient as it is, but the node stays in sight when papermill raises instead of returning it."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *, watch: _Watch, **kwargs: Any) -> Any:
            watch.executed = nb_man.nb
            return super().execute_managed_notebook(nb_man, kernel_name, on_cell_start=watch.start, **kwargs)

    papermill_engines.register("eagle-forensics", Engine)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    papermill.execute_notebook(
        copy.deepcopy(node), None, parameters=dict(parameters), engine_name="eagle-forensics", kernel_name="python3", cwd=str(cwd),
        progress_bar=False, log_output=False, start_timeout=start_timeout, execution_timeout=cell_timeout, iopub_timeout=60,
        coalesce_streams=True, kernel_manager_class=manager, watch=watch, extra_arguments=["--IPKernelApp.log_level=CRITICAL"])


def _manager(sockets: str, env: Mapping[str, str], log: Path, kernels: Kernels) -> type:
    """A kernel manager class: this interpreter whatever kernelspecs are installed, IPC sockets in a short folder, added `env`; what the kernel's
    process itself prints, such as the traceback of one that is killed, goes to `log` and not to the terminal."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from traitlets import default

    class ThisInterpreter(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _own_spec(self) -> KernelSpecManager:
            return KernelSpecManager(parent=self, kernel_dirs=[])

        @default("transport")
        def _transport(self) -> str:
            return "ipc"

        @default("ip")
        def _sockets(self) -> str:
            return str(Path(sockets) / "k")

        async def _async_pre_start_kernel(self, **kw: Any) -> Any:
            kw["env"] = {"OMP_WAIT_POLICY": "PASSIVE", "PYDEVD_DISABLE_FILE_VALIDATION": "1", **os.environ, **(kw.get("env") or {}), **env}
            log.parent.mkdir(exist_ok=True)
            kw["stdout"] = kw["stderr"] = log.open("wb")
            return await super()._async_pre_start_kernel(**kw)

        async def _async_post_start_kernel(self, **kw: Any) -> None:
            kw["stdout"].close()
            await super()._async_post_start_kernel(**kw)
            kernels.add(self)

        def kill_now(self) -> None:
            if (pid := getattr(self.provisioner, "pid", None)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        pre_start_kernel, post_start_kernel = _async_pre_start_kernel, _async_post_start_kernel

    return ThisInterpreter


def _save(node: Any, target: Path) -> None:
    """Write the executed notebook atomically, secrets blanked in its outputs and in the parameters it was given."""
    import nbformat

    node = copy.deepcopy(node)
    if given := node.metadata.get("papermill"):
        given["parameters"] = redact_tree(given.get("parameters", {}))
    for cell in node.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.source = redact(cell.source)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = redact(output["text"])
            for mime, value in output.get("data", {}).items():
                if isinstance(value, str) and not mime.startswith("image/"):
                    output["data"][mime] = redact(value)
            if output.output_type == "error":
                output["evalue"], output["traceback"] = redact(output["evalue"]), [redact(line) for line in output["traceback"]]
    write_text(target, nbformat.writes(node) + "\n")


def _classify(name: str, error: BaseException | None, watch: _Watch, cell_timeout: int, start_timeout: int) -> tuple[Kind, str]:
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    here = f"{name}, cell {watch.cell} of {watch.cells}" + (f" (`{watch.where[:70]}`)" if watch.where else "")
    notebook = f"open notebooks/{name}.ipynb of the run folder"
    raised = watch.stopped_by()
    if isinstance(error, CellTimeoutError | asyncio.TimeoutError):
        return "timeout", (f"{here} ran longer than the limit of {cell_timeout} s and was stopped. Give it smaller samples, or raise "
                           f"the limit with {CELL_TIMEOUT_ENV}=SECONDS.")
    if isinstance(error, DeadKernelError):
        return "kernel died", (f"The kernel died in {here}: killed for memory, a crash in native code, or os._exit. Watch its memory "
                               "(`free -m`), reduce the samples, and run again.")
    if not watch.started:
        return "kernel did not start", (f"{name}: no kernel came up within {start_timeout} s ({_line(error)}). Check that ipykernel is "
                                        "installed in this interpreter: `python -m ipykernel --version`.")
    if raised is not None and raised.ename == "SystemExit":
        return "exited", f"{here} called sys.exit({redact(raised.evalue)}) before the last cell. Remove the call; a notebook ends with finish()."
    if raised is not None and raised.ename == "KeyboardInterrupt":
        return "raised", f"{here} was interrupted inside the kernel. Run again."
    if raised is not None and raised.ename == "StdinNotImplementedError":
        return "raised", f"{here} asks for input, which a headless run cannot give. Make it a parameter."
    if raised is not None:
        return "raised", f"{here} raised {raised.ename}: {redact(_line(raised.evalue))}. Look at the cell's traceback: {notebook}."
    if error is not None:
        return "raised", f"{here} stopped: {type(error).__name__}: {redact(_line(error))}. For its outputs {notebook}."
    return "unfinished", (f"{name} ran to its end but wrote no complete findings file. Its last cell must call finish() of the session; "
                          f"{notebook}.")


def _line(text: object) -> str:
    """Text on one line, without colour codes, short."""
    line = " ".join(_ANSI.sub("", str(text)).split())
    return line if len(line) <= 300 else line[:299] + "…"
