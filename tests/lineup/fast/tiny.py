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


def open_(name: str, make: t.Tiny, *verdicts: str) -> Planted:
    return abstains(name, make, *verdicts, notebooks=(1, 3))


def capture(planes: t.Planes, **more) -> t.Capture:
    return t.Capture(planes, **more)


LONG = (t.SEQUENCES, t.SEQUENCES + 1)
EAGER = capture(t.whole(3, 6, 10))
KIMI = t.SGLANG.but(family="deepseek", weights="outside", ids=(2, 5, 9), trained=(2, 5, 9, 11))
NEWER = t.SGLANG.but(trainer=("speculators", "0.5.0"), trained=(3, 6, 10, 12))
DUMPS = (
    plant("one rank's share of eight", t.SGLANG.but(planes=t.kind("TP partial sum, rank 3 of 8")), PARTIAL, rival=OFFSET),
    plant("one rank's share of two, one plane", t.SGLANG.but(planes=t.kind("TP partial sum, rank 1 of 2", slots=(1,))), PARTIAL, rival=OFFSET),
    plant("MLP reduced eight times", t.SGLANG.but(planes=t.kind("MLP reduced 8 times")), PARTIAL),
    plant("whole state reduced eight times", t.SGLANG.but(planes=t.kind("state reduced 8 times", slots=(2,))), PARTIAL),
    plant("columns of one rank of eight", t.SGLANG.but(planes=t.kind("TP slice, 8 ranks"), last=lambda real, i: [real.state(i, 12)[:, 8:16]]), SLICE, rival=PARTIAL),
    plant("half of the columns zero in one plane", t.SGLANG.but(planes=t.kind("TP slice, the rest zero", slots=(1,))), SLICE, rival=PARTIAL),
    plant("what a layer adds, without the stream", t.SGLANG.but(planes=t.kind("missing residual")), RESIDUAL, rival=ROTATED),
    plant("MLP output in one plane", t.SGLANG.but(planes=t.kind("MLP output only", slots=(0,))), RESIDUAL),
    plant("aux planes normed", t.SGLANG.but(planes=t.kind("inner planes normed")), NORM, rival=TWICE),
    plant("one aux plane normed", t.SGLANG.but(planes=t.kind("inner planes normed", slots=(2,))), NORM, rival=TWICE),
    plant("all planes rotated", t.SGLANG.but(planes=t.kind("rotated")), ROTATED, rival=RESIDUAL),
    plant("one plane rotated", t.SGLANG.but(planes=t.kind("rotated", slots=(1,))), ROTATED, rival=RESIDUAL),
    plant("a plane of zeros", t.SGLANG.but(planes=t.kind("zero rows", slots=(0,))), STAGE, rival=COUNT),
    plant("one plane not finite", t.SGLANG.but(planes=t.kind("non-finite rows", slots=(1,))), FINITE),
    plant("three rows not finite", t.SGLANG.but(planes=t.changed(t.rows(float("nan"), (20, 23)), (2,))), FINITE),
    plant("one row infinite", t.SGLANG.but(planes=t.changed(t.rows(float("inf"), (7, 8)), (0,))), FINITE),
    plant("three slots of one buffer", t.SGLANG.but(planes=t.whole(10, 10, 10)), ALIAS),
    plant("two slots of one buffer", t.SGLANG.but(planes=t.whole(3, 10, 10), trained=None), ALIAS),
    plant("states one token late", t.SGLANG.but(planes=t.kind("one token late"), last=lambda real, i: [real.state(i, 12).roll(1, 0)]), SHIFT, rival=OFFSET),
    plant("states one token early, one plane", t.SGLANG.but(planes=t.kind("one token early", slots=(0,))), SHIFT, rival=OFFSET),
    plant("teacher after the norm, trainer norms again", t.SGLANG.but(last=t.whole(13)), TWICE, rival=NORM),
    plant("teacher normed twice", t.SGLANG.but(last=lambda real, i: [real.weights.normed(real.state(i, 13))]), TWICE, rival=NORM),
    plant("teacher before the norm, trainer without one", t.SGLANG.but(trainer=("speculators", "0.3.0")), TWICE, rival=NORM),
    plant("no teacher plane", t.SGLANG.but(last=None), COUNT),
    plant("labels lie: embedding claimed", t.SGLANG.but(labels=LIE, trained=None), LABELS, rival=OFFSET),
    plant("labels lie by one", t.SGLANG.but(labels=("b4", "b7", "b11", "b12"), trained=None), LABELS),
    plant("labels in another order", t.SGLANG.but(labels=("b10", "b6", "b3", "b12"), trained=None), LABELS),
    plant("one label lies", t.SGLANG.but(labels=("b3", "b6", "b9", "b12"), trained=None), LABELS),
    plant("teacher's label on an inner plane", t.SGLANG.but(planes=t.whole(3, 6), last=t.whole(10), labels=("b3", "b6", "last"), trained=None, trainer=None), LABELS),
    plant("ids claim the next layers", t.SGLANG.but(trained=(3, 6, 10, 11), ids=(2, 5, 9)), OFFSET),
    plant("served one early, the trainer's ids not known", t.SGLANG.but(ids=(1, 4, 8), trained=None), OFFSET),
    plant("embedding served", t.SGLANG.but(ids=(-1, 2, 5), trained=None), OFFSET),
    plant("Kimi class: ids of the older release", KIMI.but(trained=None), OFFSET),
    plant("all layers joined", t.SGLANG.but(planes=t.whole(*range(12)), trained=None, fc=13), "wiring.all-layers"),
    plant("vLLM reads the other spelling", t.VLLM.but(ids=(2, 5, 9), trained=None), OFFSET),
)
CAPTURES = (
    plant("ranks hold shares of the MLP", t.SGLANG.but(captures=t.by_ranks(8, lambda real, i, r: [real.partial(i, b, r, 8) for b in t.TRAINED])), PARTIAL, rival=OFFSET),
    plant("two ranks hold shares of the MLP in one plane", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.partial(i, 3, r, 2), real.state(i, 6), real.state(i, 10)])), PARTIAL, rival=OFFSET),
    plant("ranks hold shares of a sum", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.state(i, b) * (0.3, 0.7)[r] for b in t.TRAINED])), PARTIAL),
    plant("ranks hold columns", t.SGLANG.but(captures=t.by_ranks(4, lambda real, i, r: [real.state(i, b)[:, 16 * r:16 * r + 16] for b in t.TRAINED])), SLICE, rival=PARTIAL),
    plant("served state reduced twice", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [2 * real.state(i, b) for b in t.TRAINED])), PARTIAL),
    plant("served without the residual", t.SGLANG.but(captures=(capture(t.kind("missing residual")),)), RESIDUAL),
    plant("served normed", t.SGLANG.but(captures=(capture(t.kind("inner planes normed")),)), NORM),
    plant("served rotated", t.SGLANG.but(captures=(capture(t.kind("rotated")),)), ROTATED),
    plant("served zeros in the first slots", t.VLLM.but(launch=t.VLLM_LAUNCH + " --pipeline-parallel-size 2", captures=(capture(t.kind("zero rows", slots=(0, 1))),)), STAGE),
    plant("served rows not finite", t.SGLANG.but(captures=(capture(t.changed(t.rows(float("nan"), (30, 34)))),)), FINITE),
    plant("two served slots equal", t.SGLANG.but(captures=(capture(t.whole(3, 10, 10)),)), ALIAS),
    plant("served slots overwritten by later layers", t.SGLANG.but(captures=(capture(t.whole(4, 8, 10)),)), ALIAS, rival=OFFSET),
    plant("served one early", t.SGLANG.but(captures=(capture(t.whole(2, 5, 9)),)), OFFSET, rival=PARTIAL),
    plant("served one late, last plane is the last state", t.SGLANG.but(planes=t.whole(3, 6, 11), trained=(2, 5, 10, 11), ids=(2, 5, 10), captures=(capture(t.whole(4, 7, 12)),)), OFFSET),
    plant("served a plane too few, the others one late", t.SGLANG.but(captures=(capture(t.whole(4, 7)),)), COUNT),
    plant("graph replays the default", t.SGLANG.but(captures=(EAGER, capture(t.whole(2, 6, 9), kind="graph", layout="vllm"))), GRAPH, rival=OFFSET),
    plant("graph replays the default, graphs alone captured", t.SGLANG.but(captures=(capture(t.whole(2, 6, 9), kind="graph", layout="vllm"),)), GRAPH),
    plant("graph capture of other values", t.SGLANG.but(captures=(EAGER, capture(lambda real, i: [real.state(i, b)[torch.randperm(len(real.ids[i]), generator=torch.Generator().manual_seed(b))] for b in t.TRAINED],
                                                                                 kind="graph", layout="vllm"))), "runtime.graph-dtype", rival=GRAPH),
    plant("graph capture of one stale plane", t.SGLANG.but(captures=(EAGER, capture(lambda real, i: [real.state(i, 3), real.state(i, 6), real.state(i + 5, 10)[:1].expand(len(real.ids[i]), -1)],
                                                                                    kind="graph", layout="vllm"))), "runtime.graph-dtype", rival=GRAPH),
    plant("ranks hold rows of some tokens", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.state(i, b) * (torch.arange(len(real.ids[i])) % 2 == r)[:, None] for b in t.TRAINED])),
          "runtime.dp-attention", rival=PARTIAL),
    plant("every other page zero", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (16, 32), (48, 64), (80, 96), (112, 128))), of=LONG),)), "runtime.page-units"),
    plant("two pages of constants in one slot", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.25, (64, 96), (128, 144)), (1,)), of=LONG),)), "runtime.page-units"),
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
    right("vLLM, boundaries at top level", t.VLLM),
    right("labels of boundaries", t.SGLANG.but(labels=("b3", "b6", "b10", "b12"))),
    right("labels of outputs or inputs of layers", t.SGLANG.but(labels=("layer2", "layer6", "out9", "last"))),
    right("bank only, no weights", t.SGLANG.but(weights=None)),
    right("weights only, no bank", t.SGLANG.but(bank=None)),
    right("float16", t.SGLANG.but(planes=lambda real, i: [real.state(i, b).half() for b in t.TRAINED], last=lambda real, i: [real.state(i, 12).half()])),
    right("float8 with a scale a token", NEWER.but(layout="vllm_fp8")),
    right("int8 target", t.SGLANG.but(planes=t.kind("int8 target, a scale a row"))),
    *(right(f"format {name}", t.SGLANG.but(layout=name)) for name in ("specforge", "angelslim", "modelopt", "trtllm", "torchspec", "verl")),
    right("format vllm", NEWER.but(layout="vllm")),
    right("post-norm teacher for a trainer without a norm", t.SGLANG.but(trainer=("speculators", "0.3.0"), last=t.whole(13))),
    right("embedding among the planes", t.VLLM.but(planes=t.whole(0, 6, 10), trained=(-1, 5, 9, 11), ids=(0, 6, 10))),
    right("capture that is right", t.SGLANG.but(captures=(EAGER,))),
    right("capture behind a cached prefix", t.SGLANG.but(captures=(capture(lambda real, i: [real.state(i, b)[24:] for b in t.TRAINED], layout="vllm"),))),
    right("eager and graph captures alike", t.SGLANG.but(captures=(EAGER, capture(t.kind("computed in bfloat16"), kind="graph", layout="vllm")))),
    right("eight ranks alike", t.SGLANG.but(captures=t.by_ranks(8, lambda real, i, r: [real.state(i, b) for b in t.TRAINED]))),
    right("capture with padding rows at its end", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (44, 64)))),))),
    right("debug dump of two ranks", t.SGLANG.but(captures=(capture(t.whole(*range(13)), layout="debug"),))),
    right("Kimi class: ids of the newer release", KIMI.but(ids=(3, 6, 10))),
)
ABSTAIN = (
    open_("bank of other weights", t.SGLANG.but(bank=5, weights=None)),
    open_("no bank, no weights", t.SGLANG.but(bank=None, weights=None, trained=None)),
    open_("one sample", t.SGLANG.but(kept=1), "PASS", "INCONCLUSIVE"),
    open_("six tokens a sample, three samples", t.SGLANG.but(kept=3, tokens=6), "PASS", "INCONCLUSIVE"),
    open_("int4 weights in a narrow network: noise beyond what was measured", t.SGLANG.but(planes=t.kind("int4 target, groups of 64"))),
    open_("graph and eager captures differ, no bank", t.SGLANG.but(bank=None, weights=None, trained=None, captures=(EAGER, capture(t.whole(2, 6, 9), kind="graph", layout="vllm")))),
    open_("ranks of different prompts", t.SGLANG.but(captures=tuple(capture(t.whole(3, 6, 10), rank=r, of=(2 * r, 2 * r + 1)) for r in range(2)))),
    open_("ranks with other numbers of rows", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.state(i, b)[: 40 - 20 * r] for b in t.TRAINED], layout="bare"))),
    open_("capture of one plane of three", t.SGLANG.but(captures=(capture(t.whole(6)),))),
    open_("capture of all layers", t.SGLANG.but(captures=(capture(t.whole(*range(13))),))),
    open_("dump of all layers", t.SGLANG.but(planes=t.whole(*range(1, 12)), trained=None)),
    open_("planes in descending order", t.SGLANG.but(planes=t.whole(10, 6, 3), trained=None)),
    open_("one run of zero rows on page boundaries", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (64, 96))), of=LONG),))),
    open_("runs of zero rows across page boundaries", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (21, 37), (50, 71))), of=LONG),))),
    open_("one zero row in a hundred", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (21, 22)))),))),
    open_("ranks that differ, no bank", t.SGLANG.but(bank=None, weights=None, captures=t.by_ranks(2, lambda real, i, r: [real.partial(i, b, r, 2) for b in t.TRAINED]))),
)
CASES = (*DUMPS, *CAPTURES, *DOUBLE, *HEALTHY, *ABSTAIN)
