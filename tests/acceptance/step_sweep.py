"""The step sweep of notebook 04 on real servers: vLLM or SGLang on the CPU, float32, the demo's target and drafter. `make step-sweep` prints and keeps it.

The accept length is predicted first, for right wiring, on recorded sequences whose prompts are not asked. A second call goes on from the files.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import pandas as pd

from eagle_forensics import demo
from eagle_forensics.acceptance import study
from eagle_forensics.acceptance.live import study as live_study
from eagle_forensics.acceptance.sweep import run as live_sweep
from eagle_forensics.case import Case, load_case
from eagle_forensics.demo import servers
from eagle_forensics.demo.stage import DATA, sequences
from eagle_forensics.demo.target import target_folder
from eagle_forensics.drafter.frames import prediction_record
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.drafter.workbench import open_workbench

ASKED = 24
"""Prompts, half of them for the sweep; every third of the 79 held-out sequences."""


def command(engine: str, folder: Path) -> str:
    """The launch line that serves the trained boundaries {2,15,27} with three steps."""
    target, drafter = target_folder(), DATA / "drafter"
    if engine == "sglang":
        return servers.sglang(servers.sglang_python(), target, drafter).line
    return servers.vllm(servers.vllm_python(), target, servers.with_ids(drafter, [2, 15, 27], folder / "drafter", top_level=True)).line


def predicted(asked: set[str], steps: int) -> dict:
    """Record of notebook 02 for right wiring, on the sequences whose prompts are not asked."""
    bench = open_workbench(load_case(demo.case_file("broken")))
    rest = [s for s, row in zip(bench.sequences, sequences(), strict=True) if str(row.prompt_ids) not in asked]
    return prediction_record(evaluate(bench.drafter, rest, Wiring(tuple(f"slot {i}" for i in range(3))), steps), {}, None, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--steps", default="0,1,2,3,5")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--before", default="", help="words in front of the launch command, such as `taskset -c 0`")
    parser.add_argument("--out", type=Path, default=Path("runs/step-sweep"))
    options = parser.parse_args()
    folder, steps = options.out / options.engine, tuple(int(k) for k in options.steps.split(","))
    prompts = servers.held_out_prompts(folder / "prompts.jsonl", ASKED)
    asked = {str(tuple(json.loads(line)["input_ids"])) for line in prompts.read_text(encoding="utf-8").splitlines()}
    ahead = folder / "prediction.json"
    if not ahead.exists():
        ahead.write_text(json.dumps(predicted(asked, max(steps))), encoding="utf-8")
    began, load = time.monotonic(), os.getloadavg()
    sweep = live_sweep.begin(Case(name="step-sweep"), folder, launch=f"{options.before} {command(options.engine, folder)}".strip(), steps=steps, prompts=prompts,
                             max_tokens=options.max_tokens, progress=live_study.progress_line)
    print(f"\n{time.monotonic() - began:.0f} s; load before {load[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    work = study.begin(Case(name="step-sweep"), predicted=json.loads(ahead.read_text(encoding="utf-8")), layers=None, arguments=None, sweep=sweep)
    with pd.option_context("display.width", 250, "display.max_columns", 20, "display.max_colwidth", 60):
        for table in (study.sweep_table(work), study.choices_table(work), study.recommendation(work)):
            print(table)
    for step in (study.swept_live, study.predicted_against_measured, study.ceiling, study.steps, study.confirmed):
        for finding in step(work):
            print(f"{finding.status:12} {finding.id}: {finding.statement}", *(f"\n             - {e.note}" for e in finding.evidence), sep="")
    (folder / "record.json").write_text(json.dumps(study.record(work), indent=1, default=str), encoding="utf-8")
    if picture := study.speed_picture(work):
        picture[0].savefig(folder / "steps.png", dpi=110)
    return bool(sweep.opening or any(v.problem for v in sweep.visits))


if __name__ == "__main__":
    raise SystemExit(main())
