"""Transports and channels out of NCCL's log: shared memory is no fault by itself, sockets by two settings and a pinning plugin are."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.records import Pick
from eagle_forensics.finding import Status
from eagle_forensics.nccl.belief import believe
from eagle_forensics.nccl.dispatch import spread, transport
from eagle_forensics.nccl.sizes import decode_sizes, plan

FIXTURES = Path(__file__).parent / "fixtures"
PLAN = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=2)
HEALTHY = read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log")
OFF = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def large(channels, size=16 << 20):
    return Pick(0, "AllReduce", size, "RING", "SIMPLE", channels=channels)


@pytest.mark.parametrize(("transports", "nodes", "env", "status", "word"), [
    ({"P2P/CUMEM": 16}, 1, {}, Status.PASS, "16 by P2P/CUMEM"), ({"SHM/direct/direct": 8, "P2P/IPC": 8}, 1, {}, Status.INCONCLUSIVE, "8 of 16"),
    ({"NET/Socket": 4}, 1, OFF, Status.FAIL, "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1"), ({"NET/Socket": 4}, 1, {"NCCL_P2P_DISABLE": "1"}, Status.INCONCLUSIVE, "does not show why"),
    ({"NET/Socket": 4, "P2P/IPC": 4}, 2, OFF, Status.PASS, "No connection within a node"), ({"NET/Socket": 4}, None, OFF, Status.PASS, "No connection"),
    ({"NET/IB": 4, "P2P/IPC": 4}, 1, {}, Status.PASS, "judges the network card"), ({}, 1, {}, Status.SKIPPED, "no line of a connection"),
])
def test_transports(transports, nodes, env, status, word):
    found = transport(replace(HEALTHY, transports=transports, nodes=nodes, environment=env))
    assert (found.status, word in found.statement) == (status, True), found.statement
    assert not found.required and (found.fault == "nccl.no-direct-transport") is (status is Status.FAIL)


def test_without_a_log_nothing_is_said():
    assert transport(None).status is Status.SKIPPED and spread(None, PLAN, None).status is Status.SKIPPED
    assert transport(HEALTHY, off="one rank").next_step is None


@pytest.mark.parametrize(("picks", "channels", "plugin", "env", "status", "word"), [
    ([large(1), large(1, 64 << 20)], 8, 2, {}, Status.FAIL, "one of 8 channels"),
    ([large(1)], 8, 0, {}, Status.INCONCLUSIVE, "does not say"), ([large(1), large(8, 64 << 20)], 8, 2, {}, Status.INCONCLUSIVE, "1 of 2"),
    ([large(1)], 1, 2, {}, Status.PASS, "0 of 1"), ([large(1)], 1, 2, {"NCCL_MAX_CTAS": "1"}, Status.PASS, "limited to 1"), ([large(8)], 8, 2, {}, Status.PASS, "1 of 1"),
    ([], 8, 0, {}, Status.SKIPPED, "neither"), ([large(8)], None, 0, {}, Status.SKIPPED, "how many channels"),
])
def test_channels_of_large_messages(picks, channels, plugin, env, status, word):
    log = replace(HEALTHY, picks=(*HEALTHY.picks, *picks), channels=channels, plugin_picks=plugin, environment=env)
    found = spread(log, PLAN, believe(log, decode_sizes(PLAN), capability="12.0"))
    assert (found.status, word in found.statement) == (status, True), found.statement
    assert (found.fault == "nccl.tuner-one-channel") is (status is Status.FAIL)


def test_a_limit_that_decode_does_not_fill_is_no_fault():
    log = replace(HEALTHY, channels=4, environment={"NCCL_MAX_NCHANNELS": "4"})
    assert "decode does not notice" in spread(log, PLAN, believe(log, decode_sizes(PLAN), capability="12.0")).statement
    many = plan({"num_hidden_layers": 61, "hidden_size": 7168}, tp=8, steps=15)
    limited = replace(HEALTHY, channels=1, environment={"NCCL_MAX_CTAS": "1"})
    found = spread(limited, many, believe(limited, decode_sizes(many), capability="12.0"))
    assert found.status is Status.INCONCLUSIVE and "would fill 4" in found.statement
