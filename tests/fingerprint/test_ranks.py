"""Ranks side by side: equal copies pass, slices and shares are named with their boundary, anything else abstains."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

from eagle_forensics.boundary import Boundary
from eagle_forensics.case import Capture, Case
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import pictures, study
from eagle_forensics.fingerprint.consistency import rank_finding
from eagle_forensics.fingerprint.parts import GatedMlp
from eagle_forensics.fingerprint.ranks import Agreement, by_rank, compare_ranks

from .tiny import EPS, HIDDEN, LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences(4)


class Gated(TinyTarget):
    """A tiny target whose last two steps of every layer are a gated MLP, so that a layer's inside can be computed."""

    def mlp(self, layer: int) -> GatedMlp:
        g = torch.Generator().manual_seed(100 + layer)
        gate = torch.randn(128, HIDDEN, generator=g) * HIDDEN**-0.5
        return GatedMlp(torch.ones(HIDDEN), gate, self.up[layer].T, self.down[layer].T, EPS)

    def run(self, ids):
        h, states, middle = self.embed[ids], [self.embed[ids]], []
        steps = torch.arange(1, len(ids) + 1).unsqueeze(1)
        for layer in range(LAYERS):
            r = h + (self.rms(h).cumsum(0) / steps.sqrt()) @ self.mix[layer]
            h = r + 2 * self.mlp(layer)(r)
            states.append(h)
            middle.append(r)
        return states, middle, []

    def weights(self):
        return replace(super().weights(), mlp=self._doubled)

    def _doubled(self, layer: int) -> GatedMlp:
        m = self.mlp(layer)
        return replace(m, down=2 * m.down)


TARGET = Gated()


def share(ids, boundary, rank, ranks):
    middle, mlp = TARGET.run(ids)[1][boundary - 1], TARGET._doubled(boundary - 1)
    width = mlp.width // ranks
    return middle + mlp(middle, slice(rank * width, (rank + 1) * width))


PLANES = {
    "equal": (lambda ids, r, n: TARGET.run(ids)[0][3], Agreement.EQUAL, None, Status.PASS, None),
    "slices": (lambda ids, r, n: TARGET.run(ids)[0][3].chunk(n, 1)[r], Agreement.SLICES, 3, Status.FAIL, "feature.tp-slice"),
    "shares": (lambda ids, r, n: TARGET.run(ids)[0][3] * torch.linspace(0.1, 0.4, n)[r] / torch.linspace(0.1, 0.4, n).sum(), Agreement.SHARES, 3,
               Status.FAIL, "feature.partial-sum"),
    "inner shares": (lambda ids, r, n: share(ids, 3, r, n), Agreement.INNER_SHARES, 3, Status.FAIL, "feature.partial-sum"),
    "other states": (lambda ids, r, n: TARGET.run(ids)[0][1 + r], Agreement.DIFFER, None, Status.INCONCLUSIVE, "feature.partial-sum"),
    "scattered tokens": (lambda ids, r, n: TARGET.run(ids)[0][3] * (torch.arange(len(ids)) % n == r).unsqueeze(1), Agreement.TOKENS, 3,
                         Status.FAIL, "runtime.dp-attention"),
    "scattered rows of no state": (lambda ids, r, n: torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(r)) * (torch.arange(len(ids)) % n == r).unsqueeze(1),
                                   Agreement.TOKENS, None, Status.INCONCLUSIVE, "runtime.dp-attention"),
    "rows lost on all ranks": (lambda ids, r, n: TARGET.run(ids)[0][3] * (torch.arange(len(ids)) % (n + 1) == r).unsqueeze(1), Agreement.TOKENS, None,
                               Status.INCONCLUSIVE, "runtime.dp-attention"),
}


def recorded(make, ranks):
    return [replace(s, rank=r, ranks=ranks, sample_id=f"{s.sample_id}_{r}") for r in range(ranks)
            for s in samples(lambda ids, r=r: [make(ids, r, ranks).to(torch.bfloat16)], IDS)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", PLANES)
def test_what_the_ranks_hold_together(name, ranks):
    make, agreement, boundary, status, fault = PLANES[name]
    grouped = by_rank(recorded(make, ranks))
    assert sorted(grouped) == list(range(ranks))
    result, = compare_ranks(grouped, bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)
    assert (result.agreement, result.boundary) == (agreement, Boundary(boundary) if boundary else None), result.text
    finding = rank_finding([result], "layers.ranks-0", "the captures")
    assert (finding.status, finding.fault) == (status, fault)


def test_without_a_bank_unequal_ranks_accuse_nobody_and_equal_ones_pass():
    for name, agreement in (("inner shares", Agreement.DIFFER), ("equal", Agreement.EQUAL)):
        result, = compare_ranks(by_rank(recorded(PLANES[name][0], 2)))
        assert result.agreement is agreement


def test_a_layer_offset_on_all_ranks_is_no_matter_of_ranks():
    result, = compare_ranks(by_rank(recorded(lambda ids, r, n: TARGET.run(ids)[0][4], 2)), bank=TinyBank(TARGET, IDS), weights=TARGET.weights())
    assert result.agreement is Agreement.EQUAL


def test_one_rank_alone_is_no_comparison_and_other_lengths_are_refused():
    one = [replace(s, rank=0) for s in samples(lambda ids: [TARGET.run(ids)[0][3]], IDS)]
    with pytest.raises(EvidenceError, match="1 rank recorded"):
        by_rank(one)
    with pytest.raises(EvidenceError, match="no tokens were recorded by all of the ranks 0, 1"):
        by_rank([*one, *(replace(s, rank=1) for s in samples(lambda ids: [TARGET.run(ids)[0][3]], sequences(4, seed=9)))])
    short = samples(lambda ids: [TARGET.run(ids)[0][3]], [s[:20] for s in IDS])
    with pytest.raises(EvidenceError, match="Record one forward pass"):
        compare_ranks({0: one, 1: short})


def work_with(tmp_path, planes_of_rank):
    """Notebook 03 at the captures of several ranks, each a file of its own; the bank is the tiny target's."""
    held = []
    for rank, (ids, planes) in enumerate(planes_of_rank):
        torch.save({"fed": torch.stack(planes, 1).bfloat16(), "input_ids": ids}, tmp_path / f"one_{rank}.pt")
        held.append(Capture(path=tmp_path / f"one_{rank}.pt", path_kind="eager", tp_rank=rank))
    sources = SimpleNamespace(target=None, bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)
    return study.Work(Case(name="a", captures=tuple(held)), sources, None, None, ())


def test_ranks_that_cannot_be_laid_side_by_side_are_a_finding(tmp_path):
    states = TARGET.run(IDS[0])[0]
    sound = [(IDS[0], [states[1], states[3]])] * 3
    assert [f.status for f in study.rank_findings(work_with(tmp_path, sound))] == [Status.PASS]
    for odd, reason in (((IDS[0], [states[1]]), "rank 3 recorded .* in 1 slots"), ((IDS[1], [states[1][:50]] * 2), "no tokens were recorded by all")):
        finding, = study.rank_findings(work_with(tmp_path, [*sound, (odd[0][: len(odd[1][0])], odd[1])]))
        assert finding.status is Status.INCONCLUSIVE and re.search(reason, finding.statement), finding.statement


def test_figure_and_table_of_four_ranks(tmp_path):
    work = work_with(tmp_path, [(IDS[0], [TARGET.run(IDS[0])[0][1], share(IDS[0], 3, rank, 4)]) for rank in range(4)])
    frame, picture = pictures.ranks_frame(work), pictures.ranks_figure(work)
    assert frame["hold"].tolist() == ["equal copies", str(Agreement.INNER_SHARES)] and frame["together"].tolist()[1] == "b=3"
    assert "disagree in 1 of 2 slots" in picture.alt and "eager slot 1" in picture.alt
    picture.figure.canvas.draw()
