"""What a sweep over live servers gave: was every count measured, does a fresh server keep the promise, what would right wiring bring on this cost?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance import cost, prediction
from eagle_forensics.acceptance.live import sanity
from eagle_forensics.acceptance.live.paired import Speed, speed
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.sweep.run import SweepWork
from eagle_forensics.acceptance.sweep.visits import Role, Visit
from eagle_forensics.acceptance.words import NOTEBOOK, listed, plural, spread
from eagle_forensics.finding import Evidence, Finding, Status


def measured(work: SweepWork) -> Finding:
    """Was every step count measured, on a machine that stayed as fast as it was?"""
    common: dict[str, Any] = {"id": "acceptance.sweep", "question": "Was every step count measured, on a machine that stayed as fast?", "notebook": NOTEBOOK, "unit": "step counts"}
    swept = [v for v in work.visits if v.role is Role.SWEEP]
    good = [v for v in swept if v.first]
    lost = [v for v in work.visits if v.problem]
    kept = [v for v in work.visits if v.reused]
    evidence = (*(Evidence(note=f"{v.name}: {v.problem}" + (f"; {sum(len(m.good) for m in v.measurements)} answers came before" if v.measurements else "")) for v in lost),
                *(Evidence(note=p) for p in dict.fromkeys(p for v in good for p in v.first.problems)),
                *((Evidence(note=f"kept from an earlier run of this folder: {listed(v.name for v in kept)}"),) if kept else ()), *_same_text(work, good))
    shown = {"observed": len(good), "expected": len(work.asked), "n": len(good), "evidence": evidence}
    order = f"servers in the order {listed(v.steps for v in work.visits if v.role in (Role.SWEEP, Role.AGAIN))}"
    if lost:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{len(good)} of {len(work.asked)} step counts were measured ({order}); "
                       f"not {listed(dict.fromkeys(v.name for v in lost))}: {lost[0].problem[:300]}", next_step="Read the server's log beside the answers; run again: what was measured is kept.")
    text = f"{plural(len(good), 'step count')}, {plural(len(good[0].first.good), 'prompt')} each, {order}"
    moved = drift(work)
    if moved is None:
        return Finding(**common, **shown, status=Status.PASS, required=False, statement=f"{text}. Without speculation nothing was measured: drift of the machine and break-even are not known.",
                       next_step="Put 0 among `steps`.")
    text += f"; without speculation the end runs at {spread(moved.ratio)} times the speed of the start"
    best, bases = work.sweep.best if work.sweep else None, [v.runs[0].tokens_per_second for v in (work.at(Role.SWEEP, 0), work.at(Role.AGAIN))]
    if best and min(b.low for b in bases) < best.tokens_per_second.value < max(b.high for b in bases) and moved.ratio.excludes(1.0):
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}, and the best step count lies between the two: the machine's drift decides whether it wins.",
                       next_step="Repeat on a machine that does nothing else.")
    return Finding(**common, **shown, status=Status.PASS, statement=f"{text}" + ("; both are in the baseline's interval." if moved.ratio.excludes(1.0) else ": no drift to be seen."))


def confirmed(work: SweepWork) -> Finding:
    """Does a fresh server at the recommended steps keep the promise, on prompts that the sweep did not ask?"""
    common: dict[str, Any] = {"id": "acceptance.sweep-confirmed", "question": "Does a fresh server at the recommended steps do what the sweep promised?", "notebook": NOTEBOOK, "unit": "tokens/s"}
    visit, swept = work.at(Role.FRESH), work.sweep
    if visit is None or swept is None:
        return Finding(**common, status=Status.SKIPPED, statement="The sweep recommends no step count: there is nothing to confirm.",
                       next_step="Measure three step counts or more, and 0.")
    if visit.first is None:
        return Finding(**common, status=Status.INCONCLUSIVE, statement=f"The fresh server at {plural(visit.steps, 'step')} was not measured: {visit.problem}.", next_step="Run again: what was measured is kept.")
    promised = next(c for c in swept.choices if c.steps == visit.steps)
    run, rate = visit.runs[0], visit.runs[0].tokens_per_second
    kept = "more than promised" if rate.low > promised.tokens_per_second.high else "as promised"
    base = work.at(Role.FRESH_BASE)
    gain = speed(visit.first, base.first) if base and base.first else None
    text = f"A fresh server at {plural(visit.steps, 'step')}, on {plural(len(visit.first.good), 'other prompt')}: {spread(rate)} tokens/s, promised {spread(promised.tokens_per_second)}"
    if gain is not None:
        text += f"; {spread(gain.ratio)} times the tokens/s without speculation on the same prompts"
    shown = {"observed": rate.value, "expected": promised.tokens_per_second.value, "interval": rate.bounded, "n": len(visit.first.good),
             "evidence": (Evidence(note=_parts(work, visit, run)), *_paired(gain))}
    if rate.high < promised.tokens_per_second.low:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}: the promise is not met. {_parts(work, visit, run)}",
                       next_step="Sweep on prompts like those that are served, on a quiet machine.")
    if gain is None:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: {kept}. Without a baseline whether it pays is not known.", next_step="Put 0 among `steps`.")
    wanted = bool(work.recommended)
    if not gain.ratio.excludes(1.0):
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}: {kept}, but whether it beats plain decoding cannot be told.", next_step="Ask more prompts: the interval includes 1.")
    if (gain.ratio.value > 1) is not wanted:
        other = "it loses all the same" if wanted else "and it wins, although the sweep saw every count lose"
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}: {kept}, {other}.", next_step="Repeat the sweep on a quiet machine.")
    return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: {kept}, and it {'beats plain decoding' if wanted else 'loses to plain decoding, as the sweep said'}.")


def right_wiring(work: SweepWork, predicted: Mapping[str, Any] | None) -> Finding | None:
    """What the accept length predicted for the trained wiring would bring on the measured cost; None without a prediction or a cost line."""
    ahead, swept = promised(work, predicted), work.sweep
    if ahead is None:
        return None
    common: dict[str, Any] = {"id": "acceptance.sweep-prediction", "question": "What would the drafter bring at this cost if it is fed as trained?", "notebook": NOTEBOOK,
                              "unit": "tokens/s", "required": False}
    best, now = ahead.best, swept.best
    shown = {"observed": now.tokens_per_second.value, "expected": best.tokens_per_second.value, "interval": best.tokens_per_second.bounded,
             "evidence": tuple(Evidence(note=f"{plural(c.steps, 'step')}: predicted accept length {c.accept_length:.3f} brings {c.tokens_per_second.text(1)}") for c in ahead.choices)}
    text = (f"On the measured cost ({swept.fit.text()}) the accept length predicted for the trained wiring brings {spread(best.tokens_per_second)} tokens/s at {plural(best.steps, 'step')}; "
            f"measured are {spread(now.tokens_per_second)} at {now.steps}")
    gain = best.tokens_per_second.value / now.tokens_per_second.value
    if not apart(best.tokens_per_second, now.tokens_per_second):
        return Finding(**common, **shown, status=Status.PASS, statement=f"{text}: the drafter gives what it can; wiring is not the lever.")
    if gain < 1:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}: more than predicted. The prompts are easier than the recorded text, or degenerate.",
                       next_step="Predict on the text that was served.")
    return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}: {gain:.2f} times as much lies in the wiring or in the text.",
                   predicted_effect=f"{spread(best.tokens_per_second)} tokens/s", next_step="Settle the wiring (notebooks 01 to 03), then sweep again.")


def promised(work: SweepWork, predicted: Mapping[str, Any] | None) -> cost.Sweep | None:
    """The accept lengths predicted for the trained wiring on the measured cost line, at the step counts that were swept."""
    swept = work.sweep
    known = prediction.predicted_steps(predicted) if predicted else {}
    lengths = {c.steps: known[c.steps] for c in swept.choices if c.steps in known} if swept else {}
    return cost.sweep(swept.fit, lengths, swept.baseline) if lengths else None


def drift(work: SweepWork) -> Speed | None:
    """Speed without speculation at the end over that at the start, prompt by prompt; None without both."""
    start, end = work.at(Role.SWEEP, 0), work.at(Role.AGAIN)
    return speed(end.first, start.first) if start and end and start.first and end.first else None


def apart(a: stats.Estimate, b: stats.Estimate) -> bool:
    """The intervals do not meet."""
    return a.low > b.high or b.low > a.high


def _parts(work: SweepWork, visit: Visit, run: Run) -> str:
    """Where the fresh figure comes from: the accept length of the other prompts, and the time of a round."""
    before = work.at(Role.SWEEP, visit.steps)
    if before is None or not before.runs or run.accept_length is None or run.cycle_ms is None:
        return "accept length and cycle of the swept server at this step count are not known."
    was = before.runs[0]
    return (f"Accept length {spread(run.accept_length)} against {spread(was.accept_length)} in the sweep (other prompts), "
            f"a round {spread(run.cycle_ms)} ms against {spread(was.cycle_ms)} ms and {work.sweep.fit.at(visit.steps):.2f} ms on the line.")


def _paired(gain: Speed | None) -> tuple[Evidence, ...]:
    return () if gain is None else (Evidence(note=f"faster on {gain.faster} of {gain.pairs} prompts; median ratio {gain.median:.3f}; whole answers, prefill included"),)


def _same_text(work: SweepWork, good: list[Visit]) -> tuple[Evidence, ...]:
    """Greedy answers at every step count against those without speculation."""
    base = work.at(Role.SWEEP, 0)
    if base is None or base.first is None or base.first.settings.sampling.temperature:
        return ()
    found = [sanity.divergences(v.first.answers, base.first.answers) for v in good if v.steps]
    pairs, parted = sum(n for n, _ in found), sum(len(d) for _, d in found)
    return (Evidence(note=f"{pairs - parted} of {pairs} greedy answers are the same token for token as without speculation"),) if pairs else ()
