"""Torch archives: only plain tensors are opened, and only by weights_only."""

import json
import os

import numpy as np
import pytest
import torch

from eagle_forensics.evidence import tensors
from eagle_forensics.evidence.archives import read_torch_index
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence.builders import head, weights


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("nest", [None, "draft_state_dict", "state_dict"])
def test_a_state_dict_is_found_bare_or_nested(tmp_path, nest):
    made = head()
    torch.save(made if nest is None else {nest: made, "step": 3}, tmp_path / "m.bin")
    infos = read_torch_index(tmp_path / "m.bin")
    assert set(infos) == set(made) and infos["t2d"].dtype == "BOOL" and infos["fc.weight"].dtype == "BF16"
    for name, rows in (("fc.weight", [2, 0]), ("fc.weight", slice(1, 3)), ("d2t", None), ("t2d", [1, 40])):
        want = made[name] if rows is None else made[name][rows]
        assert torch.equal(tensors.load_tensor(infos[name], rows), want)
        assert np.array_equal(tensors.load_array(infos[name], rows), want.float().numpy() if want.is_floating_point() else want.numpy())


def test_fp8_of_an_archive_is_converted(tmp_path):
    made = weights(4, 4).to(torch.float8_e4m3fn)
    torch.save({"x": made}, tmp_path / "m.pt")
    assert np.array_equal(tensors.load_array(read_torch_index(tmp_path / "m.pt")["x"]), made.float().numpy())


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Evil()}, tmp_path / "m.bin")
    with pytest.raises(EvidenceError, match=r"m.bin: opening it would need posix.mkdir, that is, run code .* export it as safetensors"):
        read_torch_index(tmp_path / "m.bin")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x80\x02}q\x00.", json.dumps({}).encode()])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "m.bin").write_bytes(content)
    with pytest.raises(EvidenceError, match=r"m.bin: no torch archive \(.* Copy it again"):
        read_torch_index(tmp_path / "m.bin")


def test_an_archive_without_tensors_is_refused(tmp_path):
    torch.save({"step": 3}, tmp_path / "m.bin")
    with pytest.raises(EvidenceError, match="holds dict without tensors; expected a state dict"):
        read_torch_index(tmp_path / "m.bin")


def test_a_sparse_tensor_is_refused(tmp_path):
    torch.save({"x": torch.eye(3).to_sparse()}, tmp_path / "m.bin")
    with pytest.raises(EvidenceError, match="expected a dense tensor"):
        read_torch_index(tmp_path / "m.bin")


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"m.bin: cannot be read \(No such file"):
        read_torch_index(tmp_path / "m.bin")
