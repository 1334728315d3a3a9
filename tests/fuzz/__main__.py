"""`python -m tests.fuzz [--seconds 600] [--seed 0] [--reader NAME]`: a long campaign over all readers."""

from __future__ import annotations

import argparse
import resource
import sys

from tests.fuzz.campaign import campaign
from tests.fuzz.readers import READERS

MEMORY_BYTES = 8 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0, help="first seed; a failure names its own")
    parser.add_argument("--inputs", type=int, default=None, help="inputs a reader, at most")
    parser.add_argument("--reader", default="", help="readers whose name contains this")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    result = campaign(args.seconds, args.seed, [r for r in READERS if args.reader in r.name], args.inputs)
    for name, tried in result.tried.items():
        refused = ", ".join(f"{n} {kind}" for (reader, kind), n in sorted(result.refused.items()) if reader == name)
        print(f"{name:22} {tried:7} inputs, slowest {result.slowest[name]:.2f} s; refused: {refused or 'none'}")
    for failure in result.distinct():
        print(f"FAILURE {failure.reader}, seed {failure.seed}: {failure.what}  [{failure.where}]")
    print(f"{sum(result.tried.values())} inputs, {len(result.failures)} failures")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
