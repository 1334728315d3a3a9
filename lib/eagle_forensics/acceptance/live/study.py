"""The steps of a live measurement as a notebook cell calls them: measure at one or several settings, then findings and the record."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle_forensics.acceptance.clients import simulation
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.records import Client, Sampling
from eagle_forensics.acceptance.live import asides, kept, sanity, serve, splits, waiting, workload
from eagle_forensics.acceptance.live import findings as live_findings
from eagle_forensics.acceptance.live import measure as live
from eagle_forensics.acceptance.live.asides import Asides, Plan
from eagle_forensics.acceptance.live.measure import Measurement, Settings
from eagle_forensics.acceptance.live.paired import Speed, speed
from eagle_forensics.acceptance.live.sanity import Divergence
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.evidence.decode_log import Window, read_decode_log
from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.transport import Failure, Patience, Transport
from eagle_forensics.finding import Finding, Status

SPECULATION, BASELINE = "speculation", "baseline"
MOST_GAPS = 8
"""Diverging answers whose log-probability gap is asked for: one short request each."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class LiveWork:
    """Measurements by label (`speculation`, `baseline`) at the first setting, and at the others; empty with the reason in `opening`."""

    measurements: Mapping[str, Measurement]
    others: tuple[Mapping[str, Measurement], ...] = ()
    """At further concurrencies and temperatures, on the same prompts."""
    again: Mapping[str, Measurement] | None = None
    """The first setting once more, with the prompts in the prefix cache."""
    aside: Asides = field(default_factory=Asides)
    """Further prompts, at the first setting."""
    pairs: int = 0
    """Greedy answers that both servers gave in full."""
    divergences: tuple[Divergence, ...] = ()
    windows: tuple[Window, ...] = ()
    """What the speculating server's log printed; of a server started here, or of `serving.log`."""
    opening: tuple[Finding, ...] = ()

    @property
    def speculation(self) -> Measurement | None:
        return self.measurements.get(SPECULATION)

    @property
    def baseline(self) -> Measurement | None:
        return self.measurements.get(BASELINE)

    @property
    def all(self) -> tuple[Measurement, ...]:
        """Every measurement that may be compared by tokens/s: all but the repetition."""
        return tuple(m for point in (self.measurements, *self.others) for m in point.values())

    @property
    def speed(self) -> Speed | None:
        return speed(self.speculation, self.baseline) if self.speculation and self.baseline else None


def progress_line(text: str) -> None:
    """One line that overwrites the last: of a saved notebook only the final state remains."""
    print(f"\r{text[:140]:<140}", end="", flush=True)


def begin(case: Case, folder: Path, *, launch: str = "", launch_baseline: str = "", prompts: str | Path = "", temperature: Sequence[float] = (0.0,),
          concurrency: Sequence[int] = (1,), max_tokens: int = 128, warm_up: int = 2, half_width: float = 0.1, limit: int = 0, again: bool = False, seed: int = 0,
          structured: bool = False, prompt_lengths: Sequence[int] = (), patience: Patience | None = None, progress: Progress | None = progress_line) -> LiveWork:
    """Measure the case's live servers: those of `serving.url` and `serving.baseline_url`, or started here from launch commands.

    Nothing is measured where the case names no URL and no command is given. Answers and server logs are written into `folder` as they come. The first
    temperature is measured at every concurrency, the other temperatures at the first one. `half_width` 0 and `limit` 0: ask all prompts.
    `structured`: prompts under a grammar as well, each also free. `prompt_lengths`: the first prompts once more, padded to each.
    A server that is not up, or refuses, becomes the opening finding.
    """
    urls = {SPECULATION: case.serving.url, BASELINE: case.serving.baseline_url}
    commands = {SPECULATION: launch, BASELINE: launch_baseline}
    if not urls[SPECULATION] and not launch:
        return LiveWork({})
    try:
        if max_tokens < 1 or limit < 0 or not half_width >= 0:
            raise ValueError(f"max_tokens {max_tokens}, limit {limit}, half_width {half_width:g}: expected a token or more an answer, and the other two from 0 on.")
        points = _points(temperature, concurrency, Settings(Sampling(max_tokens=max_tokens), warm_up=warm_up, half_width=half_width or None, seed=seed))
        own = Path(prompts) if prompts else None
        work = workload.render(workload.read_prompts(own), case.target.path if case.target else None, name=own.name if own else "built-in")
        plan = asides.plan(work, case.target.path if case.target else None, structured=structured, lengths=prompt_lengths)
        work = work.first(limit) if limit else work
        _refuse_simulation(case, commands)
        with ExitStack() as stack:
            for label, command in commands.items():
                if command:
                    server = stack.enter_context(serve.serving(command, folder / f"{label}.log", progress=progress))
                    urls[label] = server.url
            found = waiting.to_the_end(_measure({k: str(u) for k, u in urls.items() if u}, work, points, again, plan, folder, patience, progress))
        return _with_log(found, folder / f"{SPECULATION}.log" if launch else case.serving.log)
    except (Failure, ValueError, OSError, serve.ServeError) as error:
        return LiveWork({}, opening=(Finding(
            id="acceptance.live", question="What accept length does the live server reach?", notebook=NOTEBOOK, status=Status.ERROR,
            statement=" ".join(str(error).split()), next_step="Start the server or correct its URL or command, then run again."),))


def _with_log(found: LiveWork, log: Path | None) -> LiveWork:
    """With the decode lines of the server's log; one that cannot be read is told beside what was measured."""
    if log is None:
        return found
    try:
        return replace(found, windows=read_decode_log(log).speculative)
    except EvidenceError as error:
        told = replace(found.speculation, problems=(*found.speculation.problems, str(error)))
        return replace(found, measurements={**found.measurements, SPECULATION: told})


def _points(temperature: Sequence[float], concurrency: Sequence[int], base: Settings) -> tuple[Settings, ...]:
    if not temperature or not concurrency or not all(0 <= t < math.inf for t in temperature) or min(concurrency) < 1:
        raise ValueError(f"temperature {list(temperature)} and concurrency {list(concurrency)}: expected at least one of each, temperatures from 0 and concurrencies from 1 on.")
    pairs = dict.fromkeys([*((temperature[0], c) for c in concurrency), *((t, concurrency[0]) for t in temperature)])
    return tuple(replace(base, sampling=replace(base.sampling, temperature=t), concurrency=c, warm_up=base.warm_up if i == 0 else 0) for i, (t, c) in enumerate(pairs))


def _refuse_simulation(case: Case, commands: Mapping[str, str]) -> None:
    """Refused for a launch command, or papers of the running server, that switch a simulated acceptance on."""
    seen: list[tuple[str, str | None]] = []
    for label, command in commands.items():
        if command:
            ready = serve.launch(command)
            seen.append((f"the launch command of {label}", simulation.by_environment({**os.environ, **ready.env}) or simulation.by_command(ready.argv)))
    if not commands[SPECULATION]:
        if case.serving.env is not None:
            seen.append(("serving.env", simulation.by_environment(read_env(case.serving.env))))
        if case.serving.launch is not None:
            line = read_launch(case.serving.launch, case.file.parent if case.file else None)
            seen.append(("serving.launch", simulation.by_environment(line.env) or simulation.by_command(line.argv)))
    for where, why in seen:
        if why:
            raise live.Refused(f"{where} sets {why}: the server simulates acceptance, and its accept length says nothing about the drafter. Start it without.")


async def _measure(urls: Mapping[str, str], work: workload.Workload, points: Sequence[Settings], again: bool, plan: Plan, folder: Path,
                   patience: Patience | None, progress: Progress | None) -> LiveWork:
    kept.start(folder, work)
    async with AsyncExitStack() as stack:
        most = max(p.concurrency for p in points)
        clients = {label: await connect(await stack.enter_async_context(Transport(url, patience, connections=most + 2))) for label, url in urls.items()}

        async def at(settings: Settings, name: str, lanes: Mapping[str, Client] = clients, asked: workload.Workload = work) -> dict[str, Measurement]:
            return await live.measure(lanes, asked, settings, progress, lambda label, answers: kept.answers(folder, f"{label}{name}", answers))

        first = points[0]
        found = LiveWork(await at(first, ""))
        kept.served(folder, found.speculation)
        if not found.speculation.complete:
            return found
        try:
            if again:
                found = replace(found, again=await at(replace(first, warm_up=0, flush=False), "_again"))
            for p in points[1:]:
                at_point = await at(p, f"_temperature-{p.sampling.temperature:g}_concurrency-{p.concurrency}")
                found = replace(found, others=(*found.others, at_point))

            async def speculating(asked: workload.Workload, name: str) -> Measurement:
                return (await at(replace(first, warm_up=0, half_width=None), name, {SPECULATION: clients[SPECULATION]}, asked))[SPECULATION]

            found = replace(found, aside=await asides.ask(plan, speculating))
        except Failure as failure:  # what was measured before stays
            found = replace(found, measurements={k: replace(m, problems=(*m.problems, f"further settings were not measured: {failure}")) for k, m in found.measurements.items()})
        return await _parted(found, work, clients, greedy=first.sampling.temperature == 0)


async def _parted(found: LiveWork, work: workload.Workload, clients: Mapping[str, Client], *, greedy: bool) -> LiveWork:
    """With the places where the two servers' greedy answers part, and the gaps there."""
    if found.baseline is None or not greedy:
        return found
    pairs, parted = sanity.divergences(found.speculation.answers, found.baseline.answers)
    said = {a.prompt: a.output_ids for a in found.baseline.good}
    asked = {p.id: p.ids for p in work.prompts}
    known = [await _gap(clients[BASELINE], (*asked[d.prompt], *said[d.prompt][:d.position]), d) for d in parted[:MOST_GAPS]]
    return replace(found, pairs=pairs, divergences=(*known, *parted[MOST_GAPS:]))


async def _gap(client: Client, context: Sequence[int], divergence: Divergence) -> Divergence:
    try:
        return await sanity.gap(client, context, divergence)
    except Failure:
        return divergence


def measured(work: LiveWork) -> list[Finding]:
    """What was measured, whether its text is fit for it, and whether it may be compared; nothing where nothing was asked for."""
    if work.speculation is None:
        return list(work.opening)
    m, b = work.speculation, work.baseline
    found = [live_findings.measured(m), live_findings.sane(m)]
    if b is None:
        return found
    greedy = m.settings.sampling.temperature == 0
    return [*found, live_findings.comparable(m, b), live_findings.faster(work.speed),
            live_findings.lossless(work.pairs, work.divergences, greedy=greedy, dtype=m.server.dtype)]


def reconciled(work: LiveWork) -> list[Finding]:
    """Counts per answer against the server's own counter and against its log."""
    m = work.speculation
    return [live_findings.reconciled(m), live_findings.logged(m, work.windows)] if m else []


def told_apart(work: LiveWork) -> list[Finding]:
    """Acceptance by round, length, domain, cache, concurrency and temperature: which of the engine's faults it looks like."""
    m = work.speculation
    if m is None or not m.parts:
        return []
    found = [splits.first_round(m), splits.prompt_length(m), splits.domains(m)]
    if work.again:
        found.append(splits.cached(m, work.again[SPECULATION], work.again.get(BASELINE)))
    for kind, split in (("concurrency", splits.concurrency), ("temperature", splits.temperature)):
        points = [p for p in work.others if _differs(p[SPECULATION], m) == kind]
        if points:
            found.append(split((work.measurements, *points)))
    return [*found, *filter(None, (asides.structured(work.aside), asides.lengths(work.aside)))]


def _differs(other: Measurement, first: Measurement) -> str:
    return "concurrency" if other.settings.concurrency != first.settings.concurrency else "temperature"


def record(work: LiveWork) -> dict[str, Any]:
    """What other notebooks and a later comparison need."""
    return {label: {
        "server": {"url": m.server.url, "engine": m.server.engine, "version": m.server.version, "arguments": dict(m.server.arguments)},
        "prompts_hash": m.workload.prompts_hash, "template_hash": m.workload.template_hash, "prompts": len(m.workload.prompts),
        "settings": asdict(m.settings), "answers": len(m.good), "failed": len(m.answers) - len(m.good), "stopped": m.stopped, "complete": m.complete,
        "acceptance": asdict(m.acceptance) if m.acceptance else None, "accept_length": asdict(m.accept_length) if m.accept_length else None,
        "tokens_per_second": m.tokens_per_second, "problems": list(m.problems),
    } for label, m in work.measurements.items()}
