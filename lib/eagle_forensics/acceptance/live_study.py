"""The steps of a live measurement as a notebook cell calls them: measure, then tables, findings and the rows for the measurements table."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from eagle_forensics.acceptance import counters, live, live_findings, sanity, serve, workload
from eagle_forensics.acceptance.clients import Answer, Sampling, Transport, connect
from eagle_forensics.acceptance.live import Measurement, Settings
from eagle_forensics.acceptance.paired import Speed, speed
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.sanity import Divergence
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.case import Case
from eagle_forensics.evidence.decode_log import Window, read_decode_log
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.transport import Failure, Patience
from eagle_forensics.finding import Finding, Status

SPECULATION, BASELINE = "speculation", "baseline"
MOST_GAPS = 8
"""Diverging answers whose log-probability gap is asked for: one short request each."""

T = TypeVar("T")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class LiveWork:
    """Measurements by label (`speculation`, `baseline`); empty with the reason in `opening`."""

    measurements: Mapping[str, Measurement]
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
    def speed(self) -> Speed | None:
        return speed(self.speculation, self.baseline) if self.speculation and self.baseline else None


def begin(case: Case, folder: Path, *, launch: str | None = None, launch_baseline: str | None = None, prompts: Path | None = None, temperature: float = 0.0,
          max_tokens: int = 128, concurrency: int = 1, warm_up: int = 2, half_width: float | None = 0.1, limit: int | None = None, seed: int = 0,
          env: Mapping[str, str] | None = None, patience: Patience | None = None, progress: Progress | None = None) -> LiveWork:
    """Measure the case's live servers: those of `serving.url` and `serving.baseline_url`, or started here from launch commands.

    Answers and server logs are written into `folder` as they come. A server that is not up, or refuses, becomes the opening finding.
    `concurrency` is one point of a grid: call it once a point.
    """
    urls = {SPECULATION: case.serving.url, BASELINE: case.serving.baseline_url}
    commands = {SPECULATION: launch, BASELINE: launch_baseline}
    common = {"id": "acceptance.live", "question": "What accept length does the live server reach?", "notebook": NOTEBOOK}
    if not urls[SPECULATION] and not launch:
        return LiveWork({}, opening=(Finding(**common, status=Status.SKIPPED, statement="Not measured: the case names no live server and no launch command was given.",
                                             next_step="Set serving.url (and serving.baseline_url), or give launch commands."),))
    settings = Settings(Sampling(temperature, max_tokens), concurrency, warm_up, half_width, seed)
    try:
        work = workload.render(workload.read_prompts(prompts), case.target.path if case.target else None, name=prompts.name if prompts else "built-in")
        work = work.first(limit) if limit else work
        with ExitStack() as stack:
            for label, command in commands.items():
                if command:
                    server = stack.enter_context(serve.serving(command, folder / f"{label}.log", env=env, progress=progress))
                    urls[label] = server.url
            found = _wait(_measure({k: str(u) for k, u in urls.items() if u}, work, settings, folder, patience, progress))
        log = folder / f"{SPECULATION}.log" if launch else case.serving.log
        return replace(found, windows=read_decode_log(log).speculative if log else ())
    except (EvidenceError, Failure, ValueError, serve.ServeError) as error:
        return LiveWork({}, opening=(Finding(**common, status=Status.ERROR, statement=" ".join(str(error).split()),
                                             next_step="Start the server or correct its URL or command, then run again."),))


async def _measure(urls: Mapping[str, str], work: workload.Workload, settings: Settings, folder: Path, patience: Patience | None,
                   progress: Progress | None) -> LiveWork:
    folder.mkdir(parents=True, exist_ok=True)

    def keep(label: str, answers: Sequence[Answer]) -> None:
        with (folder / f"answers_{label}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(a), ensure_ascii=False) + "\n" for a in answers)

    for label in urls:
        (folder / f"answers_{label}.jsonl").unlink(missing_ok=True)
    async with AsyncExitStack() as stack:
        clients = {label: await connect(await stack.enter_async_context(Transport(url, patience, connections=settings.concurrency + 2)))
                   for label, url in urls.items()}
        found = await live.measure(clients, work, settings, progress, keep)
        if len(found) < 2 or settings.sampling.temperature:
            return LiveWork(found)
        pairs, parted = sanity.divergences(found[SPECULATION].answers, found[BASELINE].answers)
        said = {a.prompt: a.output_ids for a in found[BASELINE].good}
        asked = {p.id: p.ids for p in work.prompts}
        known = [await _gap(clients[BASELINE], (*asked[d.prompt], *said[d.prompt][:d.position]), d) for d in parted[:MOST_GAPS]]
        return LiveWork(found, pairs, (*known, *parted[MOST_GAPS:]))


async def _gap(client: Any, context: Sequence[int], divergence: Divergence) -> Divergence:
    try:
        return await sanity.gap(client, context, divergence)
    except Failure:
        return divergence


def findings(work: LiveWork) -> list[Finding]:
    """Everything the measurement says."""
    if work.speculation is None:
        return list(work.opening)
    m, b = work.speculation, work.baseline
    found = [live_findings.measured(m), live_findings.sane(m), live_findings.reconciled(m), live_findings.logged(m, work.windows)]
    if b is None:
        return found
    dtype = m.server.arguments.get("dtype")
    greedy = m.settings.sampling.temperature == 0
    return [*found, live_findings.comparable(m, b), live_findings.faster(work.speed),
            live_findings.lossless(work.pairs, work.divergences, greedy=greedy, dtype=dtype)]


def table(work: LiveWork) -> pd.DataFrame:
    """One row a server: what was asked, what came, accept length with its interval, tokens/s."""
    return pd.DataFrame([{
        "server": m.label, "engine": f"{m.server.engine} {m.server.version}", "steps": m.server.steps, "answers": len(m.good), "failed": len(m.answers) - len(m.good),
        "verify rounds": m.acceptance.rounds if m.acceptance else None, "accept length": m.accept_length.text() if m.accept_length else None,
        "tokens/s": m.tokens_per_second, "prompts": m.workload.prompts_hash, "chat template": m.workload.template_hash, "ended": m.stopped,
    } for m in work.measurements.values()])


def definitions_table(m: Measurement) -> pd.DataFrame:
    """The same counts under every definition, {figure, value, definition}."""
    if m.acceptance is None:
        return pd.DataFrame(columns=["figure", "value", "definition"])
    tokens = sum(a.completion_tokens or 0 for a in m.good) if m.parts else None
    return pd.DataFrame(counters.as_defined(m.acceptance, m.server.engine, m.server.version, steps=m.server.steps, completion_tokens=tokens))


def by_domain(m: Measurement) -> pd.DataFrame:
    """Accept length of each domain of prompts, with its interval over answers."""
    rows = []
    for domain in m.workload.domains:
        parts = [a.acceptance for a in m.good if a.domain == domain and a.acceptance is not None]
        if parts:
            al = counters.accept_length(parts)
            rows.append({"domain": domain, "answers": len(parts), "verify rounds": al.n, "accept length": al.value, "low": al.low, "high": al.high})
    return pd.DataFrame(rows)


def as_run(m: Measurement) -> Run:
    """The measurement as a row of the measurements table, with its sampling interval."""
    found, tokens, speculative = m.acceptance, m.tokens_per_second, bool(m.server.speculative)
    distinct = {t for a in m.good for t in a.output_ids or ()}
    return Run(
        label=f"live {m.label}", engine=m.server.engine, engine_version=m.server.version, speculative=speculative, steps=m.server.steps if speculative else 0,
        topk=m.server.topk if speculative else None, draft_tokens=m.server.draft_tokens if speculative else None, temperature=m.settings.sampling.temperature,
        concurrency=m.settings.concurrency, dataset=m.workload.name, prompts_hash=m.workload.prompts_hash, rounds=found.rounds if found else None,
        accept_length=m.accept_length, survival=found.survival if found else None,
        tokens_per_second=None if tokens is None else _spread(m, tokens), distinct_output_tokens=len(distinct) or None)


def _spread(m: Measurement, tokens_per_second: float) -> Any:
    """Tokens/s with an interval over answers; the busy seconds are shared out by each answer's own time."""
    from eagle_forensics import stats

    share = m.busy_s / sum(a.seconds for a in m.good)
    found = stats.ratio_of_sums([a.completion_tokens or 0 for a in m.good], [a.seconds * share for a in m.good], seed=m.settings.seed)
    return stats.Estimate(tokens_per_second, found.low, found.high, len(m.good), found.clusters, found.method)


def record(work: LiveWork) -> dict[str, Any]:
    """What other notebooks and a later comparison need."""
    return {label: {
        "server": {"url": m.server.url, "engine": m.server.engine, "version": m.server.version, "arguments": dict(m.server.arguments)},
        "prompts_hash": m.workload.prompts_hash, "template_hash": m.workload.template_hash, "prompts": len(m.workload.prompts),
        "settings": asdict(m.settings), "answers": len(m.good), "failed": len(m.answers) - len(m.good), "stopped": m.stopped, "complete": m.complete,
        "acceptance": asdict(m.acceptance) if m.acceptance else None, "accept_length": asdict(m.accept_length) if m.accept_length else None,
        "tokens_per_second": m.tokens_per_second, "problems": list(m.problems),
    } for label, m in work.measurements.items()}


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a thread of its own, since a notebook's thread already runs a loop; an interrupt cancels it."""
    loop, done = asyncio.new_event_loop(), Future[T]()
    task = loop.create_task(coroutine)

    def work() -> None:
        try:
            done.set_result(loop.run_until_complete(task))
        except BaseException as error:
            done.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
