"""The 27 wirings of the built-in case as its training script measured them, against our own evaluation: `make wirings` prints all.

A figure agrees if it lies in our 95 % interval (sequences resampled). The texts and states are the same, so most agree to the third digit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eagle_forensics import demo
from eagle_forensics.case import load_case
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.recorded import ZERO, Recorded
from eagle_forensics.drafter.wirings.derived import UNIT, share_of, slice_of
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.drafter.workbench import Workbench, open_workbench
from eagle_forensics.evidence.forward import TargetRunner
from eagle_forensics.evidence.records import DraftFlags
from eagle_forensics.evidence.states import target_states

TABLE = json.loads((Path(__file__).parent / "data" / "wiring_table.json").read_text())["rows"]
BOUNDARIES = (0, 1, 2, 3, 4, 14, 15, 16, 17, 26, 27, 28, 29, 30)


def at(*boundaries: int) -> Wiring:
    return Wiring(tuple(f"b={b}" for b in boundaries))


def dump(*slots: int | str) -> Wiring:
    return Wiring(tuple(s if isinstance(s, str) else f"slot {s}" for s in slots))


RIGHT = dump(0, 1, 2)
FROM_DUMP = {
    "right [2,15,27]": RIGHT, "order c,b,a": dump(2, 1, 0), "order b,a,c": dump(1, 0, 2), "order a,c,b": dump(0, 2, 1), "order b,c,a": dump(1, 2, 0),
    "final in place of c": dump(0, 1, "final norm of slot 3"), "a,b, pre-norm last layer": dump(0, 1, 3), "b,c,pre-norm last (cat(hs[1:]))": dump(1, 2, 3),
    "c only x3": dump(2, 2, 2), "c zeroed": dump(0, 1, ZERO), "b zeroed": dump(0, ZERO, 2), "a zeroed": dump(ZERO, 1, 2), "all zero": dump(ZERO, ZERO, ZERO),
    "TP2 rank0 slice, rest zeros": RIGHT.formed(slice_of(2)), "TP8 rank0 slice, rest zeros": RIGHT.formed(slice_of(8)), "TP2 unreduced (x1/2)": RIGHT.formed(share_of(2)),
    "normed aux": RIGHT.formed(UNIT),
    "token shift 0 (embed x_i with h_i)": Wiring(RIGHT.planes, token_shift=0), "token shift +2 (embed x_{i+2})": Wiring(RIGHT.planes, token_shift=2),
    "hidden shifted: h_{i-1} with x_{i+1}": Wiring(RIGHT.planes, hidden_shift=-1), "hidden shifted: h_{i+1} with x_{i+1} (leak)": Wiring(RIGHT.planes, hidden_shift=1),
    "d2t ignored (draft id used as target id)": Wiring(RIGHT.planes, d2t="ignored"), "d2t read as absolute ids": Wiring(RIGHT.planes, d2t="absolute"),
    "norm_before_residual=True": Wiring(RIGHT.planes, flags=DraftFlags(norm_before_residual=True)),
}
FROM_TARGET = {
    "embed first [0,2,15]": at(0, 2, 15), "off by -1 [1,14,26]": at(1, 14, 26), "off by +1 [3,16,28]": at(3, 16, 28), "off by +2 [4,17,29]": at(4, 17, 29),
    "no residual (mlp out only)": Wiring(("mlp 2", "mlp 15", "mlp 27")),
}


def bench() -> Workbench:
    demo.prepare(print)
    return open_workbench(load_case(demo.case_file("broken")))


def with_target_states(case: Workbench) -> list[Recorded]:
    """The sequences with the target's states, and what the MLP before each trained boundary adds alone."""
    ids = [s.input_ids.tolist() for s in case.sequences]
    states = target_states(case.target, ids, BOUNDARIES, progress=print)
    runner, caught = TargetRunner(case.target), {}
    for b in (2, 15, 27):
        runner.layers[b - 1].mlp.register_forward_hook(lambda module, args, out, name=f"mlp {b}": caught.__setitem__(name, out[0].clone()))
    found = []
    for index, item in enumerate(case.sequences):
        runner.states(ids[index], states.boundaries[-1:])
        found.append(item.with_planes({f"b={b}": states.plane(index, b) for b in BOUNDARIES} | caught))
    return found


def differences(rows: Sequence[str], found: Sequence[Correctness]) -> list[str]:
    """Every figure of the table that our interval does not hold, in words."""
    wrong = []
    for row, c in zip(rows, found, strict=True):
        expected = TABLE[row]
        ours = [(f"step {k + 1}", c.accuracy(k), e) for k, e in enumerate(expected["acc"])] + [("accept length", c.accept_length(3), expected["accept_len3"])]
        wrong += [f"{row}, {what}: {e} lies outside {mine.text(4)}" for what, mine, e in ours if mine.excludes(e)]
    return wrong


def main() -> int:
    case = bench()
    sequences = with_target_states(case)
    wirings = FROM_DUMP | FROM_TARGET
    found = [c for w in wirings.values() for c in evaluate_all(case.drafter, sequences, [w], 5, norm=case.norm)]
    for row, c in zip(wirings, found, strict=True):
        print(f"{row:44s} " + " ".join(f"{c.accuracy(k).value:.4f}/{e:.4f}" for k, e in enumerate(TABLE[row]["acc"]))
              + f"  {c.accept_length(3).value:.3f}/{TABLE[row]['accept_len3']:.3f}")
    wrong = differences(list(wirings), found)
    print("\n".join(wrong) or f"all {6 * len(TABLE)} figures of {len(TABLE)} wirings lie in our intervals")
    return bool(wrong) or set(wirings) != set(TABLE)


if __name__ == "__main__":
    raise SystemExit(main())
