"""`python -m tests.lineup [--fast] [--jobs 2]`: plants faults, runs the suite, says what it named."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eagle_forensics.suite.files import write_json, write_text
from tests.lineup import score
from tests.lineup.outcome import Outcome, Planted, judge, outcome

RUNS = Path(__file__).resolve().parents[2] / "runs" / "lineup"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lineup", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="papers, tables, logs and tiny tensors only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this; nothing is recorded")
    parser.add_argument("--record", action="store_true", help="make this result the recorded one, which a clone compares with")
    args = parser.parse_args(argv)
    tier = "fast" if args.fast else "full"
    cases = [c for c in all_cases(tier) if args.only in c.name]
    if tier == "full":
        from eagle_forensics import demo

        demo.prepare(print)
    began = time.monotonic()
    rows = sorted(_rows(tier, cases, args.jobs), key=lambda r: [c.name for c in cases].index(r["name"]))
    seconds = time.monotonic() - began
    before = None if args.only else score.last_recorded(RUNS, tier)
    print(score.report(rows, before))
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    if not args.only:
        result = score.result(tier, when, seconds, rows, before)
        write_json(RUNS / when / "lineup.json", result)
        from tests.lineup.page import page

        write_text(RUNS / when / "lineup.html", page(result))
        if args.record:
            score.record(tier, rows)
    print(f"\n{len(rows)} cases in {seconds:.0f} s" + ("" if args.only else f"; runs/lineup/{when}/lineup.html"))
    return 1 if score.unexpected(rows) else 0


def all_cases(tier: str) -> tuple[Planted, ...]:
    """The table of a tier: `fast` or `full`."""
    if tier == "fast":
        from tests.lineup.fast import CASES
    else:
        from tests.lineup.full import CASES
    return CASES


def run_one(tier: str, name: str, with_kernels: bool = False) -> dict[str, Any]:
    """Make one case in a folder that is gone afterwards, run it in this process or with kernels, judge it."""
    case = next(c for c in all_cases(tier) if c.name == name)
    with tempfile.TemporaryDirectory(prefix="case-") as folder, mock.patch.dict(os.environ, _own_cache(case, Path(folder))):
        work = Path(folder)
        (work / "case").mkdir()
        try:
            case.make(work / "case")
            seen = (_with_kernels if with_kernels else _in_process)(case, work / "case" / "case.yaml", work)
        except Exception as error:  # one case that ends the suite is a miss, and the others go on
            seen = Outcome("CRASHED", (), (), (), (f"{type(error).__name__}: {error}",), 0.0)
        return judge(case, seen)


def _rows(tier: str, cases: Sequence[Planted], jobs: int) -> Iterator[dict[str, Any]]:
    """The judged cases as they end, longest notebooks first; of the full table the first of each kind runs with kernels."""
    first = {c.kind: c.name for c in reversed(cases)} if tier == "full" else {}
    console = Console()
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console, disable=not console.is_terminal)
    context = multiprocessing.get_context("spawn")
    with bar, ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker) as pool:
        task = bar.add_task("", total=len(cases))
        todo = [pool.submit(run_one, tier, c.name, c.name in first.values()) for c in sorted(cases, key=lambda c: 2 not in c.notebooks)]
        for done, future in enumerate(as_completed(todo), 1):
            row = future.result()
            bar.update(task, advance=1, description=row["name"])
            if not row["right"] or not console.is_terminal:
                console.print(f"[{done:3}/{len(cases)}] {'right ' if row['right'] else 'MISSED'} {row['seconds']:6.1f} s  {row['name']}: "
                              f"{', '.join(row['named']) or row['verdict']}", markup=False, highlight=False, soft_wrap=True)
            yield row


def _own_cache(case: Planted, work: Path) -> dict[str, str]:
    """A cache of its own where the target is not the demo's, so that nothing of it outlives the case."""
    return {"EAGLE_FORENSICS_CACHE": str(work / "cache")} if getattr(case.make, "target", None) else {}


def _in_process(case: Planted, case_file: Path, work: Path) -> Outcome:
    from tests.lineup.in_process import run_in_process

    return run_in_process(case, case_file, work / "run")


def _with_kernels(case: Planted, case_file: Path, work: Path) -> Outcome:
    from eagle_forensics.suite.parameters import read_parameters
    from eagle_forensics.suite.runner import run_case, select

    declared = {name for path in select(case.notebooks).values() for name in read_parameters(path)}
    result = run_case(case_file, only=case.notebooks, parameters={k: v for k, v in case.parameters if k in declared}, out=work / "runs")
    return outcome(result.merged, result.seconds)


def _start_worker() -> None:
    """One thread a worker, which ends when its parent does."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "Agg"}


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)
