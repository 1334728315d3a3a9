"""A capture with fewer rows than token ids: its place is found by the target's states, or left open, never guessed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from eagle_forensics.case import Capture, Case
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import study
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.placing import placed

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

IDS = sequences(3)
TARGET = TinyTarget()
BANK = TinyBank(TARGET, IDS)
SKIP = 20


def cut(rows, noise=0.0):
    """Recordings of b=3 and b=5 whose rows are a part of the prompt's."""
    g = torch.Generator().manual_seed(1)

    def planes(ids):
        states = [TARGET.run(ids)[0][b][rows] for b in (3, 5)]
        return [h + noise * h.norm(dim=-1, keepdim=True) / 8 * torch.randn(h.shape, generator=g) for h in states]

    return [replace(s, input_ids=None, prompt_ids=s.input_ids) for s in samples(planes, IDS)]


@pytest.mark.parametrize("rows, start", [(slice(SKIP, None), SKIP), (slice(0, 30), 0)], ids=["behind a cached prefix", "cut off at the end"])
def test_rows_find_their_tokens(rows, start):
    found = placed(cut(rows), BANK, TARGET.weights(), LAYERS)
    assert [s.input_ids.tolist() for s in found] == [ids[start:start + len(s.planes[0].data)].tolist() for s, ids in zip(found, IDS, strict=True)]
    seen = identify(found, bank=BANK, weights=TARGET.weights(), layers=LAYERS)
    assert [s.equals.index for s in seen.slots] == [3, 5]


@pytest.mark.parametrize("rows, noise", [(slice(10, -10), 0.0), (slice(SKIP, None), 0.5)], ids=["neither start nor end", "too noisy"])
def test_what_fits_nowhere_is_left_open(rows, noise):
    found = placed(cut(rows, noise), BANK, TARGET.weights(), LAYERS)
    assert all(s.input_ids is None for s in found)
    assert not any(s.sure for s in identify(found, bank=BANK, weights=TARGET.weights(), layers=LAYERS).slots)


def test_without_a_bank_nothing_is_placed():
    assert all(s.input_ids is None for s in placed(cut(slice(SKIP, None)), None, TARGET.weights(), LAYERS))


def test_the_capture_s_finding_says_that_rows_are_missing(tmp_path):
    whole = cut(slice(SKIP, None))
    for s in whole:
        save_file({"hidden_states": torch.stack([p.data for p in s.planes], 1), "token_ids": s.prompt_ids}, tmp_path / f"{s.sample_id}.safetensors")
    found = identify(samples(lambda ids: [TARGET.run(ids)[0][b] for b in (3, 5, 6)], IDS), bank=BANK, weights=TARGET.weights(), layers=LAYERS)
    sources = SimpleNamespace(target=None, bank=BANK, weights=TARGET.weights(), layers=LAYERS)
    work = study.Work(Case(name="a", captures=(Capture(path=tmp_path, path_kind="eager"),)), sources, found, None, ())
    finding = next(f for f in study.served(work) if f.id == "layers.capture-0")
    assert finding.status is Status.PASS and finding.observed == [3, 5], finding.statement
    assert f"begin at a later position of their sequence (position {SKIP} and on)" in finding.statement
