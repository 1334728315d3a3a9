"""What the server itself said: its log or saved /server_info, held against the launch line of the case and the rules of the release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules
from eagle_forensics.engines.remedy import serve_boundaries
from eagle_forensics.evidence.server_log import LogLine, ServerLog
from eagle_forensics.finding import Evidence, Finding

ARGUMENTS = Question("config.live-arguments", "Does the running server have the arguments that the launch line and the rules give?")
LAYERS = Question("config.live-layers", "Does the running server capture the layers that the rules give?")
COMPARED = ("algorithm", "num_steps", "topk", "num_draft_tokens", "max_running_requests", "page_size", "tp_size", "draft_quantization", "quantization", "dtype")
"""Effective arguments held against the log; what a log does not print is not compared."""
_SPELLED = {"draft_quantization": "speculative_draft_model_quantization"}


def live_findings(found: Inspection) -> list[Finding]:
    """Nothing without a log or a saved reply of the server."""
    if found.log is None:
        return []
    return [_arguments(found, found.log), *_layers(found, found.log)]


def live_values(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The compared arguments out of an engine's own printout, under their short names."""
    values = {}
    for name in COMPARED:
        spellings = (_SPELLED.get(name, name), f"speculative_{name}", f"speculative_eagle_{name}")
        value = next((arguments[s] for s in spellings if s in arguments), None)
        if value is not None:
            values[name] = str(value)
    spec = arguments.get("speculative_config")
    if isinstance(spec, Mapping) and spec.get("num_speculative_tokens") is not None:
        values["num_steps"] = values["num_draft_tokens"] = str(spec["num_speculative_tokens"])
    return values


def _arguments(found: Inspection, log: ServerLog) -> Finding:
    said = tuple(Evidence(note=f"{line.text} (byte {line.byte})", path=str(log.path.name)) for line in log.lines if line.kind in ("arguments", "fusion"))
    if log.arguments is None:
        return ARGUMENTS.suspects(None, f"{log.path.name} does not print the server's arguments ({log.bytes} bytes, {sum(log.counts.values())} lines of interest)", evidence=said,
                                  next_step="Keep the log from the server's start, or save the reply of /server_info.")
    if found.arguments is None or found.arguments.error:
        return ARGUMENTS.skips("launch line that this engine accepts", "whether this log is of the server of this case")
    live, ours = live_values(log.arguments.arguments), found.arguments.effective
    pairs = {name: (live[name], ours.get(name)) for name in live if ours.get(name) is not None}
    apart = {name: pair for name, pair in pairs.items() if str(pair[0]).lower() != str(pair[1]).lower()}
    common = {"observed": {n: p[0] for n, p in pairs.items()}, "expected": {n: p[1] for n, p in pairs.items()}, "n": len(pairs), "unit": "arguments",
              "evidence": (*said, *rules(*found.arguments.sources))}
    if not pairs:
        return ARGUMENTS.suspects(None, f"{log.path.name} names none of the compared arguments", evidence=said, next_step="Save the reply of /server_info.")
    if not apart:
        lines = f"; the log warns: {'; '.join(e.note for e in said[:2])}" if said else ""
        return ARGUMENTS.passes(f"the server's own printout agrees in {len(pairs)} arguments{lines}", **common)
    words = "; ".join(f"{name}: the server says {a}, the rules give {b}" for name, (a, b) in apart.items())
    return ARGUMENTS.suspects(
        None, f"{words}. The server is right about itself: the launch line is of another start, or our rule for {found.engine} is wrong", **common, required=True,
        rival=("args.draft-budget-overridden", f"{len(apart)} of {len(pairs)} arguments differ", "an override is part of the rules already and would not show here"),
        next_step="Give serving.launch the log's own line, or report the difference with both values.")


def _layers(found: Inspection, log: ServerLog) -> list[Finding]:
    line = next((line for line in reversed(log.lines) if line.layers is not None), None)
    if line is None or line.layers is None:
        return []
    said, ruled = tuple(sorted(line.layers)), found.served.boundaries.get("eager") if found.served else None
    known = found.trained is not None and not found.trained.error and not found.trained.assumed
    trained = tuple(sorted(found.trained.boundaries)) if known and found.trained else None
    common = {"observed": list(said), "unit": "boundaries", "n": len(said),
              "evidence": (Evidence(note=f"{line.text} (byte {line.byte})", path=log.path.name), *rules("vllm 0.33.0: ids are boundaries"))}
    if trained and said != trained:
        return [_wrong_layers(found, line, said, trained, common)]
    if ruled is not None and tuple(sorted(ruled)) != said:
        return [LAYERS.suspects(None, f"the server says it captures {format_boundaries(said)}, the rules give {format_boundaries(ruled)}: our rule for {found.engine} is wrong, "
                                "or the log is of another server", **common, expected=list(ruled), required=True, next_step="Trust the log; report the difference with both lists.")]
    return [LAYERS.passes(f"the server says it captures {format_boundaries(said)}" + (", the trained ones" if trained else ", as the rules give"), **common)]


def _wrong_layers(found: Inspection, line: LogLine, said: tuple[int, ...], trained: tuple[int, ...], common: dict[str, Any]) -> Finding:
    fix = serve_boundaries(found.case, found.target, trained, found.served.runner if found.served else None)
    return LAYERS.fails(
        "wiring.layer-offset", f"the server itself says that it captures {format_boundaries(said)}; the drafter was trained on {format_boundaries(trained)}", **common,
        expected=list(trained), rival=("wiring.mislabelled-dump", "the trained side comes from the trainer's ids", "not rejected here: notebook 03 asks the dump's tensors"),
        refuted_by="notebook 03 finds other boundaries in the dump than the trainer's ids say", remedy=fix.text, edits=fix.edits,
        predicted_effect="Notebook 02 predicts the accept length of both wirings on the same tokens.", next_step="Read notebook 03 for the tensors.")
