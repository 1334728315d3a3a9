"""The server log: marked lines with their place, secrets hidden, memory bounded however long the log."""

import resource

import pytest

from eagle_forensics.evidence import blocks, server_log
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.server_log import read_server_log

FILLER = b"[2026-01-01 10:00:00 TP0] Decode batch, #running-req: 1, accept len: 1.80, accept rate: 0.30, cuda graph: True, gen throughput (token/s): 56.80\n"


def test_lines_carry_their_kind_and_place(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(FILLER + b"\x1b[33mWARNING\x1b[0m speculative_num_draft_tokens is adjusted to x\nUsing Eagle3 auxiliary layers from model: (2, 15, 27)\n")
    found = read_server_log(log)
    assert [(line.kind, line.byte) for line in found.lines] == [("arguments", len(FILLER)), ("layers", log.read_bytes().index(b"Using"))]
    assert found.lines[0].text.startswith("WARNING spec") and found.lines[1].layers == (2, 15, 27) and found.lines[0].layers is None
    assert found.arguments is None


def test_what_the_engine_says_of_its_own_all_reduce_by_release(tmp_path):
    log = tmp_path / "a.log"
    why = b" is disabled because it's not supported on more than two PCIe-only GPUs.\n"
    log.write_bytes(b"".join(name + why for name in (b"Custom allreduce", b"CustomAllreduce", b"CustomAllReduceV2")) + b"[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1\n")
    assert read_server_log(log).counts == {"all-reduce": 3, "timeout": 1}


def test_a_line_across_two_blocks_is_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK", 64)
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 50 + b"\n" + b"tokens is adjusted to 2\n" * 3)
    found = read_server_log(log)
    assert found.counts == {"arguments": 3} and [line.byte for line in found.lines] == [51, 75, 99]


def test_repeated_lines_are_counted_not_kept(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"Eagle3 MLA: skipping unexpected weight x\n" * 500)
    found = read_server_log(log)
    assert found.counts == {"loading": 500} and len(found.lines) == server_log.KEPT


def test_secrets_do_not_leave_the_reader(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("is reset to 48 api_key=sk-123\nserver_args=ServerArgs(model_path='/m', tp_size=8, api_key='sk-456')\n")
    found = read_server_log(log)
    assert "sk-" not in str(found) and found.arguments.arguments["tp_size"] == "8"


def test_200_mb_in_bounded_memory(tmp_path):
    log = tmp_path / "big.log"
    with log.open("wb") as file:
        file.write(b"server_args=ServerArgs(model_path='/m', speculative_num_steps=3)\n")
        for _ in range(200):
            file.write(FILLER * ((1 << 20) // len(FILLER)))
        file.write(b"Max running requests is reset to 48 for speculative decoding.\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_server_log(log)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert found.bytes > 200e6 * 0.99 and found.counts == {"arguments": 1} and found.arguments.arguments["speculative_num_steps"] == "3"
    assert grown < 40, f"{grown:.0f} MiB more for a 200 MB log"
    log.unlink()


@pytest.mark.parametrize("content", [b"", None])
def test_nothing_to_read_is_said(tmp_path, content):
    log = tmp_path / "a.log"
    if content is not None:
        log.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"serving\.log"):
        read_server_log(log)


def test_no_newline_at_all(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"\0" * (3 << 20))
    assert read_server_log(log).lines == ()
