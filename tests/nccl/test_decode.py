"""Decode rounds in the server's log: eager is a fault of its own, mixed is open, too few lines say nothing."""

from pathlib import Path

import pytest

from eagle_forensics.evidence.decode_log import DecodeLines, DecodeLog
from eagle_forensics.finding import Status
from eagle_forensics.nccl.decode import rounds_logged


def log(*batches):
    return DecodeLog(Path("s.log"), batches)


@pytest.mark.parametrize(("batches", "status", "word"), [
    ((DecodeLines(1, 9, 9, 0, 1.8, 54.8),), Status.PASS, "32.8 ms a round"),
    ((DecodeLines(1, 9, 9, 0, 1.8, 54.8), DecodeLines(64, 4, 0, 4, 1.8, 900.0)), Status.FAIL, "64 running request"),
    ((DecodeLines(1, 9, 8, 1, 1.8, 54.8),), Status.INCONCLUSIVE, "1 of 9 lines"),
    ((DecodeLines(1, 2, 0, 2, 1.8, 54.8),), Status.SKIPPED, "no server log"),
    ((), Status.SKIPPED, "no server log"),
])
def test_what_is_said_of_rounds(batches, status, word):
    found = rounds_logged(log(*batches))
    assert (found.status, word in found.statement) == (status, True), found.statement
    assert not found.required and (found.fault == "cost.no-cuda-graph") is (status is Status.FAIL)


def test_no_log():
    assert rounds_logged(None).status is Status.SKIPPED
