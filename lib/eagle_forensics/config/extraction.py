"""Was the dump extracted by the generation of the trainer that its ids are read by? speculators changed what an id means with its extractor (0.5.0, #353)."""

from __future__ import annotations

from eagle_forensics.boundary import format_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules
from eagle_forensics.engines.trainers import TrainedAnswer, trained_boundaries
from eagle_forensics.engines.versions import since, version_key
from eagle_forensics.evidence.records import DumpInfo
from eagle_forensics.finding import Evidence, Finding

EXTRACTED = Question("config.extractor", "Do the dump's extractor and the trainer mean the same states by an id?")
OLD, NEW = ("speculators_v1",), ("vllm_extract",)
"""Formats of the extractor before 0.5.0 (after the layer) and of the one since (vLLM's boundaries)."""
CHANGED = "0.5.0"
_RULE = ("speculators 0.3.0, 0.4.0 custom_worker.py _patched_forward: an id is captured after its layer; data_config.json is written by that extractor alone",
         "speculators 0.5.0 (2a1443c8, #353): vLLM extract_hidden_states, an id is a boundary")


def extraction_findings(found: Inspection) -> list[Finding]:
    """Nothing but for a dump of speculators with its trainer's version."""
    trainer, target = found.case.training.trainer, found.target
    if trainer is None or trainer.name != "speculators" or not trainer.version or target is None or found.trained is None or found.trained.error:
        return []
    modern = since(CHANGED, trainer.version)
    foreign = [dump for dump in found.dumps if dump.format in (OLD if modern else NEW)]
    if not foreign:
        return [EXTRACTED.passes(f"the dump has the format of speculators {trainer.version}", evidence=rules(*_RULE))] if found.dumps else []
    return [_drift(found, foreign[0], found.trained, target.layers, trainer.version, modern)]


def _drift(found: Inspection, dump: DumpInfo, trained: TrainedAnswer, layers: int, version: str, modern: bool) -> Finding:
    """`modern`: the trainer reads boundaries and the dump is of the old extractor; else the other way round."""
    named = tuple(sorted(trained.boundaries))
    ids = dump.layer_ids
    wrote = f"{dump.path.name} is a dump of format {dump.format}, which speculators {'before' if modern else 'from'} {CHANGED} writes"
    if modern and ids:
        meant = trained_boundaries("speculators", "0.4.0", ids=ids, layers=layers, aux_planes=found.draft.n_aux if found.draft else None)
        holds = tuple(sorted(meant.boundaries))
        common = {"observed": list(holds), "expected": list(named), "unit": "boundaries", "n": len(dump.files),
                  "evidence": (*rules(*_RULE), Evidence(note=f"layer_ids {list(ids)}", path="data_config.json"))}
        told = f"{wrote}; its own record {list(ids)} means {format_boundaries(holds)}, speculators {version} means {format_boundaries(named)} by the ids of this case"
        stamp = found.draft.config.get("speculators_version") if found.draft else None
        if holds and holds != named and not _modern(stamp):
            says = f"the checkpoint is stamped speculators_version {stamp}" if stamp else "the checkpoint itself names no version"
            return EXTRACTED.suspects(
                "data.extractor-drift", f"{told}; a mistyped trainer version would look the same: {says}", required=True, **common,
                rival=("wiring.layer-offset", f"{len(set(holds) - set(named))} of {len(holds)} states differ", "not rejected here: the version is the case file's own, and the dump's tensors decide"),
                next_step="Correct training.trainer.version if it is mistyped; else let notebook 03 ask the tensors which boundaries they are.")
        if holds and holds != named:
            return EXTRACTED.fails(
                "data.extractor-drift", f"{told}; the checkpoint itself is stamped speculators_version {stamp}",
                **common, rival=("load.architecture", f"{len(set(holds) - set(named))} of {len(holds)} states differ", "the drafter loads; what differs is which states the extractor wrote"),
                refuted_by="notebook 03 finds the trainer's boundaries in the dump's tensors", remedy="Read the ids by the extractor that wrote the dump, and record its version beside it; serve "
                f"{format_boundaries(holds)}, or extract again with speculators {version}.", predicted_effect="Notebook 02 predicts the accept length of both wirings on the same tokens.",
                next_step="Notebook 03 asks the tensors which boundaries they are.")
        if holds:
            return EXTRACTED.passes(f"{wrote}; its own record {list(ids)} and the ids of this case mean the same {format_boundaries(holds)}", **common)
    return EXTRACTED.suspects(
        "data.extractor-drift", f"{wrote}, but the case names speculators {version}: by which of both its ids must be read is not recorded", required=True, evidence=rules(*_RULE),
        observed=list(named), unit="boundaries", rival=("wiring.layer-offset", "one layer for every plane", "not rejected here: the dump's tensors decide"),
        next_step="Correct training.trainer.version, or let notebook 03 ask the tensors which boundaries they are.")


def _modern(stamp: object) -> bool:
    """Whether the checkpoint's own `speculators_version` is of the generation that reads boundaries; a text that is no release says nothing."""
    try:
        return stamp is not None and version_key(str(stamp)) >= version_key(CHANGED)
    except ValueError:
        return False
