"""The same prompts at several step counts: one server after another out of one launch command, and the recommended count confirmed afresh.

Order: without speculation first, the step counts shuffled (a drifting machine then scatters around the cost line instead of tilting it), without
speculation again, and a fresh server at the recommended steps. Half of the prompts, domain by domain, are kept back for the last two.
Every server is gone before the next one starts; what a server that fails leaves is kept and labelled, and the sweep goes on.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from eagle_forensics.acceptance.advice import advise, sweep_of
from eagle_forensics.acceptance.clients import simulation
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.records import Sampling, digest
from eagle_forensics.acceptance.cost import DENSE, Sweep
from eagle_forensics.acceptance.live import kept, serve, waiting, workload
from eagle_forensics.acceptance.live import measure as live
from eagle_forensics.acceptance.live.measure import Measurement, Progress, Settings
from eagle_forensics.acceptance.live.workload import Workload
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.sweep.visits import Role, Visit, keep, of, recall
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.engines.steps import steps_of, with_steps
from eagle_forensics.evidence import shell
from eagle_forensics.evidence.experts import Experts, read_experts
from eagle_forensics.evidence.shell import Command
from eagle_forensics.evidence.transport import Failure, Patience, Transport
from eagle_forensics.finding import Finding, Status

TROUBLE = (serve.ServeError, Failure, ValueError, OSError)
"""What ends one visit, not the sweep."""


@dataclass(frozen=True)
class SweepWork:
    """The visits in the order in which they were made; none where no sweep was asked for, or with the reason in `opening`."""

    asked: tuple[int, ...] = ()
    configured: int | None = None
    """Steps of the launch command as it was given."""
    visits: tuple[Visit, ...] = ()
    recommended: int | None = None
    """Step count that the sweep recommends; None where it fixes no cost line."""
    experts: Experts = DENSE
    opening: tuple[Finding, ...] = ()

    def at(self, role: Role, steps: int | None = None) -> Visit | None:
        """The visit of a role (and step count)."""
        return next((v for v in of(self.visits, role) if steps is None or v.steps == steps), None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """What the cost line is fitted on: the swept counts, and both baselines on the same prompts."""
        return tuple(r for v in self.visits if v.role in (Role.SWEEP, Role.AGAIN) for r in v.runs)

    @property
    def first_runs(self) -> tuple[Run, ...]:
        """Those at the first concurrency."""
        found = self.runs
        return tuple(r for r in found if r.concurrency == found[0].concurrency)

    @property
    def sweep(self) -> Sweep | None:
        """The step counts on their cost line, at the first concurrency."""
        return sweep_of(self.first_runs, self.experts) if any(r.is_speculative for r in self.runs) else None

    @property
    def fresh_steps(self) -> int | None:
        """The step count to confirm: the recommended one; where none pays, the best of those that lose."""
        return self.recommended or (self.sweep.best.steps if self.sweep else None)


def begin(case: Case, folder: Path, *, launch: str = "", steps: Sequence[int] = (), prompts: str | Path = "", temperature: Sequence[float] = (0.0,),
          concurrency: Sequence[int] = (1,), max_tokens: int = 128, warm_up: int = 2, limit: int = 0, seed: int = 0,
          patience: Patience | None = None, progress: Progress | None = None, start_s: float = serve.START_S) -> SweepWork:
    """Sweep the step counts `steps` (0: without speculation) with the server of `launch`; nothing where `steps` is empty.

    All prompts are asked at every count, at the first temperature. Answers, server logs and finished visits are written into `folder`; a second call with the same command,
    prompts and settings goes on from there. What keeps the whole sweep from starting becomes the opening finding.
    """
    if not steps:
        return SweepWork()
    asked = tuple(dict.fromkeys(steps))
    try:
        command = _command(launch)
        if not temperature or not concurrency or temperature[0] < 0 or min(concurrency) < 1:
            raise ValueError(f"temperature {list(temperature)} and concurrency {list(concurrency)}: expected at least one of each, temperatures from 0 and concurrencies from 1 on.")
        points = tuple(Settings(Sampling(temperature[0], max_tokens), c, warm_up if i == 0 else 0, None, seed) for i, c in enumerate(concurrency))
        own = Path(prompts) if prompts else None
        work = workload.render(workload.read_prompts(own), case.target.path if case.target else None, name=own.name if own else "built-in")
        swept, fresh = halves(work.first(limit) if limit else work)
        for k in asked:
            with_steps(command.words, k)
    except ValueError as error:
        return SweepWork(asked, opening=(Finding(id="acceptance.sweep", question="Was every step count measured?", notebook=NOTEBOOK, status=Status.ERROR,
                                                 statement=" ".join(str(error).split()), next_step="Correct the sweep's parameters, then run again."),))
    folder.mkdir(parents=True, exist_ok=True)
    tour = _Tour(command, folder, points, patience, progress, start_s, planned=len(asked) + 1 + (0 in asked))
    found = SweepWork(asked, steps_of(command.words), experts=read_experts(case.target.path if case.target else None))
    for k in order(asked, seed):
        found = replace(found, visits=(*found.visits, *tour.visit(k, {Role.SWEEP: swept})))
    reuse = all(v.reused for v in found.visits)
    if 0 in asked:
        found = replace(found, visits=(*found.visits, *tour.visit(0, {Role.AGAIN: swept, Role.FRESH_BASE: fresh}, reuse=reuse)))
    advised = advise(found.runs, next((r.engine for r in found.runs), None), None, found.experts)
    found = replace(found, recommended=advised.steps if advised else None)
    if found.fresh_steps is not None:
        found = replace(found, visits=(*found.visits, *tour.visit(found.fresh_steps, {Role.FRESH: fresh}, reuse=reuse)))
    return found


def order(steps: Sequence[int], seed: int = 0) -> tuple[int, ...]:
    """Without speculation first, then the step counts shuffled."""
    rest = [k for k in dict.fromkeys(steps) if k]
    return (*(k for k in (0,) if k in steps), *random.Random(seed).sample(rest, len(rest)))


def halves(work: Workload) -> tuple[Workload, Workload]:
    """Prompts of the sweep and prompts kept back: every other one of each domain. ValueError for fewer than two."""
    seen: dict[str, int] = {}
    sides: tuple[list, list] = ([], [])
    for p in work.prompts:
        seen[p.domain] = seen.get(p.domain, -1) + 1
        sides[(seen[p.domain] + list(seen).index(p.domain)) % 2].append(p)
    if not all(sides):
        raise ValueError(f"{len(work.prompts)} prompts: a sweep needs two or more, half of them to confirm its recommendation on.")
    return work.of(sides[0]), work.of(sides[1])


def _command(text: str) -> Command:
    """The launch command as written; every server gets a port of its own later. ValueError for a text that starts no single server."""
    if not text:
        raise ValueError("`steps` asks for a sweep and `launch` is empty: the command that starts the server with speculation is needed.")
    ready = serve.launch(text)
    if why := simulation.by_environment({**os.environ, **ready.env}) or simulation.by_command(ready.argv):
        raise ValueError(f"the launch command sets {why}: the server simulates acceptance, and no step count can be chosen by it. Start it without.")
    return shell.commands(text, "the launch command")[0]


@dataclass
class _Tour:
    """Starts one server after another."""

    command: Command
    folder: Path
    points: tuple[Settings, ...]
    patience: Patience | None
    progress: Progress | None
    start_s: float
    planned: int
    started: int = 0

    def visit(self, steps: int, sets: Mapping[Role, Workload], *, reuse: bool = True) -> list[Visit]:
        """One server at `steps`, asked each set of prompts; from its files where they are all there and may be reused."""
        self.started += 1
        argv = with_steps(self.command.words, steps)
        keys = {role: digest([argv, sorted(self.command.env.items()), work.prompts_hash, [repr(p) for p in self.points]]) for role, work in sets.items()}
        old = [recall(self.folder, keys[role], steps, role) for role in sets] if reuse else []
        if old and all(old):
            return old
        where = f"server {self.started} of {self.planned}, {'without speculation' if not steps else f'{steps} steps'}: "
        say = (lambda text: self.progress(where + text)) if self.progress else None
        found: list[Visit] = []
        for role in sets:
            (self.folder / f"answers_{Visit(steps, role).name}.jsonl").unlink(missing_ok=True)
        try:
            with serve.serving(argv, self.folder / f"{Visit(steps, next(iter(sets))).name}.log", env=self.command.env, timeout_s=self.start_s, progress=say) as server:
                for role, work in sets.items():
                    visit = waiting.to_the_end(self._ask(server.url, Visit(steps, role), work, say))
                    keep(self.folder, keys[role], visit)
                    found.append(visit)
        except TROUBLE as error:
            return found + [Visit(steps, role, problem=" ".join(str(error).split())) for role in list(sets)[len(found):]]
        return found

    async def _ask(self, url: str, visit: Visit, work: Workload, say: Progress | None) -> Visit:
        async with AsyncExitStack() as stack:
            client = await connect(await stack.enter_async_context(Transport(url, self.patience, connections=max(p.concurrency for p in self.points) + 2)))
            for settings in self.points:
                try:
                    m = (await live.measure({visit.name: client}, work, settings, say, partial(kept.answers, self.folder)))[visit.name]
                except TROUBLE as error:
                    return replace(visit, problem=" ".join(str(error).split()))
                visit = replace(visit, measurements=(*visit.measurements, m), problem=_wrong(visit.steps, m))
                if visit.problem:
                    return visit
        return visit


def _wrong(steps: int, m: Measurement) -> str | None:
    """Why a measurement does not count for this step count."""
    if not m.complete:
        return m.stopped
    if bool(m.server.speculative) != bool(steps) or (steps and m.server.steps not in (None, steps)):
        serves = f"{m.server.steps} steps" if m.server.speculative else "without speculation"
        return f"the server says that it serves {serves}: the step count does not come from the launch command alone"
    return None if m.good else "no answer came in full"
