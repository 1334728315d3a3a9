"""NCCL_DEBUG logs: every release's lines, and what a damaged, glued, mixed or future log may not make us believe."""

from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.logs import LAST_KNOWN, read_nccl_log
from eagle_forensics.evidence.nccl.records import Belief, Pattern, Pick
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.nccl.registry import NEWEST

FIXTURES = Path(__file__).parents[1] / "nccl" / "fixtures"
INFO = "h:41000:41033 [0] NCCL INFO "
PICK = "AllReduce: 43008 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..2}"


def log(name):
    return read_nccl_log(FIXTURES / f"nccl_debug_{name}.log")


def written(tmp_path, *lines, prefix=INFO):
    file = tmp_path / "n.log"
    file.write_bytes(b"".join(line if isinstance(line, bytes) else (prefix + line + "\n").encode() for line in lines))
    return read_nccl_log(file)


def test_a_fallback_log():
    found = log("2.27_fallback")
    assert (found.version, found.ranks, found.nodes, found.seen_ranks, found.channels, found.lost_patterns) == ("2.27.5", 8, 1, (0,), 2, (4, 1))
    assert found.patterns == (Pattern(4, 1, 0.1, 0.0, "SYS", "DIS"), Pattern(1, 1, 0.1, 0.0, "SYS", "DIS")) and all(p.is_fallback for p in found.patterns)
    assert found.transports == {"SHM/direct/direct": 2} and found.environment["NCCL_P2P_LEVEL"] == "SYS" and "GRAPH" in found.subsystems
    assert found.picks_at(43008)[0] == Pick(0, "AllReduce", 43008, "RING", "SIMPLE", channels=1) and found.notes == () and not found.graph_file


def test_a_healthy_log_with_its_table():
    found = log("2.28_graphxml")
    assert found.graph_file and found.picks_at(229376)[0] == Pick(0, "AllReduce", 229376, "RING", "LL", channels=4)
    assert Belief("AllReduce", "RING", "LL", 20.6, 13.7) in found.beliefs and Belief("AllReduce", "TREE", "SIMPLE", 64.4, 22.1) in found.beliefs
    assert len(found.beliefs) == 6, "cells of 0.0/0.0 are no belief"


def test_numeric_choices_of_old_releases_with_their_estimate():
    found = log("2.21_numeric")
    assert found.picks_at(43008)[0] == Pick(0, None, 43008, "RING", "LL", time_us=26.226087)
    assert found.picks_at(86016)[0] == Pick(0, "AllReduce", 86016, "RING", "SIMPLE", time_us=49.811949) and found.picks_at(10_000_000) == ()


def test_warnings_and_complaints_of_2_25():
    found = log("2.25_warn")
    assert found.lost_patterns == (4,) and "no algorithm/protocol available for function AllGather" in found.refused[0]


@pytest.mark.parametrize(("line", "seen"), [
    ("Pattern 4, crossNic 0, nChannels 2, speed 12.000000/12.000000, type PIX/SYS, sameChannels 1", lambda f: f.patterns[0].bandwidth == 12.0),  # 2.8
    ("Channel 00 : 0[1000] -> 1[21000] via P2P/direct pointer", lambda f: f.transports == {"P2P/direct pointer": 1}),
    ("Channel 03/0 : 0[0] -> 9[1] [send] via NET/IB/3(1)/GDRDMA", lambda f: f.transports == {"NET/IB/GDRDMA": 1}),
    ("Channel 00 : 0[0] -> 1[1] via SHM/direct", lambda f: f.transports == {"SHM/direct": 1}),  # 2.30
    ("ncclCommInitRank comm 0x55d0 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 61000 commId 0x1 - Init START", lambda f: (f.ranks, f.seen_ranks) == (8, (3,))),
    ("8 coll channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer", lambda f: f.channels == 8),
    ("NCCL_BUFFSIZE set by environment to 4194304.", lambda f: f.environment == {"NCCL_BUFFSIZE": "4194304"}),
    ("Invalid value 8x for NCCL_MIN_CTAS, using default -1.", lambda f: f.refused == ("Invalid value 8x for NCCL_MIN_CTAS, using default -1.",)),
    ("TUNER/ExamplePlugin: Applied config for collType=allreduce, bytes=43008", lambda f: f.plugin_picks == 1),
    ("AllReduce: 43008 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}", lambda f: f.picks[0].channels == 16),
])
def test_a_line_of_some_release(line, seen, tmp_path):
    found = written(tmp_path, line)
    assert seen(found) and found.notes == ()


def test_the_wide_table_of_2_17(tmp_path):
    head = "Latency/AlgBw |" + "".join(f" {a:>7}/{p:>6} |" for a in ("Tree", "Ring") for p in ("LL", "LL128", "Simple"))
    found = written(tmp_path, head, "    AllReduce |" + "".join(f"{x:8.1f}/{x / 10:6.1f} |" for x in (1, 2, 3, 4, 5, 6)))
    assert found.beliefs[3] == Belief("AllReduce", "RING", "LL", 4.0, 0.4) and len(found.beliefs) == 6


def test_a_table_in_two_parts_keeps_its_columns(tmp_path):
    rows = []
    for names in (("Tree", "Ring", "CollNetDirect"), ("CollNetChain", "NVLS", "NVLSTree")):
        rows += ["  Algorithm   |" + "".join(f" {'':14}   {n:>14}   {'':14} |" for n in names), "  Protocol    |" + 3 * "             LL |          LL128 |         Simple |",
                 "    AllReduce |" + "".join(f"{20.5:8.1f}/{1.5:6.1f} |" for _ in range(9))]
    found = written(tmp_path, *rows)
    assert len(found.beliefs) == 18 and {b.algorithm for b in found.beliefs} == {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE"}


def test_a_row_of_a_table_that_is_cut_is_said(tmp_path):
    found = written(tmp_path, "  Algorithm   |" + "  Ring |", "    AllReduce |    20.6/  13.7 |    49.0")
    assert not found.beliefs and "latency tables" in found.notes[0]


def test_interleaved_ranks_are_all_seen_and_glued_lines_said(tmp_path):
    found = written(tmp_path, *(f"h:{41000 + r}:1 [{r}] NCCL INFO comm 0x55d0 rank {r} nRanks 4 nNodes 1 localRanks 4 localRank {r} MNNVL 0\n".encode() for r in (2, 0, 3, 1)),
                    (INFO + "AllReduce: 43008 Bytes -> Algo RING proto Sh:41001:1 [1] NCCL INFO " + PICK + "\n").encode())
    assert found.seen_ranks == (0, 1, 2, 3)
    assert [p.protocol for p in found.picks] == ["LL"] and "two messages" in found.notes[0]


@pytest.mark.parametrize("line", ["AllReduce: 43008 Bytes -> Algo RING proto LL", PICK[:-1], "14336 Bytes -> Algo 1 proto", "14336 Bytes -> Algo 9 proto 0 time 24.742029",
                                  "AllReduce: 43008 Bytes -> Algo RING proto LL256 channel{Lo..Hi}={0..2}", "AllReduce: 43008 Bytes -> Algo RING proto LL, 3 CTAs"])
def test_a_choice_that_is_cut_or_new_is_counted_not_guessed(line, tmp_path):
    found = written(tmp_path, line)
    assert not found.picks and "1 lines about choices" in found.notes[0] and line[:20] in found.notes[0]


@pytest.mark.parametrize(("line", "word"), [("Pattern 4, crossNic 0, nCh", "graphs"), ("Channel 00/0 : 0[0] -> 1[1] vi", "transports"), ("NCCL_ALGO set by env", "environment")])
def test_other_lines_that_are_cut(line, word, tmp_path):
    found = written(tmp_path, line)
    assert word in found.notes[0] and not (found.patterns or found.transports or found.environment)


def test_a_future_release_is_said_to_be_unknown(tmp_path):
    found = written(tmp_path, "NCCL version 2.41.0+cuda15.1", "Graph 4: 2 channels at 24 GB/s")
    assert found.version == "2.41.0" and "newer than 2.30.7" in found.notes[0] and not found.patterns
    assert LAST_KNOWN == NEWEST


def test_ranks_that_disagree(tmp_path):
    found = written(tmp_path, "NCCL version 2.27.5+cuda12.8", "NCCL version 2.21.5+cuda12.4", "NCCL_PROTO set by environment to LL", "NCCL_PROTO set by environment to Simple",
                    "comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8", "comm 0x2 rank 1 nRanks 2 nNodes 1 localRanks 2")
    text = " ".join(found.notes)
    assert "Several releases" in text and "several values" in text and "Several communicators" in text and found.ranks == 8


def test_bytes_that_are_no_text(tmp_path):
    found = written(tmp_path, "NCCL version 2.27.5+cuda12.8", b"\xff\xfe" + (INFO + "Pattern 4, crossNic 0, nCh\n").encode(), b"\x00\xff\n")
    assert found.version == "2.27.5" and any("Not UTF-8 from byte" in n for n in found.notes)


def test_a_version_without_prefix_and_a_packed_log(tmp_path):
    import gzip

    file = tmp_path / "n.log.gz"
    file.write_bytes(gzip.compress(b"NCCL version 2.27.5+cuda12.8\n" + (INFO + PICK).encode()))
    found = read_nccl_log(file)
    assert found.version == "2.27.5" and found.picks[0].channels == 3
    file.write_bytes(gzip.compress(b"x" * 100_000)[:60])
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_nccl_log(file)


def test_repeated_choices_are_counted_across_blocks(tmp_path):
    file = tmp_path / "n.log"
    file.write_text((INFO + PICK + "\n") * 30_000)
    found = read_nccl_log(file)
    assert (found.lines, [p.count for p in found.picks]) == (30_000, [30_000])


@pytest.mark.parametrize("content", ["hello\n", ""])
def test_another_file_is_refused_with_what_was_expected(content, tmp_path):
    (tmp_path / "x").write_text(content)
    with pytest.raises(EvidenceError, match="expected the output"):
        read_nccl_log(tmp_path / "x")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_nccl_log(tmp_path / "absent")
