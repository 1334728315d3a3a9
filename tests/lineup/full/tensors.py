"""The real pair through notebooks 01 and 03: what papers and tensors must settle without the drafter."""

from __future__ import annotations

import torch

from tests.lineup import real as r
from tests.lineup.outcome import papers_and_tensors

OFFSET, LABELS = "wiring.layer-offset", "wiring.mislabelled-dump"
LIE = ("embed", "layer2", "layer15", "final")
UNDECIDED = ("INCONCLUSIVE",)
CASES = (
    papers_and_tensors("healthy: vLLM without ids, the default", r.VLLM.but(ids=None)),
    papers_and_tensors("healthy: labels of boundaries, no claimed ids", r.VLLM.but(labels=r.TRUE_LABELS, trained=None)),
    papers_and_tensors("healthy: dump in float16", r.SGLANG.but(sample=r.dtype(torch.float16))),
    papers_and_tensors("healthy: a capture that is right", r.SGLANG.but(captured=(2, 15, 27))),
    papers_and_tensors("one early, the trainer's ids not known", r.SHIFTED.but(trained=None), OFFSET),
    papers_and_tensors("capture one early, ids right", r.SGLANG.but(captured=(1, 14, 26)), OFFSET),
    papers_and_tensors("labels lie, serving right", r.SGLANG.but(labels=LIE, trained=None), LABELS),
    papers_and_tensors("labels lie by one", r.SGLANG.but(labels=("b3", "b16", "b28", "b30"), trained=None), LABELS),
    papers_and_tensors("trainer's ids claim one late", r.SGLANG.but(trained=(2, 15, 27, 29)), OFFSET),
    papers_and_tensors("last plane after the norm, trainer norms again", r.SGLANG.but(sample=r.normed_last()), "data.norm-twice"),
    papers_and_tensors("last plane normed twice", r.SGLANG.but(sample=r.normed_last(2)), "data.norm-twice"),
    papers_and_tensors("last plane before the norm, trainer without one", r.SGLANG.but(trainer=("speculators", "0.3.0")), "data.norm-twice"),
    papers_and_tensors("last plane missing", r.SGLANG.but(sample=r.order(0, 1, 2)), "wiring.plane-count"),
    papers_and_tensors("two slots of one buffer", r.SGLANG.but(sample=r.order(0, 1, 1, 3), trained=None), "feature.aliased-buffer"),
    papers_and_tensors("planes in a rotated basis", r.SGLANG.but(sample=r.planes(lambda held, sample: [*map(r.rotated, held[:3]), held[3]])), "feature.rotated-basis"),
    papers_and_tensors("one plane not finite", r.SGLANG.but(sample=r.planes(lambda held, sample: [held[0] * float("nan"), *held[1:]])), "feature.non-finite"),
    papers_and_tensors("labels lie and the last plane is normed", r.SGLANG.but(labels=LIE, trained=None, sample=r.normed_last()), LABELS, "data.norm-twice"),
    papers_and_tensors("one late and the last plane is normed", r.SGLANG.but(ids=(2, 15, 27), sample=r.normed_last()), OFFSET, "data.norm-twice"),
    papers_and_tensors("abstain: one late on a release that was not read", r.SGLANG.but(version="0.9.0", ids=(2, 15, 27)), verdicts=UNDECIDED),
)
