"""Recorded answers of a tiny pair that was really run: what notebooks 01 and 04 must say of how its drafter was fed and computed."""

from __future__ import annotations

from dataclasses import replace

from eagle_forensics.drafter.network.forms import FIRST_ALONE
from eagle_forensics.drafter.wirings.wiring import Wiring
from tests.lineup import served as s
from tests.lineup.outcome import abstains, healthy, planted

RESIDUAL, LAYERS, OFFSET, ORDER, FLAGS = "drafter.residual", "drafter.extra-layers", "wiring.layer-offset", "wiring.plane-order", "drafter.norm-flags"
SERVED = s.Served()
TWO = SERVED.but(layers=2)
OPEN = ("PASS", "INCONCLUSIVE")
"""The walk is not required: papers that agree may pass beside it."""


def computed(layer: str) -> Wiring:
    """The trained states through a layer computed otherwise."""
    return replace(s.TRAINED, layer=layer)


PLANTED = (
    planted("attention's output handed on without the residual", SERVED.but(truth=computed("the attention's output without the residual")), RESIDUAL, rival=FLAGS),
    planted("the hidden state read without its norm", SERVED.but(truth=computed("the hidden state not normed")), RESIDUAL, rival=FLAGS),
    planted("MLP's output handed on without the residual, two layers", TWO.but(truth=computed("the MLP's output without the residual")), RESIDUAL, rival=FLAGS),
    planted("two layers, the upper one without the residual", TWO.but(truth=computed("the upper draft layers without the residual")), LAYERS, rival=RESIDUAL),
    planted("two layers, the first alone computed", TWO.but(truth=computed(FIRST_ALONE)), LAYERS, rival=RESIDUAL),
    planted("counts of the planes in another order", SERVED.but(truth=Wiring(("b=6", "b=3", "b=10"))), ORDER),
    planted("counts of the layers one early", SERVED.but(truth=Wiring(("b=2", "b=5", "b=9")), ids=(1, 4, 8)), OFFSET),
)
HEALTHY = (
    healthy("counts of the trained feed", SERVED),
    healthy("counts of the trained feed, two draft layers", TWO),
)
ABSTAIN = (
    abstains("three answers without the residual", SERVED.but(truth=computed("the attention's output without the residual"), answers=3), *OPEN),
    abstains("twelve answers without the residual, in bfloat16", SERVED.but(truth=computed("the attention's output without the residual"), dtype="bfloat16"), *OPEN),
    abstains("the embedding read without its norm, which costs nothing", SERVED.but(truth=computed("the embedding not normed")), *OPEN, suspects=(RESIDUAL,)),
    abstains("hardly a draft accepted", SERVED.but(truth=computed("the MLP's output without the residual"), answers=3), *OPEN),
)
CASES = (*PLANTED, *HEALTHY, *ABSTAIN)
