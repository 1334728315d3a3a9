"""Findings about recordings side by side: the ranks of one server, the eager and the graph path, unusable rows within a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.faults import fault as fault_of
from eagle_forensics.finding import Competitor, Finding, Status
from eagle_forensics.fingerprint.calibration import THRESHOLDS, why
from eagle_forensics.fingerprint.hypotheses import State
from eagle_forensics.fingerprint.identify import Identification
from eagle_forensics.fingerprint.pairs import Pairing
from eagle_forensics.fingerprint.ranks import Agreement, RankResult
from eagle_forensics.fingerprint.trained import NOTEBOOK, Rule

FAULTS = {Agreement.SLICES: ("feature.tp-slice", "feature.partial-sum"), Agreement.SHARES: ("feature.partial-sum", "wiring.layer-offset"),
          Agreement.INNER_SHARES: ("feature.partial-sum", "wiring.layer-offset"), Agreement.TOKENS: ("runtime.dp-attention", "feature.partial-sum")}
"""What an explained disagreement is called, and its rival."""
OPEN = {Agreement.TOKENS: "runtime.dp-attention", Agreement.DIFFER: "feature.partial-sum"}
REJECTED = {Agreement.SLICES: "a partial sum has the full width on every rank", Agreement.SHARES: "a layer offset is the same on every rank; these ranks differ",
            Agreement.INNER_SHARES: "a layer offset is the same on every rank; these ranks differ",
            Agreement.TOKENS: "every token's row stands whole on one rank; a partial sum needs all of them"}


def rank_finding(results: Sequence[RankResult], id: str, name: str) -> Finding:
    """Do all tensor-parallel ranks hold the whole state? The slot that tells most stands for all."""
    odd = [r for r in results if r.agreement is not Agreement.EQUAL]
    worst = max((r.spread for r in results if r.spread == r.spread), default=None)
    common: dict[str, Any] = {"id": id, "notebook": NOTEBOOK, "question": f"Do all ranks of {name} hold the same tensor?", "n": results[0].n, "observed": worst,
                              "unit": "largest median per-token relative difference between ranks", "threshold": THRESHOLDS["clean_error"], "threshold_why": why("clean_error")}
    if not odd:
        return Finding(status=Status.PASS, statement=f"All {len(results[0].ranks)} ranks of {name} hold the same {len(results)} planes (largest median difference {worst:.1e}).",
                       refuted_by="another forward pass in which the ranks differ", **common)
    text = "; ".join(f"slot {r.slot}: {r.text}" for r in odd)
    proven = next((r for r in odd if r.agreement in FAULTS and r.boundary), None)
    if proven is None:
        return Finding(status=Status.INCONCLUSIVE, fault=OPEN[odd[0].agreement], statement=f"The ranks of {name} do not hold the same tensor: {text}.",
                       next_step="Give the target's states for these tokens (target.path or reference), or record with one rank and compare.", **common)
    slug, rival = FAULTS[proven.agreement]
    return Finding(status=Status.FAIL, fault=slug, statement=f"The ranks of {name} hold {proven.agreement}: {text}.",
                   competitor=Competitor(fault=rival, margin=f"put together {proven.error:.3f} from {proven.boundary}, next {proven.second:.2f}; ranks {proven.spread:.2f} apart",
                                         why_rejected=REJECTED[proven.agreement]),
                   refuted_by=fault_of(slug).refuted_if, remedy=fault_of(slug).remedy, **common)


def unlike_ranks_finding(error: EvidenceError, id: str, name: str) -> Finding:
    """Several ranks recorded, but not so that they can be compared: nothing is known of what they hold together."""
    return Finding(id=id, notebook=NOTEBOOK, question=f"Do all ranks of {name} hold the same tensor?", status=Status.INCONCLUSIVE,
                   statement=f"The ranks of {name} cannot be laid side by side: {error}", next_step="Record one forward pass of one prompt, with its token ids, on all ranks.")


def rows_finding(found: Identification, id: str = "layers.rows") -> Finding:
    """Rows that no comparison can use, in slots that are otherwise sound."""
    slots = [s for s in found.slots if s.state is not State.BROKEN]
    bad = {s.slot: s.health.non_finite for s in slots if s.health.non_finite}
    empty = {s.slot: s.health.zero + s.health.constant for s in slots if s.health.zero + s.health.constant}
    common: dict[str, Any] = {"id": id, "question": "Can every row be used?", "notebook": NOTEBOOK, "n": found.rows}
    if bad:
        return Finding(status=Status.FAIL, fault="feature.non-finite", statement="Rows with NaN or infinite values: " + ", ".join(f"{n} of {found.rows} in slot {i}" for i, n in bad.items()) + ".",
                       observed=sum(bad.values()), expected=0, unit="rows", refuted_by=fault_of("feature.non-finite").refuted_if, remedy=fault_of("feature.non-finite").remedy,
                       competitor=Competitor(fault="feature.missing-stage", margin=f"{sum(bad.values())} rows", why_rejected="a lost state leaves zeros, no NaN"), **common)
    if empty:
        return Finding(status=Status.INCONCLUSIVE, fault="feature.missing-stage", required=False, observed=sum(empty.values()), expected=0, unit="rows",
                       statement="Rows that are zero or constant: " + ", ".join(f"{n} of {found.rows} in slot {i}" for i, n in empty.items()) + "; padding, or rows never written.",
                       next_step="See whether the loss mask leaves these rows out.", **common)
    return Finding(status=Status.PASS, required=False, statement=f"All {found.rows} rows of {len(slots)} slots are finite and none is empty.", **common)


def paths_finding(pairing: Pairing, id: str, first: str, second: str) -> Finding:
    """Do two recordings of the same prompt hold the same states? Different ones accuse nobody: what they are a bank must say."""
    common, statement = _paths(pairing, id, first, second)
    if pairing.equal:
        return Finding(status=Status.PASS, statement=statement, refuted_by="another prompt for which they differ", **common)
    return Finding(status=Status.INCONCLUSIVE, required=False, fault="wiring.layer-offset", statement=statement,
                   next_step="A bank of the target's states says which boundary each of them is.", **common)


def graph_finding(pairing: Pairing, eager: Identification | None, graph: Identification | None, *, trained: Sequence[int] | None = None, rule: Rule | None = None) -> Finding:
    """`layers.paths`: do the eager and the graph path hold the same states? If not, other whole states are other layers, of the path that is not the trained one; no state
    at all is a damaged graph. `trained`: boundaries of the dump; `rule`: None where none is known for the release."""
    common, statement = _paths(pairing, "layers.paths", "the eager capture", "the graph capture")
    if pairing.equal:
        return Finding(status=Status.PASS, statement=statement, refuted_by="another prompt for which they differ", **common)
    layers, damaged = "wiring.graph-default-layers", "runtime.graph-dtype"
    if pairing.reordered:
        return Finding(status=Status.INCONCLUSIVE, fault="wiring.plane-order", statement=statement + " The states are the same, their order differs.",
                       next_step="See whether the recorder wrote both paths in one order: fc reads its planes by their order.", **common)
    if not eager or not graph or any(s.equals is None for s in eager.slots) or graph.table is None:
        return Finding(status=Status.INCONCLUSIVE, fault=layers, statement=statement + " Whether the graph's are whole states of other layers or no states at all is not known.",
                       next_step="A bank of the target's states for this prompt decides (reference.path, or a target whose weights fit in memory).", **common)
    unknown = [s for s in graph.slots if s.equals is None]
    if not unknown:
        return _other_layers(statement, common, eager, graph, trained, rule)
    far = [s for s in unknown if s.match and not s.sure and s.match.error.value > THRESHOLDS["noise_error"]]
    if len(far) < len(unknown):
        return Finding(status=Status.INCONCLUSIVE, fault=damaged, statement=statement + " " + " ".join(s.sentence for s in unknown),
                       next_step="Capture the same prompt once more on both paths.", **common)
    return Finding(status=Status.FAIL, fault=damaged, statement=f"{statement} On the graph path " + ", ".join(f"slot {s.slot} is no state of the target (nearest {s.match.best}, relative error {s.match.error.value:.2f})" for s in far)
                   + ", while the eager path holds whole ones.",
                   competitor=Competitor(fault=layers, margin=f"nearest state at {min(s.match.error.value for s in far):.2f}; even int4 weights move a right one by {THRESHOLDS['noise_error']} at most",
                                         why_rejected="default layers would be whole states of the target"),
                   refuted_by="the graph capture's rows belong to other tokens than it names, or " + fault_of(damaged).refuted_if, remedy=fault_of(damaged).remedy, **common)


def _other_layers(statement: str, common: dict[str, Any], eager: Identification, graph: Identification, trained: Sequence[int] | None, rule: Rule | None) -> Finding:
    """Both paths hold whole states, but not the same ones: which of them is the wrong one is for the dump and the engine's rule to say."""
    layers, offset = "wiring.graph-default-layers", "wiring.layer-offset"
    prefill, replay = _held(eager), _held(graph)
    told = f"{statement} The eager path holds {format_boundaries(sorted(prefill, key=str))}, the graph path {format_boundaries(sorted(replay, key=str))}"
    if prefill == replay:
        return Finding(status=Status.INCONCLUSIVE, fault="runtime.graph-dtype", statement=f"{told}: the same layers, further apart than rounding takes them.",
                       next_step="Capture the same prompt once more on both paths.", **common)
    wanted, configured = set(trained or ()), set(rule.ids) if rule else set()
    if replay == wanted:
        if prefill == configured:
            return Finding(status=Status.FAIL, fault=offset, statement=f"{told}, which the drafter was trained on; the configured ids mean what the eager path holds.",
                           competitor=Competitor(fault=layers, margin=f"{len(prefill - wanted)} of {len(prefill)} eager planes are not the trained ones", why_rejected="the graph path holds the trained boundaries; the ids do not mean them"),
                           refuted_by=fault_of(offset).refuted_if, remedy=fault_of(offset).remedy, **common)
        return Finding(status=Status.INCONCLUSIVE, fault=offset, statement=f"{told}, which the drafter was trained on: the eager path is the other one. Either its layers are off, or its capture is not of this server.",
                       next_step="Capture the eager path again on the serving host, and name the engine's exact version: its rule says what the ids mean.", **common)
    right = "the trained ones" if prefill == wanted else "those that the configured ids mean" if prefill == configured else None
    if right and (rule.replayed(replay) if rule else prefill == wanted):
        what = "the engine's default list" if rule else "others than the trained ones"
        return Finding(status=Status.FAIL, fault=layers, statement=f"{told}: the eager layers are {right}, the graph's are {what}.",
                       competitor=Competitor(fault=offset, margin="eager path right, graph path wrong", why_rejected="an offset would shift the eager path as well; nor is the graph damaged, as every plane of it is a whole state"),
                       refuted_by=fault_of(layers).refuted_if, remedy=fault_of(layers).remedy, **common)
    reading = ("what the drafter was trained on, or what its ids mean, is not known" if not wanted and not configured else
               f"the eager layers are {right}, the graph's neither they nor the engine's default {format_boundaries(rule.default)}" if right and rule else
               "neither path holds the trained boundaries" if wanted else "the eager layers are not those that the configured ids mean")
    return Finding(status=Status.INCONCLUSIVE, fault=layers, statement=f"{told}: {reading}. Either the graph was captured with other layers, or the two captures are not of one configuration.",
                   next_step="Capture one prompt on both paths of one server, and measure the accept length once with --disable-cuda-graph.", **common)


def _held(found: Identification) -> set[int | str]:
    """Boundaries of all slots; a normed state by its name, which equals no boundary."""
    return {str(s.equals) if s.equals.normed else s.equals.index for s in found.slots}


def _paths(pairing: Pairing, id: str, first: str, second: str) -> tuple[dict[str, Any], str]:
    worst = max((e.value for e in pairing.estimates if e), default=None)
    common: dict[str, Any] = {"id": id, "notebook": NOTEBOOK, "question": f"Do {first} and {second} hold the same states for the same tokens?", "n": pairing.n, "observed": worst,
                              "unit": "largest median per-token relative difference", "threshold": THRESHOLDS["clean_error"], "threshold_why": why("clean_error")}
    if pairing.equal:
        return common, f"{first} and {second} hold the same {len(pairing.same)} states (largest median difference {worst:.3f})."
    pairs = ", ".join(f"slot {i} is slot {j}" if j is not None else f"slot {i} is none of them (nearest {pairing.estimates[i].value:.2f} away)" if pairing.estimates[i]
                      else f"slot {i} has another width" for i, j in enumerate(pairing.same))
    return common, f"{first} and {second} do not hold the same states for the same tokens: {pairs}."
