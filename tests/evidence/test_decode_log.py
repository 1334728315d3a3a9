"""Lines that engines print while they decode: every release's form, rounds by number of requests, cut and glued lines counted."""

import time

import pytest

from eagle_forensics.evidence.decode_log import MOST, DecodeLines, Window, read_decode_log
from eagle_forensics.evidence.records import EvidenceError

OLD = "[2026-05-05 06:16:47 TP0] Decode batch, #running-req: {n}, #token: 420, token usage: 0.01, accept len: {a}, accept rate: 0.30, cuda graph: {g}, gen throughput (token/s): {s}, #queue-req: 0\n"
NEW = "[2026-05-05 06:16:47 TP0] Decode batch [512], #running-req: {n}, #full token: 420, full token usage: 0.01, accept len: {a}, accept rate: 0.30, cuda graph: {g}, gen throughput (token/s): {s}, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.2\n"
VLLM = ("INFO SpecDecoding metrics: Mean acceptance length: 2.02, Accepted throughput: 3.10 tokens/s, Drafted throughput: 9.00 tokens/s, Accepted: 31 tokens, "
        "Drafted: 90 tokens, Per-position acceptance rate: 0.544, 0.303, 0.172, Avg Draft acceptance rate: 34.4%\n")
VLLM_OLD = ("INFO SpecDecoding metrics: Draft acceptance rate: 34.4%, Mean acceptance length: 2.02, Accepted: 31 tokens, Drafted: 90 tokens, "
            "Per-position acceptance rate: 0.544, 0.303, 0.172\n")
PLAIN = "[2026-05-05 06:16:47] Decode batch. #running-req: 1\nDecode batch, #running-req: 1, #token: 420, token usage: 0.01, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0\n"


def read(tmp_path, text):
    file = tmp_path / "s.log"
    file.write_text(text)
    return read_decode_log(file)


def test_the_incidents_lines(tmp_path):
    text = "".join(form.format(n=1, a=a, g=g, s=s) for form, a, g, s in ((OLD, "1.80", "True", "54.80"), (NEW, "1.90", "False", "50.00"), (OLD, "1.80", "True", "55.00")))
    found = read(tmp_path, "Prefill batch, #new-seq: 1\n" + text + OLD.format(n=4, a="2.00", g="True", s="200.00"))
    assert found.batches == (DecodeLines(1, 3, 2, 1, 1.8, 54.8), DecodeLines(4, 1, 1, 0, 2.0, 200.0)) and found.notes == ()
    assert found.batches[0].round_ms == pytest.approx(32.85, abs=0.01) and found.batches[1].round_ms == 40.0


def test_plain_decode_has_no_accept_length(tmp_path):
    assert read(tmp_path, PLAIN).batches == (DecodeLines(1, 1, 1, 0, None, 90.0),)


def test_the_dot_of_old_releases_and_a_cpu_server(tmp_path):
    assert read(tmp_path, OLD.replace("batch,", "batch.").format(n=1, a="1.80", g="True", s="54.80")).batches[0].lines == 1
    found = read(tmp_path, OLD.replace("cuda graph", "cpu graph").format(n=1, a="1.80", g="True", s="54.80"))
    assert found.batches == () and found.notes == ()


def test_windows_in_order_with_their_own_figures(tmp_path):
    found = read(tmp_path, "starting\n" + OLD.format(n=1, a="1.80", g="False", s="54.80") + "Decode batch, accept len: x\n"
                 + OLD.replace("accept rate: 0.30, ", "").replace("batch,", "batch.").format(n=2, a="2.05", g="True", s="88.80") + PLAIN)
    assert found.speculative == (Window("sglang", 1.8, 0.3, 54.8, running=1, graph="cuda", replayed=False, queued=0),
                                 Window("sglang", 2.05, None, 88.8, running=2, graph="cuda", replayed=True, queued=0))
    assert len(found.windows) == 3 and found.windows[2].accept_length is None


def test_fields_of_the_newest_release_and_a_line_without_a_graph(tmp_path):
    line = ("Decode batch [7], #running-req: 3, #full token: 1, full token usage: 0.00, mamba num: 2, mamba usage: 0.10, accept len: 2.50, accept rate: 0.50, cap len: 3.00, "
            "block accept len: 9.00, pre-allocated usage: 0.00, #retracted-req: 0, npu graph: True, gen throughput (token/s): 30.00, #queue-req: 0\n")
    found = read(tmp_path, line + line.replace("npu graph: True, ", ""))
    assert [(w.accept_length, w.running, w.graph, w.replayed) for w in found.windows] == [(2.5, 3, "npu", True), (2.5, 3, None, None)] and found.batches == () and found.notes == ()


@pytest.mark.parametrize("line", [VLLM, VLLM_OLD])
def test_vllm_lines_in_both_orders(tmp_path, line):
    (window,) = read(tmp_path, line).windows
    assert (window.engine, window.accept_length, window.rate, window.accepted, window.drafted) == ("vllm", 2.02, pytest.approx(0.344), 31, 90)
    assert window.survival == (0.544, 0.303, 0.172) and window.graph is None


@pytest.mark.parametrize("text", [
    OLD.format(n=1, a="1.8.0", g="True", s="54.80"), VLLM.replace("2.02", "2..02"), OLD.format(n=1, a="1.80", g="True", s="54.8")[:-16],
    OLD.format(n=1, a="1.80", g="True", s="54.80")[:70] + "[2026-05-05 06:16:48 TP1] Prefill batch, #new-seq: 1, cuda graph: True, input throughput (token/s): 9.00, #queue-req: 0\n",
])
def test_a_line_that_is_not_whole_is_no_window(tmp_path, text):
    found = read(tmp_path, text)
    assert found.windows == () and "1 decode lines are cut" in found.notes[0]


def test_two_writers_in_one_line_do_not_mix_their_figures(tmp_path):
    second = OLD.format(n=8, a="3.00", g="True", s="400.00")
    found = read(tmp_path, OLD.format(n=1, a="1.80", g="True", s="54.80")[:90] + second + OLD.format(n=1, a="1.80", g="True", s="54.80")[:90] + second[28:])
    assert {(w.running, w.tokens_per_second) for w in found.windows} == {(8, 400.0)} and "2 decode lines" in found.notes[0]


def test_an_endless_log_is_bounded(tmp_path):
    found = read(tmp_path, OLD.format(n=1, a="1.80", g="True", s="54.80") * (MOST + 9))
    assert len(found.windows) == MOST and "Only the first" in found.notes[0]


def test_many_lines_glued_into_one_cost_no_time(tmp_path):
    began = time.process_time()
    read(tmp_path, OLD.format(n=1, a="1.80", g="x", s="54.80").strip() * 2000)
    assert time.process_time() - began < 1


def test_cut_lines_and_odd_bytes(tmp_path):
    file = tmp_path / "s.log"
    file.write_bytes(OLD.format(n=1, a="1.80", g="True", s="54.80").encode()[:120] + b"\n\xff\xfe" + OLD.format(n=1, a="1.80", g="True", s="0.00").encode())
    found = read_decode_log(file)
    assert found.batches == () and len(found.windows) == 1 and "1 decode lines are cut" in found.notes[0]


def test_another_log_is_empty_and_none_is_refused(tmp_path):
    assert read(tmp_path, "hello\n").batches == ()
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_decode_log(tmp_path / "absent")
