"""The drafter on the built-in case: the battery of orders against running each order, and the GEMM share of an evaluation."""

from __future__ import annotations

import time

import torch

from eagle_forensics import demo
from eagle_forensics.case import load_case
from eagle_forensics.drafter.candidates import plane_orders
from eagle_forensics.drafter.wiring import Wiring, evaluate, evaluate_all
from eagle_forensics.drafter.workbench import open_workbench

SEQUENCES = 12


def figures() -> dict[str, float]:
    bench = open_workbench(load_case(demo.case_file("broken")))
    sequences = bench.sequences[:SEQUENCES]
    orders = [Wiring(o) for o in plane_orders(bench.slots, bench.drafter.n_aux)]
    evaluate(bench.drafter, sequences[:2], orders[0])
    together = _seconds(lambda: evaluate_all(bench.drafter, sequences, orders))
    apart = _seconds(lambda: [evaluate(bench.drafter, sequences, w) for w in orders])
    tokens = sum(len(s) for s in sequences)
    one = _seconds(lambda: evaluate(bench.drafter, sequences, orders[0]))
    return {"drafter.battery_cost": together / apart, "drafter.gemm_efficiency": _model_gemm_seconds(bench, tokens) / one}


def _model_gemm_seconds(bench, tokens: int, steps: int = 3) -> float:
    """Seconds of the bare matrix products of an evaluation of `tokens` positions, measured in the same run."""
    drafter = bench.drafter
    layer = drafter.layers[0]
    weights = [w for w in vars(layer).values() if isinstance(w, torch.Tensor) and w.ndim == 2] + [drafter.lm_head]
    inputs = {w.shape[1]: torch.randn(tokens, w.shape[1]) for w in weights}
    return _seconds(lambda: [torch.nn.functional.linear(inputs[w.shape[1]], w) for _ in range(steps) for w in weights])


def _seconds(work) -> float:
    times = []
    with torch.inference_mode():
        for _ in range(3):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return min(times)
