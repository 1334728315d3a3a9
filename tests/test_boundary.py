"""The coordinate itself: descriptions, defaults and shifts."""

import pytest

from eagle_forensics.boundary import Boundary, default_boundaries, format_boundaries, uniform_shift


@pytest.mark.parametrize(("boundary", "words"), [
    (Boundary(0), "b=0 (embedding output)"),
    (Boundary(3), "b=3 (output of layer 2)"),
    (Boundary(30), "b=30 (output of the last layer, 29, before the final norm)"),
    (Boundary(30, normed=True), "b=30+norm (after the final norm)"),
])
def test_a_boundary_says_what_it_is(boundary, words):
    assert boundary.describe(layers=30) == words


@pytest.mark.parametrize(("layers", "expected"), [(61, (2, 30, 58)), (32, (2, 16, 29)), (36, (2, 18, 33)), (30, (2, 15, 27))])
def test_the_default_of_every_engine(layers, expected):
    assert default_boundaries(layers) == expected


@pytest.mark.parametrize(("trained", "served", "shift"), [
    ((3, 31, 59), (2, 30, 58), -1), ((2, 15, 27), (2, 15, 27), 0), ((2, 15, 27), (0, 2, 15), None), ((2, 15), (2, 15, 27), None), ((), (), None),
])
def test_a_shift_is_one_number_or_none(trained, served, shift):
    assert uniform_shift(trained, served) == shift


def test_unknown_boundaries_are_named_unknown():
    assert format_boundaries(None) == "unknown"
    assert format_boundaries((2, 15)) == "{2, 15}"
