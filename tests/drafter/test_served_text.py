"""Served text walked offline: counts of a real decode loop to the integer, and who is named by them, or nobody."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.network.forms import FAULTS, FIRST_ALONE, layer_forms
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.served.study import findings
from eagle_forensics.drafter.served.text import (
    GRAPH,
    Known,
    Setting,
    Walked,
    boundaries_needed,
    counts_table,
    named,
    walk_answers,
    wirings,
)
from eagle_forensics.drafter.served.walked import ServedText
from eagle_forensics.drafter.wirings.wiring import Wiring
from eagle_forensics.evidence.answers import ServedAnswer
from eagle_forensics.evidence.records import DraftFlags
from eagle_forensics.faults import fault
from eagle_forensics.finding import Status
from tests.drafter import tiny
from tests.drafter.loops import decode_with_trees

LAYERS, VOCAB = 3, 6
TRAINED, SERVED = (0, 1, 2), (1, 2, 3)
KNOWN = Known(TRAINED, SERVED)


class Fed(tiny.TinyTarget):
    """Hands over the states of `boundaries`; four views of its state stand for four boundaries."""

    def __init__(self, seed, boundaries=(0, 1, 2, 3)):
        super().__init__(seed, VOCAB)
        rng = np.random.default_rng(seed + 100)
        self.views.append(rng.normal(0, 1, (tiny.TARGET, tiny.TARGET)) / tiny.TARGET ** 0.5)
        self.views = [self.views[b] for b in boundaries]


def served(seed, fed, setting, weights=None, answers=4, **dense):
    """(drafter, sequences, answers) of a server that feeds the boundaries `fed`; `dense`: what it computes otherwise than the reference."""
    flags = DraftFlags(False, False, False, False)
    weights = weights or tiny.weights(60 + seed, vocab=VOCAB, draft_vocab=VOCAB)
    rows, found = [], []
    for i in range(answers):
        prompt = [i % VOCAB, (i * 2 + 1) % VOCAB, 2]
        ids, accepted = decode_with_trees(Fed(seed, fed), tiny.Dense(weights, flags, **dense), prompt, 40 + i, setting.steps, setting.topk, setting.draft_tokens)
        planes = {f"b={b}": torch.from_numpy(p) for b, p in enumerate(Fed(seed).states(ids))}
        rows.append(Recorded(planes, torch.tensor(ids), torch.arange(len(ids)) >= 3, f"a{i}"))
        found.append(ServedAnswer(f"a{i}", tuple(prompt), tuple(ids[3:]), len(accepted)))
    return tiny.drafter(weights, flags), rows, found


@pytest.mark.parametrize("setting", [Setting(3, 1, 4), Setting(2, 2, 4)], ids=["chain", "tree"])
@pytest.mark.parametrize("fed", [SERVED, TRAINED, (0, 2, 1)])
def test_the_wiring_that_was_fed_takes_the_loops_rounds_to_the_integer(fed, setting):
    drafter, rows, answers = served(3, fed, setting)
    tried = wirings(drafter, SimpleNamespace(layers=LAYERS, rope=None), KNOWN, norm=None, topk=setting.topk, exact=True)
    found = walk_answers(drafter, rows, answers, tried, setting)
    right = next(w for w in found if w.wiring == Wiring(tuple(f"b={b}" for b in fed)))
    assert (right.missed, right.off) == (0, 0) and right.difference.value == 0
    wrong = next(w for w in found if w.wiring.planes == tuple(f"b={b}" for b in (TRAINED if fed == SERVED else SERVED)))
    assert wrong.missed and wrong.off and abs(wrong.difference.value) > 0
    assert set(boundaries_needed(tried, KNOWN)) == {0, 1, 2, 3}
    assert counts_table([right], KNOWN)[0]["answers reproduced"] == "4 of 4"


LACKING = {
    "the MLP's output without the residual": {"lacks": ("mlp residual",)}, "the attention's output without the residual": {"lacks": ("attention residual",)},
    "both outputs without the residual": {"lacks": ("attention residual", "mlp residual")}, "the hidden state not normed": {"lacks": ("hidden norm",)},
    "the embedding not normed": {"lacks": ("embedding norm",)}, "the upper draft layers without the residual": {"lacks": ("attention residual", "mlp residual"), "above": 1},
    FIRST_ALONE: {"layers": 1}}


@pytest.mark.parametrize("layer", FAULTS)
def test_a_layer_computed_otherwise_takes_the_loops_rounds_to_the_integer_and_no_other_wiring_does(layer):
    setting = Setting(3, 1, 4)
    weights = tiny.weights(63, layers=1 + (FAULTS[layer] == "drafter.extra-layers"), vocab=VOCAB, draft_vocab=VOCAB)
    drafter, rows, answers = served(3, TRAINED, setting, weights, **LACKING[layer])
    found = walk_answers(drafter, rows, answers, wirings(drafter, SimpleNamespace(layers=LAYERS, rope=None), KNOWN, norm=None, topk=1, exact=True), setting)
    assert [w.wiring.layer for w in found if not w.missed] == [layer]


def test_other_ways_to_compute_a_layer_are_walked_in_float32_and_extra_layers_where_there_are_some():
    one = tiny.drafter(tiny.weights(63, vocab=VOCAB, draft_vocab=VOCAB))
    assert set(layer_forms(tiny.drafter(tiny.weights(63, layers=2)))) == set(LACKING) == set(FAULTS) > set(layer_forms(one)) and set(map(FAULTS.get, layer_forms(one))) == {"drafter.residual"}
    tried = wirings(one, SimpleNamespace(layers=LAYERS, rope=None), KNOWN, norm=None, topk=1, exact=False)
    assert not any(w.layer for w in tried)


def walked(planes, rounds, *, counted=(10, 12, 14), **more):
    tokens = [30, 30, 30]
    return Walked(Wiring(tuple(f"b={b}" for b in planes), **more), tuple(rounds), tuple(counted), tuple(tokens), stats.paired_difference(tokens, tokens, rounds, counted))


def said(*found, known=KNOWN, exact=True):
    ordered = sorted(found, key=lambda w: (w.missed, w.off))
    return findings(ServedText(tuple(ordered), known, Setting(3), exact, "float32" if exact else "bfloat16", 3, remedy="write other ids"))[0]


RIGHT, OFF, NEAR = (10, 12, 14), (13, 15, 18), (10, 12, 15)


def test_the_trained_wiring_that_takes_every_count_passes_with_its_rival():
    found = said(walked(TRAINED, RIGHT), walked(SERVED, OFF), walked((2, 1, 0), (20, 20, 20)))
    assert found.status is Status.PASS and "to the integer" in found.statement and found.competitor.margin == "10 verify rounds, 3 of 3 answers"


def test_other_states_that_take_every_count_are_the_fault_and_the_trained_ones_are_its_margin():
    found = said(walked(TRAINED, OFF), walked(SERVED, RIGHT), walked((2, 1, 0), (20, 20, 20)))
    assert (found.status, found.fault) == (Status.FAIL, "wiring.layer-offset") and "what the engine's rules say it serves" in found.statement
    assert "46 instead of 36 verify rounds" in found.predicted_effect and "misses 3 of 3 answers by 24" in found.competitor.margin
    assert said(walked(TRAINED, OFF), walked((1, 0, 2), RIGHT)).fault == "wiring.plane-order"
    assert "rules say otherwise" in said(walked(TRAINED, OFF), walked((0, 2, 3), RIGHT)).statement
    graph = Walked(Wiring(("decode 0", "decode 1", "decode 2"), name=GRAPH), RIGHT, RIGHT, (30, 30, 30), walked(TRAINED, RIGHT).difference)
    assert said(walked(TRAINED, OFF), graph, known=Known(TRAINED, TRAINED, SERVED)).fault == "wiring.graph-default-layers"


def test_a_head_read_in_another_way_is_named_by_the_part():
    found = said(walked(TRAINED, OFF), walked(TRAINED, RIGHT, flags=DraftFlags(None, None, None, True)), walked(SERVED, (20, 20, 20)))
    assert (found.status, found.fault) == (Status.FAIL, "drafter.norm-flags")
    shifted = said(walked(TRAINED, OFF), walked(TRAINED, RIGHT, token_shift=0), walked(SERVED, (20, 20, 20)))
    assert shifted.status is Status.INCONCLUSIVE, "no server shifts its tokens: nobody is accused"


MLP, ALONE = "the MLP's output without the residual", FIRST_ALONE
MORE, FEWER, FLAGGED = (16, 19, 20), (10, 12, 13), {"flags": DraftFlags(True, None, None, None)}


def dropped(*others, trained=FEWER, layer=MLP, counted=MORE):
    """The server takes more rounds than the reference's layer would: those of a layer computed otherwise."""
    return said(walked(TRAINED, trained, counted=counted), walked(TRAINED, counted, counted=counted, layer=layer), *(walked(planes, rounds, counted=counted, **more) for planes, rounds, more in others))


def test_a_layer_computed_otherwise_is_named_with_the_nearest_flags_as_its_rival():
    found = dropped((SERVED, (18, 22, 23), {}), (TRAINED, (22, 25, 26), FLAGGED))
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "drafter.residual", "drafter.norm-flags")
    assert MLP in found.statement and "norm_before_residual on" in found.competitor.margin and "35 instead of 55 verify rounds" in found.predicted_effect
    assert found.remedy == fault("drafter.residual").remedy, "other ids mend no layer"
    alone = dropped((SERVED, (18, 22, 23), {}), (TRAINED, (17, 21, 22), {"layer": MLP}), layer=ALONE)
    assert (alone.fault, alone.competitor.fault) == ("drafter.extra-layers", "drafter.residual") and MLP in alone.competitor.margin


@pytest.mark.parametrize(("found", "words"), [
    (dropped((TRAINED, MORE, FLAGGED)), "cannot choose"),
    (dropped((SERVED, MORE, {})), "cannot choose"),
    (dropped((TRAINED, (16, 19, 21), FLAGGED)), "cannot choose"),
    (dropped((TRAINED, MORE, {"layer": ALONE})), "cannot choose"),
    (dropped((SERVED, (18, 22, 23), {}), trained=(20, 22, 25)), "training may have computed it so"),
    (dropped((SERVED, (27, 28, 28), {}), trained=FEWER, counted=(30, 30, 29)), "by chance")])
def test_a_layer_is_not_accused_where_others_come_near_or_it_costs_nothing_or_nothing_is_accepted(found, words):
    assert found.status is Status.INCONCLUSIVE and words in found.statement and found.fault is None


def test_a_layer_whose_cost_does_not_exclude_0_is_a_suspicion():
    found = dropped((SERVED, (25, 27, 28), {}), trained=(10, 20, 19))
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, "drafter.residual") and "does not accept more for certain" in found.statement


@pytest.mark.parametrize(("found", "words"), [
    ((walked(TRAINED, NEAR), walked(SERVED, OFF)), "none gives the server's counts"),
    ((walked(TRAINED, RIGHT), walked(SERVED, RIGHT)), "cannot choose"),
    ((walked(TRAINED, OFF), walked(SERVED, RIGHT), walked((0, 2, 3), RIGHT)), "cannot choose"),
    ((walked(TRAINED, NEAR), walked(SERVED, RIGHT)), "cannot choose"),
    ((walked(TRAINED, RIGHT), walked(SERVED, NEAR)), "too near"),
    ((walked(TRAINED, OFF), walked(SERVED, RIGHT), walked((0, 2, 3), NEAR)), "cannot choose"),
    ((walked(TRAINED, RIGHT),), "no other states")])
def test_it_abstains_where_none_or_several_take_the_counts_or_one_near_tie_decides(found, words):
    verdict = said(*found)
    assert verdict.status is Status.INCONCLUSIVE and words in verdict.statement and not verdict.required and verdict.fault is None


def test_without_the_trained_boundaries_nobody_is_accused():
    found = said(walked(SERVED, RIGHT), walked(TRAINED, OFF), known=Known(None, SERVED))
    assert found.status is Status.INCONCLUSIVE and "not known" in found.statement


def test_in_bfloat16_intervals_are_compared_and_the_rules_must_agree():
    near, far = (10, 13, 14), (20, 25, 28)
    assert said(walked(TRAINED, near), walked(SERVED, far), exact=False).status is Status.PASS
    found = said(walked(TRAINED, far), walked(SERVED, near), exact=False)
    assert (found.status, found.fault) == (Status.FAIL, "wiring.layer-offset") and "within the interval (bfloat16" in found.statement
    assert said(walked(TRAINED, far), walked(SERVED, near), known=Known(TRAINED, (0, 2, 3)), exact=False).status is Status.INCONCLUSIVE


def test_in_bfloat16_it_passes_beside_other_states_only_where_the_rules_serve_the_trained_ones():
    near, far = (10, 13, 14), (20, 25, 28)
    several = (walked(TRAINED, near), walked((0, 2, 3), near), walked((2, 1, 0), far))
    ruled = said(*several, known=Known(TRAINED, TRAINED), exact=False)
    assert ruled.status is Status.PASS and "does not exclude b=0, b=2, b=3" in ruled.statement and "the nearest states that do not: b=2, b=1, b=0" in ruled.statement
    for rules in (None, SERVED):
        assert said(*several, known=Known(TRAINED, rules), exact=False).status is Status.INCONCLUSIVE


def test_names_are_those_of_the_case():
    assert named(Wiring(("b=0", "b=1", "b=2")), KNOWN) == "trained: b=0, b=1, b=2" and named(Wiring(("b=1", "b=2", "b=3")), KNOWN) == "served by the engine's rules: b=1, b=2, b=3"
