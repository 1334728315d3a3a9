"""Measurement tables with published figures, shared by the tests of this folder."""

import pandas as pd

INCIDENT = pd.DataFrame([
    {"label": "no speculation", "speculative": 0, "tokens_per_second": 90.0},
    {"label": "steps 1 of 16", "speculative": 1, "steps": 1, "topk": 1, "draft_tokens": 16, "accept_length": 1.6, "tokens_per_second": 56.8},
    {"label": "steps 15", "speculative": 1, "steps": 15, "topk": 1, "draft_tokens": 16, "accept_length": 1.9, "tokens_per_second": 46.7},
    {"label": "steps 5", "speculative": 1, "steps": 5, "topk": 1, "draft_tokens": 6, "accept_length": 1.8, "tokens_per_second": 54.8},
])
"""Kimi-K2.5: every run slower than without speculation, one of them impossible to win."""

SWEEP = pd.DataFrame([{"label": "no speculation", "speculative": 0, "tokens_per_second": 1e3 / 7.07}] + [
    {"label": f"K = {k}", "speculative": 1, "steps": k, "topk": 1, "accept_length": al, "tokens_per_second": 1e3 / ms}
    for k, al, ms in zip(range(2, 8), (2.36, 2.79, 3.08, 3.32, 3.46, 3.54), (4.32, 4.09, 4.05, 4.13, 4.20, 4.29), strict=True)])
"""vllm#20780: accept length grows to K = 7, throughput peaks at K = 4."""


ONE_STEP = pd.DataFrame([{"label": "K = 1", "speculative": 1, "steps": 1, "topk": 1, "accept_length": 1.6, "tokens_per_second": 100.0}])
"""Beside that sweep: break-even 2.26 above its ceiling of 2. Made up."""


def interval(value: float, half: float, steps: int = 3) -> dict:
    return {str(steps): {"value": value, "low": value - half, "high": value + half}}


PREDICTED = {
    "steps": interval(2.065, 0.03),
    "wirings": {"embedding first": interval(1.098, 0.012), "one boundary down": interval(1.974, 0.03), "b and a swapped": interval(1.958, 0.03)},
}
"""The small real drafter under four wirings, 3 steps."""


def live(accept_length: float, rounds: int = 4000, **more) -> pd.DataFrame:
    return pd.DataFrame([{"label": "live", "speculative": 1, "steps": 3, "topk": 1, "accept_length": accept_length, "rounds": rounds, **more}])
