"""nccl-tests: every layout gives the same table, wrong results are seen, damaged rows are named and left out."""

import json
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.records import Timing
from eagle_forensics.evidence.records import EvidenceError

FIXTURES = Path(__file__).parents[1] / "nccl" / "fixtures"
LL = FIXTURES / "nccltests_v2.18_ll.txt"


@pytest.mark.parametrize(("name", "time", "in_place", "wrong"), [
    ("v2.10_errorcol.txt", 48.21, 47.87, None), ("v2.13_simple.txt", 48.21, 47.87, 0), ("v2.18_ll.txt", 26.23, 26.04, 0), ("v2.18_timestamps.txt", 26.23, 26.04, 0),
    ("v2.19_periter.txt", 26.23, 26.04, 0), ("mpirun_tagged.txt", 26.23, 26.04, 0), ("v2.18_ll128_wrong.txt", 36.72, 36.46, 0),
    ("json_v1.json", 26.226087, 26.042504, 0), ("json_v3.json", 26.226087, 26.042504, 0),
])
def test_every_layout_gives_the_same_table(name, time, in_place, wrong):
    found = read_nccl_tests(FIXTURES / f"nccltests_{name}")
    row, inside = found.at(43008), found.at(43008, in_place=True)
    assert (row.time_us, inside.time_us, row.wrong, row.op) == (time, in_place, wrong, "sum")
    assert row.algbw == pytest.approx(43008 / time / 1e3, rel=0.02) and row.busbw == pytest.approx(row.algbw * 1.75, rel=0.02)
    assert (found.ranks, len(found.rows), found.rows[-1].bytes, found.iterations) == (8, 16, 917504, 20)
    assert not [n for n in found.notes if "wrong" not in n]


def test_what_newer_headers_say():
    found = read_nccl_tests(LL)
    assert (found.test, found.version, found.nccl, found.graph, found.failed) == ("all_reduce_perf", "2.18.3", "2.28.9", False, False)


def test_wrong_results_are_seen():
    found = read_nccl_tests(FIXTURES / "nccltests_v2.18_ll128_wrong.txt")
    assert found.failed and found.at(229376).wrong == 16 and "64 wrong values in 4 rows" in found.notes[0]


def test_wrong_values_without_a_footer_fail_too(tmp_path):
    file = tmp_path / "t"
    file.write_text("\n".join(line for line in (FIXTURES / "nccltests_v2.18_ll128_wrong.txt").read_text().splitlines() if "Out of bounds" not in line))
    found = read_nccl_tests(file)
    assert found.failed and "footer is missing" in found.notes[0]


def test_iterations_are_kept():
    assert read_nccl_tests(FIXTURES / "nccltests_v2.19_periter.txt").at(43008).spread_us == (24.39, 49.83, 41.96)
    row = read_nccl_tests(FIXTURES / "nccltests_json_v3.json").at(14336)
    assert row.samples_us == (23.01, 24.0, 24.742, 25.237, 47.01) and row.spread_us[0] == pytest.approx(23.01, abs=0.001)


@pytest.mark.parametrize("name", ["json_v1", "json_v3"])
def test_only_nccl_variables_leave_the_environment(name):
    found = read_nccl_tests(FIXTURES / f"nccltests_{name}.json")
    assert found.environment == {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"} and "TOKEN" not in repr(found)


def changed(tmp_path, change):
    file = tmp_path / "t"
    file.write_text(change(LL.read_text()))
    return read_nccl_tests(file)


def test_a_row_that_is_cut_is_named_and_left_out(tmp_path):
    found = changed(tmp_path, lambda t: t[: t.index("57344 ") + 70])
    assert [r.bytes for r in found.rows] == [14336, 14336, 28672, 28672, 43008, 43008]
    assert "1 rows are cut" in found.notes[0] and "footer" in found.notes[1]


def test_not_measured_is_not_zero(tmp_path):
    row = changed(tmp_path, lambda t: t.replace("26.23    1.64    2.87       0", "26.23    1.64    2.87     N/A")).at(43008)
    assert (row.time_us, row.wrong) == (26.23, None)


def test_a_replay_has_only_its_in_place_half(tmp_path):
    found = changed(tmp_path, lambda t: t.replace("26.23    1.64    2.87       0", ""))
    assert found.at(43008) is None and found.at(43008, in_place=True).time_us == 26.04


def test_busbw_that_does_not_fit_the_ranks_is_said(tmp_path):
    found = changed(tmp_path, lambda t: t.replace("#  Rank  7", "#  Ronk  7"))
    assert found.ranks == 7 and "busbw is not algbw x" in found.notes[0]


def test_log_lines_between_rows_are_skipped_and_one_glued_to_a_row_costs_that_row(tmp_path):
    log = "h:1:2 [0] NCCL INFO AllReduce: 43008 Bytes -> Algo RING\n"
    found = changed(tmp_path, lambda t: t.replace("22.62       0\n", "22.62       0\n" + log).replace("2.89       0\n", "2.89       0" + log))
    assert len(found.rows) == 14 and found.at(43008) is None and "1 rows are cut" in found.notes[0]


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "t"
    file.write_bytes(LL.read_bytes().replace(b"pcie8", b"\xff\xfe\x80", 1))
    found = read_nccl_tests(file)
    assert len(found.rows) == 16 and "not UTF-8" in found.notes[0]


def test_json_that_is_odd(tmp_path):
    report = json.loads((FIXTURES / "nccltests_json_v3.json").read_text())
    report["results"][0]["out_of_place"]["time"] = "nan"
    report["results"][1] = {"size": None}
    report["results"][2]["in_place"]["time"] = 10**400
    report["out_of_bounds"] = {"count": 3, "okay": "false"}
    report["errors"] = ["cuda failure"]
    file = tmp_path / "t.json"
    file.write_text(json.dumps(report))
    found = read_nccl_tests(file)
    assert found.failed and found.at(14336).time_us is None and found.at(43008, in_place=True).time_us is None and "1 results have no size" in found.notes[0] and "cuda failure" in found.notes[1]
    assert Timing(14336, True, 24.568835, 0.583503, 1.021131, 0, "bfloat16", "sum") in found.rows


def test_a_run_that_stops_before_its_first_row_is_a_record(tmp_path):
    text = (FIXTURES / "nccltests_v2.13_simple.txt").read_text()
    file = tmp_path / "t.txt"
    file.write_text(text[: text.index("       14336")])
    found = read_nccl_tests(file)
    assert found.stopped and found.ranks == 8 and not found.failed and "did not end" in found.notes[0]
    assert not read_nccl_tests(FIXTURES / "nccltests_v2.13_simple.txt").stopped
    file.write_text(text[: text.index("       14336")] + "# Out of bounds values : 0 OK\n")
    with pytest.raises(EvidenceError, match="no nccl-tests table"):
        read_nccl_tests(file)


@pytest.mark.parametrize(("content", "word"), [("hello\n", "no nccl-tests table"), ("{", "not valid JSON"), ("{}", "no `results`"), ('{"results": [{}]}', "none of its 1"),
                                               ("#       size         count      type   redop    root     time\n", "no nccl-tests table")])
def test_another_file_is_refused(content, word, tmp_path):
    (tmp_path / "x").write_text(content)
    with pytest.raises(EvidenceError, match=word):
        read_nccl_tests(tmp_path / "x")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_nccl_tests(tmp_path / "absent")
