"""Tiny targets that are really run: captures by rank and path, storage and formats, thin evidence. The rest of the table is in `fast/tiny.py`."""

from __future__ import annotations

import torch

from tests.lineup import tiny as t
from tests.lineup.fast.tiny import (
    ALIAS,
    COUNT,
    EAGER,
    FINITE,
    GRAPH,
    LABELS,
    LONG,
    NEWER,
    NORM,
    OFFSET,
    PARTIAL,
    RESIDUAL,
    ROTATED,
    SHIFT,
    SLICE,
    STAGE,
    TWICE,
    capture,
    open_,
    plant,
    right,
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
    plant("served slots overwritten by later layers", t.SGLANG.but(captures=(capture(t.whole(4, 8, 10)),)), ALIAS, rival=OFFSET),
    plant("served one late, last plane is the last state", t.SGLANG.but(planes=t.whole(3, 6, 11), trained=(2, 5, 10, 11), ids=(2, 5, 10), captures=(capture(t.whole(4, 7, 12)),)), OFFSET),
    plant("served a plane too few, the others one late", t.SGLANG.but(captures=(capture(t.whole(4, 7)),)), COUNT),
    plant("graph replays the default, graphs alone captured", t.SGLANG.but(captures=(capture(t.whole(2, 6, 9), kind="graph", layout="vllm"),)), GRAPH),
    plant("graph capture of other values", t.SGLANG.but(captures=(EAGER, capture(lambda real, i: [real.state(i, b)[torch.randperm(len(real.ids[i]), generator=torch.Generator().manual_seed(b))] for b in t.TRAINED],
                                                                                 kind="graph", layout="vllm"))), "runtime.graph-dtype", rival=GRAPH),
    plant("graph capture of one stale plane", t.SGLANG.but(captures=(EAGER, capture(lambda real, i: [real.state(i, 3), real.state(i, 6), real.state(i + 5, 10)[:1].expand(len(real.ids[i]), -1)],
                                                                                    kind="graph", layout="vllm"))), "runtime.graph-dtype", rival=GRAPH),
    plant("two pages of constants in one slot", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.25, (64, 96), (128, 144)), (1,)), of=LONG),)), "runtime.page-units"),
)
HEALTHY = (
    right("vLLM, boundaries at top level", t.VLLM),
    right("labels of outputs or inputs of layers", t.SGLANG.but(labels=("layer2", "layer6", "out9", "last"))),
    right("weights only, no bank", t.SGLANG.but(bank=None)),
    right("float8 with a scale a token", NEWER.but(layout="vllm_fp8")),
    right("int8 target", t.SGLANG.but(planes=t.kind("int8 target, a scale a row"))),
    *(right(f"format {name}", t.SGLANG.but(layout=name)) for name in ("specforge", "angelslim", "modelopt", "trtllm", "torchspec", "verl")),
    right("format vllm", NEWER.but(layout="vllm")),
    right("post-norm teacher for a trainer without a norm", t.SGLANG.but(trainer=("speculators", "0.3.0"), last=t.whole(13))),
    right("embedding among the planes", t.VLLM.but(planes=t.whole(0, 6, 10), trained=(-1, 5, 9, 11), ids=(0, 6, 10))),
    right("capture behind a cached prefix", t.SGLANG.but(captures=(capture(lambda real, i: [real.state(i, b)[24:] for b in t.TRAINED], layout="vllm"),))),
    right("eager and graph captures alike", t.SGLANG.but(captures=(EAGER, capture(t.kind("computed in bfloat16"), kind="graph", layout="vllm")))),
    right("eight ranks alike", t.SGLANG.but(captures=t.by_ranks(8, lambda real, i, r: [real.state(i, b) for b in t.TRAINED]))),
    right("capture with padding rows at its end", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (44, 64)))),))),
    right("debug dump of two ranks", t.SGLANG.but(captures=(capture(t.whole(*range(13)), layout="debug"),))),
)
ABSTAIN = (
    open_("bank of other weights", t.SGLANG.but(bank=5, weights=None)),
    open_("six tokens a sample, three samples", t.SGLANG.but(kept=3, tokens=6), "PASS", "INCONCLUSIVE"),
    open_("int4 weights in a narrow network: noise beyond what was measured", t.SGLANG.but(planes=t.kind("int4 target, groups of 64"))),
    open_("ranks of different prompts", t.SGLANG.but(captures=tuple(capture(t.whole(3, 6, 10), rank=r, of=(2 * r, 2 * r + 1)) for r in range(2)))),
    open_("ranks with other numbers of rows", t.SGLANG.but(captures=t.by_ranks(2, lambda real, i, r: [real.state(i, b)[: 40 - 20 * r] for b in t.TRAINED], layout="bare"))),
    open_("capture of all layers", t.SGLANG.but(captures=(capture(t.whole(*range(13))),))),
    open_("dump of all layers", t.SGLANG.but(planes=t.whole(*range(1, 12)), trained=None)),
    open_("planes in descending order", t.SGLANG.but(planes=t.whole(10, 6, 3), trained=None)),
    open_("runs of zero rows across page boundaries", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (21, 37), (50, 71))), of=LONG),))),
    open_("one zero row in a hundred", t.SGLANG.but(captures=(capture(t.changed(t.rows(0.0, (21, 22)))),))),
)
FAINT = (
    plant("one rank's share of two, one plane", t.SGLANG.but(planes=t.kind("TP partial sum, rank 1 of 2", slots=(1,))), PARTIAL, rival=OFFSET),
    plant("whole state reduced eight times", t.SGLANG.but(planes=t.kind("state reduced 8 times", slots=(2,))), PARTIAL),
    plant("half of the columns zero in one plane", t.SGLANG.but(planes=t.kind("TP slice, the rest zero", slots=(1,))), SLICE, rival=PARTIAL),
    plant("MLP output in one plane", t.SGLANG.but(planes=t.kind("MLP output only", slots=(0,))), RESIDUAL),
    plant("one aux plane normed", t.SGLANG.but(planes=t.kind("inner planes normed", slots=(2,))), NORM, rival=TWICE),
    plant("one plane rotated", t.SGLANG.but(planes=t.kind("rotated", slots=(1,))), ROTATED, rival=RESIDUAL),
    plant("one row infinite", t.SGLANG.but(planes=t.changed(t.rows(float("inf"), (7, 8)), (0,))), FINITE),
    plant("tiny: two slots of one buffer", t.SGLANG.but(planes=t.whole(3, 10, 10), trained=None), ALIAS),
    plant("states one token early, one plane", t.SGLANG.but(planes=t.kind("one token early", slots=(0,))), SHIFT, rival=OFFSET),
    plant("teacher normed twice", t.SGLANG.but(last=lambda real, i: [real.weights.normed(real.state(i, 13))]), TWICE, rival=NORM),
    plant("tiny: labels lie by one", t.SGLANG.but(labels=("b4", "b7", "b11", "b12"), trained=None), LABELS),
    plant("one label lies", t.SGLANG.but(labels=("b3", "b6", "b9", "b12"), trained=None), LABELS),
    plant("the eager path is the one a layer off", t.SGLANG.but(captures=(capture(t.whole(2, 5, 9)), capture(t.whole(3, 6, 10), kind="graph", layout="vllm"))), OFFSET, rival=PARTIAL),
)
CASES = (*CAPTURES, *FAINT, *HEALTHY, *ABSTAIN)
