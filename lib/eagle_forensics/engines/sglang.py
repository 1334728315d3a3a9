"""SGLang: which boundaries a release captures for EAGLE-3, per execution path. The rules are rows of `sglang.toml`.

A drafter's ids go through three steps: they are read from one place of its config (or not at all), the target's model file
turns each into a boundary value, and the layer loop captures those values that it can reach, in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics.boundary import default_boundaries
from eagle_forensics.engines.answers import Capture, WriteAnswer
from eagle_forensics.engines.ids import not_integers
from eagle_forensics.engines.tables import current, family_of, table
from eagle_forensics.engines.versions import nearest, row_at, since
from eagle_forensics.evidence.records import ClaimedIds

ENGINE = "sglang"
DEFAULT_FC_PLANES = 3


def releases() -> tuple[str, ...]:
    """The SGLang releases whose source was read, ascending."""
    return tuple(table(ENGINE)["read"])


@dataclass(frozen=True)
class Target:
    """A target class in one release: its row, or the general rule when the class is unknown."""

    release: str
    row: Mapping[str, Any]
    known: bool

    @property
    def rule(self) -> str:
        return current(self.row["rules"], self.release)["rule"]

    @property
    def mechanism(self) -> str:
        return current(self.row["mechanisms"], self.release)["kind"]

    def since(self, field: str) -> bool:
        return since(self.row.get(field), self.release)


def target_class(release: str, model_type: str, architecture: str | None) -> Target:
    """The row of a target class; an unknown class gets the general rule (b = i + 1), marked as unknown."""
    row = family_of(table(ENGINE)["family"], model_type, architecture)
    if row is not None:
        return Target(release, row, True)
    general = {
        "name": model_type, "cls": architecture or model_type, "setter": "0.4.9",
        "rules": [{"from": "0.4.9", "rule": "plus_one"}], "mechanisms": [{"from": "0.4.9", "kind": "guarded"}],
        "source": "sglang: every class but deepseek_v2, glm4_moe_lite and gpt_oss uses b = i + 1",
    }
    return Target(release, general, False)


def capture(version: str, *, model_type: str, layers: int, claimed: ClaimedIds, architecture: str | None = None,
            cuda_graph: bool = True) -> Capture:
    """What SGLang `version` captures from a target of `layers` layers for a drafter with these `claimed` ids."""
    at = nearest(ENGINE, version, releases())
    target = target_class(at.release, model_type, architecture)
    rules = table(ENGINE)
    sources = [target.row["source"]]
    notes = [at.note] if at.note else []
    if not target.known:
        notes.append(
            f"model type {model_type!r} is not in the table; the rule of every class but DeepSeek, GLM-4-MoE-Lite and gpt-oss "
            "is assumed: b = i + 1, embedding captured when asked for")
    notes += target.row.get("notes", ())
    hazard = row_at(target.row.get("hazards", ()), at.release)
    if hazard:
        notes.append(hazard["text"])

    def answer(**fields: Any) -> Capture:
        return Capture(release=at.release, notes=tuple(notes), sources=tuple(dict.fromkeys(sources)),
                       assumed=at.assumed or not target.known, **fields)

    if claimed.use_aux_hidden_state is False and since(rules["aux_switch_since"], at.release):
        notes.append("eagle_config.use_aux_hidden_state is false: no boundary is captured, the drafter is fed the last hidden state")
        none = {"eager": (), "graph": () if cuda_graph else None}
        return answer(read_from="nested", values=none, reached=none, boundaries=none)

    config = current(rules["config"], at.release)
    sources.append(config["source"])
    ids, read_from = _read_ids(config["reads"], claimed, at.release, notes)
    graph_row = current(rules["graph"], at.release)
    if cuda_graph:
        sources.append(graph_row["source"])
    graph_ids = ids if graph_row["ids"] == "configured" else None
    per_path = {"eager": ids, "graph": graph_ids}

    if not since(target.row["setter"], at.release):
        error = current(rules["missing_setter"], at.release)["error"].format(cls=target.row["cls"])
        notes.append(f"the class learns to capture in {target.row['setter']}; `values` is what a patched engine would capture")
        values = {path: _values(target, wanted, layers)[0] for path, wanted in per_path.items()}
        return answer(read_from=read_from, values=_graphless(values, cuda_graph), reached=dict.fromkeys(per_path),
                      boundaries=dict.fromkeys(per_path), error=error)

    problem = not_integers(ids)
    if problem:
        return answer(read_from=read_from, values=dict.fromkeys(per_path), reached=dict.fromkeys(per_path),
                      boundaries=dict.fromkeys(per_path), error=problem)

    planes = len(ids) if ids and since(rules["width_from_ids_since"], at.release) else DEFAULT_FC_PLANES
    values: dict[str, tuple[int, ...] | None] = {}
    reached: dict[str, tuple[int, ...] | None] = {}
    boundaries: dict[str, tuple[int, ...] | None] = {}
    errors: dict[str, str] = {}
    for path, wanted in per_path.items():
        values[path], why = _values(target, wanted, layers)
        if path == "eager":
            notes.append(why)
        reached[path], error = _reach(target, values[path], layers, planes)
        boundaries[path] = None if error else reached[path]
        if error:
            errors[path] = error
    if ids is not None:
        notes += _oddities(ids)
    if not cuda_graph:
        notes.append("CUDA graphs are off: every step runs the eager path")
    elif values["graph"] != values["eager"]:
        notes.append(
            f"CUDA-graph decode ignores the ids up to 0.5.10.post1 and captures the default {list(values['graph'] or ())}: "
            "prefill and decode feed different layers (PR #22836 fixes it in 0.5.11); --disable-cuda-graph makes both eager")
    if not cuda_graph:
        errors.pop("graph", None)
    return answer(read_from=read_from, values=_graphless(values, cuda_graph), reached=_graphless(reached, cuda_graph),
                  boundaries=_graphless(boundaries, cuda_graph), error=_join(errors))


def write(version: str, *, model_type: str, layers: int, boundaries: Sequence[int], architecture: str | None = None) -> WriteAnswer:
    """The list that makes SGLang `version` capture `boundaries` in its eager path, or why none does."""
    release = nearest(ENGINE, version, releases()).release
    target = target_class(release, model_type, architecture)
    key = table(ENGINE)["key"]
    wanted = tuple(sorted(boundaries))
    is_default = wanted == tuple(sorted(_default(target, layers)))
    if target.rule == "default_only" or current(table(ENGINE)["config"], release)["reads"] == "never":
        if is_default:
            return WriteAnswer(None, key, (f"{release} reads no ids; its default captures these boundaries",))
        return WriteAnswer(None, key, error=f"SGLang {release} never reads layer ids: it captures {list(_default(target, layers))}")
    if not since(target.row["setter"], release):
        return WriteAnswer(None, key, error=f"{target.row['cls']} cannot capture layers before SGLang {target.row['setter']}")
    ids = _spell(target, wanted, layers)
    if ids is None:
        return WriteAnswer(None, key, error=(
            f"{target.row['cls']} in SGLang {release} reads a list that starts with 1 as one layer later; {list(wanted)} cannot be spelled"))
    values, _ = _values(target, ids, layers)
    planes = len(ids) if since(table(ENGINE)["width_from_ids_since"], release) else DEFAULT_FC_PLANES
    reached, error = _reach(target, values, layers, planes)
    if error or reached != wanted:
        return WriteAnswer(None, key, error=error or f"SGLang {release} captures {list(reached or ())} instead of {list(wanted)}")
    notes = []
    if target.rule == "plus_one_if_first_is_1" and wanted[0] == 1:
        notes.append("the list must not start with 1, or all of it is raised by one; capture order is ascending whatever the list order")
    if current(table(ENGINE)["graph"], release)["ids"] == "default" and not is_default:
        notes.append(f"only with --disable-cuda-graph: CUDA-graph decode in {release} captures the default {list(_default(target, layers))}")
    return WriteAnswer(ids, key, tuple(notes))


def _read_ids(reads: str, claimed: ClaimedIds, release: str, notes: list[str]) -> tuple[tuple[Any, ...] | None, str]:
    if reads == "never":
        if claimed.nested is not None or claimed.top_level is not None:
            notes.append(f"SGLang {release} never reads layer ids: they are ignored and the default is captured")
        return None, "default"
    if claimed.nested is not None:
        return claimed.nested, "nested"
    if claimed.top_level is not None:
        notes.append(
            "top-level eagle_aux_hidden_state_layer_ids are ignored for capture (only eagle_config is read); the default is captured, silently")
    elif claimed.nested_layer_ids is not None:
        notes.append("eagle_config.layer_ids is not read; the default is captured, silently")
    elif claimed.eagle_config == "malformed":
        notes.append("eagle_config is not an object: the exception is swallowed and the default is captured")
    elif claimed.eagle_config in ("null", "object"):
        notes.append("eagle_config holds no layer ids: the default is captured, without a log line")
    return None, "default"


def _default(target: Target, layers: int) -> tuple[int, ...]:
    return tuple(value + target.row.get("default_offset", 0) for value in default_boundaries(layers))


def _values(target: Target, ids: Sequence[int] | None, layers: int) -> tuple[tuple[int, ...], str]:
    """The target file's rule: raw ids to boundary values, with a sentence on the rule that fired."""
    if ids is None or target.rule == "default_only":
        return _default(target, layers), "no ids are used: the default 2, L//2, L-3" + (" raised by one" if target.row.get("default_offset") else "") + " is captured, without +1"
    name, release = target.row["cls"], target.release
    if not_integers(ids):
        return (), f"{name}: the ids are not integers"
    if target.rule == "plus_one_if_first_is_1":
        if ids and ids[0] == 1:
            return tuple(int(i) + 1 for i in ids), f"{name} in {release}: the first id is 1, so every id is raised by one (b = i + 1)"
        return tuple(int(i) for i in ids), f"{name} in {release}: the first id is not 1, so the ids are taken verbatim (b = i)"
    if target.rule == "verbatim_if_max_is_L":
        if ids and max(ids) == layers:
            return tuple(int(i) for i in ids), f"{name} in {release}: the largest id is L = {layers}, so the ids are taken verbatim (b = i)"
        return tuple(int(i) + 1 for i in ids), f"{name} in {release}: the largest id is not L = {layers}, so every id is raised by one (b = i + 1)"
    return tuple(int(i) + 1 for i in ids), f"{name} in {release}: every id is raised by one (b = i + 1)"


def _reach(target: Target, values: Sequence[int], layers: int, planes: int) -> tuple[tuple[int, ...], str | None]:
    """The boundaries the layer loop captures for these values, and the crash it meets, if any."""
    if target.mechanism == "nothing":
        return (), (f"ValueError: too many values to unpack (expected 2) (no boundary is captured: the layer loop of {target.row['cls']} in "
                    f"{target.release} reads a flag that its setter does not set)")
    final = target.since("final_since")
    reached = set()
    for value in values:
        if target.since("flags_since"):
            if value >= layers or value < -layers:
                return (), (f"IndexError: list index out of range (boundary {value} is set as a flag on self.layers[{value}]; "
                            f"there are {layers} layers)")
            reached.add(value % layers)
        elif 0 <= value < layers or (value == layers and final):
            reached.add(value)
    ordered = tuple(sorted(reached))
    if 0 in reached and target.mechanism == "sum":
        return ordered, ("TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType' (boundary 0 asks for hidden_states + "
                         f"residual before layer 0, where residual is None; {target.row['cls']} in {target.release} has no guard)")
    if len(ordered) != planes:
        missing = [value for value in values if not (0 <= value < layers or (value == layers and final))]
        why = f"; never captured: {missing}" if missing else "; duplicates collapse" if len(set(values)) < len(values) else ""
        if target.since("packer_since") and len(ordered) < len(values):
            return ordered, f"RuntimeError: captured {len(ordered)} of {len(values)} aux hidden states{why}"
        return ordered, (f"RuntimeError: fc shape mismatch, {len(ordered)} planes captured ({len(ordered)} x H) for an fc built for "
                         f"{planes} ({planes} x H){why}")
    return ordered, None


def _spell(target: Target, wanted: tuple[int, ...], layers: int) -> tuple[int, ...] | None:
    """Ids whose values are `wanted`; None if the rule cannot express them."""
    if target.rule == "plus_one_if_first_is_1":
        if wanted[0] != 1:
            return wanted
        return (*wanted[1:], wanted[0]) if len(wanted) > 1 else None
    if target.rule == "verbatim_if_max_is_L" and wanted[-1] == layers:
        return wanted
    return tuple(value - 1 for value in wanted)


def _oddities(ids: Sequence[int]) -> list[str]:
    notes = []
    if len(set(ids)) < len(ids):
        notes.append("duplicate ids collapse into one plane")
    if list(ids) != sorted(ids):
        notes.append("the order of the list is ignored: planes are captured in ascending layer order")
    if any(isinstance(item, float) for item in ids):
        notes.append("ids written as floats compare equal to integers and work; write integers")
    return notes


def _graphless(paths: dict[str, Any], cuda_graph: bool) -> dict[str, Any]:
    return paths if cuda_graph else {**paths, "graph": None}


def _join(errors: Mapping[str, str]) -> str | None:
    if not errors:
        return None
    if len(errors) == 2 and len(set(errors.values())) == 1:
        return errors["eager"]
    return "; ".join(f"{path} path: {text}" for path, text in errors.items())
