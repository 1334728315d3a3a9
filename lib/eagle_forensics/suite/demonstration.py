"""`eagle-forensics demo`: the built-in case broken, diagnosed, fixed as the suite printed it, and compared.

With a serving environment the broken and the fixed drafter are served by a real SGLang as well, each against the same server without
speculation, and notebook 04 measures what notebook 02 predicted. The fix is not written here: it is read from the broken run's own diagnosis and applied to a copy of the case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle_forensics import stats
from eagle_forensics.acceptance.live.serve import ServeError, serving
from eagle_forensics.demo import cases, servers
from eagle_forensics.demo.stage import root
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


LIVE = ("broken", "fixed")
"""Variants that a real SGLang serves; the others are another engine's or another system's."""
PROMPTS, TOKENS = stats.SEQUENTIAL_LEAST, 32
"""Asked live, each with and without speculation: as many as an interval needs to hold what it says, in under two minutes a case on two idle cores."""
MAKE_ENV = "`make sglang-env` (2.8 GB on disk, 2 minutes)"


def demonstrate(out: Path | None = None, *, live: bool = False) -> int:
    """Run all variants and print their comparison, `live` on a real SGLang too where it is installed and starts.

    Exit code 0 if every variant reached the verdict it was built for, else 3; 130 if it was interrupted.
    """
    began, console = time.monotonic(), Console(highlight=False)
    console.print("[bold]Eagle Forensics demo[/bold] – real target, really trained EAGLE-3 drafter, real hidden states")
    cases.prepare(progress=lambda line: console.print(f"  {line}", markup=False))
    results: dict[str, RunResult] = {}
    edits: list[Edit] = []
    try:
        with _real_server(console) if live else nullcontext({}) as more:
            for name in LIVE:
                results[name] = _run(console, name, out, edits, more.get(name, {}))
                edits = _fix(console, results[name]) if name == "broken" else edits
        for name in EXPECTED:
            if name not in results:
                results[name] = _run(console, name, out, edits, {})
    except RunInterrupted as stop:
        console.print(f"\n{stop}", markup=False, soft_wrap=True)
        return INTERRUPTED
    comparison = write_comparison([results[n].run_dir for n in ("broken", "fixed", "vllm-shift")],  # one drafter; the incident is another system
                                  results["fixed"].run_dir.parent / "demo-comparison.html")
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
    said = " and measured on a real server" if any(map(_live, results.values())) else ""
    console.print(f"\nDone in {took:.0f} s: the broken link was named, the printed fix was applied{said}, the fixed case passes.", style="bold green")
    return 0


def _run(console: Console, name: str, out: Path | None, edits: Sequence[Edit], more: Mapping[str, Any]) -> RunResult:
    """One variant; `more`: what else its run is given."""
    console.print(f"\n[bold]{list(EXPECTED).index(name) + 1}/{len(EXPECTED)} {name}[/bold] – {WORDS[name]}")
    case_file = cases.build("fixed", edits=edits) if name == "fixed" else cases.case_file(name)
    result = run_case(case_file, out=out, progress=to_stream(indent="  "), **more)
    console.print(f"  {result.verdict}  {_diagnosis(result)['headline']}", markup=False, style="bold")
    return result


def _fix(console: Console, broken: RunResult) -> list[Edit]:
    """The edits that the broken run printed."""
    edits = [Edit.model_validate(e) for fault in _diagnosis(broken)["faults"] for e in fault["edits"]]
    for edit in edits:
        console.print(f"  fix as printed: {edit.file}: {edit.key} = {json.dumps(edit.value)}", markup=False)
    return edits


@contextmanager
def _real_server(console: Console) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """What the runs of the served variants are given: a server without speculation that all share, and the command of each one's own.

    Nothing, with the reason on the screen, where there is no SGLang or it does not start.
    """
    python = servers.sglang_python()
    if python is None:
        console.print(f"  live: no SGLang here, so nothing is measured on a real server; {MAKE_ENV} makes one.", markup=False, soft_wrap=True)
        yield {}
        return
    target, own = cases.case_file("broken").parent / "target", root() / "live"
    plain = servers.sglang(python, target)
    console.print("  live: starting a real SGLang 0.5.23 on the CPU without speculation", markup=False)
    with ExitStack() as stack:
        try:
            baseline = stack.enter_context(serving(plain.command, own / "baseline.log", env=plain.env))
        except ServeError as error:
            console.print(f"  live: {error} The demo goes on without a real server.", markup=False, soft_wrap=True)
            yield {}
            return
        console.print(f"  live: ready after {baseline.ready_s:.0f} s; each case starts its own server with speculation", markup=False)
        measured = {"prompts": str(servers.held_out_prompts(own / "prompts.jsonl", PROMPTS)), "max_tokens": TOKENS, "half_width": 0.0}
        yield {name: {"overrides": {"serving.baseline_url": baseline.url},
                      "parameters": measured | {"launch": servers.sglang(python, target, root() / "cases" / name / "drafter").line}} for name in LIVE}


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
            "measured live": lambda r: _estimate(_live(r).get("accept_length")),
            "seconds": lambda r: f"{r.seconds:.0f}"}
    if not any(map(_live, results.values())):
        del rows["measured live"]
    for label, value in rows.items():
        table.add_row(label, *(value(r) for r in results.values()))
    return table


def _set(values: Any) -> str:
    return "–" if not values else "{" + ", ".join(map(str, values)) + "}"


def _served(result: RunResult) -> dict[str, Any]:
    return _record(result, "02_prediction").get("served") or {}


def _live(result: RunResult) -> dict[str, Any]:
    return (_record(result, "04_acceptance").get("live") or {}).get("speculation") or {}


def _estimate(value: Any) -> str:
    return f"{value['value']:.3f}\n[{value['low']:.3f}, {value['high']:.3f}]" if value else "–"
