"""The steps of notebook 03 in order; a case without a dump is answered with one finding that says what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle_forensics.case import Capture, Case
from eagle_forensics.engines.layers import resolve_layers
from eagle_forensics.engines.returning import HOW_DECODE, HOW_EAGER
from eagle_forensics.evidence.records import ClaimedIds, EvidenceError, Sample
from eagle_forensics.finding import Evidence, Finding, Status
from eagle_forensics.fingerprint import capturing
from eagle_forensics.fingerprint.consistency import (
    graph_finding,
    paths_finding,
    rank_finding,
    rows_finding,
    unlike_ranks_finding,
)
from eagle_forensics.fingerprint.findings import dump_findings, slot_findings
from eagle_forensics.fingerprint.flaws import flaw_findings
from eagle_forensics.fingerprint.identify import Identification, identify
from eagle_forensics.fingerprint.pairs import pair
from eagle_forensics.fingerprint.placing import placed
from eagle_forensics.fingerprint.ranks import Agreement, RankResult, by_rank, compare_ranks
from eagle_forensics.fingerprint.rows import Weights
from eagle_forensics.fingerprint.sampling import sampling_finding
from eagle_forensics.fingerprint.served import served_finding
from eagle_forensics.fingerprint.sources import Captured, Sources, captures, gather
from eagle_forensics.fingerprint.trained import (
    NOTEBOOK,
    Rule,
    aux_slots,
    capture_finding,
    record,
    trained_boundaries,
)

QUESTION = "Can the dump's tensors be identified?"


@dataclass(frozen=True)
class Work:
    """A dump opened and identified; both None with the reason in `opening`."""

    case: Case
    sources: Sources | None
    found: Identification | None
    layers: Mapping[str, Any] | None
    """Record of notebook 01."""
    opening: tuple[Finding, ...]

    @cached_property
    def captures(self) -> list[Captured]:
        """Captures of the serving host, read once; rows behind a prefix cache in their place."""
        found = captures(self.case, self.sources.target.hidden if self.sources and self.sources.target else None)
        if self.sources is None:
            return found
        return [(path, kind, label, held if isinstance(held, EvidenceError) or all(s.input_ids is not None or s.prompt_ids is None for s in held)
                 else placed(held, _bank_for(self, held), self.sources.weights or Weights(), self.sources.layers)) for path, kind, label, held in found]

    @cached_property
    def ranks(self) -> list[tuple[str, tuple[RankResult, ...] | EvidenceError]]:
        """Of every execution path that at least two ranks recorded: one result a slot, or why they cannot be laid side by side."""
        return _ranks(self) if self.sources else []


def begin(case: Case, *, layers: Mapping[str, Any] | None, max_samples: int, seed: int, progress: Callable[[str], None] | None = None) -> Work:
    """Read as many samples as it takes, at most `max_samples`, and identify every slot. Bad evidence becomes an opening finding."""
    common = {"id": "layers.evidence", "question": QUESTION, "notebook": NOTEBOOK}
    if not case.training.dumps:
        return Work(case, None, None, layers, (Finding(
            **common, status=Status.SKIPPED, statement="Not examined: the case has no training.dump, so the sections below stay empty",
            next_step="Add the dump (200 samples are plenty); it decides which states the drafter was really trained on."),))
    try:
        sources = gather(case, max_samples=max_samples, seed=seed, progress=progress)
        found = identify(sources.rows, bank=sources.bank, weights=sources.weights, layers=sources.layers)
    except (EvidenceError, OSError, ValueError) as error:
        return Work(case, None, None, layers, (Finding(
            **common, status=Status.ERROR, statement=" ".join(str(error).split()), next_step="Correct the evidence named here, then run again."),))
    told = list(sources.problems[:5])
    if rest := len(sources.problems) - len(told):
        told.append(f"{rest} more could not be read; the table above names them.")
    broken = tuple(Finding(id=f"layers.unreadable-{i}", question="Can every sample be read?", status=Status.INCONCLUSIVE, required=False, notebook=NOTEBOOK,
                           statement=text) for i, text in enumerate(told))
    return Work(case, sources, found, layers, (*broken, sampling_finding(sources.sampling, NOTEBOOK, tuple(str(s.equals) if s.equals else None for s in found.slots))))


def captured(work: Work, run_dir: Path, *, wanted: bool) -> tuple[Work, list[Finding]]:
    """With `wanted`, ask the case's live server for the states of the dump's own prompts and add them to the captures of the case.

    What is missing for it, or what the server refused, is a finding.
    """
    if not wanted or work.sources is None:
        return work, []
    common = {"id": "layers.live", "question": "Which states does the live server hand out?", "notebook": NOTEBOOK, "required": False}
    url, prompts = work.case.serving.url, [text.tolist() for text in work.sources.rows.texts[:4]]
    if url is None or not prompts:
        return work, [Finding(**common, status=Status.SKIPPED, statement="Not captured: " + ("the case has no serving.url" if url is None else "the dump has no token ids to ask for"),
                              next_step="Name the live server in serving.url." if url is None else "Run `eagle-forensics capture` with prompts of your own and name its folder under `captures`.")]
    folder, widths = run_dir / "evidence" / "03_capture", set(work.sources.info.widths)
    hidden = work.sources.target.hidden if work.sources.target else widths.pop() if len(widths) == 1 else None
    try:
        done = capturing.capture(str(url), folder, prompts=prompts, hidden=hidden,
                                 ids=capturing.drafter_ids(work.case.drafter.path if work.case.drafter else None))
    except (EvidenceError, OSError) as error:
        return work, [Finding(**common, status=Status.INCONCLUSIVE, statement=f"Nothing captured: {error}", next_step="Start the server as written, then run again.")]
    case = work.case.model_copy(update={"captures": (*work.case.captures, Capture(path=folder, path_kind="eager", label="live"))})
    return replace(work, case=case), [Finding(**common, status=Status.PASS, n=done.tokens, unit="tokens", statement=". ".join([f"Captured from {done.what}", *done.asked.notes, HOW_EAGER]),
                                              next_step=HOW_DECODE, evidence=(Evidence(note="states and their provenance", path="evidence/03_capture/manifest.json"),))]


def slots(work: Work) -> list[Finding]:
    """One sentence a slot."""
    return slot_findings(work.found) if work.found else []


def dump(work: Work) -> list[Finding]:
    """Labels, embedding, norm state, trained boundaries: everything about the dump but the slots themselves."""
    if work.found is None:
        return []
    layers, trainer = work.layers or {}, work.case.training.trainer
    items = dump_findings(work.found, manifest=work.sources.manifest(work.case), claimed=layers.get("trained_by_ids"),
                          last_expected=layers.get("last_expected"), n_aux=layers.get("n_aux"),
                          asked=len(work.case.training.layer_ids or ()) or None, trainer=f"{trainer.name} {trainer.version or ''}".strip() if trainer else None)
    return [rows_finding(work.found), *(f for f in items if not f.id.startswith("layers.slot-"))]


def served(work: Work) -> list[Finding]:
    """The measured boundaries against the engine's rule, and against captures of the serving host."""
    if work.found is None:
        return []
    items, trained = [served_finding(work.found, work.layers, work.case, work.sources.target)], trained_boundaries(work.found)
    seen = [_looked_at(work, index) for index in range(len(work.captures))]
    fed = {kind: found.found for (_, kind, _, _), found in reversed(list(zip(work.captures, seen, strict=True))) if isinstance(found, _Capture)}
    eager_right = trained_boundaries(fed["eager"]) == trained if "eager" in fed and trained is not None else None
    rule = _rule(work)
    scattered = {kind for kind, results in work.ranks if not isinstance(results, EvidenceError) and any(r.agreement is Agreement.TOKENS for r in results)}
    for index, ((_, kind, label, _), found) in enumerate(zip(work.captures, seen, strict=True)):
        if isinstance(found, Finding):
            items.append(found)
            continue
        items.append(capture_finding(index, found.found, trained, path_kind=kind, label=label, rule=rule, eager_right=eager_right))
        if found.found.notes:
            items[-1] = items[-1].model_copy(update={"statement": f"{items[-1].statement} Note: {'; '.join(found.found.notes[:2])}."})
        if items[-1].status is Status.INCONCLUSIVE:
            items += _against_dump(work, index, found.samples)
        items += flaw_findings(index, found.found, found.samples, work.found, trained, scattered=kind in scattered)
    return [*items, *rank_findings(work), *path_findings(work, fed.get("eager"), fed.get("graph"), trained), *engine_findings(work)]


@dataclass(frozen=True)
class _Capture:
    """One capture identified; of several ranks the lowest."""

    samples: tuple[Sample, ...]
    found: Identification


def _looked_at(work: Work, index: int) -> _Capture | Finding:
    path, _, _, samples = work.captures[index]
    common = {"id": f"layers.capture-{index}", "question": f"Which states does {path.name} hold?", "notebook": NOTEBOOK, "status": Status.ERROR}
    if isinstance(samples, EvidenceError):
        return Finding(**common, statement=str(samples))
    lowest = min((s.rank for s in samples if s.rank is not None), default=None)
    one = tuple(s for s in samples if s.rank == lowest) if lowest is not None else samples
    try:
        return _Capture(one, identify(one, bank=_bank_for(work, one), weights=work.sources.weights, layers=work.sources.layers))
    except (EvidenceError, OSError, ValueError) as error:
        return Finding(**common, statement=str(error))


def _rule(work: Work) -> Rule | None:
    """What the configured ids and no ids at all mean on this release; None where its rule is assumed or not known."""
    answer, target, serving = (work.layers or {}).get("served") or {}, work.sources.target, work.case.serving
    ids = (answer.get("boundaries") or {}).get("eager")
    if not ids or answer.get("assumed") or target is None:
        return None
    default = resolve_layers(serving.engine, serving.version, model_type=target.model_type, layers=target.layers, claimed=ClaimedIds(), runner=answer.get("runner"),
                             architecture=target.architectures[0] if target.architectures else None).boundaries.get("eager")
    return Rule(tuple(ids), tuple(default or ()))


def _against_dump(work: Work, index: int, samples: Sequence[Sample]) -> list[Finding]:
    """A capture of the dump's own prompts held against the dump where no bank decides: which of its slots are served?"""
    try:
        return [paths_finding(pair(samples, work.sources.rows.openings(len(aux_slots(work.found)))), f"layers.capture-{index}-dump", f"capture {index}", "the dump")]
    except EvidenceError:
        return []


def rank_findings(work: Work) -> list[Finding]:
    """The ranks of every execution path side by side, where at least two recorded; an error says why they cannot be."""
    findings = []
    for index, (kind, results) in enumerate(work.ranks):
        id, name = f"layers.ranks-{index}", f"the {kind} captures" if kind != "unknown" else "the captures"
        findings.append(unlike_ranks_finding(results, id, name) if isinstance(results, EvidenceError) else rank_finding(results, id, name))
    return findings


def _ranks(work: Work) -> list[tuple[str, tuple[RankResult, ...] | EvidenceError]]:
    found: list[tuple[str, tuple[RankResult, ...] | EvidenceError]] = []
    for kind in dict.fromkeys(kind for _, kind, _, _ in work.captures):
        samples = [s for _, k, _, held in work.captures if k == kind and not isinstance(held, EvidenceError) for s in held]
        if len({s.rank for s in samples} - {None}) < 2:
            continue
        try:
            ranks = by_rank(samples)
            found.append((kind, compare_ranks(ranks, bank=_bank_for(work, ranks[min(ranks)]), weights=work.sources.weights, layers=work.sources.layers)))
        except (EvidenceError, OSError) as error:
            found.append((kind, error if isinstance(error, EvidenceError) else EvidenceError(str(error))))
    return found


def path_findings(work: Work, eager: Identification | None = None, graph: Identification | None = None, trained: Sequence[int] | None = None) -> list[Finding]:
    """Eager against graph captures of the same prompt, where the case has both. `eager`, `graph`: what was identified in them; `trained`: boundaries of the dump."""
    by_kind = {kind: held for _, kind, _, held in reversed(work.captures) if not isinstance(held, EvidenceError)}
    if not {"eager", "graph"} <= set(by_kind):
        return []
    try:
        pairing = pair(by_kind["eager"], by_kind["graph"])
    except EvidenceError as error:
        return [Finding(id="layers.paths", question="Do the eager and the graph capture hold the same states for the same tokens?", notebook=NOTEBOOK, required=False,
                        status=Status.SKIPPED, statement=f"Not compared: {error}", next_step="Capture one prompt on both paths, with its token ids.")]
    return [graph_finding(pairing, eager, graph, trained=trained, rule=_rule(work) if work.sources else None)]


def engine_findings(work: Work) -> list[Finding]:
    """The captures of two engines for the same tokens, slot by slot, where the case has them; needs no bank."""
    by_engine: dict[str, tuple[Sample, ...]] = {}
    for capture, (_, _, _, held) in zip(work.case.captures, work.captures, strict=True):
        if not isinstance(held, EvidenceError):
            by_engine.setdefault(capture.engine or next((s.provenance.engine for s in held if s.provenance.engine), ""), held)
    by_engine.pop("", None)
    found, engines = [], list(by_engine)
    for index, name in enumerate(engines[1:]):
        try:
            found.append(paths_finding(pair(by_engine[engines[0]], by_engine[name]), f"layers.engines-{index}", f"{engines[0]}'s capture", f"{name}'s capture"))
        except EvidenceError:  # other prompts: nothing to lay side by side
            continue
    return found


def trained_record(work: Work) -> dict[str, Any]:
    """What notebook 02, the diagnosis and the comparison read."""
    return record(work.found) if work.found else {}


def _bank_for(work: Work, samples: Any) -> Any:
    from eagle_forensics.boundary import Boundary
    from eagle_forensics.evidence.states import fits, target_states

    target = work.sources.target
    texts = [s.input_ids if s.prompt_ids is None else s.prompt_ids for s in samples]
    if target is None or fits(target) is not None or any(text is None for text in texts):
        return work.sources.bank
    every = [*(Boundary(i) for i in range(target.layers + 1)), Boundary(target.layers, normed=True)]
    return target_states(target, [text.tolist() for text in texts], every)
