"""Tiny drafters that are really run: what notebook 02 must say of a dump (01 of the papers beside it)."""

from __future__ import annotations

from typing import Any

import torch

from eagle_forensics.drafter.wirings.wiring import Wiring
from eagle_forensics.evidence.records import DraftFlags
from tests.lineup import spoken as s
from tests.lineup.outcome import Expected, Planted

ORDER, FLAGS, ROPE, MAP, SHIFT, MASK, METRIC, MISMATCH = (
    "wiring.plane-order", "drafter.norm-flags", "drafter.rope", "vocab.map-semantics", "data.hidden-shift", "data.mask-shift", "data.metric-definition", "data.serving-mismatch")
PARAMETERS = (("steps", 2), ("temperature", []))
"""The texts follow the drafter's first two steps; a prediction above temperature 0 needs the target's head."""
RIGHT = s.Spoken()
UNDECIDED = ("INCONCLUSIVE",)
SILENT = RIGHT.but(logged=None)
BEFORE_RESIDUAL, FED_BACK = DraftFlags(norm_before_residual=True), DraftFlags(norm_output=True)


def wired(*planes: int, **more: Any) -> Wiring:
    return Wiring(tuple(f"slot {p}" for p in planes or (0, 1, 2)), **more)


def run(name: str, make: s.Spoken, *faults: str, rival: str | None = None, follows: tuple[str, ...] = (), verdicts: tuple[str, ...] = (),
        suspects: tuple[str, ...] = ()) -> Planted:
    return Planted(f"run: {name}", make, Expected(faults, follows, verdicts, rival, suspects), (1, 2), PARAMETERS)


def masked(by: int) -> Any:
    """Masks rolled by so many tokens."""
    return lambda sample: sample | {"loss_mask": torch.roll(sample["loss_mask"], by)}


def planes(change: Any) -> Any:
    return lambda sample: sample | {"hidden_states": change(sample["hidden_states"])}


def trained_by(name: str, version: str | None = None) -> Any:
    return s.PAPERS.but(trainer=(name, version), trained=(2, 16, 29, 32) if name == "speculators" else s.PAPERS.trained)


def unmapped(head: Any) -> Any:
    return s.PAPERS.but(tensors=head)


PLANTED = (
    run("planes 0 and 1 of the dump exchanged", RIGHT.but(truth=wired(1, 0, 2)), ORDER),
    run("planes of the dump turned round, nothing logged", SILENT.but(truth=wired(2, 1, 0)), ORDER),
    run("the window of a four-plane dump is the other one", RIGHT.but(truth=wired(1, 2, 3)), ORDER),
    run("trained with norm_before_residual, the config says nothing", RIGHT.but(truth=wired(flags=BEFORE_RESIDUAL)), FLAGS, rival="drafter.rope"),
    run("trained with the output's norm fed back", RIGHT.but(truth=wired(flags=FED_BACK)), FLAGS, rival="drafter.rope"),
    run("d2t holds token ids", RIGHT.but(handed=unmapped(s.absolute_map), truth=wired(d2t="absolute")), MAP),
    run("tokens are not shifted in training", RIGHT.but(truth=wired(token_shift=0)), SHIFT),
    run("states of the position before", RIGHT.but(truth=wired(hidden_shift=-1)), SHIFT),
    run("masks rolled four tokens on", RIGHT.but(sample=masked(4)), MASK, rival="data.too-little"),
    run("masks rolled four tokens back", RIGHT.but(sample=masked(-4)), MASK, rival="data.too-little"),
    run("rates of single steps logged as chains", RIGHT.but(
        handed=trained_by("speculators", "0.5.0"), keep=0.75, logged=lambda found: {f"full_acc_{k}": found.accuracy(k).value for k in range(2)}), METRIC),
)
DOUBLE = (
    run("planes exchanged and norm_before_residual", RIGHT.but(truth=wired(1, 0, 2, flags=BEFORE_RESIDUAL)), ORDER, FLAGS),
    run("planes exchanged and masks rolled", RIGHT.but(truth=wired(1, 0, 2), sample=masked(4)), ORDER, MASK),
    run("d2t holds token ids and planes turned round", RIGHT.but(handed=unmapped(s.absolute_map), truth=wired(2, 1, 0, d2t="absolute")), MAP, ORDER),
    run("norm_before_residual and the ids one late", RIGHT.but(
        truth=wired(flags=BEFORE_RESIDUAL), handed=s.PAPERS.but(ids=(2, 16, 29))), FLAGS, "wiring.layer-offset"),
)
HEALTHY = (
    run("all as trained", RIGHT),
    run("right on fewer tokens, as logged", RIGHT.but(keep=0.8)),
    run("nothing logged", SILENT),
    run("a dump of float32 without a plane for the teacher", RIGHT.but(spare=0, sample=planes(lambda held: [p.float() for p in held]))),
    run("two folders of one dump", RIGHT.but(domain=lambda index: ("chat", "code")[index % 2])),
    run("logged below what is found", RIGHT.but(logged=lambda found: {"acc_0": found.accuracy(0).value - 0.2})),
)
ABSTAIN = (
    run("right on half of 416 tokens: another norm cannot be told from none", RIGHT.but(keep=0.45), verdicts=UNDECIDED),
    run("three texts", SILENT.but(kept=3), verdicts=UNDECIDED),
    run("another trainer, planes exchanged", RIGHT.but(truth=wired(1, 0, 2), handed=trained_by("other")), verdicts=UNDECIDED),
    run("six planes for an fc of three, the trainer not known", RIGHT.but(spare=3, truth=wired(1, 2, 4), handed=s.PAPERS.but(trainer=None, trained=None), logged=None), verdicts=UNDECIDED),
    run("trained on the states of the position after", RIGHT.but(truth=wired(hidden_shift=1)), verdicts=UNDECIDED),
    run("another drafter's text", SILENT.but(keep=0.0), verdicts=UNDECIDED),
    run("logged far above every reading", RIGHT.but(keep=0.5, logged=lambda found: {"acc_0": 0.93, "acc_1": 0.9}), verdicts=UNDECIDED, suspects=(MISMATCH,)),
    run("both steps logged an eighth above what is found", RIGHT.but(keep=0.8, logged=lambda found: {f"acc_{k}": found.accuracy(k).value + 0.125 for k in range(2)}), verdicts=UNDECIDED, suspects=(MISMATCH,)),
    run("masks four tokens on in samples of their own", RIGHT.but(sample=lambda sample: sample | {"loss_mask": sample["loss_mask"] * (torch.roll(sample["loss_mask"], 4) > 0)}), verdicts=("PASS", "INCONCLUSIVE")),
)
CASES: tuple[Planted, ...] = (*PLANTED, *DOUBLE, *HEALTHY, *ABSTAIN)
