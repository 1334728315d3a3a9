"""The tables of notebook 01."""

from __future__ import annotations

from typing import Any

import pandas as pd

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.live import live_values
from eagle_forensics.engines.trainers import trained_boundaries

_ARGUMENTS = ("algorithm", "num_steps", "topk", "num_draft_tokens", "max_running_requests", "page_size", "draft_quantization", "dtype")


def evidence_frame(found: Inspection) -> pd.DataFrame:
    """What the case holds for this notebook, and what could not be read."""
    case, rows = found.case, []

    def add(what: str, present: object, says: str, problem: str = "") -> None:
        text = next((found.problems[k] for k in found.problems if k.split("[")[0] == problem), None) if problem else None
        rows.append({"evidence": what, "state": "unreadable" if text else "read" if present else "absent", "says": text or says})

    d, t = found.draft, found.target
    add("drafter", d, "" if d is None else f"{d.family} ({d.source_format}), hidden {d.hidden}, {d.n_aux} aux planes, {len(d.tensors)} tensors, "
        f"draft vocabulary {d.draft_vocab}", "drafter.path")
    add("target", t, "" if t is None else f"{t.model_type}, {t.layers} layers, hidden {t.hidden}, vocabulary {t.vocab}, {len(t.tensors)} tensors", "target.path")
    add("training dump", found.dumps, "; ".join(f"{i.format}, {len(i.files)} samples, labels {', '.join(i.labels) if i.labels else 'none'}" for i in found.dumps),
        "training.dump")
    trainer = case.training.trainer
    add("trainer", trainer, "" if trainer is None else f"{trainer.name} {trainer.version or ''}, layer ids {list(case.training.layer_ids) if case.training.layer_ids else 'not given'}, "
        f"metrics {', '.join(f'{k} {v:g}' for k, v in case.training.metrics.items()) or 'none'}", "training.layer_ids")
    add("engine", case.serving.engine, found.engine, "serving")
    add("launch line", found.launch, "" if found.launch is None else " ".join(found.launch.argv), "serving.launch")
    if case.serving.url:
        live = found.live
        rows.append({"evidence": "live server", "state": "read" if live else "no answer", "says": f"{live.engine} {live.version or ''} at {live.url}" if live else found.live_problem})
    if case.serving.log:
        add("server log", found.log, "" if found.log is None else f"{found.log.bytes} bytes, {sum(found.log.counts.values())} lines of interest", "serving.log")
    add("environment", found.env, ", ".join(f"{k}={v}" for k, v in sorted(found.env.items())), "serving.env")
    return pd.DataFrame(rows)


def notes_frame(found: Inspection) -> pd.DataFrame:
    """What was odd while reading, and which rules are assumptions."""
    sources = (("drafter", found.draft), ("target", found.target), ("launch line", found.launch), ("live server", found.live), ("layer rules", found.served), ("trainer", found.trained))
    rows = [{"about": about, "note": note} for about, source in sources if source is not None for note in source.notes if not note.startswith("upgrade hazard")]
    return pd.DataFrame(rows, columns=["about", "note"])


def argument_frame(found: Inspection) -> pd.DataFrame:
    """Raw against effective arguments; `changed` marks what the engine overrode."""
    answer = found.arguments
    if answer is None:
        return pd.DataFrame(columns=["argument", "asked", "effective", "changed"])
    rows, live = [], live_values(found.live.arguments.arguments) if found.live and found.live.arguments else {}
    for key, value in answer.effective.items():
        asked = next((answer.raw[k] for k in (key, f"speculative_{key}", f"speculative_eagle_{key}") if k in answer.raw), None)
        if asked is None and value is None and key not in _ARGUMENTS:
            continue
        told = {"live server": live.get(key, "–")} if live else {}
        rows.append({"argument": key, "asked": "–" if asked is None else str(asked), "effective": "–" if value is None else str(value), **told,
                     "changed": "overridden" if key in answer.changed else ""})
    return pd.DataFrame(rows)


def message_frame(found: Inspection) -> pd.DataFrame:
    """The log lines and errors this launch line will print."""
    rows = [] if found.arguments is None else [{"level": m.level, "line": m.text} for m in found.arguments.messages]
    if found.arguments is not None and found.arguments.error:
        rows.append({"level": "refused", "line": found.arguments.error})
    return pd.DataFrame(rows, columns=["level", "line"])


def spelling_frame(found: Inspection) -> pd.DataFrame:
    """How the boundaries that are served now are written for other releases: the hazard of an upgrade or a move."""
    served = found.served
    rows = [] if served is None else [{"engine and version": where, "ids to write": str(ids)} for where, ids in served.write_as.items()]
    return pd.DataFrame(rows, columns=["engine and version", "ids to write"])


def tensor_frame(found: Inspection) -> pd.DataFrame:
    """The drafter's tensors by canonical name."""
    rows = [] if found.draft is None else [{"tensor": name, "shape": " x ".join(map(str, t.shape)), "dtype": t.dtype, "MiB": t.nbytes / 2**20, "name in the file": t.name}
                                           for name, t in sorted(found.draft.tensors.items())]
    return pd.DataFrame(rows, columns=["tensor", "shape", "dtype", "MiB", "name in the file"])


def inventory_frame(found: Inspection) -> pd.DataFrame:
    """Both ways: what becomes of every tensor of the file, and which parameters of the engine get nothing from it."""
    answer, columns = found.loads, ["in the file", "in the engine", "outcome"]
    if answer is None:
        return pd.DataFrame(columns=columns)
    rows = [(name, parameter, "loaded") for name, parameter in answer.loaded.items()]
    rows += [(name, by, "replaced") for name, by in answer.replaced.items()]
    rows += [(name, f"– ({why})", "dropped") for name, why in answer.dropped.items()]
    rows += [("nothing", parameter, "stays random") for parameter in answer.missing] if found.draft and found.draft.tensors else []
    return pd.DataFrame(rows, columns=columns)


def log_frame(found: Inspection) -> pd.DataFrame:
    """The server's own statements, in the order of its log."""
    rows = [] if found.log is None else [{"byte": line.byte, "about": line.kind, "line": line.text} for line in found.log.lines]
    return pd.DataFrame(rows, columns=["byte", "about", "line"])


def layers_record(found: Inspection) -> dict[str, Any]:
    """What notebook 03 and the diagnosis need of this notebook."""
    known = found.trained if found.trained and not found.trained.assumed else None  # an assumed rule accuses nobody further on
    return {"served": found.served.to_json() if found.served else None, "engine": found.engine,
            "trained_by_ids": list(known.boundaries) if known else None, "last_expected": _last_expected(found),
            "n_aux": found.draft.n_aux if found.draft else None, "problems": dict(found.problems)}


def _last_expected(found: Inspection) -> str | None:
    """`pre` or `post`: what this trainer version expects of the last plane, whatever its ids; None for a rule that is assumed."""
    trainer = found.case.training.trainer
    if trainer is None or found.target is None:
        return None
    try:
        answer = trained_boundaries(trainer.name, trainer.version, layers=found.target.layers)
    except ValueError:
        return None
    return None if answer.assumed else answer.last_expected


def arguments_record(found: Inspection) -> dict[str, Any]:
    """Effective launch arguments, for notebook 04; empty where they are not known."""
    return dict(found.arguments.effective) if found.arguments else {}
