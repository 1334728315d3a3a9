"""Layer ids of any engine and version to boundaries, per execution path, and back.

`resolve_layers` answers "what does this list capture", `write_ids` "what must be written to capture these". Both are data-driven:
the rules are the rows of `sglang.toml`, `vllm.toml` and `trtllm.py`. A version that was not read is answered by the nearest one that was and
marked `assumed`. Bad ids become an `error` in the answer; a wrong engine, version, place or runner is a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_forensics.engines import sglang, trtllm, vllm
from eagle_forensics.engines.answers import Capture, LayerAnswer, WriteAnswer
from eagle_forensics.engines.versions import engine_name, nearest
from eagle_forensics.evidence.records import ClaimedIds

PLACES = ("nested", "top_level", "nested_layer_ids")
_OWN_PLACE = {"sglang": "nested", "vllm": "top_level", "trtllm": "nested"}


def resolve_layers(engine: str, version: str, *, model_type: str, layers: int, ids: Sequence[Any] | None = None, place: str = "auto",
                   claimed: ClaimedIds | None = None, architecture: str | None = None, runner: str | None = None,
                   cuda_graph: bool = True) -> LayerAnswer:
    """Which boundaries `engine` `version` captures for a drafter's layer ids, per execution path, and how to write them elsewhere.

    `ids` stand at `place` of the draft config (`nested`, `top_level`, `nested_layer_ids`; `auto`: the place this engine reads);
    `claimed` gives all places at once instead. `layers` is L of the target; `runner` forces vLLM's `v1` or `v2`.
    ValueError for an unknown engine, version, place or runner, or L < 1.
    """
    name = engine_name(engine)
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(f"layers must be the target's number of decoder layers, at least 1; got {layers!r}")
    claimed = claimed if claimed is not None else _claim(name, ids, place)
    found, used_runner = _capture(name, version, model_type, layers, claimed, architecture, runner, cuda_graph)
    notes = list(found.notes)
    eager = found.boundaries["eager"]
    write_as: dict[str, list[int]] = {}
    if eager and not found.post_norm:
        write_as, missing = _write_everywhere(name, version, model_type, layers, eager, architecture)
        notes += missing
        notes += _upgrade_hazards(name, version, model_type, layers, claimed, architecture, runner, eager)
    given = ids if ids is not None else next((i for i in (getattr(claimed, p) for p in (_OWN_PLACE[name], *PLACES)) if i is not None), None)
    return LayerAnswer(
        engine=name, version=version, model_type=model_type, layers=layers, ids=None if given is None else tuple(given),
        boundaries=found.boundaries, error=found.error, write_as=write_as, notes=tuple(dict.fromkeys(notes)), sources=found.sources,
        assumed=found.assumed, read_from=found.read_from, values=found.values, reached=found.reached, post_norm=found.post_norm,
        runner=used_runner)


def write_ids(engine: str, version: str, *, model_type: str, layers: int, boundaries: Sequence[int], architecture: str | None = None,
              runner: str | None = None) -> WriteAnswer:
    """What to write in the draft's config so that `engine` `version` captures `boundaries` in its eager path.

    ValueError for an unknown engine or version; an `error` in the answer when the boundaries cannot be captured or are not distinct
    integers in 0..L.
    """
    name = engine_name(engine)
    nearest(name, version, _releases(name))
    wanted = list(boundaries)
    if not wanted or len(set(wanted)) < len(wanted) or not all(type(b) is int and 0 <= b <= layers for b in wanted):
        return WriteAnswer(None, _KEYS[name], error=f"boundaries must be distinct integers in 0..{layers}; got {wanted}")
    return _write(name, version, model_type, layers, wanted, architecture, runner)


_KEYS = {"sglang": "eagle_config.eagle_aux_hidden_state_layer_ids", "vllm": "eagle_aux_hidden_state_layer_ids", "trtllm": trtllm.KEY}


def _releases(engine: str) -> tuple[str, ...]:
    return {"sglang": sglang, "vllm": vllm, "trtllm": trtllm}[engine].releases()


def _claim(engine: str, ids: Sequence[Any] | None, place: str) -> ClaimedIds:
    where = _OWN_PLACE[engine] if place == "auto" else place.replace("-", "_")
    if where not in PLACES:
        raise ValueError(f"unknown place {place!r}; expected auto, {', '.join(PLACES)}")
    if ids is None:
        return ClaimedIds()
    if isinstance(ids, str | bytes):
        raise ValueError(f"ids must be a list of integers; got the text {ids!r}")
    return ClaimedIds(**{where: tuple(ids)}, eagle_config="object" if where != "top_level" else "absent")


def _capture(engine: str, version: str, model_type: str, layers: int, claimed: ClaimedIds, architecture: str | None,
             runner: str | None, cuda_graph: bool) -> tuple[Capture, str | None]:
    if engine == "sglang":
        return sglang.capture(version, model_type=model_type, layers=layers, claimed=claimed, architecture=architecture,
                              cuda_graph=cuda_graph), None
    if engine == "vllm":
        return vllm.capture(version, model_type=model_type, layers=layers, claimed=claimed, architecture=architecture, runner=runner,
                            cuda_graph=cuda_graph)
    nearest(engine, version, _releases(engine))
    return trtllm.capture(version, layers=layers, claimed=claimed), None


def _write(engine: str, version: str, model_type: str, layers: int, boundaries: Sequence[int], architecture: str | None,
           runner: str | None = None) -> WriteAnswer:
    if engine == "sglang":
        return sglang.write(version, model_type=model_type, layers=layers, boundaries=boundaries, architecture=architecture)
    if engine == "vllm":
        return vllm.write(version, model_type=model_type, layers=layers, boundaries=boundaries, architecture=architecture, runner=runner)
    return trtllm.write(boundaries=boundaries)


def _write_everywhere(engine: str, version: str, model_type: str, layers: int, boundaries: Sequence[int],
                      architecture: str | None) -> tuple[dict[str, list[int]], list[str]]:
    """Ids for `boundaries` on this version and on the first and last release of every run that wants the same list."""
    write_as: dict[str, list[int]] = {}
    impossible: list[str] = []
    for other in ("sglang", "vllm", "trtllm"):
        marks = list(_releases(other))
        answers = {release: _write(other, release, model_type, layers, boundaries, architecture) for release in marks}
        for index, release in enumerate(marks):
            here = answers[release]
            starts = index == 0 or answers[marks[index - 1]].ids != here.ids
            ends = index == len(marks) - 1 or answers[marks[index + 1]].ids != here.ids
            if here.ids is not None and (starts or ends):
                write_as[f"{other} {release}"] = list(here.ids)
        refused = [release for release in marks if answers[release].error]
        if len(refused) == len(marks):
            impossible.append(f"no {other} release read captures {list(boundaries)}: {answers[marks[-1]].error}")
        elif refused:
            impossible.append(f"not possible on {other} {_span(refused)}: {answers[refused[-1]].error}")
    mine = _write(engine, version, model_type, layers, boundaries, architecture)
    if mine.ids is not None:
        write_as[f"{engine} {version}"] = list(mine.ids)
    return write_as, impossible


def _span(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{items[0]} to {items[-1]}"


def _upgrade_hazards(engine: str, version: str, model_type: str, layers: int, claimed: ClaimedIds, architecture: str | None,
                     runner: str | None, eager: tuple[int, ...]) -> list[str]:
    """The next newer release in which the same config captures something else."""
    marks = _releases(engine)
    here = nearest(engine, version, marks).release
    for release in marks[marks.index(here) + 1:] if here in marks else ():
        later, _ = _capture(engine, release, model_type, layers, claimed, architecture, runner, True)
        if later.boundaries["eager"] != eager:
            becomes = f"captures {list(later.boundaries['eager'])}" if later.boundaries["eager"] is not None else f"fails: {later.error}"
            return [f"upgrade hazard: from {engine} {release} on the same config {becomes} instead of {list(eager)}"]
    return []
