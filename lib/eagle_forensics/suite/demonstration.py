"""`eagle-forensics demo`: the built-in case broken, diagnosed, fixed as the suite printed it, and compared.

The fix is not written here: it is read from the broken run's own diagnosis and applied to a copy of the case.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle_forensics.demo import cases
from eagle_forensics.finding import Edit, Verdict
from eagle_forensics.suite.batch import INTERRUPTED
from eagle_forensics.suite.compare import write_comparison
from eagle_forensics.suite.progress import to_stream
from eagle_forensics.suite.runner import RunInterrupted, RunResult, run_case

EXPECTED = {"broken": Verdict.FAIL, "fixed": Verdict.PASS, "vllm-shift": Verdict.FAIL, "incident": Verdict.FAIL}
"""The verdict that each variant must reach for the demo to have worked."""

WORDS = {
    "broken": "a real drafter on SGLang 0.5.23 with the incident's wrong fix: ids [-1, 1, 14], dump planes called embed, layer2, layer15",
    "fixed": "the same case after the remedy that the first run printed",
    "vllm-shift": "the right SGLang ids moved to vLLM 0.32 unchanged: one layer off, a small loss",
    "incident": "the Kimi-K2.5 incident from its papers alone: configs, launch line, four measured runs",
}


def demonstrate(out: Path | None = None) -> int:
    """Run all variants and print their comparison. Exit code 0 if every variant reached the verdict it was built for, else 3."""
    console = Console(highlight=False)
    began = time.monotonic()
    console.print("[bold]Eagle Forensics demo[/bold] – real target, really trained EAGLE-3 drafter, real hidden states")
    cases.prepare(progress=lambda line: console.print(f"  {line}", markup=False))
    results: dict[str, RunResult] = {}
    edits: list[Edit] = []
    for number, name in enumerate(EXPECTED, 1):
        console.print(f"\n[bold]{number}/{len(EXPECTED)} {name}[/bold] – {WORDS[name]}")
        case_file = cases.build("fixed", edits=edits) if name == "fixed" else cases.case_file(name)
        try:
            results[name] = run_case(case_file, out=out, progress=to_stream(indent="  "))
        except RunInterrupted as stop:
            console.print(f"\n{stop}", markup=False, soft_wrap=True)
            return INTERRUPTED
        diagnosis = _diagnosis(results[name])
        console.print(f"  {results[name].verdict}  {diagnosis['headline']}", markup=False, style="bold")
        if name == "broken":
            edits = [Edit.model_validate(e) for fault in diagnosis["faults"] for e in fault["edits"]]
            for edit in edits:
                console.print(f"  fix as printed: {edit.file}: {edit.key} = {json.dumps(edit.value)}", markup=False)
    same = [results[n].run_dir for n in ("broken", "fixed", "vllm-shift")]  # one drafter; the incident is another system
    comparison = write_comparison(same, results["fixed"].run_dir.parent / "demo-comparison.html")
    console.print()
    console.print(_table(results))
    for name, result in results.items():
        console.print(f"  {name:<11} {result.run_dir / 'post_mortem.html'}", markup=False, soft_wrap=True)
    console.print(f"  comparison  {comparison}", markup=False, soft_wrap=True)
    wrong = [n for n, v in EXPECTED.items() if results[n].verdict is not v]
    took = time.monotonic() - began
    if wrong:
        console.print(f"\nThe demo did not end as it should after {took:.0f} s: "
                      + ", ".join(f"{n} is {results[n].verdict}, expected {EXPECTED[n]}" for n in wrong), style="bold red", markup=False)
        return Verdict.ERROR.exit_code
    console.print(f"\nDone in {took:.0f} s: the broken link was named, the printed fix was applied, the fixed case passes.", style="bold green")
    return 0


def _diagnosis(result: RunResult) -> dict[str, Any]:
    return json.loads((result.run_dir / "findings.json").read_text(encoding="utf-8"))["diagnosis"]


def _record(result: RunResult, name: str) -> dict[str, Any]:
    path = result.run_dir / "evidence" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _table(results: dict[str, RunResult]) -> Table:
    table = Table(title="The comparison", title_justify="left", show_lines=False)
    for column in ("", *results):
        table.add_column(column, overflow="fold")
    rows = {"verdict": lambda r: str(r.verdict),
            "faults": lambda r: "\n".join(f["slug"] for f in _diagnosis(r)["faults"]) or "none",
            "trained (tensors)": lambda r: _set(_record(r, "03_trained").get("trained_boundaries")),
            "served (engine rule)": lambda r: _set((_record(r, "01_layers").get("served") or {}).get("boundaries", {}).get("eager")),
            "accuracy, step 1": lambda r: _estimate(_served(r).get("accuracy")),
            "predicted accept length": lambda r: _estimate(_served(r).get("accept_length")),
            "seconds": lambda r: f"{r.seconds:.0f}"}
    for label, value in rows.items():
        table.add_row(label, *(value(r) for r in results.values()))
    return table


def _set(values: Any) -> str:
    return "–" if not values else "{" + ", ".join(map(str, values)) + "}"


def _served(result: RunResult) -> dict[str, Any]:
    return _record(result, "02_prediction").get("served") or {}


def _estimate(value: Any) -> str:
    return f"{value['value']:.3f}\n[{value['low']:.3f}, {value['high']:.3f}]" if value else "–"
