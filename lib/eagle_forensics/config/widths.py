"""Does fc take what the server hands it? The width of fc against the target, the engine's construction and the captured planes."""

from __future__ import annotations

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import NOTEBOOK, Question
from eagle_forensics.engines.planes import fc_planes
from eagle_forensics.evidence.records import Draft, TensorInfo
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

WIDTH = Question("config.fc-width", "Does fc take as many planes as the server delivers?")


def width_finding(found: Inspection, draft: Draft) -> Finding:
    """Planes of the checkpoint's fc against those the engine builds it for and those the server delivers."""
    fc = draft.tensors.get("fc.weight")
    question = WIDTH.text
    if draft.family == "eagle1":
        return WIDTH.absent("an EAGLE-1/2 head joins one embedding and one hidden state; it takes no aux planes", "Read config.algorithm.")
    target_hidden = found.target.hidden if found.target else draft.target_hidden
    if fc is None or not target_hidden:
        return Finding(id="config.fc-width", question=question, status=Status.INCONCLUSIVE, required=False, notebook=NOTEBOOK,
                       statement="fc.weight or the target's hidden size is not known", next_step="Add target.path with its config.json.")
    if len(fc.shape) == 2 and found.target is not None and draft.target_hidden and draft.target_hidden != target_hidden:
        return _target_width(found, draft, fc, target_hidden)
    columns = fc.shape[-1] if len(fc.shape) == 2 else 0
    planes, rest = divmod(columns, target_hidden)
    built = fc_planes(found.case.serving.engine, found.case.serving.version, found.draft_as_served.config, mla=draft.family == "eagle3_mla") if found.served else None
    too_many = found.target is not None and planes in (found.target.layers, found.target.layers + 1)
    if built is not None and built != planes and not rest and not too_many:
        return _built_for_others(found, fc, planes, built)
    eager = found.served.boundaries.get("eager") if found.served else None
    delivered = len(eager) if eager is not None else None
    if rest or (delivered is not None and delivered != planes):
        return Finding(
            id="config.fc-width", fault="wiring.all-layers" if too_many else "wiring.plane-count", question=question, status=Status.FAIL,
            notebook=NOTEBOOK, observed=columns, expected=None if delivered is None else delivered * target_hidden, unit="columns of fc",
            statement=f"fc takes {columns} columns = {columns / target_hidden:.4g} planes of {target_hidden}, the server delivers {delivered}",
            competitor=Competitor(fault="feature.tp-slice", margin=f"{columns} / {target_hidden} = {columns / target_hidden:.4g}",
                                  why_rejected="a slice would change the captured width on one rank, not the checkpoint"),
            refuted_by="the server runs a request with this checkpoint", remedy="Name exactly as many distinct, reachable ids as fc has planes.",
            evidence=(Evidence(note=f"fc.weight {list(fc.shape)} {fc.dtype}", path=fc.file.name),))
    return Finding(id="config.fc-width", question=question, status=Status.PASS, notebook=NOTEBOOK, observed=planes, expected=delivered or planes,
                   unit="aux planes", statement=f"fc takes {planes} planes of {target_hidden}"
                   + ("" if delivered is None else f", the server delivers {delivered}"),
                   evidence=(Evidence(note=f"fc.weight {list(fc.shape)} {fc.dtype}", path=fc.file.name),))


def _built_for_others(found: Inspection, fc: TensorInfo, planes: int, built: int) -> Finding:
    said = found.draft_as_served.config.get("num_aux_hidden_states")
    by = f"num_aux_hidden_states {said}" if said is not None else "the ids in eagle_config, or 3 without"
    return WIDTH.fails(
        "wiring.plane-count", f"fc of the checkpoint takes {planes} planes ({list(fc.shape)}), {found.engine} builds it for {built} (by {by})", observed=planes, expected=built,
        unit="aux planes", rival=("wiring.layer-offset", f"{planes} planes against {built}", "a shifted list still delivers as many planes as fc expects"),
        refuted_by="the server loads this checkpoint", evidence=(Evidence(note=f"fc.weight {list(fc.shape)} {fc.dtype}", path=fc.file.name),),
        remedy=f"Write `num_aux_hidden_states: {planes}` in the drafter's config.json.", edits=found.edit("num_aux_hidden_states", planes) if planes else (),
        next_step="Correct the config and inspect again.")


def _target_width(found: Inspection, draft: Draft, fc: TensorInfo, hidden: int) -> Finding:
    """The config sizes fc by another hidden size than the target has: target_hidden_size, else the draft's own hidden_size (sglang, vllm llama_eagle3.py)."""
    said = draft.config.get("target_hidden_size")
    key = f"target_hidden_size {said}" if said is not None else f"no target_hidden_size, so fc is built for the draft's own hidden size {draft.target_hidden}"
    fits = fc.shape[1] % hidden == 0
    return WIDTH.fails(
        "load.tensor-inventory", f"the target's hidden size is {hidden}, the draft's config has {key}; fc takes {fc.shape[1]} columns"
        + (f" = {fc.shape[1] // hidden} planes of {hidden}" if fits else ""), observed=draft.target_hidden, expected=hidden, unit="hidden size of the target",
        rival=("wiring.plane-count", f"{fc.shape[1]} / {hidden} = {fc.shape[1] / hidden:.4g} planes", "the config's width is wrong whatever the ids are"),
        refuted_by="the server loads fc and runs a request", evidence=(Evidence(note=f"fc.weight {list(fc.shape)} {fc.dtype}", path=fc.file.name),),
        remedy=f"Write `target_hidden_size: {hidden}` in the drafter's config.json." if fits else "Serve this drafter on the target it was trained for.",
        edits=found.edit("target_hidden_size", hidden) if fits else (), next_step="Correct it and inspect again.")
