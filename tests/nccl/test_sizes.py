"""Message sizes and counts of one verify forward."""

import pytest

from eagle_forensics.nccl.sizes import message_bytes, plan, saving_ms

KIMI = {"text_config": {"num_hidden_layers": 61, "hidden_size": 7168}, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize(("tokens", "size"), [(1, 14336), (2, 28672), (3, 43008), (4, 57344), (6, 86016), (16, 229376), (64, 917504)])
def test_published_sizes(tokens, size):
    assert message_bytes(7168, tokens) == size


def test_two_draft_steps_of_a_deepseek_class_target():
    found = plan(KIMI, tp=8, steps=2)
    assert (found.bytes, found.count) == (43008, 123)
    assert found.verify_ms(26.2) == pytest.approx(3.2226)


def test_one_rank_sends_nothing():
    assert plan(KIMI, tp=1, steps=2).count == plan(KIMI, tp=1, steps=2).draft_count == 0


def test_the_command_measures_exactly_these_sizes():
    assert "-np 8 all_reduce_perf -g 1 -b 14336 -e 229376 -i 14336 -d bfloat16" in plan(KIMI, tp=8, steps=2).nccl_tests


def test_batch_and_width_multiply():
    assert plan(KIMI, tp=8, steps=2, batch=4).bytes == 4 * 43008
    assert plan(KIMI, tp=8, steps=2, dtype="float32").bytes == 2 * 43008


def test_the_published_saving_of_a_graph_file():
    assert saving_ms(122, 48.16, 26.20) == pytest.approx(2.68, abs=0.01)
    assert saving_ms(123, 48.69, 25.59) == pytest.approx(2.84, abs=0.01)


@pytest.mark.parametrize(("config", "kwargs", "word"), [
    ({}, {"tp": 8}, "num_hidden_layers"), ({"num_hidden_layers": "61", "hidden_size": 8}, {"tp": 8}, "'61'"), (KIMI, {"tp": 0}, "at least 1"),
    (KIMI, {"tp": 8, "dtype": "int4"}, "activations"),
])
def test_what_cannot_be_planned_is_refused(config, kwargs, word):
    with pytest.raises(ValueError, match=word):
        plan(config, **kwargs)
