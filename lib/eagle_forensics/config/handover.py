"""Does everything the drafter needs arrive: from earlier pipeline stages, under data-parallel attention, for images?"""

from __future__ import annotations

from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules, unless_assumed
from eagle_forensics.engines.handover import Lost, lost, not_read, stages_carry
from eagle_forensics.finding import Finding

STAGES = Question("config.pipeline", "Do the captured states of all pipeline stages reach the drafter?")
ATTENTION = Question("config.dp-attention", "Is the drafter fed the same under data-parallel attention?")
SPLIT = "VLLM_PP_LAYER_PARTITION"
"""vLLM's layers of each stage, set by hand."""
IMAGES = Question("config.images", "Does the drafter see what the target sees of an image?")


def handover_findings(found: Inspection) -> list[Finding]:
    """Each only where the launch line or the target asks for it, and the engine speculates with EAGLE-3."""
    answer, engine = found.arguments, found.case.serving.engine
    if answer is None or answer.error or engine not in ("sglang", "vllm") or str(answer.effective.get("algorithm")).upper() != "EAGLE3":
        return []
    settings = {**answer.raw, **answer.effective}
    return [*_stages(found, settings), *_attention(found, settings), *_images(found, settings)]


def _lost(found: Inspection, mode: str, settings: dict[str, Any]) -> Lost | None:
    serving, runner = found.case.serving, found.served.runner if found.served else None
    if mode == "pipeline" and serving.engine == "vllm":
        runner = "v1" if "VLLM_USE_V2_MODEL_RUNNER" not in _environment(found) else runner  # V2 steps back under pipeline parallelism
    return lost(serving.engine, serving.version, mode, architecture=_architecture(found), settings=settings, runner=runner)


def _environment(found: Inspection) -> dict[str, str]:
    return {**found.env, **(found.launch.env if found.launch else {})}


def _architecture(found: Inspection) -> str | None:
    return found.target.architectures[0] if found.target and found.target.architectures else None


def _stages(found: Inspection, settings: dict[str, Any]) -> list[Finding]:
    """Of a pipeline of P stages the drafter runs on the last, whose layers begin at L - L // P; one layer is left open, for releases that split unevenly. Silent where the
    split was set by hand."""
    stages, target = settings.get("pipeline_parallel_size"), found.target
    eager = found.served.boundaries.get("eager") if found.served else None
    if found.case.serving.engine != "vllm" or not isinstance(stages, int) or stages < 2 or target is None or eager is None or SPLIT in _environment(found):
        return []
    gone = _lost(found, "pipeline", settings)
    first = target.layers - target.layers // stages - 1
    before = [b for b in eager if b < first]
    common = {"observed": len(eager) - len(before), "expected": len(eager), "unit": "aux planes on the last stage", "n": stages}
    if gone is not None and before:
        item = STAGES.fails(
            "feature.missing-stage", f"with {stages} pipeline stages {found.engine} loses at least {format_boundaries(before)} of {format_boundaries(eager)}: {gone.text}", **common,
            rival=("wiring.plane-count", f"{len(before)} of {len(eager)} states lie before layer {first}, on an earlier stage", "with one stage the same ids deliver every plane"),
            refuted_by="the same count of captured states with one and with two stages", evidence=rules(gone.source),
            remedy=f"vLLM {gone.until} or later, or --pipeline-parallel-size 1.", predicted_effect="fc gets every plane it was trained on.",
            next_step="Start once with --pipeline-parallel-size 1 and compare the count of states.")
        return [unless_assumed(item, {found.engine: gone})]
    architecture = _architecture(found) or ""
    carries, source = stages_carry("vllm", found.case.serving.version, architecture)
    if carries is False:
        item = STAGES.fails(
            "args.refused", f"{found.engine} refuses {architecture} with {stages} pipeline stages and EAGLE-3: ValueError: {architecture} does not support eagle3 with pipeline parallelism",
            **common, rival=("feature.missing-stage", "an error at start, no request is served", "this release hands the states on or stops; it loses none in silence"),
            refuted_by="the server starts with exactly these arguments", evidence=rules(source), remedy="--pipeline-parallel-size 1.", next_step="Start with one stage.")
        return [unless_assumed(item, {found.engine: found.served})]
    if carries:
        return [STAGES.passes(f"{found.engine} hands the aux states of all {stages} stages of {architecture} to the last one", observed=len(eager), expected=len(eager),
                              unit="aux planes on the last stage", n=stages, evidence=rules(source))]
    return [STAGES.suspects(
        "feature.missing-stage", f"{stages} pipeline stages: whether {found.engine} hands the aux states of {architecture or 'this target'} to the last stage was not read", required=True,
        rival=("wiring.plane-count", "one stage would tell", "not rejected here"), **common, next_step="Start once with --pipeline-parallel-size 1: equal accept lengths clear it.")]


def _attention(found: Inspection, settings: dict[str, Any]) -> list[Finding]:
    ranks = settings.get("dp_size")
    if found.case.serving.engine != "sglang" or not settings.get("enable_dp_attention") or not isinstance(ranks, int) or ranks < 2:
        return []
    gone = _lost(found, "dp-attention", settings)
    common = {"observed": ranks, "unit": "attention ranks"}
    if gone is None and (unread := not_read("sglang", found.case.serving.version)):
        return [ATTENTION.suspects(None, f"{ranks} attention ranks: no loss is known, but {unread}", **common,
                                   next_step="Measure the same prompts once without --enable-dp-attention (notebook 04): equal accept lengths clear it.")]
    if gone is None:
        return [ATTENTION.passes(f"no release note or source that was read names a loss in {found.engine} with {ranks} attention ranks and these arguments", **common)]
    item = ATTENTION.fails(
        "runtime.dp-attention", f"{ranks} attention ranks on {found.engine}: {gone.text}", **common, expected=1,
        rival=("wiring.plane-count", "as many planes as fc takes", "the ids and their count are the same without data parallelism; only the hand-over differs"),
        refuted_by="the same accept length without --enable-dp-attention", evidence=rules(gone.source), remedy=f"SGLang {gone.until} or later, or no --enable-dp-attention.",
        predicted_effect="The accept length of the server without data-parallel attention.", next_step="Measure the same prompts once without --enable-dp-attention (notebook 04).")
    return [unless_assumed(item, {found.engine: gone})]


def _images(found: Inspection, settings: dict[str, Any]) -> list[Finding]:
    """A hazard for requests with images alone; text is served whole."""
    target, draft = found.target, found.draft
    if found.case.serving.engine != "sglang" or target is None or draft is None or "vision_config" not in target.config:
        return []
    test = "Measure text-only and image prompts apart (column `images` of the measurements): equal accept lengths clear it."
    gone = _lost(found, "images", settings)
    if gone is not None:
        return [IMAGES.suspects(
            "runtime.multimodal", f"the target takes images, but on {found.engine} {gone.text}. Text is not touched; whether images are sent is not in the papers", required=True,
            rival=("args.draft-budget-overridden", "image prompts alone", "not rejected here: an overridden budget lowers text prompts too"), evidence=rules(gone.source),
            remedy=f"SGLang {gone.until} or later.", next_step=test)]
    sections = [(side.rope.scaling or {}).get("mrope_section") for side in (target, draft)]
    if sections[0] and not sections[1]:
        return [IMAGES.suspects(
            "runtime.multimodal", f"the target turns by three positions a token (mrope_section {sections[0]}), the draft's config names none: it gets one, which differs for image tokens alone",
            rival=("drafter.rope", "image prompts alone", "not rejected here: text tokens have three equal positions"),
            evidence=rules("sglang 0.5.6 llama_eagle3.py:114, 0.5.23:137: mrope_section of the draft's config decides"), remedy="Train and serve the draft with the target's mrope_section.",
            next_step=test)]
    if unread := not_read("sglang", found.case.serving.version):
        return [IMAGES.suspects(None, f"the target takes images: no loss is known, but {unread}", next_step=test)]
    return [IMAGES.passes(f"{found.engine} gives the drafter the embeddings of images" + (" and their three positions" if sections[1] else ""), evidence=rules(
        "sglang 0.5.10 llama_eagle3.py:157 mm_input_embeds"))]
