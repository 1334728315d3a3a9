"""The steps of notebook 04 on the text that a live server served: read the answers, walk them, say which wiring takes the server's rounds.

Importing this module imports no torch: a run without live answers pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from eagle_forensics.case import Case
from eagle_forensics.drafter.served.walked import ServedText
from eagle_forensics.drafter.wording import SERVED_TEXT
from eagle_forensics.engines.loading import ENGINES, draft_dtype
from eagle_forensics.evidence.answers import ServedAnswer, ServedAnswers, read_answers
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Finding, Status

if TYPE_CHECKING:
    from eagle_forensics.drafter.served.text import Known
    from eagle_forensics.evidence.records import Target

MOST = 16
"""Answers that are walked: on the built-in pair 16 of 48 tokens tell the wrong wirings from the right one by 20 rounds and more."""
WORK = 4e12
"""Floating-point operations that are spent: about a minute of two slow cores."""


class _Unfit(ValueError):
    """The evidence is sound, but nothing can be walked on it."""


def walk(case: Case, run_dir: Path, *, answers: str | Path = "", layers: Mapping[str, Any] | None, predicted: Mapping[str, Any] | None,
         arguments: Mapping[str, Any] | None = None, progress: Callable[[str], None] | None = None) -> ServedText:
    """Walk the answers measured in this run, or those of a former run (`answers`, or the case's: its folder, or the folder of its measurement).

    `layers`, `predicted`, `arguments`: records of notebooks 01 and 02. Bad evidence and what is missing become the opening finding.
    """
    try:
        answers = answers or case.answers or ""
        found = read_answers(Path(answers) if answers else run_dir)
        if found is None:
            if answers:
                raise EvidenceError(f"{answers}: holds no answers of a live measurement. Name a run folder whose notebook 04 measured a server.")
            return ServedText()
        return _walk(case, found, layers or {}, predicted or {}, arguments or {}, progress)
    except _Unfit as why:
        return ServedText(opening=(Finding(**SERVED_TEXT, status=Status.SKIPPED, statement=f"The served text was not walked: {why}", required=False, next_step=(
            "Measure at temperature 0 with a fixed number of steps, and give target and drafter with weights: then the walk shows what the server feeds its drafter.")),))
    except (EvidenceError, OSError, ValueError) as error:
        return ServedText(opening=(Finding(**SERVED_TEXT, status=Status.ERROR, statement=" ".join(str(error).split()), next_step="Correct the evidence named here, then run again."),))


def findings(text: ServedText) -> list[Finding]:
    """Which wiring reproduces the server's counts; nothing where no server was measured."""
    if not text.walked:
        return list(text.opening)
    from eagle_forensics.drafter.served.verdict import served_text_finding

    return [served_text_finding(text)]


def table(text: ServedText, most: int = 12) -> pd.DataFrame | None:
    """The nearest wirings, a row each; None without a walk."""
    if not text.walked:
        return None
    from eagle_forensics.drafter.served.text import counts_table

    return pd.DataFrame(counts_table(text.walked[:most], text.known))


def reproduced(text: ServedText, most: int = 12) -> list[bool] | None:
    """Which rows of the table give the count of every answer."""
    return [not w.missed for w in text.walked[:most]] if text.walked else None


def record(text: ServedText) -> dict[str, Any]:
    """`served_text`: verify rounds of every wiring by answer beside the server's, for the evidence folder; empty without a walk."""
    if not text.walked:
        return {}
    from eagle_forensics.drafter.served.text import named

    return {"served_text": {"exact": text.exact, "dtype": text.dtype, "left_out": list(text.left_out), "served": list(text.walked[0].served),
            "wirings": {named(w.wiring, text.known): list(w.rounds) for w in text.walked}}}


def _walk(case: Case, found: ServedAnswers, layers: Mapping[str, Any], predicted: Mapping[str, Any], arguments: Mapping[str, Any],
          progress: Callable[[str], None] | None) -> ServedText:
    _fit(found)
    if case.drafter is None or case.target is None:
        raise _Unfit(f"the case names no {'drafter' if case.drafter is None else 'target'}.")
    from eagle_forensics.drafter.network.model import load_drafter
    from eagle_forensics.drafter.served import text as walking
    from eagle_forensics.drafter.workbench import final_norm
    from eagle_forensics.engines.remedy import serve_boundaries
    from eagle_forensics.evidence.drafts import read_draft
    from eagle_forensics.evidence.states import fits, target_states
    from eagle_forensics.evidence.targets import read_target

    target, draft = read_target(case.target.path), read_draft(case.drafter.path)
    if not draft.tensors:
        raise _Unfit("the drafter's weights are not at hand.")
    dtype = _dtype(found, target, arguments)
    exact = dtype == "float32"
    if why := fits(target, float32=exact):
        raise _Unfit(f"the target cannot be run here ({why}).")
    drafter = load_drafter(draft, target, embedding_from="target" if found.engine == "sglang" else "draft")
    known, setting = _known(layers, predicted), walking.Setting(found.steps, found.topk or 1, found.draft_tokens)
    norm = final_norm(target)
    tried = walking.wirings(drafter, target, known, norm=norm, topk=setting.topk, exact=exact)
    chosen, left_out = _chosen(found, target, 2 * drafter.head.numel() * setting.steps * setting.topk * len(tried) * (8 if setting.topk > 1 else 1))
    states = target_states(target, [(*a.prompt_ids, *a.output_ids) for a in chosen], walking.boundaries_needed(tried, known), cache=False, float32=exact, progress=progress)
    walked = walking.walk_answers(drafter, walking.recorded(chosen, states, known), chosen, tried, setting, norm=norm, progress=progress)
    remedy = serve_boundaries(case, target, known.trained, ((layers.get("served") or {}).get("runner"))).text if known.trained and list(known.trained) == sorted(known.trained) else None
    return ServedText(walked, known, setting, exact, dtype or "unknown", len(chosen), left_out, remedy)


def _fit(found: ServedAnswers) -> None:
    if found.temperature > 0:
        raise _Unfit(f"it was sampled at temperature {found.temperature:g}; only greedy text shows by itself which drafts were accepted.")
    if found.adaptive:
        raise _Unfit("the server changes its number of steps by itself.")
    if not found.steps:
        raise _Unfit("the server does not say how many steps it drafts.")
    if (found.topk or 1) > 1 and not found.draft_tokens:
        raise _Unfit("the server drafts trees and does not say of how many tokens.")


def _dtype(found: ServedAnswers, target: Target, arguments: Mapping[str, Any]) -> str | None:
    """The dtype that the served target ran in; None if it is not known."""
    asked = found.dtype or arguments.get("dtype")
    if found.engine not in ENGINES:
        return None if asked in (None, "auto") else asked
    return draft_dtype(found.engine, asked=asked or "auto", draft=target.config, target=target.config).runs


def _known(layers: Mapping[str, Any], predicted: Mapping[str, Any]) -> Known:
    from eagle_forensics.drafter.served.text import Known

    paths = (layers.get("served") or {}).get("boundaries") or {}
    eager, graph, trained = (tuple(ids) if ids else None for ids in (paths.get("eager"), paths.get("graph"), predicted.get("trained_boundaries") or layers.get("trained_by_ids")))
    return Known(trained, eager, graph if graph != eager else None)


def _chosen(found: ServedAnswers, target: Target, each: float) -> tuple[tuple[ServedAnswer, ...], tuple[str, ...]]:
    """Answers spread over all, as many as the work allows; what was left out, in words. `each`: operations of the drafter's wirings a token."""
    free = [a for a in found.answers if not a.constrained and len(a.output_ids) > 1]
    picked = [free[i * len(free) // min(MOST, len(free))] for i in range(min(MOST, len(free)))]
    a_token = each + 2 * sum(_size(t.shape) for name, t in target.tensors.items() if "embed_tokens" not in name and "lm_head" not in name)
    kept, used = [], 0.0
    for a in picked:
        cost = a_token * (len(a.prompt_ids) + len(a.output_ids))
        if used + cost <= WORK:
            kept.append(a)
            used += cost
    if not kept:
        reason = "no answer has text, counts and more than one token" if not free else f"each of the {len(picked)} answers takes more than {WORK:.0e} operations here"
        raise _Unfit(f"{reason}{'; ' + found.left_out[0] if found.left_out else ''}.")
    constrained = sum(a.constrained for a in found.answers)
    out = [*found.left_out[:3], *([f"{constrained} constrained by a grammar"] if constrained else []), *([f"{len(free) - len(kept)} of {len(free)} answers, to keep it short"] if len(free) > len(kept) else [])]
    return tuple(kept), tuple(out)


def _size(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
