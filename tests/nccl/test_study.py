"""Notebook 05 from a case: all evidence, none, one rank, bad evidence, and a real run of two gloo ranks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from eagle_forensics.case import load_case
from eagle_forensics.evidence.nccl.records import NcclTests, Pick, Timing
from eagle_forensics.finding import Status
from eagle_forensics.nccl import frames, study
from eagle_forensics.nccl.bench import Bench, measure
from eagle_forensics.nccl.tuner_file import Answer, answer, problems, read
from eagle_forensics.suite.runner import run_case

FIXTURES = Path(__file__).parent / "fixtures"
FIGURE = {"value": 2.0, "low": 1.9, "high": 2.1}
ACCEPTANCE = {"runs": [{"label": f"{s} steps", "steps": s, "comparable": True, "accept_length": {"value": a, "low": a - 0.05, "high": a + 0.05},
                        "cycle_ms_interval": {"value": 1e3 * a / v, "low": 1e3 * a / v - 1, "high": 1e3 * a / v + 1},
                        "baseline_tokens_per_second": {"value": 90.0, "low": 89.95, "high": 90.05}} for s, a, v in ((1, 1.6, 56.8), (15, 1.9, 46.7), (5, 1.8, 54.8))]}
TARGET = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "vocab_size": 1000,
          "n_routed_experts": 384, "num_experts_per_tok": 8}


def case(folder, target=TARGET, launch="--tp 8 --speculative-num-steps 2", hardware=None, **nccl):
    (folder / "target").mkdir()
    (folder / "target" / "config.json").write_text(json.dumps(target))
    for name in [n for v in nccl.values() for n in (v if isinstance(v, list) else [v])]:
        if (FIXTURES / name).exists():
            shutil.copy(FIXTURES / name, folder / name)
    text = {"schema": 1, "name": "link", "target": {"path": "target"}, "nccl": nccl,
            "serving": {"engine": "sglang", "version": "0.5.10", "launch": launch,
                        "hardware": hardware or {"gpu": "RTX PRO 6000", "count": 8, "compute_capability": "12.0", "link": "pcie"}}}
    (folder / "case.yaml").write_text(yaml.safe_dump(text))
    return load_case(folder)


def whole(folder):
    return case(folder, debug_log="nccl_debug_2.27_fallback.log", tests=["nccltests_v2.13_simple.txt", "nccltests_v2.18_ll.txt"], topology="nvidia_smi_topo_pcie8.txt",
                traces=["kineto_nccl_rank0.json"])


def test_graph_fallback_with_its_saving_in_a_case(tmp_path):
    """The known case: pattern at 0.1 GB/s and SYS, 48 us before and 26 us after, 61 layers, three tokens."""
    work = study.begin(whole(tmp_path), acceptance=ACCEPTANCE)
    off = Bench("off", reason="off")
    found = {f.id: f for f in [*study.judge(work), *study.joined(work, off)]}
    assert work.opening == () and found["nccl.graph"].fault == "nccl.graph-fallback" and "2.7 ms less" in found["nccl.graph"].predicted_effect
    assert "Not channels" in found["nccl.graph"].next_step and found["nccl.choice"].status is Status.PASS
    assert study.all_reduce_us(work, off) == 48.21 and "26.40 ms plus 1.051 ms" in found["nccl.cost"].statement and "5.93 ms" in found["nccl.cost"].statement
    fits = study.fits(work, off)
    assert [(round(c.alpha_us.value, 1), round(c.bandwidth.value, 1)) for c in fits.values()] == [(46.6, 26.8), (24.0, 19.3)]
    assert "custom" in found["nccl.carriers"].statement and frames.traces_frame(work.traces) is not None


def test_nothing_is_to_be_set_before_it_is_proven(tmp_path):
    work = study.begin(whole(tmp_path))
    text = study.settings(work, Bench("off"))
    assert text.startswith("# Nothing is proven yet") and "export" not in text
    table = read(text)
    lines = "\n".join(line for line in text.splitlines() if line.count(",") == 9)
    assert problems(lines, ranks=8) == [] and answer(table, "allreduce", 43008, ranks=8) == Answer("ring", "ll", 1)
    assert "torchrun --nproc-per-node 8" in text and "NCCL_CUMEM_ENABLE=0" in text


def test_the_evidence_is_listed_with_what_is_odd_in_it(tmp_path):
    folder = tmp_path / "case"
    folder.mkdir()
    work = study.begin(whole(folder))
    shown = frames.evidence_frame(work.log, work.tests, work.topology, work.traces, work.decode)
    assert shown["evidence"].tolist() == ["NCCL log", "nccl-tests", "nccl-tests", "topology", "trace"] and "2.27.5" in shown["holds"][0]
    odd = frames.evidence_frame(replace(work.log, notes=("3 lines are cut.",)), (), None, (), None)
    assert odd["odd"].tolist() == ["3 lines are cut."] and frames.evidence_frame(None, (), None, (), None) is None


def test_a_change_of_protocol_needs_log_and_curve(tmp_path):
    work = study.begin(whole(tmp_path))
    sizes = [2**n * 1024 for n in range(3, 11)]
    table = NcclTests(tmp_path / "t.txt", "all_reduce_perf", "2.19", "2.27.3", 8, tuple(
        Timing(n, False, 24 + n / 8000 if n < 128 * 1024 else 60 + n / 30000) for n in sizes), False)
    log = replace(work.log, picks=tuple(Pick(0, "AllReduce", n, "RING", "LL" if n < 128 * 1024 else "SIMPLE") for n in sizes))
    off = Bench("off")
    assert {name: s.bytes for name, s in study.breaks(replace(work, tests=(table,), log=log), off).items()} == {"t.txt": 128 * 1024}
    assert study.breaks(replace(work, tests=(table,), log=None), off) == {} and study.breaks(work, off) == {}
    shown = frames.curves_frame(study.fits(work, off), {next(iter(study.fits(work, off))): study.breaks(replace(work, tests=(table,), log=log), off)["t.txt"]})
    assert "131,072 bytes" in shown["protocol changes at"].tolist()


def test_pictures_are_drawn_from_what_is_there(tmp_path):
    import matplotlib.pyplot as plt

    work, off = study.begin(whole(tmp_path), acceptance=ACCEPTANCE), Bench("off")
    curve, rounds = study.curves_picture(work, off), study.rounds_picture(work)
    assert "26.2 to 48.2 us" in curve[1] and "from 1.57 MB on" in curve[2] and rounds[1].startswith("A round costs 16.3 ms more")
    assert study.ranking_picture(off) is None
    plt.close("all")


def test_one_rank_sends_nothing(tmp_path):
    work = study.begin(case(tmp_path, launch="--tp 1"), acceptance=ACCEPTANCE)
    off = Bench("off")
    assert work.plan is None and study.settings(work, off) is None and study.advice_frame(work, off) is None and study.space(work, off) is None
    assert {f.status for f in [*study.judge(work), *study.joined(work, off)]} == {Status.PASS, Status.SKIPPED}


def test_a_cpu_server_sends_nothing_through_nccl(tmp_path):
    work = study.begin(case(tmp_path, launch="--tp 2 --device cpu"))
    assert work.plan is None and study.advice_frame(work, Bench("off")) is None


@pytest.mark.parametrize(("launch", "nodes", "first"), [
    ("--tp 16 --nnodes 2", 2, "Keep tensor parallelism"), ("--tp 8 --pp 2 --nnodes 2", 1, "A/B of"), ("--tp 8 --pp-size 4 --nnodes 2", 1, "A/B of"), ("--tp 8", 1, "A/B of"),
])
def test_pipeline_stages_take_their_share_of_the_nodes(tmp_path, launch, nodes, first):
    work = study.begin(case(tmp_path, launch=launch, debug_log="nccl_debug_2.27_fallback.log"))
    assert work.nodes == nodes and study.advice_frame(work, Bench("off"))["do"][0].startswith(first)
    assert (work.belief.system is None) is (work.tp == 16) and ("tensor parallelism 16" in (work.belief.unknown or "")) is (work.tp == 16)


def test_a_tree_verifies_its_draft_tokens(tmp_path):
    work = study.begin(case(tmp_path), arguments={"num_steps": 4, "topk": 2, "num_draft_tokens": 16})
    assert (work.plan.tokens, work.plan.steps, work.plan.draft_count) == (16, 4, 12)


def test_evidence_that_is_none_is_named(tmp_path):
    work = study.begin(case(tmp_path, debug_log="nccltests_v2.18_ll.txt", tests=["gone.txt"], traces=["nvidia_smi_topo_pcie8.txt"]))
    assert {f.id for f in work.opening} == {"nccl.read.log", "nccl.read.tests-0", "nccl.read.traces-0"} and {f.status for f in work.opening} == {Status.ERROR}


def test_a_mode_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one of off"):
        measure("cuda", sent=None, config=None, served={}, belief=None, link=None)
    assert "did not measure" in study.measure(study.begin(case(tmp_path)), "cuda", launches=1, samples=100).reason


def test_two_real_gloo_ranks_from_the_notebook(tmp_path):
    case(tmp_path, target={**TARGET, "num_hidden_layers": 2, "hidden_size": 512})
    result = run_case(tmp_path, out=tmp_path / "runs", only=[5], parameters={"bench": "gloo", "bench_launches": 1}, resume=False)
    assert result.outcomes[0].complete
    raw = json.loads((result.run_dir / "evidence" / "05_all_reduces.json").read_text())
    launch, = raw["launches"]
    assert (launch["backend"], launch["ranks"], raw["ranking"]) == ("gloo", 2, None) and launch["seconds"] < 15
    assert all(len(v) == 15 and min(v) > 0 for v in launch["alone_us"].values()) and len(launch["chain_us"]) == 7
    search, = [f for f in result.findings if f.id == "nccl.search"]
    assert search.status is Status.SKIPPED and "no evidence on the served machine" in search.statement
