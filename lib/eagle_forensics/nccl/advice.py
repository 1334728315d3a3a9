"""What to do about the interconnect of this machine, in the order in which it pays, with the command that proves each step.

Nothing is recommended that was not measured: an unmeasured step is an A/B. NVIDIA's documentation advises against most of
these variables in production, so the narrowest form is given: one collective, no channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_forensics.nccl.belief import Belief
from eagle_forensics.nccl.gains import Gate
from eagle_forensics.nccl.registry import version
from eagle_forensics.nccl.search import FUNCTION_PREFIX, Found
from eagle_forensics.nccl.settings import LOG_ENV
from eagle_forensics.nccl.sizes import MessagePlan
from eagle_forensics.nccl.tokens import Cost, Round

NOT_FOR_PRODUCTION = "NVIDIA's documentation: such variables should generally not be set in production code. Keep them to the served process, and re-check them with every NCCL."


@dataclass(frozen=True)
class Step:
    """One thing to do."""

    do: str
    why: str
    prove: str
    """What to run to know that it helped."""


def steps(*, plan: MessagePlan | None, link: str | None, gpus: int | None, nodes: int, belief: Belief | None, found: Found | None,
          cost: Cost | None, checks: Sequence[Gate] = ()) -> list[Step]:
    """The steps for this machine, first things first; empty where no all-reduce is sent. `checks`: gates of the search's winner."""
    if plan is None:
        return []
    if nodes > 1:
        return [_several_nodes(plan, nodes), *_cost(cost)]
    if link in ("nvlink", "nvswitch"):
        return [Step("Leave NCCL alone", "with NVLink between all GPUs the engine's own all-reduce carries decode sizes, and NCCL's low-latency ring is already chosen "
                     "below about 0.9 MB", "a trace of one decode step shows custom all-reduce kernels; if not, find out why the engine refused them"), *_cost(cost)]
    found_steps = []
    block = " ".join(f"{k}={v}" for k, v in found.changes.items()) if found is not None else ""
    if found is not None and found.won and (open_gates := [g for g in checks if not g.passed]):
        found_steps.append(Step(f"Not yet {block}", "it is faster at decode size, but " + "; ".join(f"{g.name}: {g.note}" for g in open_gates), "this notebook again, with these gates closed"))
    elif found is not None and found.won:
        found_steps.append(Step(f"Set {block}", f"{100 * (1 - found.won.ratio.value):.0f} % off an all-reduce in {found.won.ratio.n} pairs of launches", _AB))
    elif found is not None:
        found_steps.append(Step("Change nothing", "no setting beat the default", "nothing to prove"))
    elif belief is not None and belief.fallback:
        word = f"allreduce:LL,Simple{'' if _prefixes(belief.release) else ' (LL before 2.24)'}"
        found_steps += [Step(f"A/B of NCCL_P2P_LEVEL=SYS with NCCL_PROTO={word}", "the graph search failed, so Simple is chosen by bandwidth; measured in public on a like machine: 48 us to 26 us", _AB),
                        Step("A/B of NCCL_GRAPH_FILE", "NCCL_GRAPH_DUMP_FILE writes the graph; correct its speed and types, load it: the cause instead of the symptom, about 10 MB of GPU memory a rank", _AB)]
    else:
        found_steps.append(Step("Find out first", "which way NCCL chooses and how long it takes is not known", f"start once with {LOG_ENV}; then {plan.nccl_tests}"))
    found_steps.append(Step("Prove the environment on both servers", "worker processes, containers and services lose it; a baseline under another environment is no baseline",
                            "tr '\\0' '\\n' < /proc/PID/environ of every scheduler, with and without speculation"))
    if gpus is not None and gpus > 2:
        found_steps.append(Step("Or leave NCCL: a one-shot PCIe kernel" if gpus <= 4 else "Or leave NCCL: FlashInfer's PCIe all-reduce (SGLang 0.5.21: SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1)",
                                "custom all-reduce is refused for more than two PCIe GPUs; one-shot kernels gained 7 to 11 % within one socket and lost 4 to 16 % across two", _AB))
    return [*found_steps, *_cost(cost)]


def adaptive(rounds: Sequence[Round], best_steps: int | None) -> dict[str, dict[str, list[int]]] | None:
    """SGLang's `speculative_adaptive_config` (0.5.11 on) by batch size: it weighs acceptance only, so what can lose is left out here."""
    if not rounds:
        return None
    return {"1": {"candidate_steps": [0] if best_steps is None else [0, best_steps]}}


def _several_nodes(plan: MessagePlan, nodes: int) -> Step:
    return Step("Keep tensor parallelism within one node",
                f"each of the {plan.count} all-reduces of a verify crosses the network {2 * (nodes - 1)} times in sequence; its latency, not NCCL's protocol, is the cost. Split layers or "
                "experts over nodes instead", "time of an all-reduce at decode size within one node and over all: torchrun lines below")


def _cost(cost: Cost | None) -> list[Step]:
    if cost is None or cost.penalty_ms <= 0.1 * cost.baseline_ms:
        return []
    return [Step("Look for the fixed cost of a round", f"{cost.penalty_ms:.1f} ms a round do not depend on the number of tokens",
                 "server log: cuda graph: False, draft-extend eager, synchronisation between draft and verify; one profiled round")]


def _prefixes(release: str | None) -> bool:
    return release is not None and version(release) >= FUNCTION_PREFIX


_AB = "the server's tokens/s, old and new environment, each with and without speculation, same prompts; greedy outputs side by side; prefill time not above 1.05"
