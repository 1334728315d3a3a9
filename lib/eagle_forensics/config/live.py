"""What the server itself says, live or in its log or a saved /server_info, held against the launch line of the case and the rules of the release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules
from eagle_forensics.engines.remedy import serve_boundaries
from eagle_forensics.engines.versions import engine_label
from eagle_forensics.evidence.live import LiveServer
from eagle_forensics.evidence.records import LaunchLine
from eagle_forensics.evidence.server_log import LogLine, ServerLog
from eagle_forensics.finding import Evidence, Finding

ARGUMENTS = Question("config.live-arguments", "Does the running server have the arguments that the launch line and the rules give?")
SERVER = Question("config.live-server", "Is the live server the one that this case describes?")
LAYERS = Question("config.live-layers", "Does the running server capture the layers that the rules give?")
COMPARED = ("algorithm", "num_steps", "topk", "num_draft_tokens", "max_running_requests", "page_size", "tp_size", "draft_quantization", "quantization", "dtype")
"""Effective arguments held against the log; what a log does not print is not compared."""
_SPELLED = {"draft_quantization": "speculative_draft_model_quantization", "tp_size": "tensor_parallel_size", "max_running_requests": "max_num_seqs"}
IF_TYPED = frozenset({"tp_size", "page_size", "quantization", "dtype"})
"""Compared only if the launch line of the case sets them: a line cut to its speculative part leaves them out, and means no default by it."""
SUSPECTED = {
    "args.algorithm-mismatch": {"algorithm"}, "args.draft-budget-overridden": {"num_steps", "topk", "num_draft_tokens"},
    "load.draft-quantization": {"draft_quantization", "quantization"}, "load.dtype": {"dtype"}, "cost.admission-limit": {"max_running_requests"},
}
"""The fault that a difference in one of these arguments would be, gravest first, if the launch line is of this server."""


def live_findings(found: Inspection) -> list[Finding]:
    """Nothing without a server's URL, log or saved reply."""
    log = [_arguments(found, found.log), *_layers(found, found.log)] if found.log else []
    return [*_server(found), *log]


def live_values(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The compared arguments out of an engine's own printout, under their short names."""
    values = {}
    for name in COMPARED:
        spellings = (name if name != "draft_quantization" else "", _SPELLED.get(name, ""), f"speculative_{name}", f"speculative_eagle_{name}")
        value = next((arguments[s] for s in spellings if s in arguments), None)
        if value is not None:
            values[name] = str(value)
    spec = arguments.get("speculative_config")
    if isinstance(spec, Mapping) and spec.get("num_speculative_tokens") is not None:
        values["num_steps"] = values["num_draft_tokens"] = str(spec["num_speculative_tokens"])
        values |= {"algorithm": str(spec["method"])} if spec.get("method") else {}
    return values


def _compared(found: Inspection, printout: LaunchLine) -> dict[str, tuple[str, Any]]:
    """Argument -> what the server says and what the rules give; a server that prints arguments but no algorithm does not speculate."""
    said, ours, typed = live_values(printout.arguments), found.arguments.effective if found.arguments else {}, found.arguments.raw if found.arguments else {}
    if said and "algorithm" not in said and not any("cut off" in note for note in printout.notes):
        said["algorithm"] = "none"
    return {name: (said[name], ours[name]) for name in said
            if ours.get(name) is not None and (name not in IF_TYPED or {name, _SPELLED.get(name, name)} & set(typed))}


def _apart(pairs: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    return {name: pair for name, pair in pairs.items() if str(pair[0]).lower() != str(pair[1]).lower()}


def _server(found: Inspection) -> list[Finding]:
    if found.live_problem:
        return [SERVER.suspects(None, f"the live server says nothing: {found.live_problem}", next_step="Start the server and run again; the rest of this page does not need it.")]
    live, serving = found.live, found.case.serving
    if live is None:
        return []
    identity = {"engine": (live.engine, serving.engine), "version": (live.version, serving.version)}
    usable = live.arguments is not None and found.arguments is not None and not found.arguments.error
    pairs = {k: v for k, v in identity.items() if None not in v} | (_compared(found, live.arguments) if usable else {})
    apart = _apart(pairs)
    who = f"{engine_label(live.engine, live.version)} at {live.url}"
    common = {"observed": {n: p[0] for n, p in pairs.items()}, "expected": {n: p[1] for n, p in pairs.items()}, "n": len(pairs), "unit": "fields",
              "evidence": (Evidence(note="the server's own words, read live", path=f"{live.url}{live.endpoint}"), *(Evidence(note=n) for n in live.notes))}
    if not apart:
        return [SERVER.passes(f"{who} agrees with the case and the rules in {len(pairs)} fields ({', '.join(pairs) or 'none to compare'})", **common)]
    words = "; ".join(f"{name}: the live server says {a}, {'the case says' if name in identity else 'the launch line comes to'} {b}" for name, (a, b) in apart.items())
    typed = _typed_otherwise(found, live)
    why = f"it was started with other arguments ({typed})" if typed else "the launch line is of another start, or a rule of ours is wrong"
    return [SERVER.suspects(
        next((slug for slug, names in SUSPECTED.items() if names & set(apart)), None), f"{who} is not what the case describes: {words}. The server is right about itself: {why}",
        **common, required=True, rival=("measure.confounded", f"{len(apart)} of {len(pairs)} fields differ", "not rejected: figures measured on this server are not of the case's launch line"),
        refuted_by="the same fields after a restart with the launch line of the case", remedy="Leave serving.launch out, or write what the server was started with.",
        next_step="Correct engine, version or launch of the case, or restart the server; then run again.")]


def _typed_otherwise(found: Inspection, live: LiveServer) -> str:
    """Speculative flags that the server's own launch command spells otherwise than the case; empty where it does not tell."""
    if live.asked is None or found.launch is None or not found.case.serving.launch:
        return ""
    ours, theirs = found.launch.arguments, live.asked.arguments
    names = [name for name in sorted({*ours, *theirs}) if name.startswith("speculative") and ours.get(name) != theirs.get(name)]
    return ", ".join(f"--{name.replace('_', '-')} {theirs.get(name, 'absent')} instead of {ours.get(name, 'none')}" for name in names)


def _arguments(found: Inspection, log: ServerLog) -> Finding:
    said = tuple(Evidence(note=f"{line.text} (byte {line.byte})", path=str(log.path.name)) for line in log.lines if line.kind in ("arguments", "fusion", "all-reduce"))
    if log.arguments is None:
        return ARGUMENTS.suspects(None, f"{log.path.name} does not print the server's arguments ({log.bytes} bytes, {sum(log.counts.values())} lines of interest)", evidence=said,
                                  next_step="Keep the log from the server's start, or save the reply of /server_info.")
    if found.arguments is None or found.arguments.error:
        return ARGUMENTS.skips("launch line that this engine accepts", "whether this log is of the server of this case")
    pairs = _compared(found, log.arguments)
    apart = _apart(pairs)
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
