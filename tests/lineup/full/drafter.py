"""The real pair through notebooks 01 to 03, and 04 where something was measured: the drafter is run.

As many samples as the verdict needs: 32 tell the first two planes exchanged (0.14 right tokens in a row) from the contract, 20 do not; what is far
off shows on 16, which is the least that a battery screens on (fewer are dearer, as every wiring is then run on all of them).
"""

from __future__ import annotations

from tests.lineup import real as r
from tests.lineup.outcome import case

OFFSET, LABELS, MAP, FLAGS = "wiring.layer-offset", "wiring.mislabelled-dump", "vocab.map-semantics", "drafter.norm-flags"
LIE = ("embed", "layer2", "layer15", "final")
UNDECIDED = ("INCONCLUSIVE",)
MANY, FEW = 32, 16
LOGGED = {"full_acc_0": 0.606}
"""What the training logged on the dump's 79 texts."""
CHAINS = LOGGED | {"full_acc_1": 0.558, "full_acc_2": 0.520}
"""Rates of single steps under the name of rates of chains (.36 and .21 here)."""
EITHER = {"acc_0": 0.606, "acc_1": 0.594}
"""The second as a rate of chains under the name of a rate of single steps (.56 here), or of a training that fed it the recorded states."""
SGLANG, VLLM, SHIFTED = (kind.but(metrics=LOGGED, kept=MANY) for kind in (r.SGLANG, r.VLLM, r.SHIFTED))
CASES = (
    case("healthy: SGLang, measured", SGLANG.but(measured="right"), samples=MANY),
    case("healthy: vLLM top level", VLLM, samples=MANY),
    case("healthy: target without weights, bank only", SGLANG.but(weights=False), verdicts=("PASS", "INCONCLUSIVE"), samples=FEW),
    case("one early: vLLM with the SGLang spelling, measured", SHIFTED.but(measured="early"), OFFSET, samples=MANY),
    case("embedding first: SGLang, measured", SGLANG.but(ids=(-1, 1, 14), measured="embedding"), OFFSET, samples=FEW),
    case("dump slots permuted", SGLANG.but(sample=r.order(1, 0, 2, 3), trained=None), "wiring.plane-order", samples=MANY),
    case("states one position late", SGLANG.but(sample=r.shifted_states), "data.hidden-shift", samples=FEW),
    case("rates of single steps logged as chains", SGLANG.but(metrics=CHAINS), "data.metric-definition", samples=MANY),
    case("labels lie and the embedding is served", SGLANG.but(ids=(-1, 1, 14), labels=LIE, trained=None, measured="embedding"), LABELS, OFFSET, samples=FEW),
    case("one early and d2t absolute", SHIFTED.but(tensors=r.absolute_map), OFFSET, MAP, samples=FEW),
    case("one early and norm_before_residual set", SHIFTED.but(drafter={"norm_before_residual": True}), OFFSET, FLAGS, samples=FEW),
    case("abstain: bank and target of other weights", SGLANG.but(target=r.other_weights, bank=False), verdicts=UNDECIDED, samples=FEW),
    case("abstain: logged 74.7 %, which nothing reproduces", SGLANG.but(metrics={"full_acc_0": 0.747}), verdicts=UNDECIDED, suspects=("data.serving-mismatch",), samples=MANY),
    case("abstain: rates counted as chains, or of a step fed true states", SGLANG.but(metrics=EITHER), verdicts=UNDECIDED, suspects=("data.metric-definition",), samples=MANY),
    case("abstain: one sample", r.SGLANG.but(kept=1), verdicts=("PASS", "INCONCLUSIVE"), samples=1),
    case("abstain: no target weights, no bank", SGLANG.but(weights=False, bank=False, trained=None), verdicts=("INCONCLUSIVE", "ERROR"), samples=FEW),
)
