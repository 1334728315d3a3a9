"""Rows of the confusion matrix that need two recordings: ranks of one server, eager and graph path, two engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from eagle_forensics.boundary import Boundary
from eagle_forensics.demo.stage import DATA
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.records import Sample
from eagle_forensics.fingerprint.pairs import pair
from eagle_forensics.fingerprint.ranks import Agreement, by_rank, compare_ranks

from .damage import WIDE, Outcome
from .real import Real, Run
from .tiny import samples

RANKS = 8
HERE = Path(__file__).parent
VLLM_STATES, SGLANG_STATES = DATA / "vllm_server_states.safetensors", HERE / "sglang_server_states.safetensors"
"""What a vLLM 0.32.0 server returned at boundaries 0, 2, 15, 27, 30, and what an SGLang 0.5.23 server fed its drafter at 2, 15, 27, of one prompt."""

Part = Callable[[Real, int, int, int], torch.Tensor]


def recording(real: Real, runs: Sequence[Run], boundaries: Sequence[int]) -> list[Sample]:
    """States of all sequences as a recorder stores them."""
    number = {tuple(s.tolist()): i for i, s in enumerate(real.ids)}
    return samples(lambda ids: [real.state(number[tuple(ids.tolist())], b, runs).bfloat16() for b in boundaries], real.ids)


def _ranks(part: Part, agreement: Agreement) -> Callable[[Real, str], list[Outcome]]:
    def make(real: Real, name: str) -> list[Outcome]:
        number = {tuple(s.tolist()): i for i, s in enumerate(real.ids)}
        held = [replace(s, rank=k) for k in range(RANKS) for s in samples(lambda ids, k=k: [part(real, number[tuple(ids.tolist())], b, k).bfloat16() for b in WIDE], real.ids)]
        out = []
        for evidence, known in (("bank", {"bank": real.bank, "weights": real.weights, "layers": real.layers}), ("nothing", {})):
            for b, r in zip(WIDE, compare_ranks(by_rank(held), **known), strict=True):
                whole = agreement is Agreement.EQUAL or r.boundary == Boundary(b)
                verdict = "right" if r.agreement is agreement and whole else "not sure" if r.agreement is Agreement.DIFFER else "WRONG"
                out.append(Outcome(name, evidence, b, verdict, r.text))
        return out
    return make


def _pairs(first: Callable[[Real], list[Sample]], second: Callable[[Real], list[Sample]], same: Sequence[int | None]) -> Callable[[Real, str], list[Outcome]]:
    def make(real: Real, name: str) -> list[Outcome]:
        found = pair(first(real), second(real))
        return [Outcome(name, "nothing", i, "right" if told == true else "WRONG", f"slot {i} is slot {told}, {e.value if e else float('nan'):.4f}")
                for i, (told, true, e) in enumerate(zip(found.same, same, found.estimates, strict=True))]
    return make


def _slice(real: Real, i: int, b: int, rank: int) -> torch.Tensor:
    width = real.target.hidden // RANKS
    return real.state(i, b)[:, rank * width:(rank + 1) * width]


KINDS: dict[str, Callable[[Real, str], list[Outcome]]] = {
    "8 ranks: equal copies": _ranks(lambda r, i, b, k: r.state(i, b), Agreement.EQUAL),
    "8 ranks: slices": _ranks(_slice, Agreement.SLICES),
    "8 ranks: shares of a sum": _ranks(lambda r, i, b, k: r.state(i, b) * (k + 1) / (RANKS * (RANKS + 1) / 2), Agreement.SHARES),
    "8 ranks: before the all-reduce of the MLP": _ranks(lambda r, i, b, k: r.partial(i, b, k, RANKS), Agreement.INNER_SHARES),
    "eager and graph path, same layers": _pairs(lambda r: recording(r, r.runs, WIDE), lambda r: recording(r, r.in_bfloat16, WIDE), range(len(WIDE))),
    "eager and graph path, graph with default layers": _pairs(lambda r: recording(r, r.runs, (3, 16, 28)), lambda r: recording(r, r.runs, (2, 15, 27)), (None,) * 3),
    "two engines: SGLang 0.5.23 and vLLM 0.32.0": _pairs(lambda r: list(read_capture(SGLANG_STATES)), lambda r: list(read_capture(VLLM_STATES)), (1, 2, 3)),
}
