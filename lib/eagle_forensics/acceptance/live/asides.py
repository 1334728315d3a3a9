"""What a live measurement asks beside its main prompts: the same prompts under a grammar and free, and the same prompts at several lengths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.live import workload
from eagle_forensics.acceptance.live.measure import LOOK, Measurement
from eagle_forensics.acceptance.live.padding import padded
from eagle_forensics.acceptance.live.splits import (
    ACCUSING,
    SAME_ROUNDS,
    common,
    paired_answers,
    same_answers,
    signed,
)
from eagle_forensics.acceptance.live.workload import Workload
from eagle_forensics.acceptance.words import plural
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


@dataclass(frozen=True)
class Asides:
    """Measurements of the server with speculation, at the first setting."""

    free: Measurement | None = None
    constrained: Measurement | None = None
    """The same prompts as `free`, each answer under its grammar."""
    lengths: tuple[Measurement, ...] = ()
    """The same prompts padded, shortest first."""


@dataclass(frozen=True)
class Plan:
    """What is asked, rendered before any server is."""

    structured: Workload | None = None
    """Prompts with a constraint each."""
    lengths: tuple[Workload, ...] = ()


def plan(work: Workload, tokenizer: object, *, structured: bool, lengths: Sequence[int]) -> Plan:
    """The workload's own constrained prompts, else the built-in ones; the workload's prompts at each length. ValueError for lengths that cannot be had."""
    own = [p for p in work.prompts if p.constraint]
    bound = (work.of(own, f"{work.name}, constrained") if own else workload.render(workload.read_prompts(workload.STRUCTURED), tokenizer, name="built-in, constrained")) if structured else None
    grid = sorted(set(lengths))
    if grid and (len(grid) < 2 or grid[0] < 1 or grid[-1] > workload.MOST_TOKENS):
        raise ValueError(f"prompt lengths {list(lengths)}: expected at least two, in tokens, up to {workload.MOST_TOKENS}")
    first = padded(work, grid[0], LOOK) if grid else None
    return Plan(bound, tuple(padded(work, n, LOOK) for n in grid) if first else ())


async def ask(plan: Plan, at: Callable[[Workload, str], Awaitable[Measurement]]) -> Asides:
    """All of the plan, one measurement after the other. `at` measures the server with speculation on a workload and keeps its answers under a name."""
    free = constrained = None
    if plan.structured is not None:
        free = await at(plan.structured.of([p.free for p in plan.structured.prompts], f"{plan.structured.name}, asked freely"), "_free")
        constrained = await at(plan.structured, "_constrained")
    return Asides(free, constrained, tuple([await at(w, f"_length-{len(w.prompts[0].ids)}") for w in plan.lengths]))


def structured(found: Asides) -> Finding | None:
    """Does a grammar on the answer cost acceptance? None where it was not asked."""
    free, bound = found.free, found.constrained
    if free is None or bound is None:
        return None
    fields = common("acceptance.split-grammar", "Does a grammar on the answer (JSON schema, regex) cost acceptance?")
    failed = [a for a in bound.answers if not a.ok]
    other = {a.prompt: a for a in bound.good if a.acceptance}
    pairs = [(a, other[a.prompt]) for a in free.good if a.acceptance and a.prompt in other]
    if len(pairs) < 2:
        why = f"{len(failed)} constrained answers failed: {failed[0].error}" if failed else "fewer than two prompts were answered both ways with counts"
        return Finding(**fields, status=Status.SKIPPED, statement=f"Not compared: {why}.", next_step="Serve with a grammar backend (SGLang --grammar-backend xgrammar; vLLM has one by default).")
    same = same_answers(free, bound)
    al = paired_answers(same if len(same) >= LOOK else pairs, free.settings.seed, ACCUSING)
    text = f"{'Same ' + plural(len(same), 'answer') if len(same) >= LOOK else plural(len(pairs), 'prompt')} under a grammar against free: accept length {signed(al)} (at {ACCUSING:.1%})"
    shown = {"observed": al.value, "expected": 0.0, "n": al.n, "interval": al.bounded, "evidence": (
        Evidence(note=f"free: {_length(free)}; under a grammar: {_length(bound)}; {len(same)} of {len(pairs)} answers the same token for token"), *_failed(failed))}
    if al.high >= 0:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no loss.")
    if len(same) >= LOOK:
        return Finding(
            **fields, **shown, status=Status.FAIL, fault="runtime.grammar", threshold=0.0, threshold_why=SAME_ROUNDS,
            statement=f"{text}. The answers are the same token for token, so the grammar's handling of drafts loses them.",
            competitor=Competitor(fault="data.domain", margin=f"{len(same)} answers of the same tokens", why_rejected="structured text that is hard to draft is as hard without the grammar"),
            refuted_by="The same two passes with another grammar backend show no loss.", remedy="Change the grammar backend or update the engine.", next_step="Repeat with another --grammar-backend.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="runtime.grammar", statement=(
        f"{text}. A grammar that is applied to verified positions alone, or ends answers wrongly, looks like this; but only {len(same)} answers are the same text both ways."),
        competitor=Competitor(fault="data.domain", margin=f"{len(pairs) - len(same)} of {len(pairs)} answers differ in their text", why_rejected="not rejected: JSON may be harder to draft than what the model writes freely"),
        next_step="Ask prompts whose free answers are valid too: on the same text only the grammar is left.")


def lengths(found: Asides) -> Finding | None:
    """Does the accept length fall on the same questions when the prompt grows? None where it was not asked."""
    if len(found.lengths) < 2:
        return None
    fields = common("acceptance.split-padded", "Does the accept length fall on the same questions as the prompt grows?")
    short, long = found.lengths[0], found.lengths[-1]
    other = {a.prompt: a for a in long.good if a.acceptance}
    pairs = [(a, other[a.prompt]) for a in short.good if a.acceptance and a.prompt in other]
    notes = tuple(Evidence(note=f"{len(m.workload.prompts[0].ids)} tokens: {_length(m)}, {len(m.good)} of {len(m.answers)} answers") for m in found.lengths)
    longest = len(long.workload.prompts[0].ids)
    if len(pairs) < LOOK:
        failed = [a for a in long.answers if not a.ok]
        return Finding(**fields, status=Status.SKIPPED, evidence=(*notes, *_failed(failed)), statement=f"{len(pairs)} questions were answered at both ends, {LOOK} are needed.",
                       next_step="Give lengths that fit the server's context.")
    al = paired_answers(pairs, short.settings.seed)
    shown = {"observed": al.value, "expected": 0.0, "n": al.n, "interval": al.bounded, "evidence": notes}
    text = f"Same {plural(len(pairs), 'question')} in prompts of {longest} against {len(short.workload.prompts[0].ids)} tokens: accept length {signed(al)}"
    if al.high >= 0:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no fall. Nothing is said beyond {longest} tokens.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="drafter.rope", statement=f"{text}. A rotary setup or context of the draft that is too short looks like this.",
                   competitor=Competitor(fault="data.domain", margin="the questions are the same, the answers need not be", why_rejected="not rejected: training text without long prompts falls too"),
                   next_step="Walk the served text: the length at which the checkpoint's own rotary setup falls is the drafter's, where only the server falls it is the engine's. Notebook 01 compares the setups.")


def _length(m: Measurement) -> str:
    parts: list[counters.Acceptance] = list(m.parts)
    al: stats.Estimate | None = counters.accept_length(parts, seed=m.settings.seed) if parts else None
    return al.text() if al else "no counts"


def _failed(answers: Sequence[object]) -> tuple[Evidence, ...]:
    return (Evidence(note=f"{len(answers)} answers failed: {answers[0].error}"),) if answers else ()
