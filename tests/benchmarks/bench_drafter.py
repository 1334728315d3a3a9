"""The drafter: against speculators' own forward and the battery against single runs on the built-in case; products and memory at Kimi's size.

All times are CPU seconds on one thread, so that a busy machine does not change them; each figure's parts come from one run.

    vs_speculators    seconds in which speculators 0.9.0 gives its accuracies on the same sequences as its trainer validates (default attention,
                      packed and padded), over those of our evaluation; float32 both (needs `make speculators-env`)
    vs_speculators_fastest   the same against the fastest way found to run its validation forward here: eager, one sequence at a time
    vs_speculators_drafts    the same for draft tokens alone: no teacher, no loss, no metrics, the fastest way
    battery_cost      the battery of all 60 orders of three out of five planes, over 60 times one evaluation
    gemm_efficiency   bare float32 products of a Kimi-size MLA drafter over its whole evaluation, 384 tokens, three steps
    extra_gib         peak memory of that evaluation beside the mapped weights
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle_forensics import demo
from eagle_forensics.case import load_case
from eagle_forensics.drafter.wirings.battery import run_battery
from eagle_forensics.drafter.wirings.candidates import plane_orders
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.drafter.workbench import Workbench, open_workbench
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.tensors import load_tensor

SEQUENCES, STEPS = 24, 3
ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / ".venv-speculators" / "bin" / "python"


def figures() -> dict[str, float]:
    case, threads = load_case(demo.case_file("broken")), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = open_workbench(case)
        found = {"drafter.battery_cost": _battery_cost(bench)}
        if TRAINER.exists():
            found |= _vs_speculators(bench, case.drafter.path)
    finally:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        kimi = _json([sys.executable, "-m", "tests.benchmarks.kimi_drafter", folder])
    return found | {"drafter.gemm_efficiency": kimi["efficiency"], "drafter.extra_gib": kimi["extra_gib"]}


def _battery_cost(bench: Workbench) -> float:
    """Five planes: the dump's and, where it holds fewer, the target's own at further boundaries."""
    planes = [*bench.slots, *(p for p in bench.computed[0].planes if p.startswith("b="))][:5] if bench.computed else list(bench.slots)
    orders = [Wiring(o) for o in plane_orders(planes, bench.drafter.n_aux)]
    if len(orders) != 60:
        raise ValueError(f"{len(orders)} orders of {planes}; expected the 60 of three out of five planes")
    sequences = bench.computed or bench.sequences
    one = min(_seconds(lambda: evaluate(bench.drafter, sequences, orders[0], STEPS)) for _ in range(2))
    return _seconds(lambda: run_battery(bench.drafter, sequences, orders, STEPS)) / (len(orders) * one)


def _vs_speculators(bench: Workbench, path: Path) -> dict[str, float]:
    draft, drafter, sequences, names = read_draft(path), bench.drafter, bench.sequences[:SEQUENCES], bench.slots[:bench.drafter.n_aux]
    tensors = {f"weights/{n}": load_tensor(i).clone() for n, i in draft.tensors.items() if n != "t2d"} | {"weights/embed_tokens.weight": drafter.embedding.clone()}
    for i, s in enumerate(sequences):
        tensors |= {f"planes/{i}": torch.cat([s.planes[n] for n in names], -1), f"ids/{i}": s.input_ids, f"last/{i}": s.planes[bench.slots[-1]].clone(), f"mask/{i}": s.loss_mask}
    layer = {"hidden_size": draft.hidden, "intermediate_size": draft.intermediate, "num_hidden_layers": draft.layers, "num_attention_heads": draft.heads, "num_key_value_heads": draft.kv_heads,
             "head_dim": draft.head_dim, "vocab_size": drafter.vocab, "rms_norm_eps": draft.eps, "max_position_embeddings": 8192,
             "rope_parameters": {"rope_type": "default", "rope_theta": draft.rope.theta}}
    ours = min(_seconds(lambda: evaluate(drafter, sequences, Wiring(names), STEPS)) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "in.safetensors"
        save_file(tensors, file, metadata={"config": json.dumps({"layer": layer, "n_aux": drafter.n_aux, "steps": STEPS, "sequences": len(sequences)})})
        theirs = _json([TRAINER, "-W", "ignore", Path(__file__).with_name("speculators_speed.py"), file])
    result = evaluate(drafter, sequences, Wiring(names), 1)
    mine = [int(token) for s in result.sequences for token in s.predicted[:, 0]]
    meaning, start, same = drafter.target_ids(), 0, []
    for s, own in zip(sequences, result.sequences, strict=True):
        same += [int(meaning[theirs["first drafts"][start + t]]) for t in own.positions]
        start += len(s) - 1
    equal = sum(a == b for a, b in zip(mine, same, strict=True)) / len(mine)
    if equal < 0.999:
        raise ValueError(f"only {equal:.1%} of the first draft tokens agree with speculators': the two did not do the same work")
    fastest = {kind: min(took for name, took in theirs.items() if name.startswith(kind)) for kind in ("validation", "drafts")}
    return {"drafter.vs_speculators": theirs["validation, own way"] / ours, "drafter.vs_speculators_fastest": fastest["validation"] / ours,
            "drafter.vs_speculators_drafts": fastest["drafts"] / ours}


def _json(command: list) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)


def _seconds(work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
