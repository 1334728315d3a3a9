"""Our tables against a folder of unpacked wheels: one line a version, one mark a family.

    python -m tests.engines.check_wheels FOLDER [--engine sglang|vllm] [--verbose]

Every subfolder of FOLDER that holds the engine's package is read (`pip download --no-deps` and unzip, or the source archive). Marks: + agrees, - differs, . the
class cannot capture yet. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from eagle_forensics.engines.source import Ledger, Tree, examine, open_tree
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import since, version_key


def trees(engine: str, folder: Path) -> list[Tree]:
    """The trees in `folder`, by version; a subfolder's name is its version if its files do not say."""
    found = []
    for path in sorted(folder.iterdir()):
        if (path / engine / "__init__.py").is_file():
            try:
                found.append(open_tree(engine, path))
            except ValueError:
                found.append(open_tree(engine, path, version=path.name))
    return sorted(found, key=lambda tree: version_key(tree.version))


def marks(tree: Tree, ledger: Ledger) -> str:
    """`family+`, `family-` or `family.` of every row of the layer table."""
    out = []
    for row in table(tree.engine)["family"]:
        names = (row["cls"], *row["architectures"])
        first = row.get("setter") or row["supported_since"]
        differs = any(d.topic == "layers" and d.what.startswith(names) for d in ledger.differences)
        out.append(row["name"] + ("-" if differs else "+" if since(first, tree.version) else "."))
    return " ".join(out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="sglang", choices=("sglang", "vllm"))
    parser.add_argument("--verbose", action="store_true", help="print every difference")
    args = parser.parse_args(argv)
    print(f"{'version':14} {'checks':>6} {'differ':>6} {'unread':>6} {'s':>5}  families")
    differing = 0
    for tree in trees(args.engine, args.folder):
        start = time.perf_counter()
        ledger = examine(args.engine, tree)
        unread = sum(d.unread for d in ledger.differences)
        differing += len(ledger.differences)
        took = time.perf_counter() - start
        print(f"{tree.version:14} {ledger.checked:6} {len(ledger.differences) - unread:6} {unread:6} {took:5.1f}  {marks(tree, ledger)}")
        for difference in ledger.differences if args.verbose else ():
            print(f"    {difference}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
