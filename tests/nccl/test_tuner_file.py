"""The tuner file: written, read as the plugin reads it, and asked what each call gets."""

from itertools import pairwise
from pathlib import Path

import pytest

from eagle_forensics.nccl.tuner_file import (
    ALL,
    COLLECTIVES,
    Answer,
    Entry,
    answer,
    entries,
    problems,
    read,
    text,
)
from eagle_forensics.nccl.tuning import Choice

DECODE = (Path(__file__).parent / "fixtures" / "nccl_tuner_decode.conf").read_text()


def choice(size, protocol="LL", channels=1):
    return Choice(size, "RING", protocol, 20.0, channels, {})


CHOICES = [choice(14336), choice(43008), choice(86016, channels=2), choice(229376, channels=4)]


def test_round_trip_gives_every_measured_size_its_choice():
    table = read(text(entries(CHOICES, ranks=8, nodes=1, channels=4)))
    for c in CHOICES:
        assert answer(table, "allreduce", c.bytes, ranks=8) == Answer("ring", "ll", c.channels)
    mine = [e for e in table if e.collective == "allreduce"]
    assert mine[0].low == 0 and all(after.low == before.high + 1 for before, after in pairwise(mine)) and mine[-1].high == ALL
    assert answer(table, "allreduce", 64512, ranks=8).channels == 1 and answer(table, "allreduce", 64513, ranks=8).channels == 2


def test_every_collective_and_size_is_covered():
    content = text(entries(CHOICES, ranks=8, nodes=1, channels=4))
    assert problems(content, ranks=8) == []
    for collective in COLLECTIVES:
        for size in (1, 458752, 458753, 117440512, ALL):
            assert answer(read(content), collective, size, ranks=8).channels >= 1
            assert answer(read(content), collective, size, ranks=8).algorithm == "ring"


def test_inside_cuda_graphs_the_same_line_matches():
    table = read(text(entries(CHOICES, ranks=8, nodes=1, channels=4)))
    assert answer(table, "allreduce", 43008, ranks=8, registered=1, pipe_ops=4) == Answer("ring", "ll", 1)


def test_the_reference_file_is_read_whole():
    table = read(DECODE)
    assert problems(DECODE, ranks=8) == [] and len(table) == 6
    assert answer(table, "allreduce", 43008, ranks=8) == Answer("ring", "ll", 4)
    assert answer(table, "allreduce", 458753, ranks=8).protocol == "simple"


def test_a_call_that_no_line_matches_runs_on_one_channel():
    table = read("allreduce,0,1000,ring,ll,4,1,8\n")
    assert answer(table, "allgather", 500, ranks=8) == answer(table, "allreduce", 1001, ranks=8) == answer(table, "allreduce", 500, ranks=4) == Answer(None, None, 1)
    assert answer(read("allreduce,0,1000,ring,ll,-1,1,8\n"), "allreduce", 500, ranks=8).channels == 1


def test_the_first_line_wins_unless_its_way_is_disabled():
    table = read("allreduce,0,1000,ring,ll128,4,-1,-1\nallreduce,0,1000,tree,ll,2,-1,-1\n")
    assert answer(table, "allreduce", 5, ranks=8).protocol == "ll128"
    assert answer(table, "allreduce", 5, ranks=8, disabled=[("ring", "ll128")]) == Answer("tree", "ll", 2)


@pytest.mark.parametrize(("line", "taken"), [
    ("AllReduce,0,9,Ring,LL,4,1,8", Entry("allreduce", 0, 9, "ring", "simple", 4, 1, 8)),
    ("reduce,-1,9,tree,ll,4x,1,8", Entry("reduce", ALL, 9, "tree", "ll", 4, 1, 8)),
    (" allgather , 1k,8, pat\t,simple,2,-1,-1,1,0", Entry("allgather", 1, 8, "pat", "simple", 2, -1, -1, 1, 0)),
])
def test_odd_words_are_read_as_the_plugin_reads_them(line, taken):
    """Each line was put to the compiled plugin of 2.30.7, as were 1,500 random files."""
    assert read(line) == [taken]


@pytest.mark.parametrize(("content", "word"), [
    ("allreduce,0,1,Ring,ll,4,1,8", "taken for ring"), ("allreduce,0,1,ring,ll,-1,1,8", "one channel, not NCCL"), ("allreduce,0,1", "3 fields"),
    ("allreduce,0,1,ring,ll,4,1,8,-1,1", "inside of CUDA graphs"), ("#" + "x" * 300, "a line of its own"), (DECODE, "allreduce from 0 bytes"),
])
def test_what_the_plugin_does_not_say_is_said(content, word):
    assert any(word in p for p in problems(content, ranks=4 if content == DECODE else 8))
