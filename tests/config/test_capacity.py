"""How many requests run, and what a CUDA graph holds: an engine's own line decides, a table alone suspects."""

import pytest

from eagle_forensics.config.capacity import capacity_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import GOOD_LAUNCH, papers

RESET = "[2026-05-05 06:16:40] Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting --max-running-requests.\n"
DECODE = ("[2026-05-05 06:17:02 TP0] Decode batch, #running-req: {n}, #token: 9000, token usage: 0.10, accept len: 2.40, accept rate: 0.47, cuda graph: True, "
          "gen throughput (token/s): 2100.00, #queue-req: {q}\n")
PIECEWISE = ("WARNING 05-05 [compilation.py:1190] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend FlashInferBackend "
             "(support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE\n")
VLLM = {"engine": "vllm", "version": "0.32.0", "place": "top", "ids": [2, 15, 27],
        "launch": """--model t --speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'"""}


def found(folder, log=None, **papers_of):
    if log is not None:
        (folder / "server.log").write_text(log)
        papers_of["serving"] = {**papers_of.get("serving", {}), "log": "server.log"}
    return {f.id: f for f in capacity_findings(inspect(papers(folder, **papers_of)))}


def table(*loads):
    return "label,speculative,concurrency,tokens_per_second\n" + "".join(f"r{n},1,{n},1000\n" for n in loads)


def test_the_engines_own_line_and_a_larger_load_convict(tmp_path):
    item = found(tmp_path, RESET, measurements=table(8, 128))["config.admission"]
    assert (item.status, item.fault, item.competitor.fault, item.observed, item.expected) == (Status.FAIL, "cost.admission-limit", "cost.concurrency", 48, 128)
    assert "80 of them wait" in item.statement and "--max-running-requests 128" in item.remedy


def test_requests_that_wait_at_the_limit_convict_without_a_table(tmp_path):
    item = found(tmp_path, RESET + DECODE.format(n=12, q=0) + 3 * DECODE.format(n=48, q=16))["config.admission"]
    assert item.status is Status.FAIL and item.expected == 64 and "3 decode lines show 48 running and up to 16 waiting" in item.statement


@pytest.mark.parametrize("log", [RESET + DECODE.format(n=48, q=0), RESET + DECODE.format(n=64, q=16), RESET + DECODE.format(n=20, q=5)])
def test_no_wait_another_limit_and_a_wait_below_it_accuse_nobody(tmp_path, log):
    assert found(tmp_path, log)["config.admission"].status is Status.PASS


@pytest.mark.parametrize(("load", "flags", "status"), [(8, "", Status.PASS), (128, "", Status.INCONCLUSIVE), (128, " --max-running-requests 128", Status.PASS)])
def test_without_the_log_a_table_only_suspects(tmp_path, load, flags, status):
    item = found(tmp_path, launch=GOOD_LAUNCH + flags, measurements=table(load))["config.admission"]
    assert item.status is status and item.required and (status is Status.PASS or "--max-running-requests 128" in item.remedy)


def test_a_limit_that_vllm_does_not_have(tmp_path):
    assert "config.admission" not in found(tmp_path, measurements=table(128), **VLLM)


@pytest.mark.parametrize(("line", "load", "status", "held"), [
    ("Truncating max_cudagraph_capture_size to 8\n", 4, Status.FAIL, 2), ("Truncating max_cudagraph_capture_size to 32\n", 8, Status.PASS, 8),
    ("Truncating max_cudagraph_capture_size. original_size=16, truncated_size=12. The\n", 4, Status.FAIL, 3)])
def test_vllms_sizes_count_tokens(tmp_path, line, load, status, held):
    item = found(tmp_path, line, measurements=table(1, load), **VLLM)["config.graphs"]
    assert item.status is status and item.observed == held
    if status is Status.FAIL:
        assert item.fault == "cost.no-cuda-graph" and item.competitor.fault == "nccl.graph-fallback" and f"of {load * 4} " in item.remedy


@pytest.mark.parametrize(("flags", "held"), [
    (""" --compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8]}'""", 2), (" --max-cudagraph-capture-size 64", 16), (" --cudagraph-capture-sizes 4 8 16", 4)])
def test_sizes_of_vllms_launch_line(tmp_path, flags, held):
    assert found(tmp_path, measurements=table(2), **VLLM | {"launch": VLLM["launch"] + flags})["config.graphs"].observed == held


@pytest.mark.parametrize(("flags", "load", "status"), [("--cuda-graph-max-bs 8", 32, Status.FAIL), ("--cuda-graph-max-bs 32", 32, Status.PASS), ("--cuda-graph-bs 1 2 4", 8, Status.FAIL),
                                                       ("--cuda-graph-max-bs 48", 128, Status.PASS)])
def test_sglangs_sizes_count_requests_that_run(tmp_path, flags, load, status):
    assert found(tmp_path, launch=f"{GOOD_LAUNCH} {flags}", measurements=table(load))["config.graphs"].status is status


def test_a_load_that_nobody_measured_accuses_nobody(tmp_path):
    assert found(tmp_path, "Truncating max_cudagraph_capture_size to 8\n", **VLLM)["config.graphs"].status is Status.PASS


@pytest.mark.parametrize(("mode", "status"), [("PIECEWISE", Status.INCONCLUSIVE), ("NONE", Status.FAIL), ("FULL_AND_PIECEWISE", None), ("FULL_DECODE_ONLY", None)])
def test_the_mode_that_vllm_falls_back_to(tmp_path, mode, status):
    item = found(tmp_path, PIECEWISE.replace("mode=PIECEWISE", f"mode={mode}"), **VLLM).get("config.graphs")
    assert (item and item.status) is status and (item is None or (item.fault == "cost.no-cuda-graph" and item.required))


@pytest.mark.parametrize("flags", ["--disable-cuda-graph", "--device cpu"])
def test_graphs_that_were_not_asked_for(tmp_path, flags):
    item = found(tmp_path, launch=f"{GOOD_LAUNCH} {flags} --cuda-graph-max-bs 2", measurements=table(32)).get("config.graphs")
    assert item is None or item.status is Status.PASS


def test_a_rule_that_was_not_read_accuses_nobody(tmp_path):
    items = found(tmp_path, RESET, version="0.9.9", measurements=table(128), launch=f"{GOOD_LAUNCH} --cuda-graph-max-bs 2")
    assert {f.status for f in items.values()} == {Status.INCONCLUSIVE} and len(items) == 2
