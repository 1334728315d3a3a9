"""The steps of notebook 02 in order. Each takes the Work opened at the start and returns findings or something to show.

A case without drafter, dump or states is normal: every step then answers with nothing, and one finding says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.case import Case
from eagle_forensics.drafter import figures, findings
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.frames import prediction_record
from eagle_forensics.drafter.metric import MetricComparison, compare_metrics
from eagle_forensics.drafter.prediction.study import OwnChoices
from eagle_forensics.drafter.printed_rates import printed_finding
from eagle_forensics.drafter.recorded import ZERO
from eagle_forensics.drafter.served.states import served_finding
from eagle_forensics.drafter.wirings import sets
from eagle_forensics.drafter.wirings.battery import WiringResult, investigate
from eagle_forensics.drafter.wirings.candidates import flag_sets
from eagle_forensics.drafter.wirings.contract import boundaries_finding, wiring_findings
from eagle_forensics.drafter.wirings.search import Searched, boundaries_of, search_boundaries
from eagle_forensics.drafter.wirings.sets import Compared
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate_all
from eagle_forensics.drafter.wording import NOTEBOOK
from eagle_forensics.drafter.workbench import Lacking, Workbench, mapped, open_workbench
from eagle_forensics.engines.remedy import serve_boundaries
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, Status

QUESTION = "Can the drafter be run on recorded states?"
USUAL_RANKS = (2, 8)
"""Tensor-parallel ranks whose slices are tried where the case does not say."""
MOST_STEPS = 32
"""Draft steps worth unrolling: twice what any server in the evidence drafts; the work grows with their square."""


@dataclass(frozen=True)
class Work:
    """A case opened for the standalone test; `bench` is None with the reason in `opening`."""

    case: Case
    bench: Workbench | None
    steps: int
    served: tuple[int, ...] | None
    """Boundaries the engine captures (notebook 01), eager path."""
    graph: tuple[int, ...] | None
    """Boundaries its CUDA graph replays capture, where they are others than the eager path's."""
    runner: str | None
    claimed: tuple[int, ...] | None
    """Boundaries that the trainer's ids mean (notebook 01)."""
    opening: tuple[Finding, ...]


def begin(case: Case, *, layers: Mapping[str, Any] | None, steps: int, max_samples: int | None, seed: int,
          progress: Callable[[str], None] | None = None) -> Work:
    """Open the case. `layers`: the record of notebook 01, None if it did not run. Bad evidence becomes an opening finding."""
    answer = (layers or {}).get("served") or {}
    paths = answer.get("boundaries") or {}
    served, graph = (tuple(found) if (found := paths.get(path)) else None for path in ("eager", "graph"))
    graph = None if graph == served else graph
    claimed = (layers or {}).get("trained_by_ids")
    claimed = tuple(claimed) if claimed else None
    common = {"id": "drafter.evidence", "question": QUESTION, "notebook": NOTEBOOK}
    bench, opening = None, ()
    if case.drafter is None or not case.training.dumps:
        missing = [key for key, there in (("drafter.path", case.drafter), ("training.dump", case.training.dumps)) if not there]
        opening = (Finding(**common, status=Status.SKIPPED, statement=f"Not examined: the case has no {' and no '.join(missing)}",
                           next_step="Add it; it decides whether the drafter is weak or badly fed, and predicts the accept length."),)
    else:
        try:
            if not 1 <= steps <= MOST_STEPS or (max_samples or 1) < 1:
                raise ValueError(f"steps={steps}, max_samples={max_samples or 0}: expected 1 to {MOST_STEPS} steps and 0 (all) or more samples")
            bench = open_workbench(case, served=served, graph=graph, claimed=claimed, max_samples=max_samples, seed=seed, progress=progress)
        except Lacking as error:
            opening = (Finding(**common, status=Status.SKIPPED, statement=f"Not examined: {' '.join(str(error).split())}",
                               next_step="Add what is missing; it decides whether the drafter is weak or badly fed."),)
        except (EvidenceError, OSError, ValueError) as error:
            opening = (Finding(**common, status=Status.ERROR, statement=" ".join(str(error).split()),
                               next_step="Correct the evidence named here, then run again."),)
    return Work(case, bench, steps, served, graph, answer.get("runner"), claimed, opening)


def accuracy(work: Work, results: Sequence[WiringResult], own: OwnChoices) -> list[Finding]:
    """Is the drafter better with the dump's states than without any, as good as its trainer logged, and are the logged figures of one kind?"""
    printed = printed_finding(work.case.training.metrics, trainer=_trainer(work))
    if work.bench is None:
        return [printed] if printed else []
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    control = next((r for r in results if set(r.wiring.planes) == {ZERO}), None)
    return [findings.accuracy_finding(trained, control, work.bench.problems),
            findings.metric_finding(work.case.training.metrics, trained.correctness if trained else None, trainer=_trainer(work), teacher=own.teacher,
                                    clean=trained is not None and next((r for r in results if not r.wiring.leaks), None) is trained),
            *([printed] if printed else [])]


def metrics(work: Work, trained: Correctness | None, own: OwnChoices) -> list[MetricComparison]:
    """Every logged metric that can be recomputed, under every definition."""
    return compare_metrics(work.case.training.metrics, trained, trainer=_trainer(work), teacher=own.teacher)


def battery(work: Work, progress: Callable[[str], None] | None = None) -> list[WiringResult]:
    """Every wiring of the dump's planes worth trying, best first; empty without a bench."""
    if (bench := work.bench) is None:
        return []

    def settled(trained: WiringResult) -> bool:
        """The contract gives at least the accuracy that the training logged: nothing is left for a second fault to explain."""
        found = compare_metrics(work.case.training.metrics, trained.correctness, trainer=_trainer(work))
        return bool(found) and all(c.agrees or c.logged < c.recomputed.value for c in found)

    return investigate(bench.drafter, bench.sequences, bench.trained.planes, bench.slots, work.steps, extra=bench.extra, norm=bench.norm, rope=bench.rope,
                       settled=settled, progress=progress)


def wiring(work: Work, results: Sequence[WiringResult]) -> list[Finding]:
    """Is the wiring that the trainer uses the one this drafter fits best?"""
    return list(wiring_findings(results, contract=_contract(work), recorded=work.bench.slots)) if work.bench else []


def boundary_sets(work: Work, results: Sequence[WiringResult]) -> Compared | None:
    """The drafter on the target's own states, beside the dump in the order that fits best; None where they are not at hand."""
    return sets.compare_sets(work.bench, work.steps, work.served, work.graph, _best_order(results)) if work.bench else None


def search(work: Work, results: Sequence[WiringResult], compared: Compared | None, progress: Callable[[str], None] | None = None) -> Searched | None:
    """Every boundary of the target in every block of fc; None without its states on two texts at least."""
    if (bench := work.bench) is None:
        return None
    sequences, boundaries = mapped(work.case, bench, progress)
    if len(sequences) < 2:
        return None
    best = next((r.wiring for r in results if not r.wiring.leaks), bench.trained)
    start = compared.trained if compared and compared.trained and set(compared.trained) <= set(boundaries) else None
    known = [ids for ids in (work.claimed, work.served) if ids and len(set(ids)) == bench.drafter.n_aux]
    return search_boundaries(bench.drafter, sequences, boundaries, work.steps, like=replace(best, token_shift=1, hidden_shift=0), start=start, known=known, norm=bench.norm,
                             progress=progress)


def boundaries(work: Work, searched: Searched | None, compared: Compared | None) -> list[Finding]:
    """Do the states of the dump fit the drafter as well as any of the target's?"""
    return [boundaries_finding(searched, compared.trained if compared else None)] if work.bench else []


def dump_rows(searched: Searched | None, compared: Compared | None) -> list[bool] | None:
    """Which results of the search are the boundaries of the dump."""
    return [boundaries_of(r.wiring) == (compared.trained if compared else None) for r in searched.results] if searched else None


def damage(work: Work, compared: Compared | None) -> dict[str, Correctness]:
    """What damaged states would cost: predictions for the live accept length to be held against; empty without the target's own states."""
    ids = (compared.trained if compared else None) or work.claimed
    if work.bench is None or not ids or not work.bench.holds(ids):
        return {}
    hardware = work.case.serving.hardware
    return sets.damaged(work.bench, work.steps, ids, (hardware.count,) if hardware and (hardware.count or 0) > 1 else USUAL_RANKS)


def curves(work: Work, compared: Compared | None) -> dict[str, Correctness]:
    """Accuracy by step of the feeds worth a look: the dump, the served states, the best rival set."""
    if compared is None:
        return {}
    shown = {"dump" + (f" = {format_boundaries(compared.trained)}" if compared.trained else ""): compared.dump}
    if compared.served is not None and work.served != compared.trained:
        shown[f"served {format_boundaries(work.served)}"] = compared.served
    if compared.decode is not None:
        shown[f"CUDA graph {format_boundaries(work.graph)}"] = compared.decode
    rivals = {k: r for k, r in compared.by_set.items() if r.complete and k != compared.trained and r.correctness is not compared.served}
    if rivals:
        best = max(rivals, key=lambda k: rivals[k].accuracy[0].value)
        shown[f"rival {format_boundaries(best)}"] = rivals[best].correctness
    return shown


def flag_curves(work: Work, results: Sequence[WiringResult]) -> dict[str, Correctness]:
    """Accuracy by step under every combination of head flags the weights allow, the best wiring otherwise unchanged."""
    if work.bench is None or not results:
        return {}
    best = next(r for r in results if not r.wiring.leaks).wiring
    every = {"as the checkpoint says": None} | {", ".join(f"{k} {'on' if v else 'off'}" for k, v in vars(f).items() if v is not None): f for f in flag_sets(work.bench.drafter)}
    found = evaluate_all(work.bench.drafter, sets.spread(work.bench.sequences), [replace(best, flags=f) for f in every.values()], work.steps, norm=work.bench.norm)
    return dict(zip(every, found, strict=True))


def served(work: Work, compared: Compared | None) -> list[Finding]:
    """What the served states cost, with the list to write instead."""
    if work.bench is None:
        return []
    found = compared.by_set[compared.trained] if compared and compared.trained else None
    control = found.correctness if found and found.complete else None
    fix = serve_boundaries(work.case, work.bench.target, compared.trained, work.runner) if compared and _ascending(compared.trained) and work.bench.target else None
    common = {"trained_boundaries": compared.trained if compared else None, "control": control, "edits": fix.edits if fix else (), "remedy": fix.text if fix else None}
    paths = [served_finding(compared.dump if compared else None, compared.served if compared else None, served_boundaries=work.served, **common)]
    if compared and compared.decode is not None:
        paths.append(served_finding(compared.dump, compared.decode, served_boundaries=work.graph, decode=True, **common))
    return paths


def prediction(work: Work, trained: Correctness | None, compared: Compared | None) -> list[Finding]:
    """The accept length to expect live."""
    return [findings.prediction_finding(trained, live(compared), steps=work.steps)] if work.bench else []


def live(compared: Compared | None) -> Correctness | None:
    """What a server would feed in decode: the states of its CUDA graph replays where they differ from the eager path's."""
    return None if compared is None else compared.decode or compared.served


def trained_correctness(results: Sequence[WiringResult]) -> Correctness | None:
    """Correctness of the dump's wiring on all sequences."""
    return next((r.correctness for r in results if r.wiring.name == "trained"), None)


def text_views(work: Work, trained: Correctness | None, compared: Compared | None) -> str | None:
    """One recorded text round by round, under the trained and the served states; None without a tokenizer."""
    decode = _decoder(work)
    if trained is None or decode is None:
        return None
    longest = max(range(len(trained.sequences)), key=lambda i: trained.sequences[i].n)
    parts = [("with the states of the dump", trained)]
    if compared and compared.served is not None and len(compared.served.sequences) == len(trained.sequences):
        parts.append((f"with the served states {format_boundaries(work.served)}", compared.served))
    return "".join(f"<h4>{title}</h4>{figures.text_view(c.sequences[longest], decode, work.steps)}" for title, c in parts)


def record(work: Work, results: Sequence[WiringResult], compared: Compared | None, damaged: Mapping[str, Correctness]) -> dict[str, Any]:
    """What notebook 04 and the diagnosis read; empty without a bench."""
    trained = trained_correctness(results)
    if work.bench is None or trained is None:
        return {}
    wirings = {r.label: r.correctness for r in results if r.complete and r.wiring.name != "trained" and not r.wiring.leaks}
    names = {}
    for ids, result in (compared.by_set if compared else {}).items():
        names[ids] = "trained" if ids == compared.trained else result.label
        if ids != compared.trained and result.complete:
            wirings[names[ids]] = result.correctness
    wirings |= {f"trained states {form}": c for form, c in damaged.items() if form != sets.UNDAMAGED}
    served_name = names.get(tuple(sorted(work.served))) if compared and compared.served is not None else None
    if compared and compared.decode is not None:
        served_name = f"CUDA graph {format_boundaries(work.graph)}"
        wirings[served_name] = compared.decode
    body = prediction_record(trained, wirings, live(compared), served_name)
    return body | {"trained_boundaries": list(compared.trained) if compared and compared.trained else None,
                   "served_boundaries": list(work.served) if work.served else None}


def _trainer(work: Work) -> str | None:
    trainer = work.case.training.trainer
    return trainer.name if trainer else None


def _best_order(results: Sequence[WiringResult]) -> Wiring | None:
    """The order of the dump's planes that fits best, if it is clearly another than the contract's."""
    best = next((r for r in results if not r.wiring.leaks), None)
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    if best is None or trained is None or trained.difference.high >= 0 or best.wiring.states == trained.wiring.states or ZERO in best.wiring.states:
        return None
    return Wiring(best.wiring.states, name="best order")


def _ascending(boundaries: Sequence[int] | None) -> bool:
    return bool(boundaries) and list(boundaries) == sorted(boundaries)


def _contract(work: Work) -> str | None:
    """What is known of the planes that the trainer feeds; None for a trainer without rules, or a dump with more planes than fc reads and a teacher's."""
    trainer, bench = work.case.training.trainer, work.bench
    if bench is None or trainer is None or trainer.name == "other" or len(bench.slots) > bench.drafter.n_aux + 1:
        return None
    kept = " and keeps the last for the teacher" if len(bench.slots) > bench.drafter.n_aux else ""
    return f"{trainer.name} {trainer.version or ''}".strip() + " concatenates the planes in file order" + kept


def _decoder(work: Work) -> Callable[[int], str] | None:
    file = Path(work.bench.target.path) / "tokenizer.json" if work.bench and work.bench.target else None
    if file is None or not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises bare Exception for a file it cannot read; the view is an extra
        return None
    size = tokenizer.get_vocab_size()
    return lambda token: tokenizer.decode([token], skip_special_tokens=False) if 0 <= token < size else f"[no token {token}]"
