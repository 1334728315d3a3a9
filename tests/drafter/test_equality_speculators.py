"""The drafter equals speculators 0.9.0's own EAGLE-3 model: against its logits committed as a golden file, and live where it is installed.

`speculators_worker.py` wrote the file and runs the model again; the file's metadata names the versions.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from eagle_forensics.drafter.network.arithmetic import rms_norm
from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import build
from eagle_forensics.drafter.network.unroll import chunks, states
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.evidence.records import DraftFlags, Rope

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("speculators-0.9.0.safetensors")
PYTHON = ROOT / ".venv-speculators" / "bin" / "python"
TOLERANCE = 3e-6
"""Of the largest logit: float32 on both sides, summed in another order."""


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


STORED, META = read(GOLDEN)
CASES = json.loads(META["cases"])


def our_logits(case, dtype=torch.float32):
    """[STEPS, rows, Vd] with the rows (document, t) they stand for."""
    weights = {name.removeprefix("weights/"): value for name, value in STORED.items() if name.startswith("weights/")}
    unused = [n for n in weights if n.startswith("layers.1.") and case.get("layers", 1) == 1] + [n for n in weights if n.endswith(".bias") and not case.get("bias")]
    unused += [n for n in weights if n.endswith(("q_norm.weight", "k_norm.weight")) and not case.get("qwen3")]
    rope = dict(case.get("rope") or {"rope_theta": 10000.0})
    model = build({n: w for n, w in weights.items() if n not in unused}, heads=4, kv_heads=2, head_dim=8, flags=DraftFlags(**case["flags"]), dtype=dtype,
                  rope=Rope(rope.pop("rope_theta"), rope or None, 1.0, "test"), max_positions=1024)
    items = [Recorded({f"p{k}": p for k, p in enumerate(STORED[f"planes/{i}"])}, STORED[f"ids/{i}"], torch.ones(len(STORED[f"ids/{i}"]), dtype=torch.bool), str(i)) for i in range(2)]
    steps = len(STORED[f"logits/{next(iter(CASES))}"])
    chunk = next(chunks(items, steps))
    names = ("p0", "p1", "p2")
    hidden = Projections(model, chunk.planes(names)).hidden(names, norm_before_fc=model.flags.norm_before_fc, fc_norm=model.flags.fc_norm)
    found = torch.stack([rms_norm(h, model.norm, model.eps) @ model.head.to(dtype).T for h in states(model, chunk, hidden, steps)])
    return found, chunk


def largest_difference(theirs, ours, chunk):
    """Over the rows whose tokens the text holds; the last token of a document is no row of speculators'."""
    worst, compared, argmax = 0.0, 0, 0
    for document, (start, _) in enumerate(chunk.bounds):
        for row in range(*chunk.row_bounds[document]):
            t = int(chunk.rows[row]) - start
            for k in range(len(ours)):
                if t + 1 + k < len(chunk.sequences[document]):
                    a, b = theirs[k, start - document + t], ours[k, row]
                    worst = max(worst, float((a - b).abs().max()))
                    argmax += int(a.argmax() != b.argmax())
                    compared += 1
    assert compared == 55 and argmax == 0
    return worst / float(theirs.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_trainer(name):
    assert largest_difference(STORED[f"logits/{name}"], *our_logits(CASES[name])) < TOLERANCE


def test_every_combination_of_flags_is_there_and_they_differ():
    combinations = [n for n in CASES if n.startswith("flags ")]
    assert len(combinations) == 16 and json.loads(META["versions"])["speculators"] == "0.9.0"
    found = [STORED[f"logits/{n}"] for n in combinations]
    assert all(not torch.allclose(a, b, atol=1e-2) for i, a in enumerate(found) for b in found[:i])


def test_a_wrong_flag_is_seen():
    case = CASES["flags 0000"] | {"flags": CASES["flags 1000"]["flags"]}
    with pytest.raises(AssertionError):
        assert largest_difference(STORED["logits/flags 0000"], *our_logits(case)) < TOLERANCE


@pytest.mark.live
def test_the_golden_file_is_what_speculators_computes_here(tmp_path):
    if not PYTHON.exists():
        pytest.skip("no .venv-speculators here: `make speculators-env` makes it (220 MB, half a minute)")
    done = subprocess.run([PYTHON, "-W", "ignore", Path(__file__).with_name("speculators_worker.py"), "again", GOLDEN, tmp_path / "again.safetensors"], capture_output=True, text=True,
                          timeout=300, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    again, meta = read(tmp_path / "again.safetensors")
    assert json.loads(meta["versions"])["speculators"] == "0.9.0" and json.loads(meta["cases"]) == CASES
    for name in CASES:
        assert largest_difference(again[f"logits/{name}"], *our_logits(CASES[name])) < TOLERANCE
