"""Findings on what a better interconnect setting would bring: the search, its validity, and the cost of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics import faults, stats
from eagle_forensics.evidence.nccl.records import NcclLog
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.harness import Measured
from eagle_forensics.nccl.memory import REACHED, ExpertRead
from eagle_forensics.nccl.ranking import GAIN
from eagle_forensics.nccl.search import Found
from eagle_forensics.nccl.settings import NOTEBOOK
from eagle_forensics.nccl.sizes import MessagePlan
from eagle_forensics.nccl.tokens import Cost, Round, worth

PREFILL_SLACK = 1.05
"""Time at prefill size over the default's that is still called equal: launches of one setting differ by 2 to 5 %."""
LEVER = 0.1
"""Share of a round in its all-reduces below which the fastest setting measured in public (half the time) gives under 5 % of a round."""


@dataclass(frozen=True)
class Gate:
    """One thing that must hold before a setting may be recommended; None: not looked at, which is no pass."""

    name: str
    passed: bool | None
    note: str


def gates(settings: Mapping[str, str], measured: Measured | None, prefill_us: tuple[float, float] | None) -> tuple[Gate, ...]:
    """`measured`: a launch with the settings; `prefill_us`: (default, with the settings) at prefill size."""
    log = measured.log if measured else None
    dead = [f"{k}={v}" for k, v in settings.items() if k.startswith("NCCL_") and log is not None and not _live(k, v, log)]
    wrong = None if measured is None else not any(measured.wrong.values())
    return (Gate("results", wrong, "sums of whole numbers are exact" if wrong else "not checked"),
            Gate("live", None if log is None else not dead,
                 "no NCCL log of a launch" if log is None else "the log does not show " + ", ".join(dead) if dead else "the log shows every setting"),
            Gate("prefill", None if prefill_us is None else prefill_us[1] <= PREFILL_SLACK * prefill_us[0],
                 "prefill size not measured" if prefill_us is None else f"{prefill_us[0]:.0f} us before, {prefill_us[1]:.0f} us with it"))


def searched(found: Found | None, checks: Sequence[Gate] = (), *, reason: str | None = None, fallback: bool = False) -> Finding:
    """Is another setting faster at decode size? `reason`: why nothing was searched; `fallback`: the log shows a failed graph search."""
    common: dict[str, Any] = {"id": "nccl.search", "question": "Is another setting faster at decode size, on this host?", "notebook": NOTEBOOK, "unit": "time over the default's"}
    if found is None:
        return Finding(**common, status=Status.SKIPPED, statement=f"No settings were compared: {reason or 'the harness was not started'}.",
                       next_step="On the serving host, with the server stopped: run this notebook there with --set bench=nccl.")
    tried = len(found.ranking.order) + len(found.ranking.dropped)
    evidence = tuple(Evidence(note=f"{n}: did not count, {why}") for n, why in found.failed) + tuple(Evidence(note=f"{g.name}: {g.note}") for g in checks)
    if found.won is None:
        text = "" if found.comparison is None else f"; the best, {found.comparison.best}, takes {found.comparison.ratio.text()} pairs of the default's time"
        return Finding(**common, status=Status.PASS, n=found.ranking.samples, evidence=evidence, observed="no change",
                       statement=f"No change: of {tried} settings none beats the default by more than {100 * GAIN:.0f} %{text}.")
    c = found.won
    result: dict[str, Any] = {"observed": c.ratio.value, "expected": 1.0, "interval": c.ratio.bounded, "n": c.ratio.n}
    open_gates = [g for g in checks if not g.passed]
    settings = " ".join(f"{k}={v}" for k, v in found.changes.items())
    text = f"{settings} takes {100 * (1 - c.ratio.value):.0f} % off an all-reduce of decode size ({c.default_us:.1f} -> {c.best_us:.1f} us)"
    if open_gates:
        return Finding(**common, **result, status=Status.INCONCLUSIVE, evidence=evidence,
                       statement=f"{text}, but it may not be recommended yet: {'; '.join(f'{g.name}: {g.note}' for g in open_gates)}.",
                       next_step="Close these gates, then run again.")
    slug = "nccl.graph-fallback" if fallback else "nccl.algorithm"
    rival = faults.fault(slug).rival
    return Finding(**common, **result, status=Status.FAIL, fault=slug, threshold=1 - GAIN, evidence=evidence,
                   threshold_why="smaller gains are not worth a setting that NVIDIA advises against in production",
                   statement=f"{text}; the default is not the best way on this machine.",
                   competitor=Competitor(fault=rival, margin=f"ratio {c.ratio.text()} pairs of fresh launches, side by side",
                                         why_rejected="both sides ran the same library, process start and graph capture; only the settings differed"),
                   refuted_by="A repeat of the A/B whose interval holds 1, or the server's own tokens/s unchanged under the settings.",
                   remedy=f"Start the server with {settings}.", next_step="The server's own A/B: old and new environment, each with and without speculation.")


def cost(runs: Sequence[Round], fitted: Cost | None, plan: MessagePlan | None, all_reduce_us: float | None = None, *, found: Found | None = None,
         read: ExpertRead | None = None, off: str | None = None) -> Finding:
    """Is communication what makes a round slow? `all_reduce_us`: measured at verify size; `found`: a search whose winner is credited; `read`: one token's experts."""
    common: dict[str, Any] = {"id": "nccl.cost", "question": "What part of a round could a faster all-reduce save?", "notebook": NOTEBOOK, "unit": "ms a round",
                              "required": False}
    if off or not runs or plan is None:
        why = off or ("notebook 04 recorded no comparable run with accept length, tokens/s and a baseline" if plan else "the message sizes are not known")
        return Finding(**common, status=Status.SKIPPED, statement=f"Not joined to tokens: {why}.",
                       next_step=None if off else "Give `measurements` with a run without speculation, and run notebooks 04 and 05 together.")
    nearest = min(runs, key=lambda r: abs(r.tokens - plan.tokens))
    shown: dict[str, Any] = {}
    notes = []
    if fitted is not None:
        e = fitted.fixed_ms
        shown = {"observed": e.value, "interval": e.bounded, "n": e.n}
        unit = f"{fitted.experts.per_token} distinct experts" if fitted.experts.count > 1 else "token"
        notes.append(f"A round takes {e.value:.2f} ms plus {fitted.load_ms.value:.3f} ms per {unit} ({e.n} runs, least squares); at one token that is {fitted.round_ms(1):.1f} ms "
                     f"against {fitted.baseline_ms:.1f} ms of plain decode: a fixed {fitted.penalty_ms:.1f} ms a round that no drafter can change.")
        if read is not None and fitted.experts.count > 1:
            notes.append(f"The experts of one token are {read.gigabytes:.2f} GB on each GPU: {read.peak_ms:.3f} ms at the memory's peak, {read.ms:.3f} ms at {100 * REACHED:.0f} % of it.")
    if all_reduce_us is None:
        each = 1e3 * nearest.cycle_ms.value / plan.count
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, next_step=f"Measure: {plan.nccl_tests}",
                       statement=" ".join([*notes, f"How much of it is communication is not measured: {plan.count} all-reduces fill a round of {nearest.cycle_ms.value:.1f} ms at "
                                           f"{each:.0f} us each, and every 10 us on one are {plan.verify_ms(10):.2f} ms."]))
    part = plan.verify_ms(all_reduce_us) / nearest.cycle_ms.value
    notes.append(f"At {all_reduce_us:.1f} us the {plan.count} all-reduces take {plan.verify_ms(all_reduce_us):.2f} ms, {100 * part:.0f} % of the round of {nearest.cycle_ms.value:.1f} ms.")
    shown |= {"observed": plan.verify_ms(all_reduce_us), "interval": None, "n": None}
    if part < LEVER:
        return Finding(**common, **shown, status=Status.PASS, threshold=LEVER, threshold_why="the best setting measured in public halves an all-reduce",
                       statement=" ".join([*notes, "NCCL is not the lever here: look at the rest of the round."]), next_step="Profile one round: graph or eager verify, experts, attention.")
    won = found.won if found is not None else None
    saved = _exactly(all_reduce_us / 2) if won is None else stats.Estimate(*(won.default_us * (1 - r) for r in (won.ratio.value, won.ratio.high, won.ratio.low)), won.ratio.n, won.ratio.clusters,
                                                                           won.ratio.method)
    try:
        w = worth(nearest, plan, saved)
        notes.append(f"{'Half of that gone' if won is None else f'The setting that won, {saved.value:.1f} us less on each,'} would give {w.tokens_per_second.value:.1f} tokens/s "
                     f"({w.tokens_per_second.low:.1f} to {w.tokens_per_second.high:.1f}) instead of {1e3 * nearest.accept_length.value / nearest.cycle_ms.value:.1f}, while plain decode rises "
                     f"from {nearest.baseline.value:.1f} to {w.tuned_baseline:.1f}: {w.speedup:.2f} times plain decode (against the old baseline it would look like {w.confounded_speedup:.2f}), and "
                     f"accept length {w.break_even.value:.2f} is needed to break even; measured is {nearest.accept_length.value:.2f}.")
    except ValueError as error:
        notes.append(f"These do not go together: {error}.")
    return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=" ".join(notes), next_step="The A/B of `nccl.search`, then the server's own.")


def _exactly(value: float) -> stats.Estimate:
    return stats.Estimate(value, value, value, 0, 0, "assumed")


def _live(name: str, value: str, log: NcclLog) -> bool:
    return log.environment.get(name, "").rstrip(".") == value
