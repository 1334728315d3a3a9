"""The thresholds against what was measured, and against a family that had no part in them: a small synthetic target."""

from __future__ import annotations

import pytest
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint.calibration import THRESHOLDS, measured, why
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.parts import GatedMlp

from .real import rounded
from .test_ranks import TARGET, Gated, share
from .tiny import LAYERS, TinyBank, samples, sequences

HELD = measured()["measured"]
RIGHT, NOISY, DAMAGED = HELD["right planes"], HELD["right planes, too noisy to be sure"], HELD["damaged planes"]
PARTS, HEAD = HELD["inside a layer, by the closure of its MLP"], HELD["head"]
SUMS = {name: row for name, row in DAMAGED.items() if name.startswith("partial sum")}
GROUPED = NOISY["int4 weights, groups of 64"]
IDS = sequences(4)


def test_every_threshold_says_why_and_where_it_was_measured():
    for name, row in measured()["thresholds"].items():
        assert len(why(name)) > 40 and any(c.isdigit() for c in why(name)), name
        for path in row.get("measured", ()):
            held = HELD
            for key in path:
                held = held[key]
            assert held is not None, (name, path)
    assert all(measured()["thresholds"][n]["measured"] for n in THRESHOLDS if n.startswith(("noise_", "teacher_", "clean_", "share_")))


def test_clean_matches_lie_between_right_and_damaged_planes():
    assert max(row["error"][1] for row in RIGHT.values()) <= THRESHOLDS["clean_error"] < min(row["error"][0] for row in DAMAGED.values())
    assert max(row["ratio"][1] for row in SUMS.values()) < THRESHOLDS["clean_ratio"] < min(row["ratio"][0] for row in RIGHT.values())


def test_a_missing_part_lies_along_a_layers_increment():
    """Asked only where the runner-up is near: bf16 arithmetic aligns more, at margins where nobody asks."""
    asked = [row for row in RIGHT.values() if row["ratio"][0] < THRESHOLDS["sure_ratio"]]
    partial = min(row["alignment"][0] for row in SUMS.values())
    assert len(asked) >= 2 and max(row["alignment"][1] for row in asked) <= THRESHOLDS["alignment"] < partial
    assert max(row["alignment"][1] for row in RIGHT.values()) < partial


def test_noise_lies_between_quantised_weights_and_partial_sums():
    assert GROUPED["share"][1] <= THRESHOLDS["noise_share"] < min(row["share"][0] for row in SUMS.values())
    assert GROUPED["votes"][0] >= THRESHOLDS["noise_votes"]
    assert GROUPED["error"][1] <= THRESHOLDS["noise_error"] < 0.9


def test_parts_close_where_they_are_right():
    for name in ("before the MLP", "MLP output only", "MLP reduced 8 times"):
        assert PARTS[name]["closure, 90 % of tokens"][1] <= THRESHOLDS["increment_error"] < PARTS[name]["nearest closure of another part"][0]


def test_a_right_share_leaves_little_open_and_a_wrong_one_that_closes_most():
    """Whole planes in any storage and planted partial sums, every share of 2, 4, 8 and 16 ranks tried on each."""
    rows = next(group for name, group in HELD.items() if name.startswith("what a rank's share leaves open"))
    right = [row["left open by the right share"][1] for row in rows.values() if "slots" in row]
    wrong = [row["left open by these"][0] for row in rows.values() if row["of these closing"]]
    assert right and len(wrong) > len(right)
    assert 4 * max(right) < THRESHOLDS["share_error"] < 0.6 * min(wrong)


def test_the_head_reads_the_last_state_and_no_other_surely():
    together, last = HEAD["all sequences together"], int(HELD["target"].split(" layers")[0].split()[-1])
    for name in ("b=L", "L+norm", "normed twice"):
        assert together[name]["agreement"] >= THRESHOLDS["teacher_agreement"] and together[name]["margin"] >= THRESHOLDS["teacher_margin"]
    for b in range(last):
        row = together[f"b={b}"]
        assert row["agreement"] < THRESHOLDS["teacher_agreement"] or row["margin"] < THRESHOLDS["teacher_margin"], (b, row)
    alone = HEAD["one sequence alone"]
    assert alone[f"b={last - 1}"]["agreement"][1] < THRESHOLDS["teacher_agreement"] < alone["b=L"]["agreement"][0]


class Quantised(Gated):
    """The synthetic target with the weights of its layers rounded to 4 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.up, self.down = ([rounded(w, 4, 32) for w in held] for held in (self.mix, self.up, self.down))

    def mlp(self, layer: int) -> GatedMlp:
        whole = super().mlp(layer)
        return GatedMlp(whole.norm, rounded(whole.gate, 4, 32), whole.up, whole.down, whole.eps)


def look(make):
    found = identify(samples(lambda ids: [make(ids, b) for b in range(1, LAYERS + 1)], IDS), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)
    return found.slots


def test_another_family_under_quantised_weights_is_never_called_damaged():
    noisy = Quantised()
    for b, slot in enumerate(look(lambda ids, b: noisy.run(ids)[0][b]), 1):
        assert not slot.sure or (slot.boundary, slot.equals) == (Boundary(b), Boundary(b)), slot.sentence


@pytest.mark.parametrize("ranks", [2, 8])
def test_another_family_s_partial_sums_are_named_or_left_open(ranks):
    slots = look(lambda ids, b: share(ids, b, ranks - 1, ranks))
    for b, slot in enumerate(slots, 1):
        assert not slot.sure or (slot.state, slot.boundary) == (State.SHARE, Boundary(b)), slot.sentence
    assert sum(s.sure for s in slots) >= LAYERS // 2


def test_another_family_s_states_under_plain_noise_keep_their_boundary():
    g = torch.Generator().manual_seed(6)
    slots = look(lambda ids, b: (h := TARGET.run(ids)[0][b]) + 0.15 * h.norm(dim=-1, keepdim=True) / 8 * torch.randn(h.shape, generator=g))
    assert all(not s.sure or s.equals == Boundary(b) for b, s in enumerate(slots, 1)), [s.sentence for s in slots]
    assert any(s.state is State.NOISY for s in slots)
