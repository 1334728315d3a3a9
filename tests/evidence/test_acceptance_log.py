"""Lines that engines print while they decode."""

import pytest

from eagle_forensics.evidence.acceptance_log import Window, read_acceptance_log
from eagle_forensics.evidence.records import EvidenceError

SGLANG = "[2026-01-01 10:00:00] Decode batch, #running-req: 1, #token: 66, token usage: 0.01, accept len: 1.80, accept rate: 0.30, cuda graph: False, gen throughput (token/s): 54.80, #queue-req: 0"
OLD = "[2025-05-01 10:00:00] Decode batch. #running-req: 1, #token: 66, token usage: 0.01, accept len: 2.05, cuda graph: True, gen throughput (token/s): 88.80, #queue-req: 0"
VLLM = ("INFO SpecDecoding metrics: Mean acceptance length: 2.02, Accepted throughput: 3.10 tokens/s, Drafted throughput: 9.00 tokens/s, Accepted: 31 tokens, "
        "Drafted: 90 tokens, Per-position acceptance rate: 0.544, 0.303, 0.172, Avg Draft acceptance rate: 34.4%")
VLLM_OLD = ("INFO SpecDecoding metrics: Draft acceptance rate: 34.4%, Mean acceptance length: 2.02, Accepted: 31 tokens, Drafted: 90 tokens, "
            "Per-position acceptance rate: 0.544, 0.303, 0.172")


def log(tmp_path, *lines):
    file = tmp_path / "server.log"
    file.write_text("\n".join(["starting", *lines, "done"]) + "\n")
    return file


def test_sglang_lines_of_both_ages(tmp_path):
    assert read_acceptance_log(log(tmp_path, SGLANG, "Decode batch, accept len: x", OLD)) == (
        Window("sglang", 1.8, 0.3, 54.8), Window("sglang", 2.05, None, 88.8))


@pytest.mark.parametrize("line", [VLLM, VLLM_OLD])
def test_vllm_lines_in_both_orders(tmp_path, line):
    (window,) = read_acceptance_log(log(tmp_path, line))
    assert (window.engine, window.accept_length, window.rate, window.accepted, window.drafted) == ("vllm", 2.02, pytest.approx(0.344), 31, 90)
    assert window.survival == (0.544, 0.303, 0.172)


def test_a_log_without_speculation_holds_no_window(tmp_path):
    assert read_acceptance_log(log(tmp_path, SGLANG.replace("accept len: 1.80, accept rate: 0.30, ", ""))) == ()


def test_a_number_that_is_none_is_no_window(tmp_path):
    assert read_acceptance_log(log(tmp_path, SGLANG.replace("1.80", "1.8.0"), VLLM.replace("2.02", "2..02"))) == ()


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_acceptance_log(tmp_path / "absent.log")
