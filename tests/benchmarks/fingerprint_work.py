"""One measured piece of work: `match DUMP BANK ROWS` (rows of a sample that are compared, 0: as always) or `verdict DUMP BANK 0`; prints JSON.

What only a verdict needs is imported there, so that the process that compares pairs starts with no more than that takes.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.states import read_states
from eagle_forensics.fingerprint import rows
from eagle_forensics.fingerprint.match import match
from tests.benchmarks import memory


def matched(dump: Path, bank: Path, most: int) -> dict:
    if most:
        rows.ROWS, rows.BUDGET_BYTES = most, 1 << 40
    taken = []
    for _ in range(3):  # the first one also sets up torch
        began = time.process_time()
        table = match(rows.Reference(read_states(bank), rows.collect(iter_samples(find_dump(dump)), budget=rows.BUDGET_BYTES), rows.Weights()))
        taken.append(time.process_time() - began)
    if not all(m.clean for m in table.matches):
        raise ValueError(f"no clean match: {table.matches}")
    return {"seconds": min(taken), "first": taken[0], "tokens": table.n}


def verdict(dump: Path, bank: Path, _: int) -> dict:
    from eagle_forensics.fingerprint.identify import identify
    from eagle_forensics.fingerprint.sampling import draw

    began = time.process_time()
    info, states = find_dump(dump), read_states(bank)
    order = list(range(len(info.files)))
    random.Random(0).shuffle(order)
    layers = states.boundaries[-1].index
    found, sampling = draw(info, order, len(order), bank_of=lambda _: states, against="bank", weights=rows.Weights(), layers=layers, most=200, problems=[])
    slots = identify(found, bank=states, layers=layers).slots
    return {"seconds": time.process_time() - began, "peak_mib": memory.peak_bytes() / 2**20, "looked": sampling.looked,
            "samples": sampling.existing, "settled": sampling.settled and all(s.sure for s in slots), "slots": [s.sentence for s in slots]}


if __name__ == "__main__":
    what, dump, bank, most = sys.argv[1:5]
    print(json.dumps({"match": matched, "verdict": verdict}[what](Path(dump), Path(bank), int(most))))
