"""`python -m tests.lineup [--fast] [--jobs 2]`: plants faults, runs the suite, says what it named."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from eagle_forensics.suite.files import write_json
from tests.lineup import score
from tests.lineup.outcome import Outcome, Planted, judge, outcome

RUNS = Path(__file__).resolve().parents[2] / "runs" / "lineup"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lineup", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="papers only, in this process (notebooks 01 and 04)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args(argv)
    tier = "fast" if args.fast else "full"
    cases = [c for c in _cases(tier) if args.only in c.name]
    began, rows = time.monotonic(), []
    if not args.fast:
        from eagle_forensics import demo

        demo.prepare(print)
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_one_thread) as pool:
        todo = {pool.submit(run_one, tier, c.name): c.name for c in cases}
        for done, future in enumerate(as_completed(todo), 1):
            row = future.result()
            rows.append(row)
            print(f"[{done:3}/{len(cases)}] {'right ' if row['right'] else 'MISSED'} {row['seconds']:6.1f} s  {row['name']}: {', '.join(row['named']) or row['verdict']}", flush=True)
    rows.sort(key=lambda r: [c.name for c in cases].index(r["name"]))
    before = score.last_recorded(RUNS, tier)
    print(score.report(rows, before))
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    seconds = time.monotonic() - began
    if not args.only:
        write_json(RUNS / when / "lineup.json", {
            "tier": tier, "when": when, "seconds": round(seconds, 1), "counts": score.counts(rows), "confusion": score.confusion(rows), "cases": rows,
            "unplanted": score.unplanted(rows), "changes": score.changes(rows, before)})
    print(f"\n{len(rows)} cases in {seconds:.0f} s" + ("" if args.only else f"; runs/lineup/{when}/lineup.json"))
    return 1 if score.unexpected(rows) else 0


def run_one(tier: str, name: str) -> dict[str, Any]:
    """Make one case in a folder that is gone afterwards, run it, judge it."""
    case = next(c for c in _cases(tier) if c.name == name)
    with tempfile.TemporaryDirectory(prefix="case-") as work:
        folder = Path(work) / "case"
        folder.mkdir()
        case.make(folder)
        if tier == "fast":
            from tests.lineup.in_process import run_in_process

            seen = run_in_process(case, folder / "case.yaml", Path(work) / "run")
        else:
            seen = _through_the_suite(case, folder / "case.yaml", Path(work))
    return judge(case, seen)


def _through_the_suite(case: Planted, case_file: Path, work: Path) -> Outcome:
    """With a cache of its own where the target is not the demo's, so that nothing of it outlives the case."""
    from eagle_forensics.suite.runner import run_case

    own = {"EAGLE_FORENSICS_CACHE": str(work / "cache")} if getattr(case.make, "target", None) else {}
    with mock.patch.dict(os.environ, own):
        result = run_case(case_file, only=case.notebooks, parameters=dict(case.parameters), out=work / "runs")
    return outcome(result.merged, result.seconds)


def _cases(tier: str) -> tuple[Planted, ...]:
    if tier == "fast":
        from tests.lineup.fast import CASES
    else:
        from tests.lineup.full import CASES
    return CASES


def _one_thread() -> None:
    """Start of a worker, which ends when its parent does."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "Agg"}


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)
