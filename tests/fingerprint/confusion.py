"""Confusion matrix of the fingerprint on the real target: `python -m tests.fingerprint.confusion [KIND ...]` (make confusion).

Each kind is written to disk as a trainer writes it, found and read by the dump reader, identified, and turned into findings. With the
bank; without bank but with the target's head, norm and embedding; and with nothing but the file. Exit status 1 if one is wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from eagle_forensics import demo
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.states import read_states
from eagle_forensics.fingerprint.findings import dump_findings
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import Identification, SlotIdentity, identify
from eagle_forensics.fingerprint.placing import placed

from . import side_by_side
from .damage import Kind, Outcome, kinds
from .real import Real

EVIDENCE = ("bank", "weights", "nothing")
BLIND = ("healthy", "stored as float16", "embedding first", "post-norm final", "double norm", "inner planes normed", "TP partial sum, rank 3 of 8", "rotated", "zero rows", "non-finite rows")
"""Kinds that are also looked at without a bank; on the others that evidence says the same as on the healthy one."""


def write(real: Real, kind: Kind, folder: Path) -> Path:
    """A dump or capture of the kind in the layout of speculators' first data version."""
    folder.mkdir(parents=True)
    for i, ids in enumerate(real.ids):
        planes = [kind.planes(real, i, b) for b in kind.boundaries] + ([real.state(i, real.layers)] if kind.last else [])
        torch.save({"hidden_states": [(p.to(torch.bfloat16) if p.dtype == torch.float32 else p)[kind.skip:].clone() for p in planes],
                    "input_ids": ids[0 if kind.capture else kind.skip:].clone(), "loss_mask": torch.ones(len(ids) - kind.skip, dtype=torch.bool)}, folder / f"data_{i}.pt")
    return folder


def look(real: Real, kind: Kind, folder: Path, evidence: str) -> Identification:
    """The public path: folder, reader, identification, findings."""
    samples = placed(read_capture(folder), real.bank, real.weights, real.layers) if kind.capture else list(iter_samples(find_dump(folder)))
    known = {"bank": {"bank": real.bank, "weights": real.weights, "layers": real.layers}, "weights": {"weights": real.weights, "layers": real.layers}, "nothing": {}}
    found = identify(samples, **known[evidence])
    dump_findings(found, claimed=(2, 15, 27), last_expected="pre", trainer="speculators 0.4.0", n_aux=3)
    return found


def judge(kind: Kind, slot: SlotIdentity, b: int, layers: int) -> str:
    """Right if boundary and state are; wrong if a sure answer is not; an unsure one is never wrong."""
    truth = kind.expected(b, layers)
    if not slot.sure:
        return "not sure"
    if slot.state is State.BROKEN or kind.state is State.BROKEN:
        return "right" if slot.state is kind.state else "WRONG"
    same = slot.boundary == truth or (slot.state is kind.state is State.NORMED_TWICE and slot.boundary.index == truth.index)
    whole = kind.state is State.NOISY and slot.state is State.COMPLETE  # little noise is none
    return "right" if same and (slot.state is kind.state or whole) else "WRONG"


def outcomes(real: Real, named: dict[str, Kind], evidence: Sequence[str] = EVIDENCE) -> list[Outcome]:
    """Every kind, every evidence, every slot that the kind touches."""
    out = []
    with tempfile.TemporaryDirectory() as root:
        for number, (name, kind) in enumerate(named.items()):
            folder = write(real, kind, Path(root) / f"kind_{number}")
            for what in evidence if name in BLIND else evidence[:1]:
                found = look(real, kind, folder, what)
                out += [Outcome(name, what, b, judge(kind, found.slots[i], b, real.layers), found.slots[i].sentence) for i, b in enumerate(kind.boundaries)]
    return out


def row(name: str, found: Sequence[Outcome]) -> str:
    """A kind against the three sorts of evidence: how many slots were right, not sure, wrong."""
    cells = []
    for what in EVIDENCE:
        count = Counter(o.verdict for o in found if (o.kind, o.evidence) == (name, what))
        cells.append(", ".join(f"{count[v]} {v}" for v in ("right", "not sure", "WRONG") if count[v]) or "-")
    return f"| {name} | " + " | ".join(cells) + " |"


def sequences(bank_folder: Path, count: int, length: int) -> list[torch.Tensor]:
    """Token ids of the demo's bank."""
    return [torch.tensor(s[:length]) for s in read_states(bank_folder).sequences[:count]]


def main(wanted: Sequence[str]) -> int:
    demo.prepare(print)
    folder = demo.case_file("broken").parent
    print(f"| kind | {' | '.join(EVIDENCE)} |\n|---|{'---|' * len(EVIDENCE)}")
    real = Real(folder / "target", sequences(folder / "bank", 3, 100))
    found = []
    for name, kind in kinds(real).items():
        if not wanted or name in wanted:
            found += outcomes(real, {name: kind})
            print(row(name, found), flush=True)
            real.forget()
    for name, make in side_by_side.KINDS.items():
        if not wanted or name in wanted:
            found += make(real, name)
            print(row(name, found), flush=True)
    for o in found:
        if o.verdict == "WRONG" or (o.verdict == "not sure" and o.evidence == "bank"):
            print(f"{o.verdict}: {o.kind}, {o.evidence}, b={o.boundary}: {o.sentence}")
    return int(any(o.verdict == "WRONG" for o in found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
