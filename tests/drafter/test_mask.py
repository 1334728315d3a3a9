"""Masks on and off their responses: text with a template, prompts and responses of random length and content."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.mask import mask_edge, mask_finding
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.teacher import Choices, Teacher
from eagle_forensics.finding import Status

HEAD, TURN = [1, 90, 91, 92], [2, 1, 93, 94]


def dump(count=20, seed=0, head=HEAD, turn=TURN, turns=1):
    rng, found = np.random.default_rng(seed), []
    for i in range(count):
        ids, mask = [*head], [0] * len(head)
        for _ in range(turns):
            prompt, response = rng.integers(10, 80, rng.integers(20, 45)), rng.integers(10, 80, rng.integers(40, 70))
            ids += [*prompt.tolist(), *turn, *response.tolist()]
            mask += [0] * (len(prompt) + len(turn)) + [1] * len(response)
        found.append(Recorded({"slot 0": torch.zeros(len(ids), 2)}, torch.tensor(ids), torch.tensor(mask).bool(), f"s{i}"))
    return found


def moved(items, by, roll=True):
    def move(mask):
        mask = torch.roll(mask, by)
        if not roll:
            mask[:by] = False
        return mask
    return [replace(item, loss_mask=move(item.loss_mask)) for item in items]


def teacher(items, wrong=()):
    """A target that wrote the responses of `items`, but for those of the sequences `wrong`, and no prompt."""
    choices = {}
    for item in items:
        greedy = np.where(item.loss_mask.numpy() & (item.sample_id not in wrong), item.input_ids.numpy(), 999)
        choices[item.sample_id] = Choices(np.append(greedy[1:], -1), np.append(greedy[1:], -1))
    return Teacher(choices, stats.Estimate(1.0, 0.95, 1.0, 100, len(items), "made"), False, "slot 3")


@pytest.mark.parametrize("turns", [1, 3])
def test_a_mask_on_its_responses_passes(turns):
    found = mask_finding(dump(turns=turns))
    assert found.status is Status.PASS and found.fault is None and found.n == 20 * turns


@pytest.mark.parametrize(("by", "words"), [(20, "first 20 tokens of the responses carry no loss"), (-20, "last 20 tokens of the prompts"), (5, "first 5 tokens")])
def test_a_rolled_mask_is_named_with_its_distance(by, words):
    found = mask_finding(moved(dump(), by))
    assert (found.status, found.fault) == (Status.FAIL, "data.mask-shift") and words in found.statement
    assert mask_edge(moved(dump(), by)).shift == by and mask_edge(moved(dump(), by)).ending == tuple(TURN[1:])


def test_a_beginning_left_out_is_an_accusation_only_if_the_target_wrote_it():
    items = dump()
    late = moved(items, 20, roll=False)
    assert (mask_finding(late).status, mask_finding(late).fault) == (Status.INCONCLUSIVE, "data.mask-shift")
    assert mask_finding(late, teacher(items)).status is Status.FAIL
    assert mask_finding(late, teacher(items, wrong={i.sample_id for i in items})).status is Status.INCONCLUSIVE


def test_a_role_marker_that_carries_loss_is_no_shift():
    """Some masks begin with the template's `<|im_start|>assistant`: too early at the start, yet right to the last token."""
    items = [replace(i, loss_mask=i.loss_mask | torch.roll(i.loss_mask, -3)) for i in dump()]
    found = mask_finding(items)
    assert mask_edge(items).shift == -3 and found.status is Status.INCONCLUSIVE and "on purpose" in found.statement


def test_no_accusation_where_nothing_common_tells():
    plain = dump(head=[], turn=[])
    assert mask_finding(plain).status is Status.INCONCLUSIVE and mask_finding(moved(plain, 20)).fault is None
    assert "too few" in mask_finding(moved(dump(4), 20)).statement
    assert mask_finding(moved(dump(), 1)).fault is None
    everything = [replace(i, loss_mask=torch.ones(len(i)).bool()) for i in dump()]
    assert mask_finding(everything).status is Status.SKIPPED


def test_responses_that_begin_alike_are_no_shift():
    items = dump(turn=[*TURN, 95, 96])
    think = [replace(i, loss_mask=i.loss_mask | torch.roll(i.loss_mask, -2)) for i in items]
    found = mask_finding(think)
    assert found.status is Status.PASS and "2 more tokens" in found.statement


def test_prompts_of_one_length_and_wording_stay_open():
    one = dump(1)[0]
    assert mask_finding([replace(one, sample_id=f"s{i}") for i in range(20)]).fault is None
    assert mask_finding(moved([replace(one, sample_id=f"s{i}") for i in range(20)], 20)).fault is None
