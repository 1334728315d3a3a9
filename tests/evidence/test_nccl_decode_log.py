"""SGLang's decode lines: figures of every release's form, by number of requests; cut lines are counted."""

import time

import pytest

from eagle_forensics.evidence.decode_log import DecodeLines, read_decode_log
from eagle_forensics.evidence.records import EvidenceError

OLD = "[2026-05-05 06:16:47 TP0] Decode batch, #running-req: {n}, #token: 420, token usage: 0.01, accept len: {a}, accept rate: 0.30, cuda graph: {g}, gen throughput (token/s): {s}, #queue-req: 0\n"
NEW = "[2026-05-05 06:16:47 TP0] Decode batch [512], #running-req: {n}, #full token: 420, full token usage: 0.01, accept len: {a}, accept rate: 0.30, cuda graph: {g}, gen throughput (token/s): {s}, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.2\n"
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


def test_many_lines_glued_into_one_cost_no_time(tmp_path):
    began = time.process_time()
    read(tmp_path, OLD.format(n=1, a="1.80", g="x", s="54.80").strip() * 2000)
    assert time.process_time() - began < 1


def test_cut_lines_and_odd_bytes(tmp_path):
    file = tmp_path / "s.log"
    file.write_bytes(OLD.format(n=1, a="1.80", g="True", s="54.80").encode()[:120] + b"\n\xff\xfe" + OLD.format(n=1, a="1.80", g="True", s="0.00").encode())
    found = read_decode_log(file)
    assert found.batches == () and "1 decode lines are cut" in found.notes[0]


def test_another_log_is_empty_and_none_is_refused(tmp_path):
    assert read(tmp_path, "hello\n").batches == ()
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_decode_log(tmp_path / "absent")
