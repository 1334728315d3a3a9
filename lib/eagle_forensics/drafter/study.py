"""The steps of notebook 02 in order. Each takes the Work opened at the start and returns findings or something to show.

A case without drafter, dump or states is normal: every step then answers with nothing, and one finding says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.case import Case
from eagle_forensics.drafter import figures, findings, sets
from eagle_forensics.drafter.battery import WiringResult, run_battery
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.frames import prediction_record
from eagle_forensics.drafter.recorded import ZERO
from eagle_forensics.drafter.sets import Compared
from eagle_forensics.drafter.wiring import standard_battery
from eagle_forensics.drafter.workbench import Lacking, Workbench, open_workbench
from eagle_forensics.engines.remedy import serve_boundaries
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, Status

QUESTION = "Can the drafter be run on recorded states?"
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
    runner: str | None
    claimed: tuple[int, ...] | None
    """Boundaries that the trainer's ids mean (notebook 01)."""
    opening: tuple[Finding, ...]


def begin(case: Case, *, layers: Mapping[str, Any] | None, steps: int, max_samples: int | None, seed: int,
          progress: Callable[[str], None] | None = None) -> Work:
    """Open the case. `layers`: the record of notebook 01, None if it did not run. Bad evidence becomes an opening finding."""
    answer = (layers or {}).get("served") or {}
    eager = (answer.get("boundaries") or {}).get("eager")
    served = tuple(eager) if eager else None
    claimed = (layers or {}).get("trained_by_ids")
    claimed = tuple(claimed) if claimed else None
    common = {"id": "drafter.evidence", "question": QUESTION, "notebook": findings.NOTEBOOK}
    bench, opening = None, ()
    if case.drafter is None or not case.training.dumps:
        missing = [key for key, there in (("drafter.path", case.drafter), ("training.dump", case.training.dumps)) if not there]
        opening = (Finding(**common, status=Status.SKIPPED, statement=f"Not examined: the case has no {' and no '.join(missing)}",
                           next_step="Add it; it decides whether the drafter is weak or badly fed, and predicts the accept length."),)
    else:
        try:
            if not 1 <= steps <= MOST_STEPS or (max_samples or 1) < 1:
                raise ValueError(f"steps={steps}, max_samples={max_samples or 0}: expected 1 to {MOST_STEPS} steps and 0 (all) or more samples")
            bench = open_workbench(case, served=served, claimed=claimed, max_samples=max_samples, seed=seed, progress=progress)
        except Lacking as error:
            opening = (Finding(**common, status=Status.SKIPPED, statement=f"Not examined: {' '.join(str(error).split())}",
                               next_step="Add what is missing; it decides whether the drafter is weak or badly fed."),)
        except (EvidenceError, OSError, ValueError) as error:
            opening = (Finding(**common, status=Status.ERROR, statement=" ".join(str(error).split()),
                               next_step="Correct the evidence named here, then run again."),)
    return Work(case, bench, steps, served, answer.get("runner"), claimed, opening)


def accuracy(work: Work, results: Sequence[WiringResult]) -> list[Finding]:
    """Is the drafter better with the dump's states than without any, and as good as its trainer logged?"""
    if work.bench is None:
        return []
    trained = next((r for r in results if r.wiring.name == "trained"), None)
    control = next((r for r in results if set(r.wiring.planes) == {ZERO}), None)
    trainer = work.case.training.trainer
    return [findings.accuracy_finding(trained, control, work.bench.problems),
            findings.metric_finding(work.case.training.metrics, trained.correctness if trained else None, trainer=trainer.name if trainer else None)]


def battery(work: Work) -> list[WiringResult]:
    """Every wiring of the dump's planes worth trying, best first; empty without a bench."""
    if work.bench is None:
        return []
    wirings = standard_battery(work.bench.drafter, work.bench.trained.planes, work.bench.slots)
    return run_battery(work.bench.drafter, work.bench.sequences, wirings, work.steps, keep=[wirings[0]])


def wiring(work: Work, results: Sequence[WiringResult]) -> list[Finding]:
    """Is the wiring that the trainer uses the one this drafter fits best?"""
    return [findings.wiring_finding(results, contract=_contract(work))] if work.bench else []


def boundary_sets(work: Work) -> Compared | None:
    """The drafter on the target's own states; None where they are not at hand."""
    return sets.compare_sets(work.bench, work.steps, work.served) if work.bench else None


def curves(work: Work, compared: Compared | None) -> dict[str, Correctness]:
    """Accuracy by step of the feeds worth a look: the dump, the served states, the best rival set."""
    if compared is None:
        return {}
    shown = {"dump" + (f" = {format_boundaries(compared.trained)}" if compared.trained else ""): compared.dump}
    if compared.served is not None and work.served != compared.trained:
        shown[f"served {format_boundaries(work.served)}"] = compared.served
    rivals = {k: r for k, r in compared.by_set.items() if r.complete and k != compared.trained and r.correctness is not compared.served}
    if rivals:
        best = max(rivals, key=lambda k: rivals[k].accuracy[0].value)
        shown[f"rival {format_boundaries(best)}"] = rivals[best].correctness
    return shown


def served(work: Work, compared: Compared | None) -> list[Finding]:
    """What the served states cost, with the list to write instead."""
    if work.bench is None:
        return []
    control = compared.by_set[compared.trained].correctness if compared and compared.trained else None
    fix = serve_boundaries(work.case, work.bench.target, compared.trained, work.runner) if compared and compared.trained and work.bench.target else None
    return [findings.served_finding(
        compared.dump if compared else None, compared.served if compared else None, trained_boundaries=compared.trained if compared else None,
        served_boundaries=work.served, control=control, edits=fix.edits if fix else (), remedy=fix.text if fix else None)]


def prediction(work: Work, trained: Correctness | None, compared: Compared | None) -> list[Finding]:
    """The accept length to expect live."""
    return [findings.prediction_finding(trained, compared.served if compared else None, steps=work.steps)] if work.bench else []


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


def record(work: Work, results: Sequence[WiringResult], compared: Compared | None) -> dict[str, Any]:
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
    served_name = names.get(tuple(sorted(work.served))) if compared and compared.served is not None else None
    body = prediction_record(trained, wirings, compared.served if compared else None, served_name)
    return body | {"trained_boundaries": list(compared.trained) if compared and compared.trained else None,
                   "served_boundaries": list(work.served) if work.served else None}


def _contract(work: Work) -> str | None:
    """What is known of the planes that the trainer feeds; None for a trainer without rules, or a dump with more planes than fc reads and a teacher's."""
    trainer, bench = work.case.training.trainer, work.bench
    if bench is None or trainer is None or trainer.name == "other" or len(bench.slots) > bench.drafter.n_aux + 1:
        return None
    return f"{trainer.name} {trainer.version or ''}".strip() + " concatenates the planes in file order and keeps the last for the teacher"


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
