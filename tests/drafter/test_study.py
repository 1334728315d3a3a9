"""Notebook 02 on evidence that is sound but not enough, and on dumps whose planes nobody can be held to."""

from types import SimpleNamespace

import pytest
import torch

from eagle_forensics.case import Case
from eagle_forensics.drafter import study, workbench
from eagle_forensics.finding import Status
from tests.drafter import tiny
from tests.drafter.planted import MODEL

TOKENS = torch.arange(8)


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A case whose drafter is the tiny one; returns a function that writes its dump (planes, mask) and opens the work."""
    draft = SimpleNamespace(path=tmp_path, tensors={"fc.weight": None, "embed_tokens.weight": None}, family="eagle3_llama")
    monkeypatch.setattr(workbench, "read_draft", lambda path: draft)
    monkeypatch.setattr(workbench, "load_drafter", lambda *a, **k: MODEL)

    def begin(planes=4, mask=True, trainer="speculators", dumps=1, steps=2, max_samples=None, **changes):
        vars(draft).update(changes)
        for number in range(dumps):
            folder = tmp_path / f"dump{number}"
            folder.mkdir(exist_ok=True)
            states = [torch.randn(8, tiny.TARGET, generator=torch.Generator().manual_seed(i)) for i in range(planes)]
            torch.save({"input_ids": TOKENS, "hidden_states": states, **({"loss_mask": TOKENS > 2} if mask else {})}, folder / "data_0.pt")
        paths = [{"path": tmp_path / f"dump{n}"} for n in range(dumps)]
        mine = Case.model_validate({"name": "a", "drafter": {"path": tmp_path}, "training": {"dump": paths, "trainer": {"name": trainer}}})
        return study.begin(mine, layers=None, steps=steps, max_samples=max_samples, seed=0)

    return begin


@pytest.mark.parametrize(("lacking", "words"), [
    ({"mask": False}, "no loss_mask"), ({"family": "eagle1"}, "family eagle1"), ({"tensors": {}}, "no weights"),
    ({"tensors": {"fc.weight": None}}, "embed_tokens.weight")])
def test_sound_evidence_that_does_not_suffice_is_no_error(case, lacking, words):
    work = case(**lacking)
    assert work.bench is None and work.opening[0].status is Status.SKIPPED and words in work.opening[0].statement


@pytest.mark.parametrize("given", [{"steps": 0}, {"steps": -1}, {"steps": 1000}, {"max_samples": -5}])
def test_parameters_outside_their_range_are_an_error_that_says_the_range(case, given):
    work = case(**given)
    assert work.bench is None and work.opening[0].status is Status.ERROR and "expected 1 to 32 steps and 0 (all) or more" in work.opening[0].statement


def test_a_dump_of_another_width_is_an_error(case, monkeypatch):
    monkeypatch.setattr(tiny, "TARGET", tiny.TARGET + 1)
    assert case().opening[0].status is Status.ERROR


@pytest.mark.parametrize(("planes", "trainer", "known"), [(4, "speculators", True), (3, "specforge", True), (5, "speculators", False), (4, "other", False)])
def test_only_a_known_reading_of_the_dump_accuses(case, planes, trainer, known):
    work = case(planes=planes, trainer=trainer)
    assert (study._contract(work) is not None) is known


def test_dumps_that_are_not_evaluated_are_named(case):
    assert any("not dump1" in note for note in case(dumps=2).bench.notes)
