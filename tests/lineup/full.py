"""The full table: the real pair through the suite, notebooks 01 to 03 (04 where something was measured).

`papers_and_tensors` leaves out notebook 02, the minute of a case, where papers and tensors must settle it without the drafter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tests.lineup import real as r
from tests.lineup.outcome import Expected, Planted

OFFSET, LABELS = "wiring.layer-offset", "wiring.mislabelled-dump"
LIE = ("embed", "layer2", "layer15", "final")


def case(name: str, make: r.Real, *faults: str, follows: tuple[str, ...] = (), verdicts: tuple[str, ...] = (), samples: int = r.KEPT) -> Planted:
    notebooks = (1, 2, 3, 4) if make.measured else (1, 2, 3)
    parameters: tuple[tuple[str, Any], ...] = (("max_samples", samples),)
    return Planted(name, make, Expected(faults, follows, verdicts), notebooks, parameters)


def papers_and_tensors(name: str, make: r.Real, *faults: str, **kw: Any) -> Planted:
    """Notebooks 01 and 03."""
    return replace(case(name, make, *faults, **kw), notebooks=(1, 3))


UNDECIDED = ("INCONCLUSIVE",)
CASES = (
    case("healthy: SGLang, measured", r.SGLANG.but(measured="right")),
    case("healthy: vLLM top level", r.VLLM),
    papers_and_tensors("healthy: vLLM without ids, the default", r.VLLM.but(ids=None)),
    case("healthy: labels of layer outputs", r.SGLANG.but(labels=("layer1", "layer14", "layer26", "final"))),
    papers_and_tensors("healthy: labels of boundaries, no claimed ids", r.VLLM.but(labels=r.TRUE_LABELS, trained=None)),
    papers_and_tensors("healthy: dump in float16", r.SGLANG.but(sample=r.dtype(torch.float16))),
    case("healthy: dump in float32, no labels, no ids", r.SGLANG.but(sample=r.dtype(torch.float32), trained=None)),
    case("healthy: target without weights, bank only", r.SGLANG.but(weights=False), verdicts=("PASS", "INCONCLUSIVE")),
    papers_and_tensors("healthy: a capture that is right", r.SGLANG.but(captured=(2, 15, 27))),
    case("healthy: eight samples", r.VLLM.but(kept=8), samples=8),
    case("one early: vLLM with the SGLang spelling, measured", r.SHIFTED.but(measured="early"), OFFSET),
    papers_and_tensors("one early, the trainer's ids not known", r.SHIFTED.but(trained=None), OFFSET),
    case("one late: SGLang", r.SGLANG.but(ids=(2, 15, 27)), OFFSET),
    case("embedding first: SGLang, measured", r.SGLANG.but(ids=(-1, 1, 14), measured="embedding"), OFFSET),
    papers_and_tensors("capture one early, ids right", r.SGLANG.but(captured=(1, 14, 26)), OFFSET),
    case("dump slots permuted", r.SGLANG.but(sample=r.order(1, 0, 2, 3), trained=None), "wiring.plane-order"),
    case("dump slots reversed", r.SGLANG.but(sample=r.order(2, 1, 0, 3), trained=None), "wiring.plane-order"),
    papers_and_tensors("labels lie, serving right", r.SGLANG.but(labels=LIE, trained=None), LABELS),
    papers_and_tensors("labels lie by one", r.SGLANG.but(labels=("b3", "b16", "b28", "b30"), trained=None), LABELS),
    papers_and_tensors("trainer's ids claim one late", r.SGLANG.but(trained=(2, 15, 27, 29)), OFFSET),
    papers_and_tensors("last plane after the norm, trainer norms again", r.SGLANG.but(sample=r.normed_last()), "data.norm-twice"),
    papers_and_tensors("last plane normed twice", r.SGLANG.but(sample=r.normed_last(2)), "data.norm-twice"),
    papers_and_tensors("last plane before the norm, trainer without one", r.SGLANG.but(trainer=("speculators", "0.3.0")), "data.norm-twice"),
    papers_and_tensors("last plane missing", r.SGLANG.but(sample=r.order(0, 1, 2)), "wiring.plane-count"),
    papers_and_tensors("two slots of one buffer", r.SGLANG.but(sample=r.order(0, 1, 1, 3), trained=None), "feature.aliased-buffer"),
    case("states one position late", r.SGLANG.but(sample=r.shifted_states), "data.hidden-shift"),
    papers_and_tensors("planes in a rotated basis", r.SGLANG.but(sample=r.planes(lambda held, sample: [*map(r.rotated, held[:3]), held[3]])), "feature.rotated-basis"),
    papers_and_tensors("one plane not finite", r.SGLANG.but(sample=r.planes(lambda held, sample: [held[0] * float("nan"), *held[1:]])), "feature.non-finite"),
    case("d2t absolute", r.SGLANG.but(tensors=r.absolute_map), "vocab.map-semantics"),
    case("norm_before_residual set, trained without", r.VLLM.but(drafter={"norm_before_residual": True}), "drafter.norm-flags"),
    case("labels lie and the embedding is served", r.SGLANG.but(ids=(-1, 1, 14), labels=LIE, trained=None, measured="embedding"), LABELS, OFFSET),
    case("one early and d2t absolute", r.SHIFTED.but(tensors=r.absolute_map), OFFSET, "vocab.map-semantics"),
    papers_and_tensors("labels lie and the last plane is normed", r.SGLANG.but(labels=LIE, trained=None, sample=r.normed_last()), LABELS, "data.norm-twice"),
    papers_and_tensors("one late and the last plane is normed", r.SGLANG.but(ids=(2, 15, 27), sample=r.normed_last()), OFFSET, "data.norm-twice"),
    case("abstain: bank and target of other weights", r.SGLANG.but(target=r.other_weights, bank=False), verdicts=UNDECIDED),
    case("abstain: five planes for an fc of three", r.SGLANG.but(sample=r.embedded(None, 0, 1, 2, 3), trained=None), verdicts=UNDECIDED),
    papers_and_tensors("abstain: one late on a release that was not read", r.SGLANG.but(version="0.9.0", ids=(2, 15, 27)), verdicts=UNDECIDED),
    case("abstain: one sample", r.SGLANG.but(kept=1), verdicts=("PASS", "INCONCLUSIVE"), samples=1),
    case("abstain: no target weights, no bank", r.SGLANG.but(weights=False, bank=False, trained=None), verdicts=("INCONCLUSIVE", "ERROR")),
)
