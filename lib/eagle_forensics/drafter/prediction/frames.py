"""Tables of notebook 02 on what logged figures mean and what accept length to expect."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.metric import MetricComparison
from eagle_forensics.drafter.prediction.predict import predict_accept_length
from eagle_forensics.drafter.prediction.sampling import SampledPrediction
from eagle_forensics.drafter.prediction.tree_grid import TreePrediction
from eagle_forensics.drafter.wording import interval_cell, signed_cell


def definition_frame(compared: Sequence[MetricComparison]) -> pd.DataFrame | None:
    """Each logged metric under the definition of its name and under every other one that holds it; None without a metric."""
    if not compared:
        return None
    return pd.DataFrame([{
        "logged": f"{c.name} = {c.logged:g}", "the name stands for": c.definition + (" (tokens for the target's choice)" if c.substituted else ""),
        "recomputed": interval_cell(c.recomputed), "n": c.recomputed.n, "reproduced": "yes" if c.agrees else "no", "also as": "; ".join(c.rivals) or "none",
        "known from": c.source} for c in compared])


def definitions_csv(compared: Sequence[MetricComparison]) -> pd.DataFrame:
    """Every metric under every definition, for the evidence folder."""
    columns = ["metric", "logged", "definition", "own", "value", "low", "high", "n"]
    return pd.DataFrame([(c.name, c.logged, d, int(d == c.definition), e.value, e.low, e.high, e.n) for c in compared for d, e in c.others.items()], columns=columns)


def three_numbers_frame(trained: Correctness | None, served: Correctness | None, steps: int) -> pd.DataFrame | None:
    """The numbers that are taken for the live accept length, side by side; None without a trained wiring."""
    if trained is None:
        return None
    rows = []
    for name, c in (("states of the dump", trained), ("served states", served)):
        if c is None:
            continue
        row = predict_accept_length(c)[min(steps, c.steps) - 1]
        rate = c.accuracy(0).value
        rows.append({"fed": name, "training metric: step 1 right": interval_cell(c.accuracy(0)), "if every step were that good": f"{1 + sum(rate ** k for k in range(1, row.steps + 1)):.3f}",
                     "product of the steps' accuracies": f"{row.product_formula:.3f}", "walk: what a server shows": interval_cell(row.accept_length),
                     "per position": ", ".join(f"{s:.3f}" for s in row.survival)})
    return pd.DataFrame(rows)


def tree_frame(grid: Sequence[TreePrediction], reason: str | None = None) -> pd.DataFrame | None:
    """Steps x topk x draft tokens with their predicted accept length, and the gain over the chain of as many steps; `reason` where there is no grid."""
    if not grid:
        return _absent(reason)
    return pd.DataFrame([{"steps": p.steps, "topk": p.topk, "draft tokens": p.draft_tokens, "accept length": interval_cell(p.accept_length),
                          "against the chain of as many steps": "the chain" if p.topk == 1 else signed_cell(p.gain), "rounds": p.accept_length.n} for p in grid])


def temperature_frame(predictions: Sequence[SampledPrediction], reason: str | None = None) -> pd.DataFrame | None:
    """Chains above temperature 0 under both rules of verification; `reason` where there is no prediction."""
    if not predictions:
        return _absent(reason)
    rules = {"target-only": "greedy draft (SGLang, vLLM by default)", "rejection": "sampled draft, lossless rejection"}
    return pd.DataFrame([{"temperature": p.temperature, "verification": rules[p.rule], "steps": p.steps, "at least": interval_cell(p.low),
                          "at most": interval_cell(p.high) if p.rule == "target-only" else "approximation", "rounds": p.low.n} for p in predictions])


def _absent(reason: str | None) -> pd.DataFrame | None:
    return pd.DataFrame({"not predicted, because": [reason]}) if reason else None
