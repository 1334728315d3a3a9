"""Traces of collectives: two real captures, every tool's form, and traces that are cut, bare, hostile or no trace."""

import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest

from eagle_forensics.evidence import kernels
from eagle_forensics.evidence.nccl.records import Call, Share
from eagle_forensics.evidence.nccl.traces import read_trace
from eagle_forensics.evidence.records import EvidenceError

FIXTURES = Path(__file__).parents[1] / "nccl" / "fixtures"
NCCL = FIXTURES / "kineto_nccl_rank0.json"


def test_a_real_capture_of_gloo():
    found = read_trace(FIXTURES / "kineto_gloo_real_ws2_rank0.json")
    assert (found.format, found.rank, found.ranks, found.backend, found.share, found.notes) == ("kineto", 0, 2, "gloo", None, ())
    assert [(c.op, c.path, c.bytes, c.time_us) for c in found.calls] == [("allreduce", "gloo", 86016, t) for t in (13194.610, 3957.987, 3709.664)]


def test_a_real_flight_recorder_of_gloo():
    found = read_trace(FIXTURES / "flight_recorder_gloo_real_ws2_rank0.json")
    assert (found.format, found.ranks, found.backend) == ("flight-recorder", 2, "gloo") and "no duration" in found.notes[0]
    assert [(c.op, c.bytes, c.seq) for c in found.calls[:5]] == [("allreduce", 14336, 1), ("allreduce", 28672, 2), ("allreduce", 43008, 3), ("allreduce", 86016, 4),
                                                                 ("allgather", 64, 5)]


def test_kernels_with_their_metadata_and_the_share_of_time():
    found = read_trace(NCCL)
    assert (found.rank, found.ranks, found.nccl, len(found.of())) == (0, 8, "2.27.5", 8)
    assert found.calls[0] == Call("allreduce", "nccl", 24.0, 43008, 0, 0, 1000.0, "BFloat16", 8)
    assert [c.path for c in found.calls[6:]] == ["custom", "nccl-symmetric"] and found.calls[6].bytes is None
    assert found.share == Share(748.0, 176.0, 330.0, 0.0, 14) and found.share.idle_us == 242.0
    assert [n.split(" ")[0] for n in found.notes] == ["2", "6", "Collectives"] and "does not tell which protocol" in found.notes[1]


def test_overlapping_kernels_are_counted_once(tmp_path):
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": {"device": 0}}
              for name, ts, dur in (("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 0, 10), ("gemm", 5, 10), ("gemm", 6, 4), ("gemm", 30, 10))]
    assert written(tmp_path, {"traceEvents": events}).share == Share(40.0, 10.0, 20.0, 5.0, 4)


def written(tmp_path, trace, name="t"):
    file = tmp_path / name
    file.write_text(trace if isinstance(trace, str) else json.dumps(trace))
    return read_trace(file)


def test_the_form_of_the_text_does_not_matter(tmp_path):
    trace = json.loads(NCCL.read_text())
    expected = read_trace(NCCL).calls
    assert written(tmp_path, trace).calls == expected
    assert written(tmp_path, json.dumps(trace, sort_keys=True)).calls == expected, "keys in another order"
    assert written(tmp_path, json.dumps({k: trace[k] for k in ("schemaVersion", "traceEvents", "distributedInfo")})).rank == 0, "the head comes last"
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(NCCL.read_bytes()))
    assert read_trace(packed).calls == expected


def test_a_long_trace_is_read_in_pieces(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "ts": 0, "dur": 2.5, "args": {"device": 0, "pad": "x" * 300}}
    cpu = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1, "args": {"Call stack": "y" * 5000}}
    found = written(tmp_path, {"schemaVersion": 1, "traceEvents": [e for i in range(2000) for e in (event | {"ts": 10 * i}, cpu)]})
    assert len(found.calls) == 2000 and found.calls[0].op == "allgather" and found.share.communication_us == 5000


def test_a_trace_without_metadata_says_so(tmp_path):
    trace = json.loads(NCCL.read_text())
    for event in trace["traceEvents"]:
        event["args"] = {"stream": 7}
    found = written(tmp_path, trace)
    assert all(c.bytes is None for c in found.calls) and "8 of 8 communication kernels carry no metadata" in found.notes[0]


def test_a_trace_without_collectives_says_so(tmp_path):
    assert "No collective" in written(tmp_path, {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 1}]}).notes[0]


@pytest.mark.parametrize(("cut", "calls"), [(-300, 7), (-1300, 5)])
def test_a_trace_that_is_cut_says_so(cut, calls, tmp_path):
    found = written(tmp_path, NCCL.read_text()[:cut])
    assert len(found.calls) == calls and any("cut or damaged" in n for n in found.notes)


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "t"
    file.write_bytes(NCCL.read_bytes().replace(b'"Process Group Description": "undefined"', b'"Process Group Description": "\xff\xfe"', 1))
    found = read_trace(file)
    assert len(found.calls) == 8 and "not UTF-8" in found.notes[-1]


def test_the_word_kernel_inside_an_event_is_no_second_kernel(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {"kind": "kernel", "ph": "x"}}
    assert written(tmp_path, {"traceEvents": [event, event | {"cat": "cpu_op"}]}).share.kernels == 1


@pytest.mark.parametrize("event", [{"ph": "X", "cat": "kernel", "name": 7, "ts": 0, "dur": 1}, {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": "0", "dur": None},
                                   {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 10**400, "dur": 1}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": float("nan"), "dur": 1, "pid": 0},
                                   {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 0, "dur": 1, "args": []},
                                   {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 0, "dur": 1, "args": {"dtype": [], "In msg nelems": "x", "device": []}},
                                   {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 0, "dur": 1, "args": {"Input Dims": [[None]], "Input type": ["float"]}}])
def test_events_of_any_shape_are_survived(event, tmp_path):
    found = written(tmp_path, {"traceEvents": [event]})
    assert all(c.bytes is None for c in found.calls) and (found.share is None or found.share.span_us == 1)


def test_inspector_and_its_damaged_lines(tmp_path):
    text = (FIXTURES / "nccl_inspector.log").read_text()
    found = written(tmp_path, text + text[:100] + "\n")
    assert (found.format, found.rank, found.ranks, [(c.seq, c.bytes, c.time_us) for c in found.calls]) == ("inspector", 0, 8, [(1407 + i, 43008, 26.0 + i) for i in range(3)])
    assert "1 lines are cut" in found.notes[0]


def test_the_prometheus_form_of_inspector_names_the_protocol(tmp_path):
    found = written(tmp_path, '# HELP x\nnccl_collective_exec_time_microseconds{version="v5.1",n_nodes="1",nranks="4",collective="AllReduce",message_size="42-43KB",algo_proto="Ring_ll"} 26.5\n')
    assert (found.calls[0].algorithm, found.calls[0].protocol, found.calls[0].bytes, found.calls[0].group) == ("RING", "LL", None, 4) and "ranges" in found.notes[0]


def test_nsys_csv_and_sqlite():
    table = read_trace(FIXTURES / "nsys_cuda_gpu_kern_sum.csv")
    assert table.calls == (Call("allreduce", "nccl", 25.9, count=122),) and "shares of time" in table.notes[0]
    base = read_trace(FIXTURES / "nsys_min.sqlite")
    assert (len(base.calls), base.calls[0].time_us, base.share.communication_us, base.share.compute_us) == (5, 26.0, 130.0, 275.0)


def test_nsys_without_graph_nodes_says_what_is_missing(tmp_path):
    file = tmp_path / "x.sqlite"
    with sqlite3.connect(file) as base:
        base.executescript("CREATE TABLE StringIds(id integer primary key, value text); INSERT INTO StringIds VALUES(1, 'gemm');"
                           "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start integer, end integer, deviceId integer, shortName integer);"
                           "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(0, 1000, 0, 1)")
    found = read_trace(file)
    assert not found.calls and any("cuda-graph-trace=node" in n for n in found.notes) and any("No communication kernel" in n for n in found.notes)


@pytest.mark.parametrize("script", ["CREATE TABLE a(b)", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, shortName)",
                                    "CREATE TABLE StringIds(id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, shortName)"])
def test_another_database_is_refused(script, tmp_path):
    with sqlite3.connect(tmp_path / "x") as base:
        base.executescript(script)
    with pytest.raises(EvidenceError, match="expected"):
        read_trace(tmp_path / "x")


def test_a_pickle_is_never_opened(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"version": "2.10", "entries": []}))
    with pytest.raises(EvidenceError, match="pickle can run code"):
        read_trace(tmp_path / "nccl_trace_rank_0")


def test_unfinished_calls_of_a_recorder_are_named(tmp_path):
    report = json.loads((FIXTURES / "flight_recorder_gloo_real_ws2_rank0.json").read_text())
    report["entries"][2] |= {"retired": False, "state": "started", "duration_ms": 0.5}
    report["entries"][3] |= {"profiling_name": "x", "input_sizes": 3}
    found = written(tmp_path, report)
    assert any("1 calls were not finished" in n and "sequence 3" in n for n in found.notes) and any("1 entries are no collective" in n for n in found.notes)
    assert found.calls[2].time_us == 500.0


@pytest.mark.parametrize("content", ["hello\n", "", "{}", '{"entries": [], "pg_config": {', '{"traceEvents": 3}', "Time (%),Total Time (ns)\n"])
def test_another_file_is_refused_with_what_was_expected(content, tmp_path):
    with pytest.raises(EvidenceError, match="expected"):
        written(tmp_path, content)
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_trace(tmp_path / "absent")


@pytest.mark.parametrize(("name", "expected"), [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ("nccl", "allreduce")), ("ncclKernel_AllReduce_RING_LL_Sum_half", ("nccl", "allreduce")),
    ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", ("nccl", "reducescatter")), ("ncclDevKernel_SendRecv(x)", ("nccl", "sendrecv")), ("ncclDevKernel_Reduce_Sum", ("nccl", "reduce")),
    ("ncclSymkDevKernel_AllReduce_AGxLL_R_Sum_bf16", ("nccl-symmetric", "allreduce")), ("void vllm::cross_device_reduce_1stage<float, 2>(x)", ("custom", "allreduce")),
    ("void all_reduce_two_shot_kernel<8>", ("one-shot", "allreduce")), ("multimem_all_reduce_kernel", ("multimem", "allreduce")),
    ("allreduce_fusion_kernel_oneshot_lamport", ("flashinfer", "allreduce")), ("gloo:all_gather", ("gloo", "allgather")), ("fused_moe_kernel", None), ("reduce_kernel<512>", None),
])
def test_what_carried_it(name, expected):
    assert kernels.carrier(name) == expected
