"""What to serve with: the launch arguments of the best step count, and SGLang's adaptive configuration from the measured cost.

SGLang's own controller moves among its candidate steps by acceptance alone (sglang 0.5.23 adaptive_spec_params.py): it never sees a cost. So only
step counts that pay may be among its candidates, and 0 where none does; a batch size not listed uses the next smaller one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle_forensics.acceptance.ceiling import hull
from eagle_forensics.acceptance.confounds import baseline_for, compare
from eagle_forensics.acceptance.cost import DENSE, Sweep, accept_lengths, fit_cycle, sweep
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.engines.versions import since
from eagle_forensics.evidence.experts import Experts

ADAPTIVE_SINCE = "0.5.11"
"""SGLang release with --speculative-adaptive-config."""
LIKELY = 0.95
"""Share of plausible cost lines in which a step count must beat plain decoding before 0 is left out of the candidates."""


@dataclass(frozen=True)
class Advice:
    """What to write on the launch line; `adaptive` is the content of the file named by --speculative-adaptive-config."""

    steps: int
    """0: serve without speculation."""
    arguments: str
    adaptive: Mapping[str, Any] | None


def sweep_of(runs: Sequence[Run], experts: Experts = DENSE) -> Sweep | None:
    """The step counts of comparable runs on their cost line; None where no line can be drawn through them."""
    speculative = [r for r in runs if r.is_speculative and r.steps]
    if any(compare(speculative[0], r).differ for r in speculative[1:]):
        return None
    try:
        fit = fit_cycle(speculative, experts)
        baselines, differs = baseline_for(speculative[0], tuple(runs))
        base = hull([b.tokens_per_second for b in baselines]) if baselines and not differs else None
        speeds = {k: max(r.tokens_per_second.value for r in speculative if r.steps == k and r.tokens_per_second) for k in {r.steps for r in speculative if r.tokens_per_second}}
        return sweep(fit, accept_lengths(speculative), base, speeds)
    except ValueError:
        return None


def advise(runs: Sequence[Run], engine: str | None, version: str | None, experts: Experts = DENSE) -> Advice | None:
    """From a sweep of the steps, at each concurrency that was swept; None without one."""
    loads = sorted({r.concurrency or 1 for r in runs})
    sweeps = {load: found for load in loads if (found := sweep_of([replace(r, concurrency=load) for r in runs if (r.concurrency or 1) == load], experts))}
    if not sweeps:
        return None
    name = (engine or "").lower()
    first = sweeps[min(sweeps)]
    steps = max(candidates(first), key=lambda k: -1 if k == 0 else next(c.tokens_per_second.value for c in first.choices if c.steps == k))
    adaptive = None
    if name == "sglang" and (not version or since(ADAPTIVE_SINCE, version)):
        adaptive = {str(load): {"candidate_steps": candidates(s)} for load, s in sweeps.items()}
    return Advice(steps, launch_arguments(name, steps), adaptive)


def candidates(found: Sweep) -> list[int]:
    """Step counts that cannot be told from the best; 0 among them unless they surely beat plain decoding, alone if none can."""
    best = found.best
    if best.probability_wins is not None and best.probability_wins < 1 - LIKELY:
        return [0]
    near = [c.steps for c in found.choices if c.steps == best.steps or found.ratio(c.steps).high >= 1]
    return sorted({*near, *([0] if best.probability_wins is not None and best.probability_wins < LIKELY else [])})


def launch_arguments(engine: str | None, steps: int) -> str:
    """The flags of a chain of `steps` drafts; in words for an engine that is not known."""
    if not steps:
        return "no speculative arguments"
    if (engine or "").lower() == "sglang":
        return f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
    if (engine or "").lower() == "vllm":
        return f"--speculative-config '{json.dumps({'num_speculative_tokens': steps})}' (this key beside method and model)"
    return f"{steps} draft step" + "s" * (steps != 1)
