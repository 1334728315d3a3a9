"""The finding of notebook 02 on what the server feeds: what its states cost the drafter, on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.boundary import format_boundaries, uniform_shift
from eagle_forensics.drafter.correctness import Correctness, paired_accept_length, paired_accuracy
from eagle_forensics.drafter.wording import (
    WHY_ZERO,
    accept_text,
    common_fields,
    interval,
    interval_text,
    percent,
    skipped,
    tokens_needed,
)
from eagle_forensics.faults import fault
from eagle_forensics.finding import Competitor, Edit, Finding, Status


def served_finding(
    trained: Correctness | None, served: Correctness | None, *, trained_boundaries: Sequence[int] | None, served_boundaries: Sequence[int] | None,
    control: Correctness | None = None, captured: bool = False, edits: tuple[Edit, ...] = (), remedy: str | None = None, decode: bool = False,
) -> Finding:
    """`drafter.served-wiring`: what do the served states cost against the recorded ones, on the same tokens?

    `served`: evaluated on the target's states at the served boundaries. Computed states need `control`, the trained boundaries
    computed the same way, so that the computation itself cannot explain a loss; states captured from the server do not.
    `decode`: the states of CUDA graph replays, where they differ from the eager path's (`drafter.served-graph`).
    """
    id = "drafter.served-graph" if decode else "drafter.served-wiring"
    question = "What do the states of CUDA graph replays cost this drafter?" if decode else "What do the served states cost this drafter?"
    if trained is None or served is None:
        return skipped(id, question, "The served states are not at hand, so their cost is not known.",
                        "give the target's weights, a reference bank or a capture, and the engine with its version")
    difference = paired_accuracy(served, trained)
    lengths = paired_accept_length(served, trained)
    names = f"served {format_boundaries(served_boundaries)}, trained {format_boundaries(trained_boundaries)}"
    facts = (f"{names}: step 1 right on {percent(served.accuracy(0))} against {percent(trained.accuracy(0))} of {trained.n} tokens, "
             f"difference {interval_text(difference)}; accept length {served.accept_length().value:.3f} against {trained.accept_length().value:.3f}, "
             f"difference {interval_text(lengths)}")
    common = common_fields(id, question, served.accuracy(0), "accuracy of step 1") | {
        "observed": round(difference.value, 4), "expected": 0.0, "unit": "accuracy of step 1, served minus trained", "interval": interval(difference),
        "threshold": 0.0, "threshold_why": WHY_ZERO}
    same = served_boundaries is not None and trained_boundaries is not None and tuple(served_boundaries) == tuple(trained_boundaries)
    if difference.high < 0:
        against = control or (trained if captured else None)
        loss = paired_accuracy(served, against) if against else None
        if same:
            return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. The boundaries agree, so the states themselves differ.",
                           next_step="compare the states plane by plane in notebook 03 (norm state, partial sums, slices)")
        if loss is None or loss.high >= 0:
            why = "no control of the computed states exists" if loss is None else f"computed at the trained boundaries they lose as much ({interval_text(loss)})"
            return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}; but {why}, so the computation may be to blame.",
                           next_step="compute the states at the trained boundaries with the same code and compare them with the dump")
        return _wrong_layers(common, facts, served, trained, loss, served_boundaries, trained_boundaries, edits, remedy, decode)
    if difference.low > 0:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. The served states suit the drafter better than those of the dump: the dump may not be what it was trained on.",
                       next_step="identify the planes of the dump in notebook 03")
    if same:
        return Finding(**common, status=Status.PASS, statement=f"{facts}. The server feeds what the drafter was trained on.")
    return Finding(**common, status=Status.INCONCLUSIVE, statement=f"{facts}. Accuracy cannot tell the two apart here.",
                   next_step=tokens_needed(difference) + "; the fingerprint of notebook 03 decides without accuracy")


def _wrong_layers(common: dict[str, Any], facts: str, served: Correctness, trained: Correctness, loss: stats.Estimate, served_boundaries: Sequence[int] | None,
                  trained_boundaries: Sequence[int] | None, edits: tuple[Edit, ...], remedy: str | None, decode: bool) -> Finding:
    ordered = served_boundaries is not None and trained_boundaries is not None and sorted(served_boundaries) == sorted(trained_boundaries)
    slug = "wiring.plane-order" if ordered else "wiring.graph-default-layers" if decode else "wiring.layer-offset"
    entry = fault(slug)
    shift = uniform_shift(trained_boundaries, served_boundaries) if served_boundaries and trained_boundaries else None
    where = f" Every state is {abs(shift)} boundary(s) {'late' if shift > 0 else 'early'}." if shift else ""
    return Finding(**common, status=Status.FAIL, fault=slug, statement=f"{facts}.{where}",
                   competitor=Competitor(fault="data.too-little", margin=f"{interval_text(loss)} accuracy between two feeds of one drafter on the same {trained.n} tokens",
                                         why_rejected="a weak drafter is equally weak under both feeds; drafter, tokens and the way the states were computed are the same, only the boundaries differ"),
                   refuted_by=entry.refuted_if, remedy=remedy or entry.remedy, edits=edits,
                   predicted_effect=f"accept length {accept_text(trained.accept_length())} instead of {accept_text(served.accept_length())} with {trained.steps} steps",
                   next_step="apply the remedy and rerun notebooks 01 and 02; notebook 04 measures the effect")
