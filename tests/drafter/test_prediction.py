"""Predictions by tree budget, group and temperature, and the tables that show them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from eagle_forensics.drafter.metric import compare_metric, compare_metrics
from eagle_forensics.drafter.prediction import figures, frames, study
from eagle_forensics.drafter.prediction.predict import predict_accept_length
from eagle_forensics.drafter.prediction.sampling import sampled_predictions
from eagle_forensics.drafter.prediction.tree import grow_trees
from eagle_forensics.drafter.prediction.tree_grid import tree_grid
from eagle_forensics.drafter.recorded import spread
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.finding import Status
from tests.drafter.planted import MODEL, TRAINED, planted
from tests.drafter.test_metric import PLANES, head, pair

TRUTH = Wiring(TRAINED)


@pytest.fixture(scope="module")
def trained():
    return evaluate(MODEL, planted(TRUTH), TRUTH, 2)


@pytest.fixture(scope="module")
def grid():
    return tree_grid(MODEL, planted(TRUTH)[:8], TRAINED, 2, configured=(2, 3, 5))


def bench(sequences=None, target=None):
    return SimpleNamespace(drafter=MODEL, target=target, sequences=sequences or planted(TRUTH)[:6], slots=(*TRAINED, "slot 3"), trained=TRUTH)


def test_the_grid_holds_every_setting_and_its_gain_is_paired(grid):
    settings = {(p.steps, p.topk, p.draft_tokens): p for p in grid}
    assert {(1, 1, 2), (2, 1, 3), (2, 2, 4), (2, 4, 8), (2, 3, 5)} <= set(settings)
    assert all(n <= k + (s - 1) * k * k + 1 and (k > 1 or n == s + 1) for s, k, n in settings)
    trees, chain = (grow_trees(MODEL, planted(TRUTH)[:8], TRAINED, 2, k) for k in (4, 1))
    wide = settings[2, 4, 8]
    assert wide.accept_length.value == trees.accept_length(2, 8).value
    assert wide.gain.value == pytest.approx(wide.accept_length.value - chain.accept_length(2, 3).value)
    assert wide.gain.low > 0 and settings[2, 1, 3].gain.value == 0


def test_too_much_work_is_a_reason_not_an_hour():
    with pytest.raises(ValueError, match="at most"):
        tree_grid(MODEL, planted(TRUTH), TRAINED, 2, work=1e5)
    assert study.trees(None, 2) == ((), None)


def test_spread_takes_whole_sequences_from_all_over():
    items = list(planted(TRUTH))
    assert [i.sample_id for i in spread(items, 44 * 5)] == [items[k].sample_id for k in (0, 4, 8, 12, 16)]
    assert len(spread(items, 10**6)) == len(items) and len(spread(items, 50, least=2)) == 2
    with pytest.raises(ValueError, match="at least 1 and at most 10"):
        spread(items, 10)


def test_survival_per_position_has_its_interval(trained):
    row = predict_accept_length(trained)[1]
    rounds = trained.rounds(2)
    assert [e.value for e in row.per_position] == [a / rounds.rounds for a in rounds.accepted_per_position] == list(row.survival)
    assert all(e.low < e.value < e.high for e in row.per_position)


def test_tables_and_figures_show_what_was_found(trained, grid):
    compared = [compare_metric("acc_0", round(trained.accuracy(0).value, 4), trained), compare_metric("full_acc_1", 0.999, trained)]
    table = frames.definition_frame(compared)
    assert list(table["reproduced"]) == ["yes", "no"] and "tokens for the target's choice" in table["the name stands for"][0]
    assert len(frames.definitions_csv(compared)) == sum(len(c.others) for c in compared)
    three = frames.three_numbers_frame(trained, None, 2)
    a = [trained.accuracy(k).value for k in range(2)]
    assert three["product of the steps' accuracies"][0] == f"{1 + a[0] + a[0] * a[1]:.3f}"
    assert three["if every step were that good"][0] == f"{1 + a[0] + a[0] ** 2:.3f}"
    assert len(frames.tree_frame(grid)) == len(grid) and set(study.setting_record(grid, ())["trees"]) == {f"{p.steps},{p.topk},{p.draft_tokens}" for p in grid}
    assert "2,4,8" in study.setting_record(grid, ())["trees"] and study.setting_record((), ()) == {} and "draft tokens" in figures.tree_figure(grid)[1]
    assert all(f([]) is None for f in (frames.definition_frame, frames.tree_frame, frames.temperature_frame, figures.tree_figure))
    assert frames.three_numbers_frame(None, None, 2) is None and figures.temperature_figure([], None) is None


def test_temperatures_are_shown_with_their_bounds():
    target, items, drafts, _ = pair(1)
    model = evaluate_model()
    found = sampled_predictions(model, head(target), items, PLANES, "last", normed=True, temperatures=[0.5, 1.0], steps=2)
    assert len(found) == 8 and {p.temperature for p in found} == {0.5, 1.0}
    assert frames.temperature_frame(found).shape[0] == 8
    assert "temperature 1" in figures.temperature_figure(found, drafts.accept_length(2).value)[1]


def evaluate_model():
    from tests.drafter import tiny
    from tests.drafter.test_metric import VOCAB

    return tiny.drafter(tiny.weights(1, vocab=VOCAB, draft_vocab=VOCAB))


def test_without_the_targets_head_the_tokens_stand_for_it(trained):
    own = study.own_choices(bench(), trained)
    assert own.teacher is None and "no target" in own.reason
    assert study.temperatures(bench(), own, 2, (0.6,))[0] == () and "not known" in study.temperatures(bench(), own, 2, (0.6,))[1]
    bare = SimpleNamespace(**{**vars(bench(target=object())), "slots": TRAINED})
    assert "none is the target's last state" in study.own_choices(bare, trained).reason
    assert compare_metrics({"full_acc_0": 0.5}, trained, teacher=own.teacher)[0].substituted
    assert compare_metrics({"full_acc_0": 0.5}, None) == []


def test_a_head_that_lacks_its_weights_is_named(trained):
    target = SimpleNamespace(path="target", tensors={}, config={}, eps=1e-5, norm_plus_one=False)
    assert "norm.weight" in study.own_choices(bench(target=target), trained).reason


def test_a_plane_worse_than_the_drafter_is_no_last_state(trained, monkeypatch):
    weak = SimpleNamespace(agreement=SimpleNamespace(high=0.1), text="slot 3 read")
    monkeypatch.setattr(study, "read_head", lambda target: None)
    monkeypatch.setattr(study, "read_teacher", lambda *a: weak)
    assert "less often than the drafter" in study.own_choices(bench(target=object()), trained).reason


def test_mask_and_map_are_checked_together(trained):
    own = study.own_choices(None, None)
    findings = study.evidence_checks(bench(), trained, own)
    assert [f.id for f in findings] == ["drafter.mask", "drafter.map"] and findings[1].status is Status.PASS
    assert study.evidence_checks(None, None, own) == []
    late = [replace(i, loss_mask=torch.roll(i.loss_mask, 3)) for i in planted(TRUTH)]
    assert study.evidence_checks(bench(late), None, own)[0].fault is None  # random prompts end in nothing common


def test_a_map_that_leads_out_of_the_vocabulary_is_a_reason_not_a_traceback():
    astray = SimpleNamespace(drafter=replace(MODEL, d2t=MODEL.d2t + MODEL.vocab))
    for predicted, reason in (study.trees(astray, 2), study.temperatures(astray, None, 2, [1.0])):
        assert predicted == () and f"outside the target's vocabulary of {MODEL.vocab}" in reason
