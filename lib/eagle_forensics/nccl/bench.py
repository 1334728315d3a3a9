"""Run the harness for notebook 05: measure decode sizes on this host and, where NCCL carries them, search its settings.

`gloo` measures this host's processors: it proves the harness and says nothing about the served machine, so no setting is
searched with it. Where a GPU a rank exists, `auto` means `nccl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle_forensics.nccl import gains
from eagle_forensics.nccl.belief import Belief
from eagle_forensics.nccl.harness import Measured, Task, backend_here, launch
from eagle_forensics.nccl.ranking import SAMPLES, LaunchFailed
from eagle_forensics.nccl.search import Configuration, Found, Space, search, space
from eagle_forensics.nccl.sizes import MessagePlan, decode_sizes, message_bytes, plan

MODES = ("off", "auto", "gloo", "nccl")
GLOO_RANKS, GLOO_CHAIN = 2, 16
"""Gloo on two ranks stands for no server: its chain is cut so that a launch takes 3 s on two cores."""
PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Bench:
    """What this host measured; empty with the reason where nothing was."""

    mode: str
    launches: tuple[Measured, ...] = ()
    """Of the served configuration, at all decode sizes."""
    space: Space | None = None
    found: Found | None = None
    checks: tuple[gains.Gate, ...] = ()
    reason: str | None = None
    plan: MessagePlan | None = None
    """What was sent here; the case's own plan but for ranks on a host without GPUs."""
    raw: tuple[dict[str, Any], ...] = ()

    @property
    def served(self) -> Measured | None:
        """A launch that speaks for the served machine: NCCL's."""
        return next((m for m in self.launches if m.backend == "nccl"), None)

    @property
    def tokens(self) -> dict[int, int]:
        """Bytes to tokens of what was sent here."""
        return decode_sizes(self.plan) if self.plan else {}

    def low_of_each(self) -> list[dict[int, float]]:
        """p20 of the single all-reduces by size, a table a launch."""
        return [{size: float(np.percentile(values, 20)) for size, values in m.alone.items()} for m in self.launches]

    def low(self) -> dict[int, float]:
        """The same over all launches."""
        tables = self.low_of_each()
        return {size: float(np.median([t[size] for t in tables])) for size in tables[0]} if tables else {}

    def task(self, sent: MessagePlan) -> Task:
        """What one launch measures: alone and as the chain of a verify."""
        return Task(sizes=tuple(decode_sizes(sent)), dtype=_dtype(sent), ranks=sent.tp, backend="nccl", chain=sent.count)

    def record(self) -> dict[str, Any]:
        """Raw samples of every launch, and what the search did."""
        ranked = self.found.ranking if self.found else None
        return {"mode": self.mode, "launches": [*(m.record() for m in self.launches), *self.raw],
                "ranking": None if ranked is None else {"order": list(ranked.order), "dropped": [list(d) for d in ranked.dropped], "samples": ranked.samples,
                                                        "launches": [[x.name, x.rung, x.round, x.median_us] for x in ranked.launches]}}


def measure(mode: str, *, sent: MessagePlan | None, config: Mapping[str, Any] | None, served: Mapping[str, str], belief: Belief | None,
            link: str | None, launches: int = 2, samples: int = 1200, timeout_s: float = 60) -> Bench:
    """Measure in `mode` (one of MODES) what `sent` or the target's config says, under the environment `served`. Raises ValueError for another mode, LaunchFailed if the
    served configuration does not run."""
    if mode not in MODES:
        raise ValueError(f"bench is {mode!r}; expected one of {', '.join(MODES)}")
    if mode == "off":
        return Bench(mode, reason="the harness was not started (bench: off)")
    backend = mode if mode != "auto" else backend_here(sent.tp if sent else GLOO_RANKS)
    if backend == "gloo":
        here = replace(sent, tp=GLOO_RANKS) if sent else plan(config, GLOO_RANKS) if config else None
        if here is None:
            return Bench(mode, reason="the target's config is missing: message sizes are not known")
        task = Task(tuple(decode_sizes(here)), _dtype(here), GLOO_RANKS, "gloo", min(here.count, GLOO_CHAIN), samples=15, rounds=3, warmup=3, timeout_s=timeout_s)
        return Bench(mode, tuple(launch(task) for _ in range(launches)), plan=here,
                     reason="gloo on this host's processors is no evidence on the served machine's settings")
    if sent is None:
        return Bench(mode, reason="tensor parallel size or target config is missing: message sizes are not known")
    task = replace(Bench(mode).task(sent), timeout_s=timeout_s)
    first = tuple(launch(task, served) for _ in range(launches))
    return _searched(mode, task, sent, first, served, belief, link, samples)


def _searched(mode: str, task: Task, sent: MessagePlan, first: Sequence[Measured], served: Mapping[str, str], belief: Belief | None, link: str | None,
              samples: int) -> Bench:
    where = space(release=first[0].nccl, link=link, sizes=tuple(decode_sizes(sent)), system=belief.system if belief else None, base=served,
                  trusted=not (belief and belief.fallback))
    raw: list[dict[str, Any]] = []

    def run(configuration: Configuration, count: int) -> Sequence[float]:
        m = launch(replace(task, sizes=(sent.bytes,), samples=1, rounds=1, chain_samples=count), configuration.env)
        raw.append(m.record())
        return m.samples(sent.bytes)

    budget = max(samples, 3 * SAMPLES * len(where.tried))
    try:
        found = search(where, run, budget=budget)
    except (LaunchFailed, ValueError) as error:
        return Bench(mode, tuple(first), where, reason=str(error), plan=sent, raw=tuple(raw))
    return Bench(mode, tuple(first), where, found, _gates(task, sent, found), plan=sent, raw=tuple(raw))


def _gates(task: Task, sent: MessagePlan, found: Found) -> tuple[gains.Gate, ...]:
    if found.won is None:
        return ()
    large = replace(task, sizes=(sent.bytes, message_bytes(sent.hidden, PREFILL_TOKENS, sent.element_bytes)), chain=0, samples=10, warmup=5)
    sides = [launch(large, c.env) for c in (found.tried[0], found.refined)]
    prefill = tuple(float(np.median(m.alone[large.sizes[1]])) for m in sides)
    return gains.gates(found.changes, sides[1], (prefill[0], prefill[1]))


def _dtype(sent: MessagePlan) -> str:
    return {"half": "float16", "float": "float32"}.get(sent.dtype, sent.dtype)
