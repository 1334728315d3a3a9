"""One bad sample of ten, through the steps of notebook 03 with the target's states computed: it is named with its reason and counted, the answer for the rest stands."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_forensics.case import load_case
from eagle_forensics.evidence import dumps
from eagle_forensics.evidence.states import target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.finding import Finding, Status
from eagle_forensics.fingerprint import sampling, study

H, VOCAB, BOUNDARIES, BAD = 32, 64, (1, 2, 4), 6


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[Path, list[dict]]:
    """A target of 4 layers (its own forward pass is held against Hugging Face's elsewhere), and ten samples of it."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=H, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                         vocab_size=VOCAB, tie_word_embeddings=True, initializer_range=0.3)).eval()
    model.save_pretrained(folder)
    target, made = read_target(folder), []
    for length in range(20, 30):
        ids = torch.randint(0, VOCAB, (length,))
        bank = target_states(target, [ids.tolist()], BOUNDARIES, cache=False)
        made.append({"input_ids": ids, "hidden_states": [bank.plane(0, b).bfloat16() for b in bank.boundaries]})
    return folder, made


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Bomb:
    """Unpickling this would leave a folder."""

    def __reduce__(self):
        return (os.mkdir, ("it-ran",))


def altered(**change):
    """The sample with other contents: every value out of the old sample."""
    return lambda file, sample, _: torch.save(sample | {key: make(sample) for key, make in change.items()}, file)


def packed(file, sample, _):
    """An archive whose entries are packed: a few of its bytes can be gigabytes."""
    torch.save(sample, file)
    with zipfile.ZipFile(file) as old:
        entries = [(entry.filename, old.read(entry)) for entry in old.infolist()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in entries:
            new.writestr(name, data)


def linked_to_itself(file, *_):
    file.unlink()
    file.symlink_to(file.name)


def of_another_format(file, sample, _):
    file.unlink()
    save_file({"hidden_states": torch.stack(sample["hidden_states"], 1), "token_ids": sample["input_ids"]}, file)


def written_while_read(file, sample, patch):
    real = dumps.read_member

    def read(layout, member, at, *rest):
        if at == file:
            os.utime(file, ns=(1, 1))
        return real(layout, member, at, *rest)

    patch.setattr(dumps, "read_member", read)


def shrunk_while_used(file, sample, patch):
    """Cut off between opening and copying its rows: of a mapped file that would end the process."""
    real = sampling.cut

    def cut(opened, **rest):
        if opened.source == file:
            os.truncate(file, 0)
        return real(opened, **rest)

    patch.setattr(sampling, "cut", cut)


def half(x: torch.Tensor) -> torch.Tensor:
    return x[:, : H // 2].clone()


BADNESS = {
    "tokens of another model": (altered(input_ids=lambda s: s["input_ids"] + 10**6), r"outside the target's vocabulary of 64"),
    "a negative token": (altered(input_ids=lambda s: s["input_ids"] - 70), r"outside the target's vocabulary of 64"),
    "a pickle bomb": (altered(hook=lambda s: Bomb()), r"refused.*mkdir"),
    "cut off": (lambda file, *_: os.truncate(file, file.stat().st_size // 2), r"damaged or cut off"),
    "empty": (lambda file, *_: os.truncate(file, 0), r"no zip archive"),
    "packed": (packed, r"damaged or cut off.*entries are packed"),
    "another format": (of_another_format, r"expected speculators_v1"),
    "a link to itself": (linked_to_itself, r"cannot be read|no zip archive"),
    "written while it is read": (written_while_read, r"was changed while it was read"),
    "shrunk while it is used": (shrunk_while_used, r"was changed while it was read"),
    "fp8 without scales": (altered(hidden_states=lambda s: [p.to(torch.float8_e4m3fn) for p in s["hidden_states"]]), r"float8_e4m3fn without scales"),
    "another width": (altered(hidden_states=lambda s: [half(p) for p in s["hidden_states"]]), r"3 x 16 wide, those of the dump 3 x 32"),
    "one plane of another width": (altered(hidden_states=lambda s: [half(s["hidden_states"][0]), *s["hidden_states"][1:]]), r"16 \+ 2 x 32|16, 32|those of the dump 3 x 32"),
    "no tokens": (altered(input_ids=lambda s: s["input_ids"][:0], hidden_states=lambda s: [p[:0] for p in s["hidden_states"]]), r"holds 0 tokens"),
    "fewer ids than rows": (altered(input_ids=lambda s: s["input_ids"][:3]), r"3 token ids for 26 rows"),
    "no ids": (altered(input_ids=lambda s: None), r"no token ids"),
}


def walk(tmp_path: Path, model: tuple[Path, list[dict]], damage=None, patch=None) -> tuple[list[Finding], study.Work]:
    """Everything notebook 03 says of a dump of ten samples, one of them damaged."""
    folder, samples = model
    (tmp_path / "dump").mkdir()
    for number, sample in enumerate(samples):
        torch.save(sample, tmp_path / "dump" / f"data_{number}.pt")
    if damage:
        damage(tmp_path / "dump" / f"data_{BAD}.pt", samples[BAD], patch)
    (tmp_path / "case.yaml").write_text(f"schema: 1\nname: tiny\ntarget: {{path: {folder}}}\ntraining: {{dump: {{path: ./dump}}}}\n")
    work = study.begin(load_case(tmp_path / "case.yaml"), layers=None, max_samples=200, seed=0)
    return [*work.opening, *study.slots(work), *study.dump(work), *study.served(work)], work


@pytest.mark.parametrize("kind", BADNESS)
def test_it_is_named_and_counted_and_the_rest_goes_on(kind, tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damage, reason = BADNESS[kind]
    found, work = walk(tmp_path, model, damage, monkeypatch)
    by_id = {f.id: f for f in found}
    assert not [f for f in found if f.status in (Status.ERROR, Status.FAIL)], found
    assert [str(s.equals) for s in work.found.slots] == ["b=1", "b=2", "b=4"]
    assert all(by_id[f"layers.slot-{slot}"].status is Status.PASS for slot in range(3))
    named = [f for f in found if f"data_{BAD}.pt" in f.statement and re.search(reason, f.statement)]
    assert len(named) == 1 and not named[0].required, [f.statement for f in work.opening]
    assert by_id["layers.sampling"].status is Status.PASS
    assert "9 of 10 samples looked at, 1 more could not be used and is named: every slot is settled" in by_id["layers.sampling"].statement
    assert len(work.sources.problems) == 1 and len(work.sources.rows.samples) == 9
    assert not (tmp_path / "it-ran").exists()


def test_ten_sound_samples_are_all_used(tmp_path, model):
    found, _ = walk(tmp_path, model)
    assert {f.id: f for f in found}["layers.sampling"].statement.startswith("All 10 of 10 samples looked at: every slot is settled")


def test_the_table_of_the_embedding_leaves_foreign_tokens_out_where_no_bank_is_made(tmp_path, model, monkeypatch):
    monkeypatch.setattr("eagle_forensics.fingerprint.sources.fits", lambda target: "it is too large")
    _, work = walk(tmp_path, model, BADNESS["tokens of another model"][0], monkeypatch)
    text = work.found.slots[0].embedding.text
    assert work.found.slots[0].embedding.holds is False and re.search(rf"26 token ids outside its 64 rows left out, of data_{BAD}\.pt", text), text
