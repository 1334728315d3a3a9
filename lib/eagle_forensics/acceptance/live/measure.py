"""One measurement of live servers: the same prompts to one server or to several in turn, until the interval is narrow enough.

Order of things: who is it (and refuse a simulation) - warm-up - flush - blocks of prompts, each to every server in random order -
after each block a look at the servers' identity and the interval - what the counters say in all. Whatever goes wrong ends
the measurement with its reason; what was measured before is kept and labelled.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Answer, Client, Sampling, Server
from eagle_forensics.acceptance.estimators import from_histogram
from eagle_forensics.acceptance.live.workload import Prompt, Workload
from eagle_forensics.evidence.transport import Failure

LOOK = 8
"""Answers between two looks at interval and identity, as the stopping rule was simulated."""
DEAD_AFTER = 3
"""Answers in a row without a connection, or that hang, after which a server counts as gone; one in ten failing at random gives three
in a row once in a thousand."""
MOST_FAILED = 0.5
"""Share of failed answers (of at least `LOOK`) above which nothing representative is left."""
SETTLE_S = 0.05

Progress = Callable[[str], None]


class Refused(ValueError):
    """A server on which measuring would be meaningless; the message says why."""


@dataclass(frozen=True)
class Settings:
    """How a workload is run."""

    sampling: Sampling = field(default_factory=Sampling)
    concurrency: int = 1
    warm_up: int = 2
    """Answers per server that are thrown away: first ones pay for caches and compilation."""
    half_width: float | None = 0.1
    """Stop once the accept length is known to +- this (tokens per round); None: ask every prompt."""
    seed: int = 0
    flush: bool = True
    """Empty the prefix cache before the first prompt; without it, prompts asked before are found there."""


@dataclass(frozen=True)
class Measurement:
    """What one server answered."""

    label: str
    server: Server
    settings: Settings
    workload: Workload
    answers: tuple[Answer, ...]
    """Measured ones, in the order of the workload; failed ones are among them."""
    stopped: str
    """Why it ended: `all prompts`, `interval`, or what went wrong."""
    complete: bool
    """Ended as planned."""
    counted: Acceptance | None = None
    """By the server's running counters over the same answers."""
    problems: tuple[str, ...] = ()

    @property
    def good(self) -> tuple[Answer, ...]:
        """Answers that came in full."""
        return tuple(a for a in self.answers if a.ok)

    @property
    def parts(self) -> tuple[Acceptance, ...]:
        """Counts per answer, where the server gave them."""
        return tuple(a.acceptance for a in self.good if a.acceptance is not None)

    @property
    def acceptance(self) -> Acceptance | None:
        """All answers together: their own counts, else the server's counters."""
        return counters.total(self.parts) or (self.counted if self.counted and self.counted.rounds and self.counted.proposed is not None else None)

    @property
    def accept_length(self) -> stats.Estimate | None:
        """With its interval over answers; where only the server's counters exist, by position if they are (rounds taken as
        independent, so too narrow), else without one."""
        if self.parts:
            return counters.accept_length(self.parts, seed=self.settings.seed)
        found = self.counted
        if found is None or not found.rounds or found.proposed is None:  # a counter of rounds alone
            return None
        if found.reached is not None:
            return from_histogram(found.histogram)
        return stats.Estimate(found.accept_length, float("-inf"), float("inf"), found.rounds, 1, "running counters: no interval")

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one answer was under way."""
        total, until = 0.0, float("-inf")
        for a in sorted(self.good, key=lambda a: a.started_s):
            end = a.started_s + a.seconds
            total += max(0.0, end - max(a.started_s, until))
            until = max(until, end)
        return total

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens over the busy seconds, prefill included."""
        tokens = sum(a.completion_tokens or 0 for a in self.good)
        return tokens / self.busy_s if tokens and self.busy_s else None


@dataclass
class _Lane:
    """One server while it is measured."""

    label: str
    client: Client
    server: Server
    before: Acceptance | None
    answers: list[Answer]
    checked: int = 0
    """Answers up to the last look at which the server was still the same."""
    trouble: str | None = None
    problems: tuple[str, ...] = ()


async def measure(servers: Mapping[str, Client], workload: Workload, settings: Settings | None = None, progress: Progress | None = None,
                  keep: Callable[[str, Sequence[Answer]], None] | None = None) -> dict[str, Measurement]:
    """Ask every server the prompts of the workload, interleaved in random order, and stop early by the first server's interval.

    `keep` is handed the answers of each block as they come, so that an interrupted run leaves what it has. Refused for a server that
    simulates acceptance; Failure if one is not up at the start. Later faults end the measurement and are in its `stopped`.
    """
    settings = settings or Settings()
    say = progress or (lambda line: None)
    rng = random.Random(settings.seed)
    lanes = [await _open(label, client, workload, settings, say) for label, client in servers.items()]
    size = 1 if settings.concurrency == 1 else 2 * settings.concurrency
    prompts, began, looked = list(workload.prompts), time.monotonic(), 0
    stopped, planned = "all prompts", True
    for start in range(0, len(prompts), size):
        block = prompts[start:start + size]
        for lane in rng.sample(lanes, len(lanes)):
            new = [_possible(a, lane.server) for a in await _block(lane.client, block, settings)]
            lane.answers += new
            if keep:
                keep(lane.label, new)
            lane.trouble = _trouble(lane)
        done = start + len(block)
        if broken := next((lane for lane in lanes if lane.trouble), None):
            stopped, planned = f"{broken.label}: {broken.trouble}", False
            break
        if done - looked < LOOK and done < len(prompts):
            continue
        looked = done
        if changed := [why for lane in lanes if (why := await _changed(lane))]:
            stopped, planned = "; ".join(changed), False
            break
        line, narrow = _look(lanes[0], settings, done, len(prompts), time.monotonic() - began)
        say(line)
        if narrow:
            stopped = "interval"
            break
    return {lane.label: await _close(lane, workload, settings, stopped, planned) for lane in lanes}


async def _open(label: str, client: Client, workload: Workload, settings: Settings, say: Progress) -> _Lane:
    server = await client.server()
    if server.simulated:
        raise Refused(f"{label} simulates acceptance ({server.simulated}): its accept length says nothing about the drafter. Start it without.")
    for prompt in workload.prompts[:settings.warm_up]:
        say(f"{label}: warm-up")
        await _ask(client, prompt, settings)
    why = await client.flush() if settings.flush else None
    return _Lane(label, client, server, await _settled(client), [], problems=tuple(filter(None, (*server.notes, why))))


async def _ask(client: Client, prompt: Prompt, settings: Settings) -> Answer:
    sampling = settings.sampling
    return await client.answer(prompt.id, prompt.domain, prompt.ids, Sampling(
        sampling.temperature if prompt.temperature is None else prompt.temperature, prompt.max_tokens or sampling.max_tokens, prompt.json_schema, prompt.regex))


async def _block(client: Client, prompts: Sequence[Prompt], settings: Settings) -> list[Answer]:
    """Answers to some prompts, `concurrency` at a time. One at a time, missing counts are read off the counters around each answer."""
    if settings.concurrency == 1:
        return [await _counted(client, prompt, settings) for prompt in prompts]
    gate = asyncio.Semaphore(settings.concurrency)

    async def one(prompt: Prompt) -> Answer:
        async with gate:
            return await _ask(client, prompt, settings)

    return list(await asyncio.gather(*map(one, prompts)))


async def _counted(client: Client, prompt: Prompt, settings: Settings) -> Answer:
    before = await client.counters() if client.engine == "vllm" else None
    answer = await _ask(client, prompt, settings)
    if before is None or not answer.ok or answer.acceptance is not None:
        return answer
    after = await _settled(client)
    try:
        found = counters.difference(before, after) if after else None
    except counters.Backwards as error:
        return replace(answer, notes=(*answer.notes, str(error)))
    return replace(answer, acceptance=found) if found and found.rounds else answer


def _possible(answer: Answer, server: Server) -> Answer:
    """The answer without its counts, which a note then says, where the server's own arguments rule them out."""
    found, most = answer.acceptance, server.most_accepted
    if found is not None and (wrong := found.contradiction):
        return replace(answer, acceptance=None, notes=(*answer.notes, f"its counters contradict each other: {wrong}"))
    if found is None or most is None or (found.accepted <= most * found.rounds and not any((found.reached or ())[most:])):
        return answer
    return replace(answer, acceptance=None, by_round=None, notes=(*answer.notes, (
        f"its counts are left out: {found.accepted} drafts accepted in {found.rounds} rounds of at most {most}, as the server's own arguments say")))


async def _settled(client: Client) -> Acceptance | None:
    """Running counters once two readings agree: the last step of an answer is counted a moment after its last token."""
    last = await client.counters()
    for _ in range(20 if last else 0):
        await asyncio.sleep(SETTLE_S)
        now = await client.counters()
        if now == last:
            break
        last = now
    return last


def _trouble(lane: _Lane) -> str | None:
    """Why it makes no sense to go on with a server; None if it does."""
    last = [a.kind for a in lane.answers[-DEAD_AFTER:]]
    if len(last) == DEAD_AFTER and all(k in ("down", "hang") for k in last):
        return f"the server is gone: {lane.answers[-1].error}"
    failed = [a for a in lane.answers if not a.ok]
    if len(lane.answers) >= LOOK and len(failed) > MOST_FAILED * len(lane.answers):
        return f"{len(failed)} of {len(lane.answers)} answers failed, last: {failed[-1].error}"
    return None


async def _changed(lane: _Lane) -> str | None:
    """Why the answers since the last look cannot be used; None if the server is still the one it was."""
    try:
        now = await lane.client.server()
    except (Failure, ValueError) as failure:
        return f"{lane.label}: {failure}"
    if now.instance == lane.server.instance:
        lane.checked = len(lane.answers)
        return None
    names = sorted(k for k in {*now.arguments, *lane.server.arguments} if now.arguments.get(k) != lane.server.arguments.get(k) and k != "random_seed")
    lane.problems += (f"{len(lane.answers) - lane.checked} answers after the last sight of the same server are left out",)
    del lane.answers[lane.checked:]
    how = f" with other arguments ({', '.join(names[:6])})" if names else ""
    return f"{lane.label} was started again{how} while it was measured"


def _look(lane: _Lane, settings: Settings, done: int, total: int, seconds: float) -> tuple[str, bool]:
    """Progress line, and whether the interval is narrow enough."""
    left = seconds / done * (total - done)
    parts = [a.acceptance for a in lane.answers if a.ok and a.acceptance]
    line, narrow = f"{done} of {total} prompts, {seconds:.0f} s, at most {left:.0f} s left", False
    if parts:
        now = counters.accept_length(parts, seed=settings.seed)
        narrow = settings.half_width is not None and stats.narrow_enough(now, settings.half_width)
        line += f"; accept length {now.text()}"
    return line, narrow


async def _close(lane: _Lane, workload: Workload, settings: Settings, stopped: str, planned: bool) -> Measurement:
    problems, counted = list(lane.problems), None
    failed = sum(not a.ok for a in lane.answers)
    if failed:
        problems.append(f"{failed} of {len(lane.answers)} answers failed: {'; '.join(dict.fromkeys(a.error for a in lane.answers if a.error))[:300]}")
    problems += dict.fromkeys(f"{a.prompt}: {n}" for a in lane.answers for n in a.notes)
    after = await _settled(lane.client) if lane.before and planned else None
    if after is not None:
        try:
            counted = counters.difference(lane.before, after)
            if counted.proposed is not None and (wrong := counted.contradiction):
                problems.append(f"the running counters contradict each other: {wrong}")
                counted = None
        except counters.Backwards as error:
            problems.append(str(error))
    return Measurement(lane.label, lane.server, settings, workload, tuple(lane.answers), stopped, planned, counted, tuple(problems))
