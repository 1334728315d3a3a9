"""Each condition of a clean match rejects on its own what the others would let pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.fingerprint.match import match
from eagle_forensics.fingerprint.rows import Reference, Weights, collect

from .tiny import samples, sequences

IDS = sequences(3)
H = 256


class Walk:
    """A bank whose neighbouring states differ by `gap` of their size, in random directions."""

    def __init__(self, gap: float, last: int = 6) -> None:
        self.boundaries = tuple(map(Boundary, range(last + 1)))
        self.sequences = IDS
        self.states = []
        g = torch.Generator().manual_seed(2)
        for ids in IDS:
            h = torch.randn(len(ids), H, generator=g)
            self.states.append([h])
            for _ in range(last):
                h = h + gap * _like(h, g)
                self.states[-1].append(h)

    def plane(self, i: int, boundary: Boundary) -> torch.Tensor:
        return self.states[i][boundary.index]


def _like(h: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    step = torch.randn(h.shape, generator=g)
    return step * h.norm(dim=-1, keepdim=True) / step.norm(dim=-1, keepdim=True)


def of(gap: float, noise: float = 0.0, lean: float = 0.0):
    """Match of a plane that is b=3 plus noise plus a share `lean` of the next layer's increment."""
    bank, g = Walk(gap), torch.Generator().manual_seed(3)
    number = {tuple(s.tolist()): i for i, s in enumerate(IDS)}

    def plane(ids):
        h = bank.states[number[tuple(ids.tolist())]]
        return [h[3] + noise * _like(h[3], g) + lean * (h[4] - h[3])]

    return match(Reference(bank, collect(samples(plane, IDS)), Weights(), 6)).matches[0]


def test_noise_of_another_engine_is_a_clean_match():
    found = of(gap=0.3, noise=0.035)
    assert (found.clean, found.best, found.votes) == (True, Boundary(3), 1.0)
    assert found.error.value == pytest.approx(0.035, rel=0.01)
    assert found.ratio > 8


@pytest.mark.parametrize("gap, noise, lean, reason", [
    (0.6, 0.06, 0.0, "error 0.060 is above 0.05"),
    (0.1, 0.035, 0.0, "is only 3.0 times as far"),
    (0.3, 0.0, 0.14, "part of a layer's output may be missing"),
])
def test_each_condition_rejects_alone(gap, noise, lean, reason):
    found = of(gap, noise, lean)
    assert found.best == Boundary(3)
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]
    assert (found.alignment > 0.9) == (lean > 0)


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.035, 0.3])
def test_errors_are_those_of_plain_subtraction(noise):
    """In float64, every slot against every state; also for rows of sizes a thousand times apart."""
    bank, g = Walk(gap=0.3), torch.Generator().manual_seed(4)
    number = {tuple(s.tolist()): i for i, s in enumerate(IDS)}

    def planes(ids):
        h = bank.states[number[tuple(ids.tolist())]]
        return [h[b] + noise * _like(h[b], g) for b in (0, 3, 6)]

    for states in bank.states:
        size = 1000 ** torch.rand(len(states[0]), 1, generator=g)
        states[:] = [h * size for h in states]
    rows = collect(samples(planes, IDS))
    reference = Reference(bank, rows, Weights(), 6)
    table = match(reference)
    plain = [[(x.double() - h).norm(dim=-1) / h.norm(dim=-1) for b in bank.boundaries if (h := reference.at(b).double()) is not None] for x in rows.planes]
    ordinary = ~table.sinks
    expected = np.array([[np.median(e[ordinary]) for e in errors] for errors in plain])
    np.testing.assert_allclose(table.errors, expected, rtol=1e-4, atol=1e-6)
    assert [m.best for m in table.matches] == [Boundary(0), Boundary(3), Boundary(6)]
    assert [m.votes for m in table.matches] == [float(np.mean(np.argmin([e.numpy()[ordinary] for e in errors], axis=0) == m.best.index))
                                                for errors, m in zip(plain, table.matches, strict=True)]


@pytest.mark.parametrize("gap, noise, looks", [(0.3, 0.01, 1), (0.3, 0.035, 2)])
def test_a_wide_margin_asks_for_no_second_look_at_the_bank(gap, noise, looks, monkeypatch):
    read, plane = [], Walk.plane
    monkeypatch.setattr(Walk, "plane", lambda self, i, boundary: read.append((i, boundary.index)) or plane(self, i, boundary))
    found = of(gap, noise)
    assert found.clean and (found.ratio > 10) == (looks == 1)
    assert read.count((0, 3)) == looks
    assert abs(found.alignment) < 0.2


def test_equal_states_in_the_bank_settle_nothing():
    found = of(gap=0.0)
    assert not found.clean
    assert "is equal to it" in found.reasons[0]


def test_a_bank_of_one_state_is_refused():
    bank = Walk(0.3, last=0)
    rows = collect(samples(lambda ids: [torch.zeros(len(ids), H) + 1.5], IDS))
    with pytest.raises(ValueError, match="at least two"):
        match(Reference(bank, rows, Weights()))
