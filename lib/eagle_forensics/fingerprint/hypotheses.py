"""Hypotheses about one slot that need no bank, and what each outcome is called.

The order of all of them: unusable rows, embedding, layer match (`match`), then the damaged forms (`forms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.calibration import THRESHOLDS
from eagle_forensics.fingerprint.rows import Rows, Weights

SAMPLE = 2048
"""Tokens or pairs a test looks at."""


class State(StrEnum):
    """In which form a slot holds the state of its boundary."""

    COMPLETE = "complete"
    NORMED = "normed"
    NORMED_TWICE = "normed twice"
    NO_RESIDUAL = "without the residual"
    SLICE = "slice of the hidden dimension"
    SCALED = "scaled"
    SHIFTED = "shifted by tokens"
    ROTATED = "rotated"
    MIDDLE = "half a layer early"
    SHARE = "one rank's partial sum"
    REDUCED = "reduced more than once"
    NOISY = "whole, under noise without direction"
    BROKEN = "broken rows"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """What a state is called in the fault catalogue, and the rival it must be told from."""

    fault: str | None
    rival: str


EXPLANATIONS = {
    State.COMPLETE: Explanation(None, "wiring.layer-offset"),
    State.NORMED: Explanation("feature.norm-state", "data.norm-twice"),
    State.NORMED_TWICE: Explanation("data.norm-twice", "feature.norm-state"),
    State.NO_RESIDUAL: Explanation("feature.missing-residual", "feature.rotated-basis"),
    State.SLICE: Explanation("feature.tp-slice", "feature.partial-sum"),
    State.SCALED: Explanation("feature.partial-sum", "feature.norm-state"),
    State.SHIFTED: Explanation("data.hidden-shift", "wiring.layer-offset"),
    State.ROTATED: Explanation("feature.rotated-basis", "feature.missing-residual"),
    State.MIDDLE: Explanation("wiring.layer-offset", "feature.partial-sum"),
    State.SHARE: Explanation("feature.partial-sum", "wiring.layer-offset"),
    State.REDUCED: Explanation("feature.partial-sum", "wiring.layer-offset"),
    State.NOISY: Explanation(None, "feature.partial-sum"),
    State.BROKEN: Explanation("feature.non-finite", "feature.missing-stage"),
    State.UNKNOWN: Explanation(None, "a bank of another model"),
}


@dataclass(frozen=True)
class Test:
    """One hypothesis, its number and whether it holds; None where the evidence for it is missing or does not decide."""

    __test__ = False  # no pytest class

    name: str
    holds: bool | None
    value: float | None
    """The statistic; its meaning is in `text`."""
    n: int
    """Tokens, pairs or rows behind it."""
    text: str


def embedding_test(x: torch.Tensor, rows: Rows, weights: Weights, usable: np.ndarray) -> Test:
    """Equal to `embed_tokens[ids]` up to storage rounding? Value: median per token of |x - e| / |x|."""
    name = "embedding"
    if weights.embed is None or rows.tokens is None:
        missing = "the target's embed_tokens" if weights.embed is None else "token ids"
        return Test(name, None, None, 0, f"not tested against embed_tokens: {missing} missing")
    at = np.flatnonzero(usable)
    if not len(at):
        return Test(name, None, None, 0, "not tested: no usable rows")
    tokens = rows.tokens.numpy()[at]
    known = (tokens >= 0) & (tokens < (np.inf if weights.rows is None else weights.rows))
    foreign = "" if known.all() else f"; {int((~known).sum())} token ids outside its {weights.rows} rows left out, of {', '.join(_samples(rows, at[~known]))}"
    at = at[known][:SAMPLE]
    if not len(at):
        return Test(name, None, None, 0, f"not tested: no token id lies within the {weights.rows} rows of embed_tokens")
    ids, inverse = torch.unique(rows.tokens[torch.as_tensor(at)], return_inverse=True)
    try:
        table = weights.embed(ids.tolist()).to(torch.float32)
    except ValueError as error:  # a table cut short
        return Test(name, None, None, 0, f"not tested: {error}")
    if table.dim() != 2:
        return Test(name, None, None, 0, f"not tested: embed_tokens has the shape {list(table.shape[1:])} a token")
    if table.shape[1] != x.shape[1]:
        return Test(name, None, None, 0, f"not tested: embed_tokens has width {table.shape[1]}, the slot {x.shape[1]}")
    h = table[inverse]
    best, factor = min((float(np.median(measure.token_errors(h * f, x[at]))), f) for f in {1.0, weights.embedding_factor})
    scaled = f" x {factor:g}" if factor != 1 else ""
    return Test(name, best <= THRESHOLDS["embedding_error"], best, len(at),
                f"rows {'equal' if best <= THRESHOLDS['embedding_error'] else 'differ from'} embed_tokens[ids]{scaled} "
                f"({describe_error(best)}, median of {len(at)} tokens{foreign})")


def _samples(rows: Rows, at: np.ndarray) -> list[str]:
    names = [rows.samples[i] for i in np.unique(rows.sequence[at])]
    return names[:3] + ([f"{len(names) - 3} more samples"] if len(names) > 3 else [])


def twin_test(x: torch.Tensor, rows: Rows, usable: np.ndarray) -> Test:
    """Do equal tokens of one sample have equal rows? Only the embedding forgets the context. Needs no weights."""
    name = "equal tokens"
    if rows.tokens is None:
        return Test(name, None, None, 0, "not tested: no token ids")
    first: dict[tuple[int, int], int] = {}
    pairs = []
    tokens = rows.tokens.tolist()
    for i in np.flatnonzero(usable).tolist():
        key = (int(rows.sequence[i]), tokens[i])
        if first.setdefault(key, i) != i:
            pairs.append((first[key], i))
    if len(pairs) < 10:
        return Test(name, None, None, len(pairs), f"not decided: only {len(pairs)} pairs of equal tokens")
    a, b = (torch.as_tensor(side) for side in zip(*pairs[:SAMPLE], strict=True))
    value = float(np.median(measure.token_errors(x[b], x[a])))
    equal = value <= THRESHOLDS["twin_error"]
    differs = b[rows.tokens[b] != rows.tokens[b - 1]]
    if equal and len(differs) and float(np.median(measure.token_errors(x[differs - 1], x[differs]))) <= THRESHOLDS["twin_error"]:
        return Test(name, None, value, len(a), f"not decided: rows of different tokens are as equal ({len(differs)} pairs)")
    return Test(name, equal, value, len(a), f"equal tokens have {'equal' if equal else 'unequal'} rows ({describe_error(value)}, median of {len(a)} pairs)")


def norm_test(x: torch.Tensor, weights: Weights, usable: np.ndarray) -> Test:
    """Has a final norm just been applied? Then rms(x / w) is 1 for every token; value: median of |rms - 1|."""
    name = "norm state"
    if weights.norm is None or weights.norm.shape[0] != x.shape[1]:
        return Test(name, None, None, 0, "not tested: the weight of the target's final norm is missing" if weights.norm is None
                    else f"not tested: the final norm has width {weights.norm.shape[0]}, the slot {x.shape[1]}")
    safe = weights.norm.abs() > 1e-3 * weights.norm.abs().median()
    at = np.flatnonzero(usable)
    if not len(at):
        return Test(name, None, None, 0, "not tested: no usable rows")
    off = ((x[at][:, safe] / weights.norm[safe]).pow(2).mean(-1).sqrt() - 1).abs().numpy()
    value, high = float(np.median(off)), float(np.quantile(off, 0.9))
    if high <= THRESHOLDS["norm_rms"]:
        return Test(name, True, value, len(at), f"normed: rms(x/w) is 1 within {high:.3f} for 90 % of {len(at)} tokens")
    if value > 5 * THRESHOLDS["norm_rms"]:
        return Test(name, False, value, len(at), f"not normed: rms(x/w) is off 1 by {value:.2f} (median of {len(at)} tokens)")
    return Test(name, None, value, len(at), f"norm state not decided: rms(x/w) is off 1 by {value:.3f} in the median, {high:.3f} at 90 %")


def describe_error(value: float) -> str:
    return "exactly" if value == 0 else f"relative error {value:.3f}" if value >= 0.001 else f"relative error {value:.1e}"
