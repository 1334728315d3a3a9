"""Forms inside a layer, by the closure of its MLP: each is named with its layer; nothing closes where the MLP is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint import midlayer
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import identify

from .test_ranks import TARGET, share
from .tiny import LAYERS, TinyBank, samples, sequences

IDS = sequences(4)


def inside(ids, b):
    return TARGET.run(ids)[1][b - 1], TARGET.run(ids)[0][b]


FORMS = {
    "before the MLP": (lambda ids, b: inside(ids, b)[0], State.MIDDLE),
    "only the MLP": (lambda ids, b: inside(ids, b)[1] - inside(ids, b)[0], State.NO_RESIDUAL),
    "reduced 4 times": (lambda ids, b: 4 * inside(ids, b)[1] - 3 * inside(ids, b)[0], State.REDUCED),
    "rank 2 of 4": (lambda ids, b: share(ids, b, 2, 4), State.SHARE),
}


def look(make, b, weights):
    return identify(samples(lambda ids: [make(ids, b).bfloat16()], IDS), bank=TinyBank(TARGET, IDS), weights=weights, layers=LAYERS).slots[0]


@pytest.mark.parametrize("b", [2, 4, LAYERS])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_inside_a_layer_is_named_with_its_layer(name, b):
    make, state = FORMS[name]
    slot = look(make, b, TARGET.weights())
    assert (slot.sure, slot.state, slot.boundary) == (True, state, Boundary(b)), slot.sentence


@pytest.mark.parametrize("name", FORMS)
def test_without_the_right_mlp_nothing_is_said(name):
    others = replace(TARGET.weights(), mlp=lambda layer: TARGET.mlp((layer + 3) % LAYERS))
    for weights in (others, replace(TARGET.weights(), mlp=None)):
        assert not look(FORMS[name][0], 3, weights).sure


def test_all_simple_forms_in_one_pass_are_the_forms_one_by_one():
    middle, after = inside(IDS[0], 3)
    found = dict(midlayer.simple_errors(Boundary(3), middle, after, TARGET._doubled(2)))
    assert len(found) == 2 + len(midlayer.RANKS)
    for inner, errors in found.items():
        assert errors == pytest.approx(inner.errors(middle, after, TARGET._doubled(2)), rel=1e-3, abs=1e-5)
