"""Decode rounds in the server's log: eager is a fault of its own, mixed is open, too few lines say nothing."""

from pathlib import Path

import pytest

from eagle_forensics.evidence.decode_log import DecodeLog, Window
from eagle_forensics.finding import Status
from eagle_forensics.nccl.decode import rounds_logged


def log(*batches):
    """`batches`: (running, lines, eager ones, tokens/s)."""
    return DecodeLog(Path("s.log"), tuple(Window("sglang", 1.8, None, speed, running=n, graph="cuda", replayed=i >= eager) for n, lines, eager, speed in batches for i in range(lines)))


@pytest.mark.parametrize(("batches", "status", "word"), [
    (((1, 9, 0, 54.8),), Status.PASS, "32.8 ms a round"),
    (((1, 9, 0, 54.8), (64, 4, 4, 900.0)), Status.FAIL, "64 running request"),
    (((1, 9, 1, 54.8),), Status.INCONCLUSIVE, "1 of 9 lines"),
    (((1, 2, 2, 54.8),), Status.SKIPPED, "no server log"),
    ((), Status.SKIPPED, "no server log"),
])
def test_what_is_said_of_rounds(batches, status, word):
    found = rounds_logged(log(*batches))
    assert (found.status, word in found.statement) == (status, True), found.statement
    assert not found.required and (found.fault == "cost.no-cuda-graph") is (status is Status.FAIL)


def test_no_log():
    assert rounds_logged(None).status is Status.SKIPPED
