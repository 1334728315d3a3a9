"""Findings of notebook 03 about a dump: what each slot is, whether the labels lie, the norm state of the last plane.

A slot that is not identified accuses nobody: its finding abstains and names what would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eagle_forensics.boundary import Boundary, uniform_shift
from eagle_forensics.evidence.labels import boundary_label, label_claim
from eagle_forensics.faults import fault as fault_of
from eagle_forensics.finding import Competitor, Edit, Finding, Status
from eagle_forensics.fingerprint.calibration import THRESHOLDS, why
from eagle_forensics.fingerprint.hypotheses import EXPLANATIONS, State
from eagle_forensics.fingerprint.identify import Identification, SlotIdentity, format_ratio
from eagle_forensics.fingerprint.trained import MAKE_BANK, NOTEBOOK, trained_finding


def dump_findings(found: Identification, *, manifest: str | None = None, claimed: Sequence[int] | None = None,
                  claimed_by: str = "the trainer's layer ids", last_expected: str | None = None, trainer: str | None = None,
                  n_aux: int | None = None, asked: int | None = None) -> list[Finding]:
    """All findings about a training dump.

    `manifest`: path of the manifest as the case names it, for the edit; `claimed`: boundaries that the ids stand for;
    `last_expected`: `pre` or `post`, the norm state that `trainer` expects of the last plane; `n_aux`: planes that fc reads; `asked`: layers that the trainer's config lists.
    """
    return [*slot_findings(found), alias_finding(found, claimed), embedding_finding(found), label_finding(found, manifest),
            norm_state_finding(found, last_expected, trainer, n_aux, asked), trained_finding(found, claimed, claimed_by)]


def slot_findings(found: Identification, prefix: str = "layers.slot") -> list[Finding]:
    """`layers.slot-N`: each slot identified, damaged, or honestly unknown."""
    return [_slot_finding(s, f"{prefix}-{s.slot}", found) for s in found.slots]


def _slot_finding(s: SlotIdentity, id: str, found: Identification) -> Finding:
    explained = EXPLANATIONS[s.state]
    n = s.form.n if s.form else s.match.error.n if s.match else s.embedding.n or s.health.rows
    common: dict[str, Any] = {
        "id": id, "notebook": NOTEBOOK, "question": f"Which state of the target does file slot {s.slot} hold?", "statement": s.sentence, "n": n,
        "observed": None if s.error is None else round(s.error, 5),
        "unit": f"median per-token relative error to {s.boundary or (s.candidates[0] if s.candidates else 'embed_tokens')}"}
    if s.match and not s.form:
        interval = s.match.error.interval
        common |= {"threshold": THRESHOLDS["clean_error"], "threshold_why": f"{why('clean_error')}; and {why('clean_ratio')}",
                       "interval": interval if all(map(math.isfinite, interval)) else None}
    if s.equals:
        rival = None
        if s.match:
            rival = Competitor(fault="wiring.layer-offset", margin=f"{s.match.second} is {format_ratio(s.match.ratio)} times as far "
                               f"({s.match.second_error:.3f})", why_rejected=f"{s.match.votes:.0%} of the tokens are nearest to {s.match.best}")
        return Finding(status=Status.PASS, competitor=rival, refuted_by=f"states of the same tokens at {s.boundary} that differ from it by more "
                       "than the threshold", **common)
    if s.sure:
        slug = explained.fault if s.state is not State.BROKEN else s.suspects[0]
        return Finding(status=Status.FAIL, fault=slug, competitor=form_rival(s, slug), remedy=fault_of(slug).remedy,
                       refuted_by=fault_of(slug).refuted_if, **common)
    suspicion = f" It looks like {' or '.join(s.suspects)}, which this evidence does not prove." if s.suspects else ""
    common["statement"] += suspicion
    step = ("Compare the same tensor of all tensor-parallel ranks, or capture it with one rank." if "feature.partial-sum" in s.suspects
            else "Capture the same tokens at more boundaries, or check that bank and dump come from the same weights." if found.table else MAKE_BANK)
    status = Status.INCONCLUSIVE if found.table else Status.SKIPPED
    return Finding(status=status, fault=s.suspects[0] if s.suspects else None, next_step=step, **common)


def form_rival(s: SlotIdentity, slug: str) -> Competitor:
    """The rival of a damaged form, or of rows that cannot be compared, with what separates the two."""
    if s.form is None:
        return Competitor(fault=fault_of(slug).rival if slug != "feature.non-finite" else "feature.missing-stage", margin=f"{s.health.share:.0%} of the rows can be compared",
                          why_rejected="a lost state leaves zeros, no NaN" if slug == "feature.non-finite" else "not rejected: see whether a single pipeline stage already loses the plane")
    rival = EXPLANATIONS[s.state].rival
    plain = (f"the nearest undamaged state, {s.match.best}, has relative error {s.match.error.value:.3f}" if s.match
             else "its width excludes every undamaged state")
    return Competitor(fault=rival, margin=f"{plain}; the next form of this kind ({s.form.second_text}) {s.form.second:.3f}, against {s.form.error:.3f}",
                      why_rejected=fault_of(EXPLANATIONS[s.state].fault).told_apart)


def alias_finding(found: Identification, claimed: Sequence[int] | None = None) -> Finding:
    """`layers.alias`: no two slots hold exactly the same values. An aux plane at b=L is rightly equal to the teacher's."""
    twins = [(s.twin_slot, s.slot) for s in found.slots if s.twin_slot is not None and s.state is not State.BROKEN]
    last = found.slots[-1]
    if len(twins) == 1 and twins[0][1] == last.slot and last.equals == Boundary(found.layers or -1):
        asked = claimed is not None and found.layers in claimed
        return Finding(
            id="layers.alias", question="Do two slots hold the same values?", notebook=NOTEBOOK, n=found.rows, status=Status.PASS if asked else Status.INCONCLUSIVE, required=not asked,
            fault=None if asked else "feature.aliased-buffer", statement=f"Slots {twins[0][0]} and {last.slot} are both {last.equals.describe(found.layers)}: right if the drafter reads the last layer"
            + (", and the ids name it." if asked else "."), next_step=None if asked else "See whether the producer's layer ids name the last layer.")
    common: dict[str, Any] = {"id": "layers.alias", "question": "Do two slots hold the same values?", "notebook": NOTEBOOK, "n": found.rows}
    if not twins:
        return Finding(status=Status.PASS, statement=f"All {len(found.slots)} slots differ from each other.", required=False, **common)
    a, b = twins[0]
    return Finding(
        status=Status.FAIL, fault="feature.aliased-buffer", statement="; ".join(f"slots {a} and {b} are equal in every value" for a, b in twins) + ".",
        competitor=Competitor(fault="wiring.plane-count", margin="both explain equal slots exactly",
                              why_rejected="not rejected: a layer id written twice gives the same file; look at the ids of the producer"),
        refuted_by=f"the producer was asked for one boundary twice, or slots {a} and {b} differ in another sample",
        remedy=fault_of("feature.aliased-buffer").remedy, **common)


def embedding_finding(found: Identification) -> Finding:
    """`layers.embedding`: which slots are the embedding, by the one test that needs no layer of the target."""
    common: dict[str, Any] = {"id": "layers.embedding", "question": "Is one of the slots the embedding?", "notebook": NOTEBOOK}
    tested = {s.slot: t for s in found.slots for t in (s.embedding, s.twins) if t.holds is not None}
    if not tested:
        return Finding(status=Status.SKIPPED, statement="Not tested: neither embed_tokens nor token ids are at hand.", required=False,
                       next_step="Give target.path with weights, or a dump with input_ids.", **common)
    holding = [s for s in found.slots if s.embedding.holds or (s.embedding.holds is None and s.twins.holds)]
    against = any(s.embedding.holds is not None for s in found.slots)
    nearest = min((s.embedding.value for s in found.slots if s.embedding.value is not None), default=None)
    statement = (f"{'Slots' if len(holding) > 1 else 'Slot'} {', '.join(str(s.slot) for s in holding)} hold{'s' if len(holding) == 1 else ''} the embedding: "
                 + (holding[0].embedding if holding[0].embedding.holds else holding[0].twins).text if holding else
                 "No slot is the embedding: " + (f"the nearest differs from embed_tokens[ids] by {nearest:.2f} of its size" if against else
                                                 "equal tokens have unequal rows in every slot")) + "."
    key = "embedding_error" if against else "twin_error"
    return Finding(status=Status.PASS, statement=statement, observed=nearest, unit="smallest median relative difference to embed_tokens[ids]" if against else None,
                   n=max(t.n for t in tested.values()), threshold=THRESHOLDS[key], threshold_why=why(key), **common)


def label_finding(found: Identification, manifest: str | None = None) -> Finding:
    """`layers.labels`: are the names of the planes true? A false one is `wiring.mislabelled-dump`, with the right names as edit."""
    common: dict[str, Any] = {"id": "layers.labels", "question": "Do the planes' labels say what the tensors are?", "notebook": NOTEBOOK}
    claims = {s.slot: label_claim(s.label, found.layers) for s in found.slots if s.label} if found.layers is not None else {}
    claims = {slot: claim for slot, claim in claims.items() if claim}
    if not claims:
        return Finding(status=Status.SKIPPED, statement="The planes carry no labels that claim a layer.", required=False, **common)
    by_slot = {s.slot: s for s in found.slots}
    lies = [slot for slot, claim in claims.items() if _refuted(by_slot[slot], claim)]
    open_ = [slot for slot in claims if slot not in lies and by_slot[slot].equals is None]
    n = max((s.match.error.n if s.match else s.embedding.n) for s in found.slots)
    common |= {"observed": [str(s.equals) if s.equals else "unknown" for s in found.slots], "n": n,
                   "expected": [_claim_text(claims.get(s.slot)) for s in found.slots], "unit": "boundary of each slot"}
    if lies:
        return _labels_lie(found, lies, claims, manifest, common)
    if open_:
        return Finding(status=Status.INCONCLUSIVE if found.table else Status.SKIPPED,
                       statement=f"No label is refuted, but {len(open_)} of {len(claims)} could not be checked (slots {_list(open_)}).",
                       next_step=MAKE_BANK, **common)
    return Finding(status=Status.PASS, statement=f"All {len(claims)} labels agree with the tensors: "
                   + ", ".join(f"`{by_slot[slot].label}` is {by_slot[slot].equals}" for slot in claims) + ".",
                   refuted_by="a slot whose best match lies outside its label's claim", **common)


def _refuted(s: SlotIdentity, claim: frozenset[Boundary]) -> bool:
    if s.sure and s.boundary is not None:
        return s.boundary not in claim
    return claim == {Boundary(0)} and s.embedding.holds is False


def _labels_lie(found: Identification, lies: list[int], claims: dict[int, frozenset[Boundary]], manifest: str | None, common: dict) -> Finding:
    by_slot = {s.slot: s for s in found.slots}
    parts = [f"slot {slot}, called `{by_slot[slot].label}`, is {by_slot[slot].boundary.describe(found.layers)}" if by_slot[slot].boundary else
             f"slot {slot}, called `{by_slot[slot].label}`, is not the embedding" for slot in lies]
    embeddings = [by_slot[slot] for slot in lies if claims[slot] == {Boundary(0)} and by_slot[slot].embedding.holds is False]
    claimed = [min(claims[slot]).index for slot in lies]
    seen = [by_slot[slot].boundary.index if by_slot[slot].boundary else None for slot in lies]
    shift = uniform_shift(claimed, seen) if None not in seen and len(lies) > 1 else None
    if embeddings:
        e = embeddings[0]
        rejected = (f"the embedding test needs no layer convention: slot {e.slot}, called `{e.label}`, differs from embed_tokens[ids] by "
                    f"{e.embedding.value:.2f} of its size (limit {THRESHOLDS['embedding_error']}), whatever an engine counts")
        refuted = f"embed_tokens[input_ids] equal to slot {e.slot}, or the labels in another order than the planes"
    elif shift is not None:
        rejected = (f"not rejected: all false labels miss by {shift:+d}, as if the producer had captured other layers than it was told; "
                    "either way the boundary measured here holds")
        refuted = "the producer's code shows that its labels count layers in another way"
    else:
        rejected = f"no single offset turns the claims {claimed} into the measured {seen}"
        refuted = "one offset that explains all labels, or labels in another order than the planes"
    slug = "wiring.mislabelled-dump"
    labels = [boundary_label(s.equals) for s in found.slots] if all(s.equals for s in found.slots) else None
    edits = (Edit(file=manifest, key="planes", value=labels, applies_to="labels of the dump; the tensors stay as they are"),) if labels and manifest else ()
    margin = "; ".join(f"slot {slot}: error {by_slot[slot].error:.3f} to {by_slot[slot].boundary}" for slot in lies if by_slot[slot].boundary)
    return Finding(
        status=Status.FAIL, fault=slug, statement=f"{len(lies)} of {len(claims)} labels are false: " + "; ".join(parts) + ".",
        competitor=Competitor(fault="wiring.layer-offset", margin=margin or "the embedding is excluded", why_rejected=rejected),
        refuted_by=refuted, edits=edits,
        remedy="Relabel the planes from the fingerprint" + (f": {', '.join(labels)}" if labels else "") + ". Never change an engine's layer ids because of a label.",
        next_step="Compare the served boundaries (notebook 01) with the measured ones, not with the labels.", **common)


def norm_state_finding(found: Identification, expected: str | None = None, trainer: str | None = None, n_aux: int | None = None,
                       asked: int | None = None) -> Finding:
    """`layers.norm-state`: is the last plane before or after the final norm, and does the trainer expect that?"""
    if expected not in (None, "pre", "post"):
        raise ValueError(f"last_expected is {expected!r}; expected 'pre', 'post' or None")
    last = found.slots[-1]
    who = trainer or "the trainer"
    observed = _norm_state(last, expected)
    common: dict[str, Any] = {"id": "layers.norm-state", "notebook": NOTEBOOK, "question": "Is the last plane before or after the final norm, and does the trainer expect that?",
                                  "observed": observed, "expected": expected, "unit": "norm state of the last plane", "n": last.norm.n or None}
    if last.equals and not last.equals.normed and found.layers is not None and last.equals.index < found.layers:
        statement = f"The last plane, slot {last.slot}, is {last.equals.describe(found.layers)}: this dump has no last state"
        if expected is None:
            return Finding(status=Status.SKIPPED, statement=statement + ".", required=False, **common)
        if asked == len(found.slots) + 1 == (n_aux or 0) + 1:
            return Finding(
                status=Status.FAIL, fault="wiring.plane-count", statement=statement + f": {who} lists {asked} layers and takes the last as the teacher, the dump holds {len(found.slots)} planes.",
                competitor=Competitor(fault="wiring.mislabelled-dump", margin=f"{len(found.slots)} planes of {asked}", why_rejected="a name cannot change it: a plane is missing, and the last one is an inner state"),
                refuted_by="the trainer reads its teacher from elsewhere", remedy="Dump the last state too, or tell the trainer that the dump has none.", **common)
        if len(found.slots) == n_aux:
            return Finding(status=Status.INCONCLUSIVE, fault="wiring.plane-count", statement=statement + f"; fc reads all its {n_aux} planes, but {who} "
                           "takes the last plane of a dump as the teacher: a plane is missing, or the teacher was computed elsewhere.",
                           next_step="Look in the trainer for where its teacher comes from.", **common)
        if n_aux is None or len(found.slots) != n_aux + 1:
            return Finding(status=Status.INCONCLUSIVE, required=False, statement=statement + "; whether the trainer needs one there is not known.",
                           next_step="Add the drafter's config: the number of planes fc reads decides.", **common)
        return Finding(
            status=Status.FAIL, fault="wiring.plane-count", statement=statement + f", which {who} takes as the teacher and drops from the drafter's inputs.",
            competitor=Competitor(fault="wiring.mislabelled-dump", margin=f"relative error {last.error:.3f} to {last.equals}",
                                  why_rejected="a name cannot change it: the tensor is an inner state"),
            refuted_by="the trainer reads its teacher from elsewhere", remedy="Dump the last state too, or tell the trainer that the dump has none.", **common)
    if found.table and not last.sure:
        return Finding(status=Status.INCONCLUSIVE, required=expected is not None,
                       statement=f"The last plane is not identified, so its norm state proves little: {last.norm.text}.", next_step=MAKE_BANK, **common)
    if observed is None:
        normed = last.norm.holds is True
        return Finding(status=Status.INCONCLUSIVE if last.norm.n else Status.SKIPPED, required=expected is not None,
                       statement=f"The norm state of the last plane is not decided: {last.norm.text}" + (", whether once or twice, and over which state, that test cannot tell." if normed else "."),
                       next_step=MAKE_BANK if normed else "Give target.path with the weight of the final norm.", **common)
    is_text = {"pre": "before the final norm", "post": "after the final norm", "twice": "normed twice"}[observed]
    proof = last.norm.text if last.norm.value is not None else f"relative error {last.error:.3f} to {last.boundary}"
    if observed == "twice" or (expected and observed != expected):
        wrong = "post" if expected == "pre" else "pre"
        effect = (f"{who} applies the final norm itself, so its teacher logits come from a state normed twice" if observed != "twice" and wrong == "post" else
                  f"{who} applies no norm, so its teacher logits come from an un-normed state" if observed != "twice" else "the teacher logits come from a state normed twice")
        return Finding(
            status=Status.FAIL, fault="data.norm-twice", statement=f"The last plane is {is_text} ({proof}), but {effect}." if observed != "twice" else
            f"The last plane is {is_text}: {effect}.",
            competitor=Competitor(fault="feature.norm-state", margin=proof, why_rejected="the other planes classify as un-normed inner states; only the teacher's plane is concerned"),
            refuted_by=f"{who} in this version is shown to {'not norm' if expected == 'pre' else 'norm'} the last plane, or its teacher's argmax agrees with the next token in 90 % or more",
            remedy=fault_of("data.norm-twice").remedy, **common)
    tail = f", as {who} expects" if expected else ""
    return Finding(status=Status.PASS, statement=f"The last plane, slot {last.slot}, is {is_text}{tail}: {proof}.", required=expected is not None,
                   refuted_by="rms(x/w) of 1 per token where it is said to be un-normed, or the reverse", **common)


def _norm_state(s: SlotIdentity, expected: str | None) -> str | None:
    """Without identity and head the norm's weight only tells normed from un-normed; that it was normed once is not known, but enough against `pre`."""
    if s.state is State.NORMED_TWICE:
        return "twice"
    if s.equals:
        return "post" if s.equals.normed else "pre"
    if s.teacher and s.teacher.state:
        return s.teacher.state
    return "pre" if s.norm.holds is False else "post" if s.norm.holds and expected == "pre" else None


def _claim_text(claim: frozenset[Boundary] | None) -> str:
    return " or ".join(str(b) for b in sorted(claim)) if claim else "no claim"


def _list(items: Sequence[Any]) -> str:
    return ", ".join(str(i) for i in items)
