"""Tiny targets: what notebooks 01 and 03 must say from dumps, banks and captures that a network really computed."""

from __future__ import annotations

import torch

from tests.lineup import tiny as t
from tests.lineup.outcome import Planted, abstains, healthy, planted

OFFSET, COUNT, LABELS, GRAPH = "wiring.layer-offset", "wiring.plane-count", "wiring.mislabelled-dump", "wiring.graph-default-layers"
PARTIAL, SLICE, RESIDUAL, ALIAS = "feature.partial-sum", "feature.tp-slice", "feature.missing-residual", "feature.aliased-buffer"
NORM, ROTATED, FINITE, STAGE = "feature.norm-state", "feature.rotated-basis", "feature.non-finite", "feature.missing-stage"
TWICE, SHIFT = "data.norm-twice", "data.hidden-shift"
LIE = ("embed", "layer3", "layer6", "final")


def plant(name: str, make: t.Tiny, *faults: str, **more) -> Planted:
    return planted(name, make, *faults, notebooks=(1, 3), **more)


def right(name: str, make: t.Tiny) -> Planted:
    return healthy(name, make, notebooks=(1, 3))


def open_(name: str, make: t.Tiny, *verdicts: str, suspects: tuple[str, ...] = ()) -> Planted:
    return abstains(name, make, *verdicts, suspects=suspects, notebooks=(1, 3))


def capture(planes: t.Planes, **more) -> t.Capture:
    return t.Capture(planes, **more)


LONG = (t.SEQUENCES, t.SEQUENCES + 1)
EAGER = capture(t.whole(3, 6, 10))
KIMI = t.SGLANG.but(family="deepseek", weights="outside", ids=(2, 5, 9), trained=(2, 5, 9, 11))
NEWER = t.SGLANG.but(trainer=("speculators", "0.5.0"), trained=(3, 6, 10, 12))
DUMPS = (
    plant("one rank's share of eight", t.SGLANG.but(planes=t.kind("TP partial sum, rank 3 of 8")), PARTIAL, rival=OFFSET),
    plant("MLP reduced eight times", t.SGLANG.but(planes=t.kind("MLP reduced 8 times")), PARTIAL),
    plant("columns of one rank of eight", t.SGLANG.but(planes=t.kind("TP slice, 8 ranks"), last=lambda real, i: [real.state(i, 12)[:, 8:16]]), SLICE, rival=PARTIAL),
    plant("what a layer adds, without the stream", t.SGLANG.but(planes=t.kind("missing residual")), RESIDUAL, rival=ROTATED),
    plant("aux planes normed", t.SGLANG.but(planes=t.kind("inner planes normed")), NORM, rival=TWICE),
    plant("all planes rotated", t.SGLANG.but(planes=t.kind("rotated")), ROTATED, rival=RESIDUAL),
    plant("a plane of zeros", t.SGLANG.but(planes=t.kind("zero rows", slots=(0,))), STAGE, rival=COUNT),
    plant("one plane not finite", t.SGLANG.but(planes=t.kind("non-finite rows", slots=(1,))), FINITE),
    plant("three rows not finite", t.SGLANG.but(planes=t.changed(t.rows(float("nan"), (20, 23)), (2,))), FINITE),
    plant("three slots of one buffer", t.SGLANG.but(planes=t.whole(10, 10, 10)), ALIAS),
    plant("states one token late", t.SGLANG.but(planes=t.kind("one token late"), last=lambda real, i: [real.state(i, 12).roll(1, 0)]), SHIFT, rival=OFFSET),
    plant("teacher after the norm, trainer norms again", t.SGLANG.but(last=t.whole(13)), TWICE, rival=NORM),
    plant("teacher before the norm, trainer without one", t.SGLANG.but(trainer=("speculators", "0.3.0")), TWICE, rival=NORM),
    plant("no teacher plane", t.SGLANG.but(last=None), COUNT),
    plant("labels lie: embedding claimed", t.SGLANG.but(labels=LIE, trained=None), LABELS, rival=OFFSET),
    plant("labels in another order", t.SGLANG.but(labels=("b10", "b6", "b3", "b12"), trained=None), LABELS),
    plant("teacher's label on an inner plane", t.SGLANG.but(planes=t.whole(3, 6), last=t.whole(10), labels=("b3", "b6", "last"), trained=None, trainer=None), LABELS),
    plant("ids claim the next layers", t.SGLANG.but(trained=(3, 6, 10, 11), ids=(2, 5, 9)), OFFSET),
    plant("served one early, the trainer's ids not known", t.SGLANG.but(ids=(1, 4, 8), trained=None), OFFSET),
    plant("embedding served", t.SGLANG.but(ids=(-1, 2, 5), trained=None), OFFSET),
    plant("Kimi class: ids of the older release", KIMI.but(trained=None), OFFSET),
    plant("all layers joined", t.SGLANG.but(planes=t.whole(*range(12)), trained=None, fc=13), "wiring.all-layers"),
    plant("vLLM reads the other spelling", t.VLLM.but(ids=(2, 5, 9), trained=None), OFFSET),
)
CAPTURES = (
    plant("two served slots equal", t.SGLANG.but(captures=(capture(t.whole(3, 10, 10)),)), ALIAS),
    plant("served one early", t.SGLANG.but(captures=(capture(t.whole(2, 5, 9)),)), OFFSET, rival=PARTIAL),
    plant("graph replays the default", t.SGLANG.but(captures=(EAGER, capture(t.whole(2, 6, 9), kind="graph", layout="vllm"))), GRAPH, rival=OFFSET),
    plant("ranks hold rows of some tokens", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.state(i, b) * (torch.arange(len(real.ids[i])) % 2 == r)[:, None] for b in t.TRAINED])),
          "runtime.dp-attention", rival=PARTIAL),
    plant("every other page zero", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (16, 32), (48, 64), (80, 96), (112, 128))), of=LONG),)), "runtime.page-units"),
)
DOUBLE = (
    plant("labels lie and the teacher is normed", t.SGLANG.but(labels=LIE, trained=None, last=t.whole(13)), LABELS, TWICE),
    plant("served one early and the teacher is normed", t.SGLANG.but(ids=(1, 4, 8), last=t.whole(13)), OFFSET, TWICE),
    plant("labels lie and the embedding is served", t.SGLANG.but(labels=LIE, ids=(-1, 2, 5), trained=None), LABELS, OFFSET),
    plant("one plane rotated and three rows not finite", t.SGLANG.but(planes=lambda real, i: [t.kind("rotated")(real, i)[0], real.state(i, 6), t.rows(float("nan"), (20, 23))(real.state(i, 10).clone())]), ROTATED, FINITE),
    plant("budget overridden and a rank's share", t.SGLANG.but(launch=t.sglang_launch(2, 1, 8), planes=t.kind("TP partial sum, rank 3 of 8")), PARTIAL, "args.draft-budget-overridden"),
    plant("graphs replay the default and the teacher is normed", t.SGLANG.but(last=t.whole(13), captures=(EAGER, capture(t.whole(2, 6, 9), kind="graph", layout="vllm"))), GRAPH, TWICE),
    plant("states one token late and one early served", t.SGLANG.but(ids=(1, 4, 8), planes=t.kind("one token late")), SHIFT, OFFSET),
)
HEALTHY = (
    right("whole", t.SGLANG),
    right("labels of boundaries", t.SGLANG.but(labels=("b3", "b6", "b10", "b12"))),
    right("bank only, no weights", t.SGLANG.but(weights=None)),
    right("float16", t.SGLANG.but(planes=lambda real, i: [real.state(i, b).half() for b in t.TRAINED], last=lambda real, i: [real.state(i, 12).half()])),
    right("capture that is right", t.SGLANG.but(captures=(EAGER,))),
    right("Kimi class: ids of the newer release", KIMI.but(ids=(3, 6, 10))),
)
ABSTAIN = (
    open_("no bank, no weights", t.SGLANG.but(bank=None, weights=None, trained=None)),
    open_("one sample", t.SGLANG.but(kept=1), "PASS", "INCONCLUSIVE"),
    open_("graph holds neither the trained planes nor the default", t.SGLANG.but(captures=(EAGER, capture(t.whole(4, 7, 11), kind="graph", layout="vllm"))), suspects=(GRAPH,)),
    open_("graph holds the trained planes in another order", t.SGLANG.but(captures=(EAGER, capture(t.whole(10, 6, 3), kind="graph", layout="vllm"))), suspects=("wiring.plane-order",)),
    open_("graphs alone captured, a layer off, release not known", t.SGLANG.but(version=None, captures=(capture(t.whole(4, 7, 11), kind="graph", layout="vllm"),)), suspects=(OFFSET,)),
    open_("graph and eager captures differ, no bank", t.SGLANG.but(bank=None, weights=None, trained=None, captures=(EAGER, capture(t.whole(2, 6, 9), kind="graph", layout="vllm")))),
    open_("capture of one plane of three", t.SGLANG.but(captures=(capture(t.whole(6)),))),
    open_("one run of zero rows on page boundaries", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (64, 96))), of=LONG),))),
    open_("ranks that differ, no bank", t.SGLANG.but(bank=None, weights=None, captures=t.by_ranks(2, lambda real, i, r: [real.partial(i, b, r, 2) for b in t.TRAINED]))),
)
CASES = (*DUMPS, *CAPTURES, *DOUBLE, *HEALTHY, *ABSTAIN)
