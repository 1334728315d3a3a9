"""Recorded answers: what notebooks 01 and 04 must say from tokens, rounds and the draft's map."""

from __future__ import annotations

from tests.lineup import papers as p
from tests.lineup import tables as t
from tests.lineup.fast.cost import heads
from tests.lineup.outcome import abstains, healthy, planted

COVERAGE, NON_FINITE, DEGENERATE, DOMAIN = "vocab.coverage", "feature.non-finite", "measure.degenerate-output", "data.domain"
INSIDE = [i + i // 2 for i in range(p.builders.VD)]
"""Target ids of the tiny head's map; of three ids it lacks one."""
OUTSIDE = [i for i in range(p.builders.V) if i not in INSIDE]
ENGLISH, MIXED, OTHER = t.texts(16, INSIDE), t.texts(16, [*INSIDE, *OUTSIDE[:8]], seed=1), t.texts(16, [*INSIDE[:6], *OUTSIDE], seed=2)
LOOPS = [[(7 * i) % 40, (7 * i + 3) % 40] * 40 for i in range(16)]


def recorded(texts: dict[str, list[list[int]]], lengths: dict[str, float], papers: p.Papers = p.LLAMA, **about: object) -> p.Papers:
    return papers.but(tensors=p.head, files=t.answers(texts, lengths.__getitem__, **about), case={"answers": "./served"})


TEXT = (
    planted("three quarters of one language's tokens are not in the map", recorded({"english": ENGLISH, "other": OTHER}, {"english": 2.6, "other": 1.2}), COVERAGE, rival="wiring.layer-offset"),
    planted("a fifth of the tokens are not in the map", recorded({"mixed": MIXED}, {"mixed": 2.2}), COVERAGE),
    planted("every answer is token 0", recorded({"chat": [[0] * 80] * 12}, {"chat": 4.0}), NON_FINITE, rival=DEGENERATE),
    planted("first tokens differ, then token 0", recorded({"chat": [[5 + i, *[0] * 79] for i in range(12)]}, {"chat": 1.0}), NON_FINITE),
    planted("two tokens in turn, others for every prompt", recorded({"chat": LOOPS}, {"chat": 3.9}), DEGENERATE),
    planted("most answers end in a cycle of their own", recorded({"chat": [*ENGLISH[:5], *([*e[:20], *loop] for e, loop in zip(ENGLISH[5:], LOOPS[5:], strict=True))]}, {"chat": 3.2}), DEGENERATE),
)
DOUBLE = (
    planted("one language lacks tokens, another text lacks training", heads(("law", 1.60, 2.40), ("chat", 2.60, 2.61), tensors=p.head, case={"answers": "./served"},
            files=t.answers({"law": ENGLISH, "other": OTHER}, {"law": 1.6, "other": 1.2}.__getitem__)), COVERAGE, DOMAIN),
    planted("token 0 throughout and one late", recorded({"chat": [[0] * 80] * 12}, {"chat": 4.0}, p.LLAMA.but(ids=(2, 16, 29))), NON_FINITE, "wiring.layer-offset"),
)
HEALTHY = (
    healthy("all tokens in the map", recorded({"english": ENGLISH}, {"english": 2.4})),
    healthy("short answers of few tokens", recorded({"yes or no": [[3, 4], [6, 4], [3, 4], [6, 4]] * 4}, {"yes or no": 2.0})),
    healthy("five answers of sixteen loop", recorded({"chat": [*LOOPS[:5], *ENGLISH[5:]]}, {"chat": 2.6}, p.LLAMA.but(draft={"draft_vocab_size": p.builders.V})).but(
        tensors=lambda: p.head(d2t=None, t2d=None, **{"lm_head.weight": p.builders.weights(p.builders.V, p.builders.H)}))),
    healthy("one token in sixty not in the map, at 1.5", recorded({"chat": [[*e[:59], OUTSIDE[0]] for e in ENGLISH]}, {"chat": 1.5})),
)
ABSTAIN = (
    abstains("four answers that loop", recorded({"chat": LOOPS[:4]}, {"chat": 3.9})),
    abstains("no folder of answers", p.LLAMA.but(case={"answers": "./served"}), "ERROR"),
)
CASES = (*TEXT, *DOUBLE, *HEALTHY, *ABSTAIN)
