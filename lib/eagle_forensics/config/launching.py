"""What the launch line implies beyond the draft budget: the draft's path, units across engines, fused all-reduce; and the next upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules, unless_assumed
from eagle_forensics.engines.fusion import fusion
from eagle_forensics.evidence.measurements import read_measurements
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Evidence, Finding

if TYPE_CHECKING:
    import pandas as pd

PATH = Question("config.draft-path", "Is the drafter another checkpoint than the target?")
FUSED = Question("config.fused-all-reduce", "Can captured states be per-rank partial sums?")
UNITS = Question("config.units", "Do the compared runs of two engines draft the same number of tokens?")
UPGRADE = Question("config.upgrade", "Does the same config mean the same states in later releases?")


def launching_findings(found: Inspection) -> list[Finding]:
    """Path, units and fusion; each only where the case has something to say about it."""
    paths = [unless_assumed(item, {found.engine: found.arguments}) for item in _path(found)]
    return [*paths, *_units(found), *_fused(found)]


def _path(found: Inspection) -> list[Finding]:
    case, answer = found.case, found.arguments
    named = case.drafter and case.target and case.drafter.path.resolve() == case.target.path.resolve()
    raw = answer.raw if answer else {}
    effective = answer.effective if answer else {}
    target, draft = raw.get("model_path") or raw.get("model"), effective.get("draft_model_path")
    eagle3 = str(effective.get("algorithm", "")).upper() == "EAGLE3"
    same = eagle3 and target and draft and Path(str(target)) == Path(str(draft))
    absent = eagle3 and target and not draft and case.serving.engine == "sglang"
    if not (named or same or absent):
        return [PATH.passes(f"drafter {draft} beside target {target}")] if target and draft and eagle3 else []
    words = ("drafter.path and target.path of the case are one folder" if named and not (same or absent) else
             f"EAGLE3 is asked for without a draft path: {found.engine} loads the target {target} twice" if absent else
             f"the launch line names {target} as target and as drafter")
    return [PATH.fails(
        "args.algorithm-mismatch", words, observed=str(draft or target or case.target.path), expected="the drafter's own checkpoint",
        rival=("vocab.map-missing", "accept length near 1 as well", "the paths alone decide this, no tensor is needed"), refuted_by="the log names two different checkpoints as loaded",
        evidence=rules("sglang #36528: no draft path loads the target twice, then stops in set_embed or hot_token_id"), remedy="--speculative-draft-model-path with the drafter's folder.",
        predicted_effect="The drafter is loaded instead of a second target.", next_step="Correct the path and inspect again.")]


def _units(found: Inspection) -> list[Finding]:
    """vLLM counts drafts (K); SGLang counts tokens of a verify (K + 1)."""
    frame = measurements(found)
    if frame is None or not {"engine", "draft_tokens"} <= set(frame.columns):
        return []
    used = frame[frame["draft_tokens"].notna() & frame["engine"].notna()]
    if "speculative" in used:
        used = used[used["speculative"].fillna(True).astype(bool)]
    if "topk" in used:
        used = used[used["topk"].fillna(1) == 1]
    drafts = {engine: {int(n) for n in used.loc[used["engine"].str.lower() == engine, "draft_tokens"]} for engine in ("sglang", "vllm")}
    if not all(drafts.values()):
        return []
    copied = sorted(drafts["sglang"] & drafts["vllm"])
    drafted = {"sglang": sorted(n - 1 for n in drafts["sglang"]), "vllm": sorted(drafts["vllm"])}
    common = {"observed": drafted, "unit": "draft tokens a round (K)", "evidence": rules("vllm num_speculative_tokens = K; sglang num_draft_tokens = K + 1 with topk 1")}
    if not copied or set(drafted["sglang"]) == set(drafted["vllm"]):
        return [UNITS.passes(f"in drafts a round SGLang ran K = {drafted['sglang']}, vLLM K = {drafted['vllm']}", **common)]
    return [UNITS.fails(
        "args.unit-confusion", f"both engines were given {copied}: that is K = {[n - 1 for n in copied]} in SGLang and K = {copied} in vLLM", **common, expected="the same K",
        rival=("measure.definition", "one draft token a round", "two formulas on one run would agree in K; these runs differ by one token"), refuted_by="the resolved K of both servers is equal",
        remedy=f"In SGLang ask for {[n + 1 for n in copied]} draft tokens to match vLLM's {copied}.", predicted_effect="Accept lengths become comparable; neither becomes better.",
        next_step="Compare accept lengths only between runs of equal K.")]


def _fused(found: Inspection) -> list[Finding]:
    case, target = found.case, found.target
    if case.serving.engine != "sglang" or not case.serving.version or target is None:
        return []
    raw = found.launch.arguments if found.launch else {}
    tp = found.arguments.effective.get("tp_size") if found.arguments else None
    hardware = case.serving.hardware
    tp = tp if isinstance(tp, int) else 1
    answer = fusion(case.serving.version, architecture=target.architectures[0] if target.architectures else None,
                    capability=hardware.compute_capability if hardware else None, tp=tp, arguments=raw)
    said = tuple(Evidence(note=line) for line in found.log_lines("fusion") if "AllReduce Fusion" in line)
    common = {"observed": tp, "unit": "tensor-parallel ranks", "evidence": (*rules(*answer.sources), *said)}
    if answer.exposed is False and not said:
        return [FUSED.passes(f"captured states are whole: {answer.reason}", **common)] if found.arguments else []
    test = f"Measure once with {answer.switch_off}." if answer.switch_off else "Measure once with --tp 1, or on SGLang 0.5.14 or later."
    return [FUSED.suspects(
        "feature.partial-sum", f"possible: {answer.reason}" + (f"; the log says: {said[0].note}" if said else "") + ". A hazard by the papers, not an observation", **common,
        required=answer.exposed is True or bool(said),
        rival=("wiring.layer-offset", "relative error about 0.1 to the previous layer, not 0", "not rejected here: captures of two ranks decide (notebook 03)"),
        remedy="SGLang 0.5.14 or later for DeepSeek and Kimi, 0.5.21 for GLM-4 MoE and GPT-OSS; or the fusion off.",
        next_step=f"{test} Equal accept lengths clear it; so do equal captures on two ranks (notebook 03).")]


def upgrade_findings(found: Inspection) -> list[Finding]:
    """What the next release that differs would make of today's config."""
    served = found.served
    eager = served.boundaries.get("eager") if served else None
    if served is None or eager is None:
        return []
    hazards = [note for note in served.notes if note.startswith("upgrade hazard:")]
    common = {"observed": list(eager), "unit": "boundaries", "evidence": rules(*served.sources)}
    if not hazards:
        return [UPGRADE.passes(f"no release that was read after {found.engine} captures anything else than {format_boundaries(eager)} with this config", **common)]
    trained = tuple(sorted(found.trained.boundaries)) if found.trained and not found.trained.error else None
    today = "right" if trained == tuple(sorted(eager)) else "wrong" if trained else "taken as meant"
    words = f"{format_boundaries(eager)} today ({today}); {hazards[0].removeprefix('upgrade hazard: ')}"
    if today == "wrong":
        return [UPGRADE.passes(words, **common)]
    return [UPGRADE.suspects("wiring.layer-offset", words, **common, remedy="On the day of the upgrade write the ids that the table of spellings gives for that release.",
                             next_step="Keep the engine pinned, or change config and engine together.")]


def measurements(found: Inspection) -> pd.DataFrame | None:
    """The table of the case where it can be read; what is wrong with it is notebook 04."""
    path = found.case.measurements
    try:
        return read_measurements(path) if path and path.is_file() else None
    except (EvidenceError, OSError, ValueError):
        return None
