"""Readers of nccl-tests tables, NCCL logs and topologies, over every layout."""

from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl_logs import read_nccl_log, read_nccl_tests, read_topology
from eagle_forensics.evidence.records import EvidenceError

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize(("name", "time", "in_place", "wrong"), [
    ("v2.10_errorcol", 48.21, 47.87, None), ("v2.13_simple", 48.21, 47.87, 0), ("v2.18_ll", 26.23, 26.04, 0), ("v2.18_timestamps", 26.23, 26.04, 0),
    ("v2.19_periter", 26.23, 26.04, 0), ("mpirun_tagged", 26.23, 26.04, 0), ("v2.18_ll128_wrong", 36.72, 36.46, 0),
])
def test_every_layout_gives_the_same_table(name, time, in_place, wrong):
    found = read_nccl_tests(FIXTURES / f"nccltests_{name}.txt")
    row = found.at(43008)
    assert (row.time_us, row.in_place_us, row.wrong) == (time, in_place, wrong)
    assert (found.ranks, len(found.rows), found.rows[-1].bytes) == (8, 8, 917504)


def test_wrong_results_are_seen():
    found = read_nccl_tests(FIXTURES / "nccltests_v2.18_ll128_wrong.txt")
    assert found.failed and found.at(229376).wrong == 32


def test_a_fallback_log():
    log = read_nccl_log(FIXTURES / "nccl_debug_2.27_fallback.log")
    assert (log.version, log.ranks, log.lost_patterns) == ("2.27.5", 8, (4, 1))
    assert all(p.is_fallback and p.link == "SYS" for p in log.patterns)
    assert log.transports == {"SHM/direct/direct": 2} and log.environment["NCCL_P2P_LEVEL"] == "SYS"
    assert (log.pick(43008).algorithm, log.pick(43008).protocol) == ("RING", "SIMPLE")


def test_a_healthy_log():
    log = read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log")
    assert not any(p.is_fallback for p in log.patterns) and log.pick(43008).protocol == "LL"


def test_numeric_choices_of_old_releases():
    log = read_nccl_log(FIXTURES / "nccl_debug_2.21_numeric.log")
    assert (log.pick(43008).algorithm, log.pick(43008).protocol) == ("RING", "LL")
    assert log.pick(10_000_000) is None


def test_a_fallback_that_was_a_warning():
    assert read_nccl_log(FIXTURES / "nccl_debug_2.25_warn.log").lost_patterns == (4,)


@pytest.mark.parametrize(("name", "links"), [("pcie8", {"NODE": 12, "SYS": 16}), ("nvlink4_nic", {"NV18": 6})])
def test_topology_counts_each_pair_once(name, links):
    assert read_topology(FIXTURES / f"nvidia_smi_topo_{name}.txt") == links


def test_bytes_that_are_no_text_and_cut_lines_are_survived(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"\xff\xfe host:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nCh\nh:1:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.8\n\x00\xff\n")
    assert read_nccl_log(file).version == "2.27.5"


@pytest.mark.parametrize("read", [read_nccl_tests, read_nccl_log, read_topology])
def test_another_file_is_refused_with_what_was_expected(read, tmp_path):
    file = tmp_path / "x"
    file.write_text("hello\n")
    with pytest.raises(EvidenceError, match="expected"):
        read(file)
    with pytest.raises(EvidenceError, match="cannot be read"):
        read(tmp_path / "absent")
