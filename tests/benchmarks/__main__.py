"""`make bench`: every benchmark as one flat object `area.figure: number`, into a JSON file and onto the screen.

Figures are ratios within one run, or seconds and bytes where the budget is a limit of its own. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

MODULES = ("bench_suite", "bench_config", "bench_drafter", "bench_fingerprint", "bench_ranking", "bench_nccl", "bench_live", "bench_demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/latest.json"))
    parser.add_argument("--only", help="one module, for instance bench_suite")
    wanted = parser.parse_args()
    figures: dict[str, float] = {}
    for name in MODULES:
        if wanted.only in (None, name):
            figures |= importlib.import_module(f"tests.benchmarks.{name}").figures()
            wanted.out.parent.mkdir(parents=True, exist_ok=True)
            wanted.out.write_text(json.dumps(figures, indent=2) + "\n")
    for key, value in figures.items():
        print(f"{key:<28} {value:.4g}")
    print(f"written to {wanted.out}")


if __name__ == "__main__":
    main()
