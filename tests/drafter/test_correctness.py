"""What counts: mask, response spans, draft vocabulary, definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from eagle_forensics.drafter.correctness import Correctness, judge, paired_accept_length, paired_accuracy
from eagle_forensics.drafter.metric import compare_metric, definitions
from eagle_forensics.drafter.recorded import Recorded, Span, chain_rows, from_samples, spans
from eagle_forensics.evidence.records import Plane, Sample


def recorded(ids, mask, sample_id="a", group=None):
    return Recorded({"p": torch.zeros(len(ids), 2)}, torch.tensor(ids), torch.tensor(mask, dtype=torch.bool), sample_id, group)


def by_hand(item, right, own=None):
    """A SequenceCorrectness whose step k at row r is right where `right(t, k)`."""
    rows = chain_rows(item.loss_mask, 3).tolist()
    draft = [[int(item.input_ids[min(t + 2 + k, len(item) - 1)]) if right(t, k) else 0 for k in range(3)] for t in rows]
    return judge(item, torch.tensor(draft), torch.arange(50) if own is None else own)


def test_rows_and_spans_of_a_mask():
    mask = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1, 1], dtype=torch.bool)
    assert spans(mask) == (Span(1, 2, 4), Span(5, 6, 7))
    assert chain_rows(mask, 1).tolist() == [1, 2, 3, 5, 6]
    assert chain_rows(mask, 3).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert spans(torch.ones(5, dtype=torch.bool)) == (Span(0, 0, 3),)
    assert spans(torch.tensor([0, 1, 1, 1], dtype=torch.bool)) == (Span(0, 0, 2),)
    assert spans(torch.tensor([1, 1], dtype=torch.bool)) == ()


def test_every_response_token_is_counted_once_at_every_step():
    item = recorded(list(range(1, 11)), [0] * 4 + [1] * 6)
    s = by_hand(item, lambda t, k: True)
    assert s.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert s.valid.sum(0).tolist() == [6, 6, 6] and s.n == 6
    assert s.truth[2].tolist() == [5, 6, 7] and s.truth[-1].tolist() == [10, -1, -1]
    assert s.correct.sum(0).tolist() == [6, 6, 6]
    assert s.rounds().tokens == 5  # the first response token comes from prefill


def test_a_token_outside_the_draft_vocabulary_is_a_miss():
    item = recorded([1, 2, 3, 40, 5, 6], [0, 0, 1, 1, 1, 1])
    meaning = torch.tensor([1, 2, 3, 5, 6])
    drafts = torch.tensor([[int((meaning == item.input_ids[min(t + 2 + k, 5)]).nonzero()[0, 0]) if item.input_ids[min(t + 2 + k, 5)] in meaning else 0
                            for k in range(3)] for t in chain_rows(item.loss_mask, 3).tolist()])
    c = Correctness((judge(item, drafts, meaning),), 3)
    assert c.accuracy(0).value == 0.75 and c.coverage().value == 0.75
    assert definitions(c, 0)["in-vocabulary"].value == 1.0


def test_definitions_differ_and_are_counted_by_hand():
    item = recorded(list(range(1, 13)), [0] * 2 + [1] * 10)
    right = {(t, k): (t + k) % 3 != 0 and (t % 4 != 1 or k != 1) for t in range(12) for k in range(3)}
    c = Correctness((by_hand(item, lambda t, k: right[t, k]),), 3)
    tokens = [(t, 1) for t in range(12) if 2 <= t + 3 <= 11]
    assert c.accuracy(1).value == pytest.approx(sum(right[x] for x in tokens) / len(tokens))
    both = sum(right[t, 0] and right[t, 1] for t in range(9))
    assert definitions(c, 1)["survival"].value == pytest.approx(both / len(tokens))
    assert definitions(c, 1)["conditional"].value == pytest.approx(both / sum(right[t, 0] for t in range(10)))
    assert len({round(e.value, 6) for e in definitions(c, 1).values()}) >= 3


def many(seed=0, count=30, rate=0.7):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        item = recorded(rng.integers(1, 50, 60).tolist(), [0] * 10 + [1] * 50, f"s{i}", "even" if i % 2 == 0 else "odd")
        table = rng.random((60, 3)) < rate * np.array([1, 0.8, 0.6])
        found.append(by_hand(item, lambda t, k, table=table: table[t, k]))
    return Correctness(tuple(found), 3)


def test_a_logged_metric_is_held_against_its_own_definition():
    c = many()
    marginal, survival = c.accuracy(2).value, definitions(c, 2)["survival"].value
    assert compare_metric("val/acc_2_epoch", marginal, c).agrees
    own = compare_metric("full_acc_2", survival, c)
    assert own.agrees and own.definition == "survival"
    wrong = compare_metric("full_acc_2", marginal, c)
    assert not wrong.agrees and "marginal" in wrong.agrees_with
    assert compare_metric("acc_0", 100 * c.accuracy(0).value, c).agrees
    assert compare_metric("acc_0", c.accuracy(0).value, c, trainer="torchspec").definition == "in-vocabulary"
    assert compare_metric("loss_0", 0.5, c) is None and compare_metric("acc_3", 0.5, c) is None and compare_metric("accuracy", 0.5, c) is None


def test_groups_and_pairs():
    c, other = many(), many(rate=0.5)
    assert c.of_group("even").n + c.of_group("odd").n == c.n
    assert paired_accuracy(c, c).value == 0 and paired_accuracy(c, other).low > 0
    assert paired_accept_length(c, other).low > 0
    with pytest.raises(ValueError, match="same sequences"):
        paired_accuracy(c, many(count=29))


BAD = {
    "two tokens": ({"ids": [1, 2], "mask": [1, 1]}, "2 token"),
    "short mask": ({"ids": [1, 2, 3, 4], "mask": [1, 1]}, "loss_mask has 2"),
    "no mask": ({"ids": [1, 2, 3, 4], "mask": None}, "no loss_mask"),
    "all-zero mask": ({"ids": [1, 2, 3, 4], "mask": [0, 0, 0, 0]}, "all zero"),
    "mask without context": ({"ids": [1, 2, 3, 4], "mask": [1, 1, 0, 0]}, "two tokens before"),
    "no ids": ({"ids": None, "mask": [0, 1, 1, 1]}, "no input_ids"),
    "ids beyond": ({"ids": [1, 2, 3, 99], "mask": [0, 1, 1, 1]}, "outside the vocabulary"),
    "negative ids": ({"ids": [1, -2, 3, 4], "mask": [0, 1, 1, 1]}, "outside the vocabulary"),
    "nan": ({"ids": [1, 2, 3, 4], "mask": [0, 1, 1, 1], "value": float("nan")}, "non-finite"),
    "length": ({"ids": [1, 2, 3, 4], "mask": [0, 1, 1, 1], "length": 3}, "for 4 tokens"),
    "width": ({"ids": [1, 2, 3, 4], "mask": [0, 1, 1, 1], "width": 5}, "5 wide"),
}


def sample(name, ids, mask, value=1.0, length=None, width=2):
    from pathlib import Path

    length = length or len(ids or [0] * 4)
    plane = torch.full((length, width), value)
    return Sample((Plane(0, None, plane),), None if ids is None else torch.tensor(ids), None if mask is None else torch.tensor(mask), Path(name), name)


@pytest.mark.parametrize("name", BAD)
def test_bad_sequences_are_named_and_left_out(name):
    arguments, message = BAD[name]
    good, problems = from_samples([sample("good", [1, 2, 3, 4], [0, 0, 1, 1]), sample(name, **arguments)], vocab=50, width=2)
    assert [g.sample_id for g in good] == ["good"]
    assert len(problems) == 1 and problems[0].sample_id == name and message in problems[0].reason


def test_a_sequence_with_other_planes_than_most_is_left_out():
    short = sample("short", [1, 2, 3, 4], [0, 0, 1, 1])
    usual = [replace(sample(n, [1, 2, 3, last], [0, 0, 1, 1]), planes=(*short.planes, Plane(1, None, torch.ones(4, 2)))) for n, last in (("a", 4), ("b", 5))]
    good, problems = from_samples([short, *usual])
    assert [g.sample_id for g in good] == ["a", "b"]
    assert problems[0].sample_id == "short" and "1 plane(s), 2 other sample(s) hold 2" in problems[0].reason


def test_cut_and_more_planes_keep_the_rest():
    item = recorded(list(range(8)), [0] * 3 + [1] * 5)
    assert len(item.cut(5)) == 5 and item.cut(5).planes["p"].shape == (5, 2)
    assert set(item.with_planes({"q": torch.ones(8, 2)}).planes) == {"p", "q"}


def test_a_corrupt_table_cannot_be_right_beyond_the_response():
    item = recorded([1, 2, 3, 4, 5], [0, 0, 1, 1, 1])
    s = judge(item, torch.zeros(len(chain_rows(item.loss_mask, 3)), 3, dtype=torch.long), torch.tensor([-1, 7]))
    assert not s.correct.any() and (s.truth == -1).any()


def test_fed_true_states_a_later_step_predicts_as_the_first_one_does_a_position_on():
    item = recorded(list(range(1, 13)), [0] * 4 + [1] * 5 + [0, 1, 1])
    s = by_hand(item, lambda t, k: k == 0 and t % 3 == 0).with_true_states()
    expected = [[(t + k) % 3 == 0 and bool(item.loss_mask[t + 2 + k]) if t + 2 + k < 12 else False for k in range(3)] for t in s.positions.tolist()]
    assert s.correct.tolist() == expected and (s.valid == by_hand(item, lambda t, k: True).valid).all()
    cut = replace(s, positions=s.positions[:3], predicted=s.predicted[:3], truth=s.truth[:3], in_vocabulary=s.in_vocabulary[:3]).with_true_states()
    assert cut.valid.sum(0).tolist() == [1, 1, 1], "positions that were not evaluated are left out"
