"""The findings of a live measurement: what was measured, whether the text is fit for it, whether the two servers may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.live import sanity
from eagle_forensics.acceptance.live.measure import LOOK, Measurement
from eagle_forensics.acceptance.live.paired import Speed, server_differences
from eagle_forensics.acceptance.live.sanity import Divergence
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.engines.metrics import accept_rate_to_accept_length, rate_agrees
from eagle_forensics.evidence.decode_log import Window
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

MOST_DEGENERATE = 0.5
"""Share of answers behind the gates from which a run says nothing; of 982 real greedy answers of a small model 5 % are. Of `LOOK` answers half are
by chance once in 2,700 sound runs, of two once in ten: fewer answers accuse nobody."""
UNIT = "tokens per verify round"


def measured(m: Measurement) -> Finding:
    """What accept length does the live server reach?"""
    common: dict[str, Any] = {"id": "acceptance.live", "notebook": NOTEBOOK, "question": "What accept length does the live server reach?", "unit": UNIT}
    told = tuple(Evidence(note=p) for p in m.problems)
    if m.server.speculative is False:
        return Finding(**common, status=Status.SKIPPED, statement=f"{m.label} ({m.server.url}) serves without speculation: there is no accept length to measure.",
                       evidence=told, next_step="Name the server with speculation under serving.url.")
    found, al = m.acceptance, m.accept_length
    if found is None or al is None:
        return Finding(**common, status=Status.INCONCLUSIVE, evidence=told, statement=f"{m.label}: {len(m.good)} of {len(m.answers)} answers came, and none of "
                       f"them carries counts of speculation. Nothing was measured ({m.stopped}).", next_step=_how_to_count(m))
    defined = counters.as_defined(found, m.server.engine, m.server.version, steps=m.server.steps,
                                  completion_tokens=sum(a.completion_tokens or 0 for a in m.good) if m.parts else None)
    shown = {"observed": al.value, "n": found.rounds, "interval": al.bounded,
             "evidence": (*(Evidence(note=f"{r['figure']}: {r['value']:.4f}", source=r["definition"]) for r in defined), *told)}
    spread = f" [{al.low:.3f}, {al.high:.3f}]" if al.bounded else " (no interval: the server gives running counters only)"
    spread += "" if m.parts or not al.bounded else " (rounds taken as independent, since no answer has counts of its own: too narrow)"
    text = (f"{m.label}, {m.server.engine} {m.server.version}: accept length {al.value:.3f}{spread} over {found.rounds} verify rounds of {len(m.good)} answers, "
            f"1 + accepted / rounds from {found.source}" + ("; accepted drafts derived from tokens, as this version does not count them" if found.estimated else ""))
    if not m.complete:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"Partial: {m.stopped}. What was measured before: {text}.",
                       next_step="Settle what ended the measurement, then repeat it; a partial sample may not be representative.")
    if al.bounded is None:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{text}.", next_step=_how_to_count(m))
    why = "every prompt was asked" if m.stopped == "all prompts" else f"the interval was within +- {m.settings.half_width:g}"
    return Finding(**common, **shown, status=Status.PASS, statement=f"{text}; ended because {why}.")


def sane(m: Measurement) -> Finding:
    """Are the live answers fit to measure acceptance on?"""
    common: dict[str, Any] = {"id": "acceptance.live-sanity", "notebook": NOTEBOOK, "question": "Are the live answers fit to measure acceptance on?",
                              "unit": "share of answers", "threshold": MOST_DEGENERATE,
                              "threshold_why": "of 982 real greedy answers of a small model 5 % are behind the same gates"}
    if not m.good:
        return Finding(**common, status=Status.SKIPPED, statement=f"{m.label}: no answer came in full ({m.stopped}).", next_step="Settle why the server does not answer.")
    bad = [(a, why) for a in m.good if (why := sanity.gates(a.output_ids, a.text))]
    share = len(bad) / len(m.good)
    shown = {"observed": share, "expected": f"below {MOST_DEGENERATE:g}", "n": len(m.good),
             "evidence": tuple(Evidence(note=f"{a.prompt}: {'; '.join(why)}") for a, why in bad[:8])}
    clean = [a.acceptance for a in m.good if a.acceptance is not None and a not in [x for x, _ in bad]]
    without = counters.accept_length(clean).text() if clean else "not to be had"
    if share >= MOST_DEGENERATE and len(m.good) < LOOK:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{len(bad)} of {len(m.good)} answers are loops or repeated characters: too few answers to say more.",
                       next_step=f"Ask {LOOK} prompts or more.")
    if share >= MOST_DEGENERATE:
        return Finding(
            **common, **shown, status=Status.FAIL, fault="measure.degenerate-output", interval=stats.wilson(len(bad), len(m.good)).interval,
            statement=f"{len(bad)} of {len(m.good)} answers are loops or repeated characters: acceptance on them means nothing.",
            competitor=Competitor(fault="a very good drafter", margin=f"accept length of the other answers: {without}",
                                  why_rejected="a good drafter does not change what the target says"),
            refuted_by="The answers read as normal sentences.", remedy="Look at the answers; mend the target's path (\"!!!!\" is broken numerics) or take real prompts.",
            next_step="Ask the same prompts without speculation and compare the text.")
    found = m.acceptance
    if found and (where := sanity.pinned(found, m.server.steps)):
        return Finding(**common, **shown, status=Status.INCONCLUSIVE,
                       statement=f"The accept length is pinned at {where} in all {found.rounds} rounds: a drafter that never loads, a bypassed fc and looping text look "
                       "like this as well as a very bad or very good drafter.", next_step="Read ten answers; check which tensors of the drafter were loaded (notebook 01).")
    note = f" Without the {len(bad)} of them the accept length is {without}." if bad else ""
    return Finding(**common, **shown, status=Status.PASS, statement=f"{len(m.good) - len(bad)} of {len(m.good)} answers pass every gate.{note}")


def reconciled(m: Measurement) -> Finding:
    """Do the counts of the single answers add up to the server's own counter?"""
    common: dict[str, Any] = {"id": "acceptance.live-counters", "notebook": NOTEBOOK, "unit": "verify rounds", "required": False,
                              "question": "Do the counts of the single answers add up to the server's own counter?"}
    own = counters.total(m.parts)
    if own is None or m.counted is None:
        return Finding(**common, status=Status.SKIPPED, statement=f"{m.label}: not both counts per answer and a running counter are at hand.",
                       next_step="Start SGLang with --enable-metrics." if m.server.engine == "sglang" else None)
    shown = {"observed": own.rounds, "expected": m.counted.rounds, "n": len(m.parts)}
    if own.rounds == m.counted.rounds:
        return Finding(**common, **shown, status=Status.PASS, statement=f"{m.label}: {own.rounds} verify rounds by answer, the same by {m.counted.source}.")
    why = "other requests were served meanwhile, or failed answers were verified too" if m.counted.rounds > own.rounds else "the counter lags or was reset"
    return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{m.label}: {own.rounds} verify rounds by answer, {m.counted.rounds} by {m.counted.source}: {why}.",
                   next_step="Measure on a server that serves nothing else.")


def logged(m: Measurement, windows: Sequence[Window]) -> Finding:
    """Does the engine's log tell the same as its counts, by the log's own definition?"""
    common: dict[str, Any] = {"id": "acceptance.live-log", "notebook": NOTEBOOK, "required": False, "unit": UNIT,
                              "question": "Does the engine's log tell the same as its counts?"}
    al, tokens = m.accept_length, m.server.draft_tokens
    if not windows or al is None or not tokens or not m.server.version:
        return Finding(**common, status=Status.SKIPPED, statement="No decode lines of the log and counts to hold against each other.",
                       next_step="Name serving.log, or let the suite start the server.")
    engine, version = m.server.engine, m.server.version
    mean = sum(w.accept_length for w in windows) / len(windows)
    rated = [w for w in windows if w.rate is not None and 1 <= w.accept_length <= tokens + 1]
    try:
        odd = [w for w in rated if not rate_agrees(engine, version, w.accept_length, w.rate, draft_tokens=tokens)]
        meant = [accept_rate_to_accept_length(engine, version, w.rate, draft_tokens=tokens) for w in rated if w.rate <= 1]
    except ValueError:
        odd, meant = [], []
    told = (Evidence(note=f"mean of {len(windows)} printed accept lengths: {mean:.3f}", source="each a window of the log interval, warm-up and other requests among them"),
            *((Evidence(note=f"accept length behind {len(meant)} printed rates: {sum(meant) / len(meant):.3f}", source=f"definition of {engine} {version}"),) if meant else ()))
    shown = {"observed": mean, "expected": al.value, "n": len(windows), "interval": al.bounded, "evidence": told}
    if odd:
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"{len(odd)} of {len(rated)} printed pairs of accept length and rate do not follow the definition "
                       f"of {engine} {version}: is this the log of that server?", next_step="Take the counts, not the log.")
    if al.excludes(mean):
        return Finding(**common, **shown, status=Status.INCONCLUSIVE, statement=f"The log's windows average {mean:.3f}, the counts give {al.value:.3f} [{al.low:.3f}, {al.high:.3f}]: "
                       "the log holds other requests, or its windows are of unequal weight.", next_step="Take the counts; they are exact.")
    return Finding(**common, **shown, status=Status.PASS, statement=f"The log's {len(windows)} windows average {mean:.3f}, inside the interval of the counts "
                   f"[{al.low:.3f}, {al.high:.3f}]" + (", and every printed rate follows its version's definition." if rated else "."))


def comparable(speculative: Measurement, baseline: Measurement) -> Finding:
    """Does anything but speculation differ between the two servers?"""
    common: dict[str, Any] = {"id": "acceptance.live-confounded", "notebook": NOTEBOOK, "unit": "fields",
                              "question": "Does anything but speculation differ between the two servers?"}
    found = server_differences(speculative.server, baseline.server)
    follows = tuple(Evidence(note=f"{name}: {a} with speculation, {b} without; the engine changes it by itself") for name, a, b in found.following)
    if baseline.server.speculative:
        return Finding(**common, status=Status.FAIL, fault="measure.confounded", observed=["speculative"], expected=[], n=found.compared,
                       statement=f"The baseline {baseline.server.url} serves with speculation.", refuted_by="Its /server_info shows no speculative algorithm.",
                       competitor=Competitor(fault="runtime.regression", margin="the baseline itself speculates", why_rejected="there is nothing to compare with"),
                       remedy="Name a server without speculation under serving.baseline_url.")
    if found.confounded:
        return Finding(
            **common, status=Status.FAIL, fault="measure.confounded", observed=[name for name, _, _ in found.fields], expected=[], n=found.compared,
            statement=f"More than speculation differs between the two servers: {found.text()}.",
            competitor=Competitor(fault="runtime.regression", margin=f"{len(found.fields)} other field(s) differ where none may",
                                  why_rejected="an effect can be put down to one change only if nothing else changed"),
            refuted_by="The same ratio of tokens/s from two servers that differ in speculation alone.", evidence=follows,
            remedy="Start both servers from one command; leave out the speculative flags of the second only.")
    if not found.compared:
        return Finding(**common, status=Status.INCONCLUSIVE, required=False, statement="The servers do not give their arguments: that nothing else differs is an assumption.",
                       next_step="Give both launch lines in the case; vLLM shows its arguments with VLLM_SERVER_DEV_MODE=1.")
    return Finding(**common, status=Status.PASS, observed=[], expected=[], n=found.compared, evidence=follows,
                   statement=f"Of {found.compared} effective arguments both servers give, only those of speculation differ.")


def faster(found: Speed | None) -> Finding:
    """Does speculation make this workload faster?"""
    common: dict[str, Any] = {"id": "acceptance.live-speed", "notebook": NOTEBOOK, "required": False, "unit": "ratio of tokens/s",
                              "question": "Does speculation make the measured prompts faster?"}
    if found is None:
        return Finding(**common, status=Status.SKIPPED, statement="No prompt was answered with and without speculation.",
                       next_step="Name serving.baseline_url, or a launch command without speculation.")
    text = f"{found.ratio.value:.3f} [{found.ratio.low:.3f}, {found.ratio.high:.3f}] times the tokens/s without speculation; faster on {found.faster} of {found.pairs} prompts"
    next_step = "Ask more prompts: the interval includes 1." if not found.ratio.excludes(1.0) else "Whether any drafter can win at this cost is said under `acceptance.ceiling`."
    won = found.ratio.low > 1
    return Finding(**common, status=Status.PASS if won else Status.INCONCLUSIVE, observed=found.ratio.value, expected=1.0, n=found.pairs, interval=found.ratio.bounded,
                   statement=f"Interleaved on the same prompts, whole answers with their prefill, speculation gives {text}.", next_step=None if won else next_step)


def lossless(pairs: int, found: Sequence[Divergence], *, greedy: bool, dtype: str | None) -> Finding:
    """Does the server say the same with and without speculation?"""
    common: dict[str, Any] = {"id": "acceptance.lossless", "notebook": NOTEBOOK, "required": False, "unit": "answers that differ",
                              "question": "Does the server say the same with and without speculation?"}
    if not pairs or not greedy:
        why = "the answers were sampled, not greedy" if pairs else "no prompt was answered in full, with token ids, by both"
        return Finding(**common, status=Status.SKIPPED, statement=f"Not compared: {why}.", next_step="Measure both servers at temperature 0.")
    gaps = [abs(d.gap) for d in found if d.gap is not None]
    detail = tuple(Evidence(note=f"{d.prompt}: first different token at {d.position} ({d.first} with, {d.second} without)"
                            + ("" if d.gap is None else f", log-probability gap {d.gap:+.4f}")) for d in found[:8])
    shown = {"observed": len(found), "expected": 0, "n": pairs, "evidence": detail}
    if not found:
        return Finding(**common, **shown, status=Status.PASS, statement=f"All {pairs} greedy answers are the same token for token.")
    gap = f"; the largest log-probability gap there is {max(gaps):.4f} ({len(gaps)} of {len(found)} asked)" if gaps else ""
    return Finding(**common, **shown, status=Status.INCONCLUSIVE,
                   statement=f"{len(found)} of {pairs} greedy answers part from those without speculation{gap}. In {dtype or 'the served precision'} near ties turn "
                   "either way, so by itself this proves no fault.", next_step="Repeat with --dtype float32: there the answers of a sound server are the same.")


def _how_to_count(m: Measurement) -> str:
    if m.server.engine == "vllm":
        return "Measure one request at a time (concurrency 1), or start vLLM (0.29 or later) with --per-request-spec-decode-metrics summary."
    return "Use SGLang 0.4.6 or later with speculation on; its /generate answers carry spec_verify_ct."
