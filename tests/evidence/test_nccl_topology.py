"""`nvidia-smi topo -m`: each pair once, both halves agreeing, or no matrix at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.topology import read_topology
from eagle_forensics.evidence.records import EvidenceError

FIXTURES = Path(__file__).parents[1] / "nccl" / "fixtures"


@pytest.mark.parametrize(("name", "counts", "gpus", "nics", "numa"), [("pcie8", {"NODE": 12, "SYS": 16}, 8, (), "0"), ("nvlink4_nic", {"NV18": 6}, 4, ("NIC0",), "0")])
def test_each_pair_once(name, counts, gpus, nics, numa):
    found = read_topology(FIXTURES / f"nvidia_smi_topo_{name}.txt")
    assert (found.counts, len(found.gpus), found.nics, found.numa[0], found.numa[-1]) == (counts, gpus, nics, numa, "1")


def test_one_kind_of_link_or_none():
    links = {n: read_topology(FIXTURES / f"nvidia_smi_topo_{n}.txt") for n in ("pcie8", "nvlink4_nic")}
    assert (links["pcie8"].link, links["nvlink4_nic"].link) == ("pcie", "nvlink")
    assert replace(links["pcie8"], links={(0, 1): "NV12", (1, 2): "SYS"}).link is None and replace(links["pcie8"], links={}).link is None


def test_pasted_with_spaces_and_colours(tmp_path):
    file = tmp_path / "t"
    file.write_text("\x1b[4m        GPU0    GPU1    CPU Affinity\x1b[0m\nGPU0     X      NODE    0-3\nGPU1    NODE     X      0-3\n")
    assert read_topology(file).links == {(0, 1): "NODE"}


@pytest.mark.parametrize(("change", "word"), [(("GPU0\t X \tNODE", "GPU0\t X \tSYS"), "one half"), (("GPU7\tSYS", "GPU7\t?"), "has '\\?'"), (("GPU7\tSYS\tSYS\tSYS", "GPU9\tSYS"), "row of GPU7"),
                                              (("\tGPU0\tGPU1", "\tA\tB"), "no GPU matrix")])
def test_a_damaged_matrix_is_refused(change, word, tmp_path):
    file = tmp_path / "t"
    file.write_text((FIXTURES / "nvidia_smi_topo_pcie8.txt").read_text().replace(*change, 1))
    with pytest.raises(EvidenceError, match=word):
        read_topology(file)


def test_absent(tmp_path):
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_topology(tmp_path / "x")
