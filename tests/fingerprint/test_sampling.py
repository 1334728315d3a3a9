"""Drawing samples until a majority of the dump is certain: when it stops, what it abstains from, what a second run reads."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle_forensics.evidence import dumps
from eagle_forensics.evidence.dumps import find_dump
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Status
from eagle_forensics.fingerprint import sampling
from eagle_forensics.fingerprint.sampling import draw, sampling_finding

from .tiny import LAYERS, TinyBank, TinyTarget, sequences

TARGET = TinyTarget()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "cache"))


def write(folder: Path, count: int, boundaries=lambda number: (2, 4), length: int = 24) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        ids = sequences(1, length, seed=100 + number)[0]
        states = TARGET.run(ids)[0]
        torch.save({"input_ids": ids, "hidden_states": [states[b].bfloat16() for b in boundaries(number)]}, folder / f"data_{number}.pt")
    return folder


class Counted:
    """A bank computed on demand; counts sequences."""

    def __init__(self):
        self.sequences = 0

    def __call__(self, parts):
        self.sequences += len(parts)
        return TinyBank(TARGET, [t for p in parts for t in p.texts])


def look(folder, *, most=200, bank=None, seed=0, problems=None, against="tiny", info=None, order=None):
    info = info or find_dump(folder)
    if order is None:
        order = list(range(len(info.files)))
        random.Random(seed).shuffle(order)
    return draw(info, order, len(info.files), bank_of=bank, against=against, weights=TARGET.weights(), layers=LAYERS, most=most,
                problems=[] if problems is None else problems)


def test_a_healthy_dump_is_settled_by_thirteen_samples_whatever_its_size(tmp_path):
    info = find_dump(write(tmp_path / "dump", 40))
    far = replace(info, files=info.files + tuple(info.path / f"absent_{i}.pt" for i in range(100_000 - 40)))
    rows, found = look(None, bank=Counted(), info=far, order=range(100_000))
    assert (found.existing, found.looked, found.settled) == (100_000, 13, True)
    assert [(b.leading, b.hits) for b in found.ballots] == [("b=2", 13), ("b=4", 13)]
    assert len(rows.samples) == 13
    assert "13 of 100000 samples drawn at random: every slot is settled" in found.text()
    assert sampling_finding(found, "03").status is Status.PASS


def test_a_mixed_dump_names_the_samples_that_differ(tmp_path):
    folder = write(tmp_path / "dump", 60, lambda n: (3, 4) if n % 6 == 0 else (2, 4))
    _, found = look(folder, bank=Counted())
    assert found.settled
    assert found.looked > 13, "samples that disagree cost further ones"
    assert {name for name, slot, vote in found.odd if slot == 0 and vote == "b=3"} == {n for n in found.names if int(n[5:-3]) % 6 == 0} != set()
    finding = sampling_finding(found, "03")
    alike = sampling_finding(found, "03", ("b=3", *(b.leading for b in found.ballots[1:])))
    assert alike.status is (Status.PASS if all(slot == 0 and vote == "b=3" for _, slot, vote in found.odd) else Status.INCONCLUSIVE), "what all samples together are is no odd vote"
    assert finding.status is Status.INCONCLUSIVE
    assert "Not all are alike: slot 0" in finding.statement


def test_halves_are_never_settled_and_the_draw_gives_up(tmp_path):
    folder = write(tmp_path / "dump", 50, lambda n: (2 + n % 2, 4))
    _, found = look(folder, bank=Counted(), most=40)
    assert [b.settled for b in found.ballots] == [False, True]
    assert found.looked < 40, "it stops once no further sample within the limit could settle it"
    assert "not settled: slot 0: of" in found.text()
    assert sampling_finding(found, "03").status is Status.INCONCLUSIVE


def test_too_few_samples_say_how_many_are_missing(tmp_path):
    _, found = look(write(tmp_path / "dump", 40), bank=Counted(), most=5)
    assert not found.settled
    assert "further samples that agree would settle it (max_samples is 5)" in found.why_not


def test_a_small_dump_read_whole_is_certain(tmp_path):
    _, found = look(write(tmp_path / "dump", 3), bank=Counted())
    assert found.settled
    assert found.text() == "all 3 of 3 samples looked at: every slot is settled"


def test_no_clean_state_is_an_answer_too(tmp_path):
    folder = write(tmp_path / "dump", 30)
    for file in folder.iterdir():
        content = torch.load(file)
        content["hidden_states"][1] = torch.randn(content["hidden_states"][1].shape)
        torch.save(content, file)
    _, found = look(folder, bank=Counted())
    assert found.settled and found.ballots[1].leading is None


def test_without_a_bank_twelve_samples_are_read(tmp_path):
    _, found = look(write(tmp_path / "dump", 30))
    assert (found.looked, found.ballots, found.settled) == (12, (), False)
    assert sampling_finding(found, "03").status is Status.SKIPPED


def test_samples_without_token_ids_do_not_vote(tmp_path):
    folder = write(tmp_path / "dump", 30)
    for file in folder.iterdir():
        torch.save({"hidden_states": torch.load(file)["hidden_states"]}, file)
    bank = Counted()
    rows, found = look(folder, bank=bank)
    assert (rows.tokens, found.ballots, bank.sequences) == (None, (), 0)
    assert found.looked < 20


def reads(monkeypatch):
    seen = []
    real = dumps.read_sample
    monkeypatch.setattr(sampling, "read_sample", lambda info, number: (seen.append(number), real(info, number))[1])
    return seen


def test_a_second_run_reads_nothing_and_says_the_same(tmp_path, monkeypatch):
    folder, seen, bank = write(tmp_path / "dump", 40), reads(monkeypatch), Counted()
    rows, found = look(folder, bank=bank)
    assert (len(seen), found.read) == (found.looked, found.looked)
    again, second = look(folder, bank=bank)
    assert len(seen) == found.looked
    assert (second.read, second.ballots, bank.sequences) == (0, found.ballots, found.looked)
    assert all(torch.equal(a, b) for a, b in zip(rows.planes, again.planes, strict=True))
    assert (torch.equal(rows.tokens, again.tokens), rows.samples) == (True, again.samples)


def test_a_run_that_was_cut_short_reads_only_the_rest(tmp_path, monkeypatch):
    folder, seen = write(tmp_path / "dump", 40), reads(monkeypatch)
    look(folder, bank=Counted(), most=6)
    first = list(seen)
    _, found = look(folder, bank=Counted())
    assert not set(first) & set(seen[len(first):])
    assert found.read == found.looked - 6 and "6 known from an earlier run" in found.text()


def test_a_file_written_since_is_read_again(tmp_path, monkeypatch):
    folder, seen = write(tmp_path / "dump", 20), reads(monkeypatch)
    info = find_dump(folder)
    look(folder, bank=Counted())
    changed = seen[0]
    states = torch.load(info.files[changed])
    states["hidden_states"][0] = states["hidden_states"][1]
    torch.save(states, info.files[changed])
    del seen[:]
    _, found = look(folder, bank=Counted())
    assert changed in seen and len(seen) <= 4
    assert found.ballots[0].votes[0] == "b=4"


def test_votes_against_another_target_are_taken_again_from_the_kept_rows(tmp_path, monkeypatch):
    folder, seen, bank = write(tmp_path / "dump", 40), reads(monkeypatch), Counted()
    _, found = look(folder, bank=bank)
    del seen[:]
    look(folder, bank=bank, against="another")
    assert (seen, bank.sequences) == ([], 2 * found.looked)


def test_a_damaged_index_is_read_over(tmp_path):
    folder = write(tmp_path / "dump", 20)
    _, found = look(folder, bank=Counted())
    for number, file in enumerate(sorted((tmp_path / "cache").rglob("*.safetensors"))):
        file.write_bytes(file.read_bytes()[: 40 * number])
    _, again = look(folder, bank=Counted())
    assert again.ballots == found.ballots


def test_files_that_vanish_are_named_and_replaced_by_others(tmp_path):
    folder = write(tmp_path / "dump", 40)
    info, problems = find_dump(folder), []
    for file in list(folder.iterdir())[::2]:
        file.unlink()
    _, found = look(None, info=info, bank=Counted(), problems=problems)
    assert found.settled
    assert problems and all("data_" in p for p in problems)
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(EvidenceError, match="no sample with hidden states"):
        look(None, info=replace(info, files=tuple(Path(f"{f}x") for f in info.files)), bank=Counted())


def test_memory_does_not_grow_with_the_dump(tmp_path):
    info = find_dump(write(tmp_path / "dump", 40))
    peaks = []
    for times in (1, 100):
        tracemalloc.start()
        look(None, info=replace(info, files=info.files * times), most=10 * times, bank=None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 200_000


def test_rows_beyond_the_budget_vote_and_are_dropped(tmp_path, monkeypatch):
    folder = write(tmp_path / "dump", 30)
    monkeypatch.setattr(sampling, "BUDGET_BYTES", 5 * 2 * 24 * 64 * 4)
    rows, found = look(folder, bank=Counted())
    assert (len(rows.samples), found.looked) == (5, len(found.names))
    assert found.settled
    again, second = look(folder, bank=Counted())
    assert (second.read, second.ballots) == (0, found.ballots)
    assert again.samples == rows.samples
