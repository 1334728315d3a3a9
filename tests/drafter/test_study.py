"""Notebook 02 on evidence that is sound but not enough, and on dumps whose planes nobody can be held to."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from eagle_forensics.case import Case
from eagle_forensics.drafter import frames, study, workbench
from eagle_forensics.drafter.prediction.study import OwnChoices
from eagle_forensics.drafter.wirings import sets
from eagle_forensics.drafter.wirings.battery import run_battery
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.finding import Status
from tests.drafter import tiny
from tests.drafter.planted import MODEL

TOKENS = torch.arange(8)
UNKNOWN = OwnChoices(None, None, "not asked")


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A case whose drafter is the tiny one; returns a function that writes its dump (planes, mask) and opens the work."""
    draft = SimpleNamespace(path=tmp_path, tensors={"fc.weight": None, "embed_tokens.weight": None}, family="eagle3_llama")
    monkeypatch.setattr(workbench, "read_draft", lambda path: draft)
    monkeypatch.setattr(workbench, "load_drafter", lambda *a, **k: MODEL)

    def begin(planes=4, mask=True, trainer="speculators", dumps=1, steps=2, max_samples=None, dump=None, **changes):
        vars(draft).update(changes)
        for number in range(0 if dump else dumps):
            folder = tmp_path / f"dump{number}"
            folder.mkdir(exist_ok=True)
            states = [torch.randn(8, tiny.TARGET, generator=torch.Generator().manual_seed(i)) for i in range(planes)]
            torch.save({"input_ids": TOKENS, "hidden_states": states, **({"loss_mask": TOKENS > 2} if mask else {})}, folder / "data_0.pt")
        paths = [{"path": dump}] if dump else [{"path": tmp_path / f"dump{n}"} for n in range(dumps)]
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
    assert not known or ("teacher" in study._contract(work)) is (planes > 3), "a dump of as many planes as fc reads has none for the teacher"


def written(folder, samples):
    """A dump of the given samples (states, ids, mask), one file each."""
    folder.mkdir()
    for number, (states, ids, mask) in enumerate(samples):
        torch.save({"input_ids": ids, "hidden_states": states, **({} if mask is None else {"loss_mask": mask})}, folder / f"data_{number}.pt")
    return folder


def sound(length=8, seed=0):
    states = [torch.randn(length, tiny.TARGET, generator=torch.Generator().manual_seed(seed + i)) for i in range(4)]
    ids = torch.arange(length) % 7
    ids[:2] = torch.tensor([seed % 7, seed // 7 % 7])
    return states, ids, torch.arange(length) > 2


def measured(work):
    """Two wirings instead of the whole battery: all that these tests need."""
    return run_battery(MODEL, work.bench.sequences, [work.bench.trained, Wiring(("slot 1", "slot 0", "slot 2"))], 2)


BAD = {
    "NaN": (lambda s, i, m: ([s[0], s[1].index_fill(0, torch.tensor([2]), float("nan")), *s[2:]], i, m), "plane 'slot 1' holds 12 non-finite value(s)"),
    "ids beyond the vocabulary": (lambda s, i, m: (s, i.index_fill(0, torch.tensor([4]), 99), m), "token ids span 0..99, outside the vocabulary of 11"),
    "one token": (lambda s, i, m: ([p[:1] for p in s], i[:1], m[:1]), "1 token(s): position t predicts token t+2, so 3 are the least"),
    "planes of different length": (lambda s, i, m: ([s[0], s[1][:5], *s[2:]], i, m), "5"),
    "no mask": (lambda s, i, m: (s, i, None), "no loss_mask"),
    "mask all zero": (lambda s, i, m: (s, i, torch.zeros_like(m)), "the loss mask is all zero"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_sample_is_named_counted_and_left_out(case, tmp_path, kind):
    change, words = BAD[kind]
    written(tmp_path / "mixed", [sound(seed=0), change(*sound(seed=10)), sound(seed=20)])
    work = case(dump=tmp_path / "mixed")
    assert len(work.bench.sequences) == 2 and len(work.bench.problems) == 1
    assert "data_1" in work.bench.problems[0].sample_id + work.bench.problems[0].reason and words in work.bench.problems[0].reason
    found = study.accuracy(work, measured(work), UNKNOWN)[0]
    assert found.status is Status.INCONCLUSIVE and any(note.note.startswith("1 sequence(s) left out") for note in found.evidence)


def test_a_text_that_comes_again_counts_once(case, tmp_path):
    """Sixteen copies of one text are one observation: they would give intervals of no width, and accuse whoever chance likes."""
    work = case(dump=written(tmp_path / "again", [sound()] * 16))
    assert len(work.bench.sequences) == 1 and [p.reason for p in work.bench.problems] == ["the same text as data_0.pt: it counts once"] * 15
    assert {f.status for f in study.wiring(work, measured(work))} == {Status.INCONCLUSIVE}


@pytest.mark.parametrize("kind", BAD)
def test_nothing_but_bad_samples_is_told_with_the_reason(case, tmp_path, kind):
    change, words = BAD[kind]
    work = case(dump=written(tmp_path / "bad", [change(*sound())]))
    assert work.bench is None and work.opening[0].status is (Status.SKIPPED if kind == "no mask" else Status.ERROR) and words in work.opening[0].statement


def test_missing_tensors_are_all_named(case, monkeypatch):
    lacking = {k: v for k, v in tiny.weights(1).items() if not k.endswith(("fc.weight", "o_proj.weight"))}
    monkeypatch.setattr(workbench, "load_drafter", lambda *a, **k: tiny.drafter(lacking))
    found = case().opening[0]
    assert found.status is Status.ERROR and "2 tensor(s) missing: fc.weight, layers.0.self_attn.o_proj.weight" in found.statement


def test_one_text_gives_no_interval_and_no_verdict(case, tmp_path):
    work = case(dump=written(tmp_path / "one", [sound()]))
    results = study.battery(work)
    findings = [*study.wiring(work, results), study.accuracy(work, results, UNKNOWN)[0], *study.prediction(work, study.trained_correctness(results), None)]
    assert {f.status for f in findings} == {Status.INCONCLUSIVE} and "at least two sequences" in findings[0].next_step


def test_graph_replays_that_capture_other_layers_are_told_apart_from_the_eager_path(case, tmp_path, monkeypatch):
    """Prompts run eagerly, responses in graphs: the states fed are each path's own, and what is predicted live is the mixture."""
    work = case(dump=written(tmp_path / "graph", [sound(12, seed=100 * n) for n in range(3)]), planes=3)
    states = [{f"b={b}": torch.randn(12, tiny.TARGET, generator=torch.Generator().manual_seed(b + 10 * n)) for b in range(6)} for n in range(3)]
    bench = replace(work.bench, computed=tuple(s.with_planes(p) for s, p in zip(work.bench.sequences, states, strict=True)), sets={(1, 2, 3): "trained", (2, 3, 4): "graph"})
    work = replace(work, bench=bench, served=(1, 2, 3), graph=(2, 3, 4))
    compared = study.boundary_sets(work, measured(work))
    fed = [{f"slot {i}": torch.cat([p[f"b={i + 1}"][:3], p[f"b={i + 2}"][3:]]) for i in range(3)} for p in states]
    by_hand = evaluate(MODEL, [s.with_planes(p) for s, p in zip(bench.sequences, fed, strict=True)], bench.trained, 2)
    assert all((a.predicted == b.predicted).all() for a, b in zip(compared.decode.sequences, by_hand.sequences, strict=True))
    assert [f.id for f in study.served(work, compared)] == ["drafter.served-wiring", "drafter.served-graph"] and study.live(compared) is compared.decode
    ordered = frames.sets_frame(bench, sets.compare_sets(bench, 2, None, base=Wiring(("slot 1", "slot 0", "slot 2"))))
    assert {"b=1, b=2, b=3", "b=2, b=1, b=3"} <= set(ordered["fed"]) and "trained; in the order that fits the dump" in set(ordered["origin"])
    record = study.record(work, measured(work), compared, {})
    assert record["served_wiring"] == "CUDA graph {2, 3, 4}" and record["served"]["accept_length"]["value"] == pytest.approx(by_hand.accept_length().value)


def test_damaged_states_are_predicted_by_name(case, tmp_path):
    work = case(dump=written(tmp_path / "damage", [sound(12, seed=100 * n) for n in range(3)]))
    states = {f"b={b}": torch.randn(12, tiny.TARGET, generator=torch.Generator().manual_seed(b)) for b in range(5)}
    work = replace(work, bench=replace(work.bench, computed=tuple(s.with_planes(states) for s in work.bench.sequences)), claimed=(1, 2, 3))
    found = study.damage(work, None)
    assert set(found) == {"as they should be", *(f"one of {n} tensor-parallel slices" for n in (2, 8)), *(f"divided by {n} ranks" for n in (2, 8)), "without the residual"}
    sliced = evaluate(MODEL, work.bench.computed, work.bench.set_wiring((1, 2, 3)).formed("1/2 slice"), 2)
    assert all((a.predicted == b.predicted).all() for a, b in zip(sliced.sequences, found["one of 2 tensor-parallel slices"].sequences, strict=True))
    assert any("divided by 8" in name for name in study.record(work, measured(work), None, found)["wirings"])


def test_groups_by_length_and_folder_hold_every_text_once(case, tmp_path):
    """Many texts end at the same limit: terciles that fall together make fewer groups, not lost texts."""
    for folder, lengths in (("math", (6, 12, 12, 12)), ("chat", (12, 12, 20))):
        (tmp_path / "all").mkdir(exist_ok=True)
        written(tmp_path / "all" / folder, [sound(n, seed=10 * n + i + len(lengths)) for i, n in enumerate(lengths)])
    sequences = case(dump=tmp_path / "all").bench.sequences
    assert len(sequences) == 7
    found = evaluate(MODEL, sequences, Wiring(("slot 0", "slot 1", "slot 2")), 2)
    for parts in (frames.by_length(found), frames.by_folder(found)):
        assert sorted(s.n for c in parts.values() for s in c.sequences) == sorted(s.n for s in found.sequences) and len(parts) > 1
    assert set(frames.by_folder(found)) == {"math", "chat"}
    frame = frames.groups_frame(found)
    assert frame[frame["by"] == "length of the text"]["tokens"].sum() == found.n == frame[frame["by"] == "position in the text"]["tokens"].sum()


def test_dumps_that_are_not_evaluated_are_named(case):
    assert any("not dump1" in note for note in case(dumps=2).bench.notes)
