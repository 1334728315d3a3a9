"""The real pair through notebooks 01 to 03, and 04 where something was measured: the drafter is run."""

from __future__ import annotations

import torch

from tests.lineup import real as r
from tests.lineup.outcome import case

OFFSET, LABELS = "wiring.layer-offset", "wiring.mislabelled-dump"
LIE = ("embed", "layer2", "layer15", "final")
UNDECIDED = ("INCONCLUSIVE",)
CASES = (
    case("healthy: SGLang, measured", r.SGLANG.but(measured="right")),
    case("healthy: vLLM top level", r.VLLM),
    case("healthy: labels of layer outputs", r.SGLANG.but(labels=("layer1", "layer14", "layer26", "final"))),
    case("healthy: dump in float32, no labels, no ids", r.SGLANG.but(sample=r.dtype(torch.float32), trained=None)),
    case("healthy: target without weights, bank only", r.SGLANG.but(weights=False), verdicts=("PASS", "INCONCLUSIVE")),
    case("healthy: eight samples", r.VLLM.but(kept=8), samples=8),
    case("one early: vLLM with the SGLang spelling, measured", r.SHIFTED.but(measured="early"), OFFSET),
    case("one late: SGLang", r.SGLANG.but(ids=(2, 15, 27)), OFFSET),
    case("embedding first: SGLang, measured", r.SGLANG.but(ids=(-1, 1, 14), measured="embedding"), OFFSET),
    case("dump slots permuted", r.SGLANG.but(sample=r.order(1, 0, 2, 3), trained=None), "wiring.plane-order"),
    case("dump slots reversed", r.SGLANG.but(sample=r.order(2, 1, 0, 3), trained=None), "wiring.plane-order"),
    case("states one position late", r.SGLANG.but(sample=r.shifted_states), "data.hidden-shift"),
    case("d2t absolute", r.SGLANG.but(tensors=r.absolute_map), "vocab.map-semantics"),
    case("norm_before_residual set, trained without", r.VLLM.but(drafter={"norm_before_residual": True}), "drafter.norm-flags"),
    case("labels lie and the embedding is served", r.SGLANG.but(ids=(-1, 1, 14), labels=LIE, trained=None, measured="embedding"), LABELS, OFFSET),
    case("one early and d2t absolute", r.SHIFTED.but(tensors=r.absolute_map), OFFSET, "vocab.map-semantics"),
    case("abstain: bank and target of other weights", r.SGLANG.but(target=r.other_weights, bank=False), verdicts=UNDECIDED),
    case("abstain: five planes for an fc of three", r.SGLANG.but(sample=r.embedded(None, 0, 1, 2, 3), trained=None), verdicts=UNDECIDED),
    case("abstain: one sample", r.SGLANG.but(kept=1), verdicts=("PASS", "INCONCLUSIVE"), samples=1),
    case("abstain: no target weights, no bank", r.SGLANG.but(weights=False, bank=False, trained=None), verdicts=("INCONCLUSIVE", "ERROR")),
)
