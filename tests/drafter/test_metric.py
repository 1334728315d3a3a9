"""Names of trainers' metrics and what they stand for; the target's own choice as truth."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.metric import compare_metric, definitions, named
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.teacher import Head, read_teacher
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.evidence.records import DraftFlags
from tests.drafter import tiny
from tests.drafter.test_correctness import many
from tests.drafter.test_sampling import PLANES, VOCAB, distribution, last_states

ROWS = tomllib.loads(resources.files("eagle_forensics.drafter").joinpath("definitions.toml").read_text())["metric"]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['trainers'][0]}-{r['names'][0]}")
def test_every_row_is_whole_and_reachable(row):
    assert row["source"] and row["truth"] in ("tokens", "greedy", "restricted") and row["vocabulary"] in ("miss", "inside")
    for trainer in row["trainers"]:
        for name in row["names"]:
            found = named(name + ("_2" if row.get("step", True) else ""), trainer)
            assert (found.definition.count, found.definition.truth, found.step) == (row["count"], row["truth"], 2 if row.get("step", True) else None)


@pytest.mark.parametrize(("name", "trainer", "label", "step"), [
    ("full_acc_0", None, "survival, target's choice in the draft vocabulary", 0), ("val/acc_1_epoch", "specforge", "marginal, target's choice", 1),
    ("acc_1", "torchspec", "in-vocabulary, target's choice", 1), ("train_acc_0", "modelopt", "marginal, target's choice in the draft vocabulary", 0),
    ("1-alpha", "eagle", "conditional, target's choice", 1), ("tau_sim", "nemo", "product of rates, target's choice", None),
    ("simulated_acc_len", "torchspec", "product of rates in-vocabulary, target's choice, no bonus token", None)])
def test_a_name_is_read_in_its_trainer(name, trainer, label, step):
    found = named(name, trainer)
    assert (found.definition.label, found.step) == (label, step)


def test_names_that_tell_nothing():
    assert named("loss_0") is None and named("acc") is None and named("") is None
    assert compare_metric("acceptance_rate_0", 0.5, many(), trainer="specforge") is None  # needs both distributions


def test_lengths_by_hand():
    c = many(count=40)
    a = [c.accuracy(k).value for k in range(3)]
    found = definitions(c, 2, lengths=True)
    product = a[0] + a[0] * a[1] + a[0] * a[1] * a[2]
    assert found["product of rates"].value == pytest.approx(1 + product) and found["product of rates, no bonus token"].value == pytest.approx(product)
    assert found["mean run"].value == pytest.approx(1 + sum(c.run_sums()) / c.n, abs=0.05)
    assert found["walk"].value == c.accept_length().value
    assert found["product of rates"].low < 1 + product < found["product of rates"].high
    own = compare_metric("tau_sim", round(1 + product, 4), c, trainer="nemo")
    assert own.agrees and own.substituted and own.definition in own.equal_to


def test_rivals_and_last_digits():
    c = many()
    wrong = compare_metric("full_acc_2", round(c.accuracy(2).value, 4), c)
    assert not wrong.agrees and "marginal" in wrong.rivals and "marginal" in wrong.equal_to and wrong.definition not in wrong.equal_to


def head(target: tiny.TinyTarget) -> Head:
    """Its states are those after the norm, whose weight turns choices around."""
    return Head(torch.linspace(0.1, 3, tiny.TARGET).flip(0), torch.from_numpy(target.read), 1e-6)


def pair(seed: int, count: int = 12, draft_vocab: int = VOCAB) -> tuple[tiny.TinyTarget, list[Recorded], Correctness, np.ndarray]:
    """A tiny target's text, sampled at temperature 0.5, its last state recorded, and drafts on it."""
    target, rng = tiny.TinyTarget(seed, VOCAB), np.random.default_rng(seed)
    model = tiny.drafter(tiny.weights(seed, vocab=VOCAB, draft_vocab=draft_vocab), DraftFlags(False, False, False, False))
    items = []
    for i in range(count):
        ids = [i % VOCAB, (i // 5) % VOCAB, 1]
        while len(ids) < 30:
            ids.append(int(rng.choice(VOCAB, p=distribution(target, ids, 0.5))))
        planes = dict(zip(PLANES, map(torch.from_numpy, target.states(ids)), strict=True)) | {"last": torch.from_numpy(last_states(target, ids))}
        items.append(Recorded(planes, torch.tensor(ids), torch.arange(30) >= 3, f"s{i}"))
    return target, items, evaluate(model, items, Wiring(PLANES), 2), model.target_ids().numpy()


def test_the_targets_choice_is_its_own_argmax():
    target, items, drafts, vocabulary = pair(1, draft_vocab=3)
    teacher = read_teacher(head(target), items, "last", vocabulary)
    assert teacher.normed
    for item in items[:3]:
        ids, choice = item.input_ids.tolist(), teacher.choices[item.sample_id]
        for t in range(5, 28):
            p = distribution(target, ids[:t + 1], 1.0)
            assert choice.greedy[t] == p.argmax() and choice.restricted[t] == max(vocabulary, key=lambda v, p=p: p[v])
    judged = teacher.judge(drafts, "greedy")
    first = judged.sequences[0]
    row, t = 4, int(first.positions[4])
    assert first.truth[row, 1] == teacher.choices["s0"].greedy[t + 2]
    assert teacher.judge(drafts, "restricted").coverage().value == 1 > judged.coverage().value


def test_definitions_against_the_target_differ_from_those_against_tokens():
    target, items, drafts, vocabulary = pair(2, draft_vocab=3)
    teacher = read_teacher(head(target), items, "last", vocabulary)
    found = definitions(drafts, 0, teacher)
    assert len({round(e.value, 6) for e in found.values()}) >= 4
    own = compare_metric("full_acc_0", round(found["survival, target's choice in the draft vocabulary"].value, 4), drafts, teacher=teacher)
    assert own.agrees and not own.substituted and own.definition in own.equal_to


def test_a_plane_that_tells_nothing_is_no_teacher():
    target, items, _, vocabulary = pair(3)
    with pytest.raises(ValueError, match="wide"):
        read_teacher(Head(torch.ones(7), torch.zeros(VOCAB, 7), 1e-6), items, "last", vocabulary)
    noise = torch.Generator().manual_seed(0)
    blank = [replace(i, planes={**i.planes, "last": torch.randn(i.planes["last"].shape, generator=noise)}) for i in items]
    with pytest.raises(ValueError, match=r"final norm|not the last state"):
        read_teacher(head(target), blank, "last", vocabulary)


def test_where_both_readings_agree_the_choices_stand():
    target, items, _, vocabulary = pair(3)
    teacher = read_teacher(Head(torch.ones(tiny.TARGET), torch.from_numpy(target.read), 1e-6), items, "last", vocabulary)
    assert teacher.normed is None and teacher.agreement.value > 0.6 and "before or after" in teacher.text
