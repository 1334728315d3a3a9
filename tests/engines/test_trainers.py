"""Trainers: ids to trained boundaries, and the state of the last plane."""

from __future__ import annotations

import pytest

from eagle_forensics.boundary import Boundary
from eagle_forensics.engines.trainers import trained_boundaries

# trainer, version, L, ids, boundaries, last (index, normed), expected by the trainer
CASES = [
    ("speculators", "0.4.0", 30, (1, 14, 26, 29), (2, 15, 27), (30, False), "pre"),
    ("speculators", "0.3.0", 61, (2, 30, 58), (3, 31, 59), (61, False), "post"),
    ("speculators", "0.3.0", 61, (2, 30, 58, 60), (3, 31, 59), (61, False), "post"),
    ("speculators", "0.4.0", 32, (2, 16, 29, 31), (3, 17, 30), (32, False), "pre"),
    ("speculators", "0.4.0", 36, None, (3, 19, 34), (36, False), "pre"),
    ("speculators", "0.5.0", 61, (2, 30, 58, 61), (2, 30, 58), (61, False), "pre"),
    ("speculators", "0.9.0", 30, (2, 15, 27), (2, 15, 27), (30, False), "pre"),
    ("speculators", "0.9.0", 80, None, (2, 40, 77), (80, False), "pre"),
    ("eagle", None, 32, None, (2, 16, 29), None, None),
    ("specforge", "0.2.0", 61, (1, 29, 57), (2, 30, 58), (61, True), "post"),
    ("specforge", None, 94, (1, 46, 90), (2, 47, 91), (94, True), "post"),
    ("modelopt", None, 48, (1, 23, 44), (2, 24, 45), (48, True), "post"),
    ("modelopt-vllm", None, 61, (1, 29, 57), (1, 29, 57), (61, False), "post"),
    ("angelslim", None, 36, None, (2, 18, 33), (36, True), "post"),
    ("torchspec", None, 61, (1, 29, 57), (2, 30, 58), (61, True), "post"),
    ("trtllm", None, 30, (-1, 14, 1), (2, 15), (30, True), "post"),
    ("nemo", None, 32, None, (2, 16, 29), None, None),
]


@pytest.mark.parametrize(("trainer", "version", "layers", "ids", "boundaries", "last", "expected"), CASES)
def test_trained_boundaries(trainer, version, layers, ids, boundaries, last, expected):
    answer = trained_boundaries(trainer, version, ids=ids, layers=layers)
    assert answer.error is None
    assert answer.boundaries == boundaries
    assert answer.last == (None if last is None else Boundary(*last))
    assert answer.last_expected == expected


def test_the_defaults_of_vllm_and_hf_dumps_of_one_toolchain_differ_by_one():
    hf, vllm = (trained_boundaries(name, layers=61).boundaries for name in ("modelopt", "modelopt-vllm"))
    assert [a - b for a, b in zip(hf, vllm, strict=True)] == [1, 1, 1]


def test_the_order_of_training_is_kept():
    answer = trained_boundaries("specforge", ids=(26, 14, 1), layers=30)
    assert answer.boundaries == (27, 15, 2)
    assert any("cannot be served by configuration" in note for note in answer.notes)


def test_a_last_plane_that_is_not_the_last_layer_is_said():
    answer = trained_boundaries("speculators", "0.4.0", ids=(2, 30, 58, 59), layers=61)
    assert answer.last == Boundary(60)
    assert any("not the target's last layer" in note for note in answer.notes)


@pytest.mark.parametrize(("ids", "text"), [((1, 14, 40), "outside 0..30"), (("1", 14, 26), "must be integers"), ((-5, 14, 26), "outside")])
def test_ids_that_name_no_boundary(ids, text):
    answer = trained_boundaries("specforge", ids=ids, layers=30)
    assert answer.boundaries == () and text in answer.error


def test_assumptions_are_marked():
    assert trained_boundaries("speculators", layers=30).assumed
    assert trained_boundaries("speculators", "1.4.0", layers=30).assumed
    assert not trained_boundaries("speculators", "0.9.0", layers=30).assumed
    with pytest.raises(ValueError, match="did you mean 'speculators'"):
        trained_boundaries("speculator", layers=30)
